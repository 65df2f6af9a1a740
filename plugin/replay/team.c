/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/team.c - (contract in team.h).
 *
 * One lock guards the members' queues and the ring of members. A thread asks the members in turn, beginning behind the
 * one that it worked for last. */
#include "replay/team.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/fork_lock.h"
#include "base/thread.h"
#include "kernels.h"
#include "replay/affinity.h"

struct zfi_team {
    pthread_mutex_t lock;
    pthread_cond_t has_work, has_left;
    zfi_member_of_team_t *members; /* the one that is asked next; NULL: there are none */
    int is_ending;
    uint32_t n, n_numbered;
    uint32_t n_users;        /* guarded by shared_lock, as pid */
    int pid;                 /* the process whose instances share it; 0: one instance has it */
    struct zfi_cores *cores; /* of a shared one; NULL: it is not pinned */
    pthread_t threads[];
};

static zfi_fork_lock_t shared_lock;
static zfi_team_t *shared;

/* [under the lock] The member whose job it is; NULL: there is none. */
static zfi_member_of_team_t *take(zfi_team_t *team, void *job) {
    zfi_member_of_team_t *member = team->members;
    if (!member)
        return NULL;
    do {
        if (member->ops->take(member->of, job)) {
            team->members = member->next;
            member->n_running++;
            return member;
        }
        member = member->next;
    } while (member != team->members);
    return NULL;
}

static void *work(void *raw) {
    zfi_team_t *team = raw;
    _Alignas(16) unsigned char job[ZFI_TEAM_JOB_NBYTES];
    zfi_member_of_team_t *member;
    zfi_fp_mode_ieee();
    pthread_mutex_lock(&team->lock);
    uint32_t number = team->n_numbered++;
    for (;;) {
        while (!(member = take(team, job)) && !team->is_ending)
            pthread_cond_wait(&team->has_work, &team->lock);
        if (!member)
            break;
        pthread_mutex_unlock(&team->lock);
        member->ops->run(member->of, job, number);
        pthread_mutex_lock(&team->lock);
        if (--member->n_running == 0)
            pthread_cond_broadcast(&team->has_left);
    }
    pthread_mutex_unlock(&team->lock);
    return NULL;
}

static void end(zfi_team_t *team) {
    pthread_mutex_lock(&team->lock);
    team->is_ending = 1;
    pthread_cond_broadcast(&team->has_work);
    pthread_mutex_unlock(&team->lock);
    for (uint32_t i = 0; i < team->n; i++)
        pthread_join(team->threads[i], NULL);
    pthread_cond_destroy(&team->has_work);
    pthread_cond_destroy(&team->has_left);
    pthread_mutex_destroy(&team->lock);
    zfi_affinity_give(team->cores);
    free(team);
}

static zf_status_t start(uint32_t n, int pid, zfi_team_t **out, zf_error_t *err) {
    zfi_thread_why_t why;
    zfi_team_t *team = calloc(1, sizeof *team + n * sizeof *team->threads);
    if (!team)
        return zfi_error(err, ZF_ERR_MEMORY, "workers", "no memory for %u workers", n);
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->has_work, NULL);
    pthread_cond_init(&team->has_left, NULL);
    team->n_users = 1;
    team->pid = pid;
    for (; team->n < n; team->n++) {
        int rc = zfi_thread_start(&team->threads[team->n], "zf-worker", work, team);
        if (rc) {
            uint32_t i = team->n;
            zfi_thread_why(rc, &why);
            end(team);
            return zfi_error_scoped(err, ZF_ERR_MEMORY, ZF_SCOPE_CALL, rc, "workers",
                                    "cannot start worker %u of %u: %s; raise that, or set [host] threads lower", i + 1,
                                    n, why.text);
        }
    }
    zfi_node_t node = zfi_node_find(getenv);
    team->cores = zfi_affinity_take(&node, n);
    zfi_affinity_pin(team->cores, team->threads, n);
    *out = team;
    return ZF_OK;
}

zf_status_t zfi_team_get(uint32_t n, int is_shared, zfi_team_t **out, zf_error_t *err) {
    if (!is_shared)
        return start(n, 0, out, err);
    int pid = zfi_fork_lock_take(&shared_lock);
    zf_status_t st = ZF_OK;
    if (shared && shared->pid != pid)
        shared = NULL; /* of the parent, whose threads are not here */
    if (shared && shared->n == n) {
        shared->n_users++;
        *out = shared;
    } else {
        st = start(n, pid, out, err);
        shared = st || shared ? shared : *out;
    }
    zfi_fork_lock_give(&shared_lock);
    return st;
}

void zfi_team_put(zfi_team_t *team) {
    if (!team)
        return;
    zfi_fork_lock_take(&shared_lock);
    int is_last = --team->n_users == 0;
    if (is_last && shared == team)
        shared = NULL;
    zfi_fork_lock_give(&shared_lock);
    if (is_last)
        end(team);
}

pthread_mutex_t *zfi_team_lock(zfi_team_t *team) { return &team->lock; }

void zfi_team_join(zfi_team_t *team, zfi_member_of_team_t *member) {
    pthread_mutex_lock(&team->lock);
    zfi_member_of_team_t *next = team->members ? team->members : member;
    member->next = next;
    member->before = next == member ? member : next->before;
    member->before->next = next->before = member;
    team->members = member;
    pthread_mutex_unlock(&team->lock);
}

void zfi_team_leave(zfi_team_t *team, zfi_member_of_team_t *member) {
    pthread_mutex_lock(&team->lock);
    while (member->n_running || !member->ops->is_idle(member->of))
        pthread_cond_wait(&team->has_left, &team->lock);
    member->before->next = member->next;
    member->next->before = member->before;
    if (team->members == member)
        team->members = member->next == member ? NULL : member->next;
    pthread_mutex_unlock(&team->lock);
}

void zfi_team_call(zfi_team_t *team) { pthread_cond_broadcast(&team->has_work); }
