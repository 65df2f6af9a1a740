/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/team.h - threads that work for one member or for several: an instance's workers, or those of all
 * instances of a process of which none waits for another one's work. So a trainer with one optimizer per parameter has
 * as many threads for updates as one with a single optimizer. */
#pragma once

#include <pthread.h>
#include <stdint.h>

#include "base/node.h"
#include "zf/plugin.h"

typedef struct zfi_team zfi_team_t;

typedef struct zfi_team_ops {
    /* [under the lock] Takes something to do of the member `of`; 0: there is nothing. */
    int (*take)(void *of, void *out_job);
    /* [a thread of the team, without the lock] thread: its number, from 0. */
    void (*run)(void *of, void *job, uint32_t thread);
    /* [under the lock] Whether it would take none, now and later. */
    int (*is_idle)(void *of);
} zfi_team_ops_t;

enum { ZFI_TEAM_JOB_NBYTES = 64 }; /* of the largest job */

typedef struct zfi_member_of_team {
    const zfi_team_ops_t *ops;
    void *of;
    uint32_t n_running; /* jobs; the team's lock guards it, as the ring that the members form */
    struct zfi_member_of_team *next, *before;
} zfi_member_of_team_t;

/* [control] A team of n threads, each on a core of its own as far as there are any (affinity.h). is_shared: the one of
 * all instances of this process that ask so, for n. ZF_ERR_MEMORY where a thread cannot be started: none is left
 * running. */
zf_status_t zfi_team_get(uint32_t n, int is_shared, zfi_team_t **out, zf_error_t *err);
/* [control] Ends the threads where no other instance has the team. NULL is legal. */
void zfi_team_put(zfi_team_t *team);

pthread_mutex_t *zfi_team_lock(zfi_team_t *team);

/* [control] From now on the member is asked for jobs. */
void zfi_team_join(zfi_team_t *team, zfi_member_of_team_t *member);
/* [control] Returns when it has no job left and none is running. */
void zfi_team_leave(zfi_team_t *team, zfi_member_of_team_t *member);

/* [under the lock] A member has something to do. */
void zfi_team_call(zfi_team_t *team);
