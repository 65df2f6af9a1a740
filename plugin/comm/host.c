/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/comm/host.c - the transport over zf.collectives/0 of the host (contract in comm.h).
 *
 * An exchange is started, then asked for until it is over: at first without a pause, since a small one between ranks
 * that are in step takes microseconds, then with longer and longer ones. Where it does not end, the roll is called. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/error.h"
#include "base/fork_lock.h"
#include "base/struct.h"
#include "base/timeline.h"
#include "comm/comm.h"
#include "comm/roll.h"

enum { ASKED_AT_ONCE = 16, FIRST_PAUSE_NS = 5000, LONGEST_PAUSE_NS = 500000 };

struct zfi_comm {
    zfi_comm_env_t env;
    zf_collectives_ext_t table;
    struct {
        uint32_t name; /* the host's number of it */
        zfi_member_t place;
        uint64_t number[ZFI_N_LANES]; /* of the next exchange; each its thread's */
    } groups[ZFI_MAX_GROUPS];
    uint32_t n_groups; /* control calls' */
    uint32_t widest;   /* index of the group that all others lie in */
    _Atomic int is_ended, holds_memory, has_called_the_roll;
    /* of the list of those that exchange with others */
    uint32_t instance; /* its number among those over the same table */
    zfi_comm_t *next;
    int pid; /* 0: not in it */
};

const char *zfi_purpose_name(int32_t purpose) {
    static const char *const purposes[] = {"",
                                           "the comparison of what was bound",
                                           "the agreement",
                                           "the reduction of gradients",
                                           "the gathering of gradients",
                                           "the norm",
                                           "the gathering of values",
                                           "the state of entering channels",
                                           "the state at rest",
                                           "the importance of channels",
                                           "the gathering of parameters (stage 3)",
                                           "the start of the transport"};
    return purposes[purpose];
}

void zfi_exchange_name(const zfi_exchange_t *exchange, char *out, uint64_t nbytes) {
    int n = snprintf(out, nbytes, "%s", zfi_purpose_name(exchange->purpose));
    if (exchange->bucket != ZF_NO_ID && n > 0 && (uint64_t)n < nbytes)
        n += snprintf(out + n, nbytes - (uint64_t)n, ", bucket %" PRIu32, exchange->bucket);
    if (exchange->step && n > 0 && (uint64_t)n < nbytes)
        snprintf(out + n, nbytes - (uint64_t)n, ", step %" PRIu64, exchange->step);
}

/* ---- instances of one table -------------------------------------------------------------------------------------- */

static struct {
    zfi_fork_lock_t lock; /* guards the rest */
    zfi_comm_t *first;
} in_use;

/* Another one over the same table with this number; a forked child has none of its parent's. */
static int is_in_use(const zf_collectives_ext_t *table, int pid, uint32_t number) {
    const zfi_comm_t *other = in_use.first;
    while (other && (other->pid != pid || other->instance != number || other->table.start != table->start ||
                     other->table.ctx != table->ctx))
        other = other->next;
    return other != NULL;
}

/* Once, before the first exchange. Where the transport does not keep instances apart, calls of two would be paired at
 * random. */
static zf_status_t take_transport(zfi_comm_t *comm, zf_error_t *err) {
    int pid = zfi_fork_lock_take(&in_use.lock), is_taken;
    while (comm->table.flags & ZF_COLLECTIVES_INSTANCES && is_in_use(&comm->table, pid, comm->instance))
        comm->instance++;
    is_taken = is_in_use(&comm->table, pid, comm->instance);
    if (!is_taken) {
        comm->pid = pid;
        comm->next = in_use.first;
        in_use.first = comm;
    }
    zfi_fork_lock_give(&in_use.lock);
    if (!is_taken)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_RANKS, "ranks",
                     "another live instance exchanges over these %s of the host (ctx %p), and the two would take each "
                     "other's gradients: destroy it first, give each instance collectives of its own, or keep them "
                     "apart (ZF_COLLECTIVES_INSTANCES)",
                     ZF_EXT_COLLECTIVES, comm->table.ctx);
}

static void give_transport(zfi_comm_t *comm) {
    if (!comm->pid)
        return;
    zfi_fork_lock_take(&in_use.lock);
    for (zfi_comm_t **at = &in_use.first; *at; at = &(*at)->next)
        if (*at == comm) {
            *at = comm->next;
            break;
        }
    zfi_fork_lock_give(&in_use.lock);
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

/* The first function without which nothing can be exchanged; NULL: it has all of them. What later versions append is
 * asked for where it is called. */
static const char *find_lack(const zf_collectives_ext_t *table) {
    if (!table->group)
        return "group";
    if (!table->start)
        return "start";
    return !table->test ? "test" : !table->abort ? "abort" : NULL;
}

zf_status_t zfi_comm_read_table(const zf_host_t *host, zf_collectives_ext_t *out, int *out_is_offered,
                                zf_error_t *err) {
    const void *given = host->get_extension ? host->get_extension(host->ctx, ZF_EXT_COLLECTIVES) : NULL;
    *out_is_offered = given != NULL;
    if (!given)
        return ZF_OK;
    zf_status_t st = ZFI_READ_TABLE(out, given, zf_collectives_ext_t, err);
    const char *lack = st ? NULL : find_lack(out);
    if (lack)
        return zfi_error(err, ZF_ERR_ABI, "create",
                         "%s of the host: %s is NULL; set group, start, test and abort, or where there are no other "
                         "ranks return NULL from get_extension",
                         ZF_EXT_COLLECTIVES, lack);
    if (!st && out->flags & ~ZF_COLLECTIVES_INSTANCES)
        st = zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "create", "%s of the host: unknown flags 0x%x",
                       ZF_EXT_COLLECTIVES, out->flags);
    return st;
}

static zf_status_t host_join(zfi_comm_t *comm, uint32_t group, uint32_t *out_index, zf_error_t *err) {
    zf_error_t why = {.struct_size = sizeof why};
    zfi_member_t place;
    for (uint32_t i = 0; i < comm->n_groups; i++)
        if (comm->groups[i].name == group)
            return *out_index = i, ZF_OK;
    if (comm->n_groups == ZFI_MAX_GROUPS)
        return zfi_error(err, ZF_ERR_RANKS, "ranks", "process group %" PRIu32 ": an instance can be in %d, no more",
                         group, ZFI_MAX_GROUPS);
    zf_status_t st = comm->table.group(comm->table.ctx, group, &place.rank, &place.n_ranks, &why);
    if (st)
        return zfi_error(err, ZF_ERR_RANKS, "ranks", "%s of the host: process group %" PRIu32 ": status %d: %.200s",
                         ZF_EXT_COLLECTIVES, group, st, why.message);
    if (place.n_ranks == 0 || place.rank >= place.n_ranks)
        return zfi_error(err, ZF_ERR_RANKS, "ranks",
                         "%s of the host: process group %" PRIu32 ": rank %" PRIu32 " of %" PRIu32, ZF_EXT_COLLECTIVES,
                         group, place.rank, place.n_ranks);
    if (place.n_ranks > 1 && !comm->pid)
        st = take_transport(comm, err);
    if (st)
        return st;
    *out_index = comm->n_groups;
    if (group && group == comm->env.norm_group)
        comm->widest = comm->n_groups;
    comm->groups[comm->n_groups].name = group;
    comm->groups[comm->n_groups++].place = place;
    return ZF_OK;
}

static zf_status_t host_open(const zfi_comm_env_t *env, zfi_comm_t **out, zf_error_t *err) {
    zfi_comm_t *comm = calloc(1, sizeof *comm);
    uint32_t index;
    int is_offered;
    if (!comm)
        return zfi_error(err, ZF_ERR_MEMORY, "create", "no memory for a transport");
    comm->env = *env;
    zf_status_t st = zfi_comm_read_table(env->host, &comm->table, &is_offered, err);
    if (!st)
        st = host_join(comm, 0, &index, err);
    if (st)
        free(comm);
    else
        *out = comm;
    return st;
}

static void host_close(zfi_comm_t *comm) {
    if (comm)
        give_transport(comm);
    free(comm);
}

static zfi_member_t host_place(const zfi_comm_t *comm, uint32_t index) {
    return comm ? comm->groups[index].place : (zfi_member_t){0, 1};
}
static int host_holds_memory(const zfi_comm_t *comm) { return comm && atomic_load(&comm->holds_memory); }

/* ---- exchange ---------------------------------------------------------------------------------------------------- */

/* "rank 1 of 4", and of which group where that is not the data-parallel one. */
static void name_self(const zfi_comm_t *comm, const zfi_exchange_t *exchange, char *out, uint64_t nbytes) {
    zfi_member_t place = comm->groups[exchange->group].place;
    int n = snprintf(out, nbytes, "rank %" PRIu32 " of %" PRIu32, place.rank, place.n_ranks);
    if (exchange->group && n > 0)
        snprintf(out + n, nbytes - (uint64_t)n, " of process group %" PRIu32, comm->groups[exchange->group].name);
}

static zf_status_t failed(const zfi_comm_t *comm, const zfi_exchange_t *exchange, zf_status_t st, const zf_error_t *why,
                          zf_error_t *err) {
    char name[96], self[64];
    zfi_exchange_name(exchange, name, sizeof name);
    name_self(comm, exchange, self, sizeof self);
    return zfi_error_scoped(err, ZF_ERR_RANKS, ZF_SCOPE_INSTANCE, st, "ranks",
                            "%s: %s: the transport failed with status %d: %.220s", self, name, st, why->message);
}

static void give_up(zfi_comm_t *comm, uint64_t request) {
    if (comm->table.abort(comm->table.ctx, request, NULL))
        atomic_store(&comm->holds_memory, 1);
}

static void pause_for(uint64_t n_asked) {
    uint64_t ns = FIRST_PAUSE_NS;
    if (n_asked < ASKED_AT_ONCE)
        return;
    for (uint64_t i = ASKED_AT_ONCE; i < n_asked && ns < LONGEST_PAUSE_NS; i += 8)
        ns *= 2;
    nanosleep(&(struct timespec){.tv_nsec = (long)(ns < LONGEST_PAUSE_NS ? ns : LONGEST_PAUSE_NS)}, NULL);
}

/* Until it is over, or cannot be any more; ZF_ERR_TIMEOUT without a record. */
static zf_status_t wait_for(zfi_comm_t *comm, const zfi_exchange_t *exchange, uint64_t request, uint64_t timeout_ns,
                            zf_error_t *err) {
    zf_error_t why = {.struct_size = sizeof why};
    zfi_run_clock_t clock = zfi_run_clock();
    uint64_t n_asked = 0;
    zf_status_t st;
    while ((st = comm->table.test(comm->table.ctx, request, &why)) == ZF_IN_PROGRESS) {
        if (atomic_load(comm->env.is_poisoned))
            return ZF_ERR_POISONED;
        if (zfi_run_ns(&clock) > timeout_ns)
            return ZF_ERR_TIMEOUT;
        pause_for(n_asked++);
    }
    return st ? failed(comm, exchange, st, &why, err) : ZF_OK;
}

/* From start to end; gives up what does not end. */
static zf_status_t exchange_within(zfi_comm_t *comm, const zfi_exchange_t *exchange, uint64_t timeout_ns,
                                   zf_error_t *err) {
    zf_collective_t call = {.struct_size = sizeof call,
                            .kind = exchange->send ? ZF_COLLECTIVE_ALL_TO_ALL : ZF_COLLECTIVE_ALL_GATHER,
                            .group = comm->groups[exchange->group].name,
                            .purpose = exchange->purpose,
                            .bucket = exchange->bucket,
                            .step = exchange->step,
                            .number = comm->groups[exchange->group].number[exchange->lane]++,
                            .lane = exchange->lane,
                            .send = exchange->send,
                            .recv = exchange->recv,
                            .nbytes = exchange->nbytes,
                            .instance = comm->instance};
    zf_error_t why = {.struct_size = sizeof why};
    uint64_t request = 0;
    zf_status_t st = comm->table.start(comm->table.ctx, &call, &request, &why);
    int is_begun = !st || request; /* a part of what failed may be under way */
    st = st ? failed(comm, exchange, st, &why, err) : wait_for(comm, exchange, request, timeout_ns, err);
    if (st)
        atomic_store(&comm->is_ended, 1);
    if (st && is_begun)
        give_up(comm, request);
    return st;
}

/* ---- the roll ---------------------------------------------------------------------------------------------------- */

/* Another lane is at it, and its error ends the instance. */
static zf_status_t await_poison(const zfi_comm_t *comm, zf_error_t *err) {
    zfi_run_clock_t clock = zfi_run_clock();
    while (!atomic_load(comm->env.is_poisoned) && zfi_run_ns(&clock) < 2 * zfi_roll_lasts_ns(&comm->env))
        pause_for(UINT64_MAX);
    if (atomic_load(comm->env.is_poisoned))
        return ZF_ERR_POISONED;
    return zfi_error(err, ZF_ERR_RANKS, "ranks", "the transport ended with an earlier error");
}

static zf_status_t report_roll(const zfi_comm_t *comm, const zfi_exchange_t *exchange, const zfi_post_t *answers,
                               const char *advice, zf_error_t *err) {
    char self[64], group[48] = "";
    zfi_roll_t roll = {exchange, &comm->env, answers, comm->groups[comm->widest].place, self, group, advice};
    name_self(comm, exchange, self, sizeof self);
    if (comm->widest != exchange->group)
        snprintf(group, sizeof group, " of process group %" PRIu32, comm->groups[comm->widest].name);
    return zfi_roll_report(&roll, err);
}

zf_status_t zfi_call_the_roll(zfi_comm_t *comm, const zfi_exchange_t *exchange, const char *advice, zf_error_t *err) {
    zfi_member_t self = comm->groups[comm->widest].place;
    zf_error_t why = {.struct_size = sizeof why};
    zfi_exchange_t roll = {.purpose = ZF_COLLECTIVE_FOR_TRANSPORT,
                           .bucket = ZF_NO_ID,
                           .nbytes = sizeof(zfi_post_t),
                           .lane = ZFI_LANE_ROLL,
                           .group = comm->widest};
    zfi_post_t *answers;
    if (atomic_exchange(&comm->has_called_the_roll, 1))
        return await_poison(comm, err);
    roll.recv = answers = calloc(self.n_ranks, sizeof *answers);
    if (!answers)
        return zfi_error(err, ZF_ERR_MEMORY, "ranks", "no memory for the answers of %" PRIu32 " ranks", self.n_ranks);
    answers[self.rank] = zfi_post_of(exchange, comm->groups[exchange->group].name);
    zf_status_t st = exchange_within(comm, &roll, zfi_roll_lasts_ns(&comm->env), &why);
    st = st == ZF_ERR_POISONED ? st : report_roll(comm, exchange, answers, advice, err);
    if (!atomic_load(&comm->holds_memory)) /* else the transport may still write there */
        free(answers);
    return st;
}

static zf_status_t host_exchange(zfi_comm_t *comm, const zfi_exchange_t *exchange, zf_error_t *err) {
    if (atomic_load(&comm->is_ended))
        return await_poison(comm, err);
    if (comm->groups[exchange->group].place.n_ranks == 1)
        return ZF_OK; /* every part is there already */
    zf_status_t st = exchange_within(comm, exchange, zfi_roll_after_ns(&comm->env), err);
    return st == ZF_ERR_TIMEOUT ? zfi_call_the_roll(comm, exchange, "", err) : st;
}

const zfi_comm_ops_t zfi_comm_host = {
    .name = ZF_EXT_COLLECTIVES,
    .open = host_open,
    .close = host_close,
    .join = host_join,
    .place = host_place,
    .exchange = host_exchange,
    .holds_memory = host_holds_memory,
};
