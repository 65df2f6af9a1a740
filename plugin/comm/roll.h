/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/comm/roll.h - who is there when an exchange does not end.
 *
 * Model. A rank whose part is missing need not be the one to blame: it may itself wait for another rank, or have given
 * up. So a rank that has waited long enough calls the roll: it gathers where each rank stands, among all ranks that
 * train together, in a lane of its own. A rank answers by calling the roll itself, which it does only when it waits in
 * vain. A rank that died, stopped or is late in its own work therefore does not answer, and is named where it is the
 * only one. Where several do not answer, some of them may just not have waited long enough: then nobody is named. */
#pragma once

#include "comm/comm.h"

/* A rank's post: the exchange in which it stands. */
typedef struct zfi_post {
    int32_t purpose;
    uint32_t bucket;
    uint64_t step;
    uint32_t lane, group; /* group: the host's number */
    uint64_t check;       /* of the rest: only a post that has come as a whole counts */
} zfi_post_t;

zfi_post_t zfi_post_of(const zfi_exchange_t *exchange, uint32_t group);

/* A rank that stands in the same lane and group as posts[self.rank], at another exchange; or ZF_NO_ID. */
uint32_t zfi_find_elsewhere(const zfi_post_t *posts, zfi_member_t self, zfi_exchange_t *out_there);

/* How long an exchange is waited for before the roll is called, and how long answers are. */
uint64_t zfi_roll_after_ns(const zfi_comm_env_t *env);
uint64_t zfi_roll_lasts_ns(const zfi_comm_env_t *env);

typedef struct zfi_roll {
    const zfi_exchange_t *exchange; /* it has not ended */
    const zfi_comm_env_t *env;
    const zfi_post_t *answers; /* of self.n_ranks; what has not come is 0, or not whole */
    zfi_member_t self;
    const char *self_name;  /* in the exchange's group */
    const char *group_name; /* "", or " of process group 1": whose ranks have answered */
    const char *advice;     /* "", or what to do where every rank has answered */
} zfi_roll_t;

/* Reports what the answers say: ZF_ERR_TIMEOUT. */
zf_status_t zfi_roll_report(const zfi_roll_t *roll, zf_error_t *err);

/* [own threads] Calls the roll by the host's collectives (comm/host.c) and reports. ZF_ERR_POISONED where the instance
 * ended meanwhile, or another lane has called it. */
zf_status_t zfi_call_the_roll(zfi_comm_t *host, const zfi_exchange_t *exchange, const char *advice, zf_error_t *err);
