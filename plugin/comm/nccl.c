/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/comm/nccl.c - the transport over NCCL (contract in comm.h).
 *
 * Model. What lies in the device's memory goes by NCCL, on the stream that the exchange names; what lies in the host's
 * goes by the host's zf.collectives/0, which also carry the ids that NCCL begins with. NCCL moves bytes as any
 * transport does: an all-to-all is a group of sends and receives. It sums where it is asked to. Each direction of a
 * process group has a communicator of its own, gradients and values, so that neither waits for the other; they are made
 * without blocking: those of group 0 in create, those of others with their first exchange, since exchanges have an
 * order that all ranks of a group can keep, and joins have none.
 *
 * An exchange is over when its stream is; meanwhile NCCL is asked for asynchronous errors. A communicator that failed,
 * or whose exchange has passed the deadline, is aborted, which ends its kernels. NCCL does not tell which rank is
 * missing: the roll is called (comm/roll.h).
 *
 * NCCL pairs whatever two ranks call next. So each exchange takes along its name, a few bytes of each rank, and what
 * ranks have given each other for different things ends the instance before anything reads it.
 *
 * Threads: a communicator is used by its lane's thread alone; by the control thread before those run and after them.
 *
 * Hardware queues. An exchange of one direction may have to run on one rank while the other direction's stands before
 * it on another rank: where streams share hardware queues that would be a deadlock, so it is refused. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/timeline.h"
#include "comm/comm.h"
#include "comm/nccl_library.h"
#include "comm/roll.h"

enum { DOWN, UP, N_DIRECTIONS };
enum { PAUSE_NS = 1000000 }; /* between two looks at asynchronous errors */

static const char *const direction_names[N_DIRECTIONS] = {"gradients", "values"};

/* The words that a rank begins with; the id counts from rank 0 alone. */
typedef struct ticket {
    int32_t can; /* 1: it can use NCCL */
    int32_t version;
    char why_not[240];
    zfi_nccl_id_t id;
} ticket_t;

/* One direction of a process group. */
typedef struct direction {
    zfi_nccl_comm_t comm;  /* NULL: none yet, or aborted */
    int is_connected;      /* it was there once */
    int ends;              /* what NCCL said to its end */
    ticket_t *tickets;     /* [size] */
    zfi_post_t *places;    /* [size] page-locked: what ranks have called the exchange */
    zfi_post_t *on_device; /* [size] the same, as it travels */
    zfi_arena_t arena;     /* holds places */
    int is_pinned;
} direction_t;

/* A process group; its place among others is the host transport's. */
typedef struct group {
    uint32_t index, name, rank, size; /* size 0: nobody has joined it */
    direction_t directions[N_DIRECTIONS];
} group_t;

struct zfi_comm {
    zfi_comm_env_t env;
    zfi_comm_t *host;       /* of the host's collectives */
    const zfi_nccl_t *nccl; /* NULL: it cannot be opened */
    group_t groups[ZFI_MAX_GROUPS];
    _Atomic int has_failed, holds_memory;
};

static zfi_member_t nccl_place(const zfi_comm_t *comm, uint32_t index) {
    return comm ? (zfi_member_t){comm->groups[index].rank, comm->groups[index].size} : (zfi_member_t){0, 1};
}
static int nccl_holds_memory(const zfi_comm_t *comm) {
    return comm && (atomic_load(&comm->holds_memory) || zfi_comm_host.holds_memory(comm->host));
}

/* "remote process exited (6): ..." */
static void describe(const zfi_comm_t *comm, zfi_nccl_comm_t nccl_comm, int rc, char *out, size_t nbytes) {
    const char *last = comm->nccl->ncclGetLastError(nccl_comm);
    snprintf(out, nbytes, "%s (%d)%s%.160s", comm->nccl->ncclGetErrorString(rc), rc, last && *last ? ": " : "",
             last ? last : "");
}

/* "rank 1 of 4", and of which group where that is not the data-parallel one. */
enum { SELF_NBYTES = 64 };
static const char *self(const group_t *group, char out[SELF_NBYTES]) {
    int n = snprintf(out, SELF_NBYTES, "rank %" PRIu32 " of %" PRIu32, group->rank, group->size);
    if (group->index && n > 0)
        snprintf(out + n, SELF_NBYTES - (size_t)n, " of process group %" PRIu32, group->name);
    return out;
}

/* ---- what ranks tell each other before NCCL begins --------------------------------------------------------------- */

static zf_status_t look(const zfi_comm_t *comm, const group_t *group, ticket_t *out, zf_error_t *err) {
    zfi_device_info_t info = {0};
    const zfi_nccl_t *nccl;
    char text[256];
    int version = 0, rc;
    zf_status_t st = zfi_nccl_library(&nccl, &version, err);
    out->version = version;
    if (st)
        return st;
    if (!comm->env.ops->lend)
        return zfi_error(err, ZF_ERR_RANKS, "create", "NCCL moves the memory of CUDA devices; this one is \"%s\"",
                         comm->env.ops->name);
    comm->env.ops->info(comm->env.device, &info);
    if (info.has_few_queues)
        return zfi_error(
            err, ZF_ERR_RANKS, "create",
            "CUDA_DEVICE_MAX_CONNECTIONS, CUDA_DEVICE_MAX_COPY_CONNECTIONS or CUDA_LAUNCH_BLOCKING lets streams "
            "wait for one another, where NCCL in two directions can stand still; unset it");
    rc = group->rank == 0 ? nccl->ncclGetUniqueId(&out->id) : ZFI_NCCL_SUCCESS;
    if (rc == ZFI_NCCL_SUCCESS)
        return ZF_OK;
    describe(comm, NULL, rc, text, sizeof text);
    return zfi_error(err, ZF_ERR_RANKS, "create", "ncclGetUniqueId: %s", text);
}

/* The first rank that cannot, or that has another version than rank 0. */
static zf_status_t judge(const group_t *group, const ticket_t *tickets, zf_error_t *err) {
    for (uint32_t r = 0; r < group->size; r++) {
        if (!tickets[r].can)
            return zfi_error_by(err, ZF_ERR_RANKS, r, "create",
                                "[shard] transport = nccl: rank %" PRIu32 " of %" PRIu32
                                " cannot use it: %.*s. Set transport = host on every rank to do without NCCL",
                                r, group->size, (int)sizeof tickets[r].why_not, tickets[r].why_not);
        if (tickets[r].version != tickets[0].version)
            return zfi_error_by(err, ZF_ERR_RANKS, r, "create",
                                "[shard] transport = nccl: rank %" PRIu32 " has NCCL %d, rank 0 has %d: use the same",
                                r, tickets[r].version, tickets[0].version);
    }
    return ZF_OK;
}

/* Every rank comes here, also one that cannot, so that none waits for it in vain. */
static zf_status_t exchange_tickets(zfi_comm_t *comm, const group_t *group, int d, uint32_t lane, zf_error_t *err) {
    zf_error_t why = {.struct_size = sizeof why};
    ticket_t *tickets = group->directions[d].tickets, *own = &tickets[group->rank];
    zfi_exchange_t all = {.purpose = ZF_COLLECTIVE_FOR_TRANSPORT,
                          .bucket = ZF_NO_ID,
                          .recv = tickets,
                          .nbytes = sizeof *tickets,
                          .lane = lane,
                          .group = group->index};
    own->can = look(comm, group, own, &why) == ZF_OK;
    snprintf(own->why_not, sizeof own->why_not, "%.239s", own->can ? "" : why.message);
    zf_status_t st = zfi_comm_host.exchange(comm->host, &all, err);
    return st ? st : judge(group, tickets, err);
}

/* ---- communicators ----------------------------------------------------------------------------------------------- */

static void pause_a_little(void) { nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS / 10}, NULL); }

static int is_poisoned(const zfi_comm_t *comm) { return atomic_load(comm->env.is_poisoned) != 0; }

/* Until what was begun on a communicator has been taken up: ncclSuccess, the error, or ncclInProgress where the time is
 * over, or the instance ended. */
static int take_up(const zfi_comm_t *comm, zfi_nccl_comm_t nccl_comm, zfi_run_clock_t *clock, uint64_t timeout_ns) {
    int state = ZFI_NCCL_IN_PROGRESS;
    for (;;) {
        int rc = comm->nccl->ncclCommGetAsyncError(nccl_comm, &state);
        if (rc || state != ZFI_NCCL_IN_PROGRESS)
            return rc ? rc : state;
        if (zfi_run_ns(clock) > timeout_ns || is_poisoned(comm))
            return state;
        pause_a_little();
    }
}

static zf_status_t not_connected(const zfi_comm_t *comm, const group_t *group, int d, int rc, zf_error_t *err) {
    char who[SELF_NBYTES], text[256];
    if (rc == ZFI_NCCL_IN_PROGRESS)
        return zfi_error(err, ZF_ERR_TIMEOUT, "create",
                         "%s: NCCL's communicator of %s was not there within %" PRIu64
                         " ms ([host] deadline_ms, less an eighth): a rank has not come, or NCCL cannot reach it "
                         "(NCCL_DEBUG=INFO says more)",
                         self(group, who), direction_names[d], comm->env.timeout_ns / 1000000);
    describe(comm, group->directions[d].comm, rc, text, sizeof text);
    return zfi_error_scoped(err, ZF_ERR_RANKS, ZF_SCOPE_CALL, rc, "create", "%s: NCCL's communicator of %s: %s",
                            self(group, who), direction_names[d], text);
}

/* NCCL takes the device of the calling thread: a stream is lent for that. */
static zf_status_t connect(zfi_comm_t *comm, group_t *group, int d, zfi_stream_t *stream, zf_error_t *err) {
    direction_t *direction = &group->directions[d];
    zfi_nccl_config_t config = {
        .size = sizeof config, .magic = ZFI_NCCL_CONFIG_MAGIC, .version = ZFI_NCCL_CONFIG_VERSION, .blocking = 0};
    zfi_run_clock_t clock = zfi_run_clock();
    void *handle;
    zf_status_t st = comm->env.ops->lend(stream, &handle);
    if (st)
        return st;
    int rc = comm->nccl->ncclCommInitRankConfig(&direction->comm, (int)group->size, direction->tickets[0].id,
                                                (int)group->rank, &config);
    if (rc == ZFI_NCCL_IN_PROGRESS)
        rc = take_up(comm, direction->comm, &clock, comm->env.timeout_ns);
    if (rc) {
        atomic_store(&comm->has_failed, 1);
        st = not_connected(comm, group, d, rc, err);
    }
    comm->env.ops->take_back(stream);
    direction->is_connected = 1;
    return st;
}

static zf_status_t begin(zfi_comm_t *comm, group_t *group, int d, uint32_t lane, zfi_stream_t *stream,
                         zf_error_t *err) {
    zf_status_t st = exchange_tickets(comm, group, d, lane, err);
    return st ? st : connect(comm, group, d, stream, err);
}

/* Group 0's, in create. */
static zf_status_t begin_all(zfi_comm_t *comm, zf_error_t *err) {
    zfi_stream_t *stream = NULL;
    zf_status_t st = comm->env.ops->stream_create(comm->env.device, "zf-nccl", &stream, err);
    for (int d = 0; d < N_DIRECTIONS && !st; d++)
        st = begin(comm, &comm->groups[0], d, ZFI_LANE_GRADIENTS, stream, err);
    if (stream)
        comm->env.ops->stream_destroy(stream);
    return st;
}

/* To end one may wait for the other ranks, which may have theirs in another order: all are told first. */
static void begin_end(zfi_comm_t *comm, direction_t *direction) {
    if (direction->comm)
        direction->ends = atomic_load(&comm->has_failed) ? -1 : comm->nccl->ncclCommFinalize(direction->comm);
}

/* Either way it is gone; one that others still need may be given up, but is not waited for without end. */
static void disconnect(zfi_comm_t *comm, direction_t *direction) {
    zfi_nccl_comm_t nccl_comm = direction->comm;
    zfi_run_clock_t clock = zfi_run_clock();
    int rc = direction->ends;
    direction->comm = NULL;
    if (!nccl_comm)
        return;
    if (rc == ZFI_NCCL_IN_PROGRESS)
        rc = take_up(comm, nccl_comm, &clock, comm->env.timeout_ns);
    if (rc == ZFI_NCCL_SUCCESS)
        (void)comm->nccl->ncclCommDestroy(nccl_comm);
    else
        (void)comm->nccl->ncclCommAbort(nccl_comm);
}

/* The beginning of one direction, and what names its exchanges. */
static zf_status_t map_places(zfi_comm_t *comm, const group_t *group, direction_t *direction, zf_error_t *err) {
    const zfi_device_ops_t *ops = comm->env.ops;
    uint64_t nbytes = group->size * sizeof(zfi_post_t);
    void *memory = NULL;
    int is_pageable;
    direction->tickets = calloc(group->size, sizeof *direction->tickets);
    if (!direction->tickets)
        return zfi_error(err, ZF_ERR_MEMORY, "create", "no memory for what %" PRIu32 " ranks begin NCCL with",
                         group->size);
    (void)zfi_arena_take(&direction->arena, nbytes, 1);
    zf_status_t st = zfi_arena_map(&direction->arena, "names of exchanges", err);
    if (!st)
        st = ops->pin(comm->env.device, direction->arena.base, direction->arena.total_nbytes, &is_pageable, err);
    direction->is_pinned = !st;
    if (!st)
        st = ops->alloc(comm->env.device, nbytes, "names of exchanges", &memory, err);
    direction->places = (zfi_post_t *)(void *)direction->arena.base;
    direction->on_device = memory;
    return st;
}

static void free_places(zfi_comm_t *comm, const group_t *group, direction_t *direction) {
    const zfi_device_ops_t *ops = comm->env.ops;
    if (nccl_holds_memory(comm))
        return; /* left to what may still write there */
    if (direction->is_pinned)
        ops->unpin(comm->env.device, direction->arena.base, direction->arena.total_nbytes);
    zfi_arena_free(&direction->arena);
    if (direction->on_device)
        ops->free(comm->env.device, direction->on_device, group->size * sizeof(zfi_post_t));
    free(direction->tickets);
    *direction = (direction_t){0};
}

/* [control] The group with the number that the host transport gave it. */
static zf_status_t add_group(zfi_comm_t *comm, uint32_t index, uint32_t name, zf_error_t *err) {
    zfi_member_t place = zfi_comm_host.place(comm->host, index);
    group_t *group = &comm->groups[index];
    zf_status_t st = ZF_OK;
    int version;
    *group = (group_t){.index = index, .name = name, .rank = place.rank, .size = place.n_ranks};
    if (place.n_ranks > 1 && !comm->nccl)
        (void)zfi_nccl_library(&comm->nccl, &version, NULL); /* why not: look() */
    for (int d = 0; d < N_DIRECTIONS && place.n_ranks > 1 && !st; d++)
        st = map_places(comm, group, &group->directions[d], err);
    for (int d = 0; d < N_DIRECTIONS && st; d++)
        free_places(comm, group, &group->directions[d]);
    if (st)
        group->size = 0;
    return st;
}

static zf_status_t nccl_join(zfi_comm_t *comm, uint32_t name, uint32_t *out_index, zf_error_t *err) {
    zf_status_t st = zfi_comm_host.join(comm->host, name, out_index, err);
    return st || comm->groups[*out_index].size ? st : add_group(comm, *out_index, name, err);
}

static void nccl_close(zfi_comm_t *comm) {
    if (!comm)
        return;
    for (uint32_t i = 0; i < ZFI_MAX_GROUPS; i++)
        for (int d = 0; d < N_DIRECTIONS; d++)
            begin_end(comm, &comm->groups[i].directions[d]);
    for (uint32_t i = 0; i < ZFI_MAX_GROUPS; i++)
        for (int d = 0; d < N_DIRECTIONS; d++) {
            disconnect(comm, &comm->groups[i].directions[d]);
            free_places(comm, &comm->groups[i], &comm->groups[i].directions[d]);
        }
    zfi_comm_host.close(comm->host);
    free(comm);
}

static zf_status_t nccl_open(const zfi_comm_env_t *env, zfi_comm_t **out, zf_error_t *err) {
    zfi_comm_t *comm = calloc(1, sizeof *comm);
    if (!comm)
        return zfi_error(err, ZF_ERR_MEMORY, "create", "no memory for a transport");
    comm->env = *env;
    zf_status_t st = zfi_comm_host.open(env, &comm->host, err);
    if (!st)
        st = add_group(comm, 0, 0, err);
    if (!st && comm->groups[0].size > 1)
        st = begin_all(comm, err);
    if (st)
        nccl_close(comm);
    else
        *out = comm;
    return st;
}

/* ---- exchange ---------------------------------------------------------------------------------------------------- */

static int is_taken(int rc) { return rc == ZFI_NCCL_SUCCESS || rc == ZFI_NCCL_IN_PROGRESS; }

/* [a stream is lent] This rank's n bytes, in place among those of all. */
static int all_gather(const zfi_comm_t *comm, const group_t *group, zfi_nccl_comm_t to, void *all, size_t n,
                      void *stream) {
    return comm->nccl->ncclAllGather((unsigned char *)all + group->rank * n, all, n, ZFI_NCCL_UINT8, to, stream);
}

/* [a stream is lent] Part r of send to rank r. */
static int all_to_all(const zfi_comm_t *comm, const group_t *group, zfi_nccl_comm_t over,
                      const zfi_exchange_t *exchange, void *stream) {
    size_t n = (size_t)exchange->nbytes;
    const unsigned char *send = exchange->send;
    unsigned char *recv = exchange->recv;
    int rc = ZFI_NCCL_SUCCESS;
    for (uint32_t i = 1; i < group->size && is_taken(rc); i++) {
        uint32_t to = (group->rank + i) % group->size, from = (group->rank + group->size - i) % group->size;
        rc = comm->nccl->ncclSend(send + to * n, n, ZFI_NCCL_UINT8, (int)to, over, stream);
        if (is_taken(rc))
            rc = comm->nccl->ncclRecv(recv + from * n, n, ZFI_NCCL_UINT8, (int)from, over, stream);
    }
    return rc;
}

/* [a stream is lent] This rank's part of the sums of all parts. */
static int reduce_scatter(const direction_t *direction, const zfi_comm_t *comm, const zfi_exchange_t *exchange,
                          void *stream) {
    static const int types[] = {
        [ZFI_F32] = ZFI_NCCL_FLOAT32, [ZFI_BF16] = ZFI_NCCL_BFLOAT16, [ZFI_F16] = ZFI_NCCL_FLOAT16};
    return comm->nccl->ncclReduceScatter(exchange->send, exchange->recv,
                                         (size_t)(exchange->nbytes / zfi_dtype_nbytes(exchange->dtype)),
                                         types[exchange->dtype], ZFI_NCCL_SUM, direction->comm, stream);
}

/* [a stream is lent] The exchange, and its name. */
static int enqueue(const zfi_comm_t *comm, const group_t *group, const direction_t *direction,
                   const zfi_exchange_t *exchange, void *stream) {
    int rc = comm->nccl->ncclGroupStart(), ended;
    if (is_taken(rc))
        rc = all_gather(comm, group, direction->comm, direction->on_device, sizeof(zfi_post_t), stream);
    if (is_taken(rc) && exchange->is_sum)
        rc = reduce_scatter(direction, comm, exchange, stream);
    else if (is_taken(rc) && exchange->send)
        rc = all_to_all(comm, group, direction->comm, exchange, stream);
    else if (is_taken(rc))
        rc = all_gather(comm, group, direction->comm, exchange->recv, (size_t)exchange->nbytes, stream);
    ended = comm->nccl->ncclGroupEnd();
    return is_taken(rc) ? ended : rc;
}

static zf_status_t no_commands(const zfi_comm_t *comm, zf_status_t st, zf_error_t *err) {
    return is_poisoned(comm) ? ZF_ERR_POISONED
                             : zfi_error(err, st, "ranks", "the device takes no more commands in an exchange");
}

static zf_status_t failed(const zfi_comm_t *comm, const zfi_exchange_t *exchange, zfi_nccl_comm_t nccl_comm, int rc,
                          zf_error_t *err) {
    char who[SELF_NBYTES], name[96], text[256];
    zfi_exchange_name(exchange, name, sizeof name);
    describe(comm, nccl_comm, rc, text, sizeof text);
    return zfi_error_scoped(err, ZF_ERR_RANKS, ZF_SCOPE_INSTANCE, rc, "ranks", "%s: %s: NCCL failed: %s",
                            self(&comm->groups[exchange->group], who), name, text);
}

static zf_status_t timed_out(zfi_comm_t *comm, const zfi_exchange_t *exchange, zf_error_t *err) {
    if (is_poisoned(comm))
        return ZF_ERR_POISONED;
    return zfi_call_the_roll(comm->host, exchange, "; NCCL_DEBUG=INFO says more", err);
}

/* Finds that what has come belongs to different exchanges. */
static zf_status_t check_names(const zfi_comm_t *comm, const zfi_exchange_t *exchange, const direction_t *direction,
                               zf_error_t *err) {
    const group_t *group = &comm->groups[exchange->group];
    char self_name[SELF_NBYTES], name[96], there_name[96];
    zfi_exchange_t there;
    uint32_t who = zfi_find_elsewhere(direction->places, (zfi_member_t){group->rank, group->size}, &there);
    if (who == ZF_NO_ID)
        return ZF_OK;
    zfi_exchange_name(exchange, name, sizeof name);
    zfi_exchange_name(&there, there_name, sizeof there_name);
    zfi_error_scoped(err, ZF_ERR_RANKS, ZF_SCOPE_INSTANCE, 0, "ranks",
                     "rank %" PRIu32
                     " has not come to %s but to %s: every rank has to do the same in the same order (this is %s)",
                     who, name, there_name, self(group, self_name));
    return zfi_error_on_rank(err, ZF_ERR_RANKS, who);
}

/* Until the stream has done it, NCCL has failed, or the time is over. */
static zf_status_t wait_for(zfi_comm_t *comm, const zfi_exchange_t *exchange, direction_t *direction,
                            zfi_run_clock_t *clock, zf_error_t *err) {
    const zfi_device_ops_t *ops = comm->env.ops;
    uint32_t n_ranks = comm->groups[exchange->group].size;
    zfi_range_t names = {direction->places, direction->on_device, n_ranks * sizeof(zfi_post_t)};
    zfi_op_t down = zfi_op_down(&names, 1);
    zf_status_t st = ops->enqueue(comm->env.device, exchange->stream, &down, 1);
    uint64_t mark = ops->mark(exchange->stream);
    int state = ZFI_NCCL_SUCCESS, rc;
    if (st)
        return no_commands(comm, st, err);
    while ((st = ops->synchronise(exchange->stream, mark, PAUSE_NS, NULL)) == ZF_ERR_TIMEOUT) {
        rc = comm->nccl->ncclCommGetAsyncError(direction->comm, &state);
        if (rc || (state && state != ZFI_NCCL_IN_PROGRESS))
            return failed(comm, exchange, direction->comm, rc ? rc : state, err);
        if (is_poisoned(comm) || zfi_run_ns(clock) > zfi_roll_after_ns(&comm->env))
            return timed_out(comm, exchange, err);
    }
    return is_poisoned(comm) ? ZF_ERR_POISONED : check_names(comm, exchange, direction, err);
}

/* Ends its kernels. Where they run on, nobody may free what they read and write. */
static void give_up(zfi_comm_t *comm, direction_t *direction, zfi_stream_t *stream) {
    const zfi_device_ops_t *ops = comm->env.ops;
    zfi_nccl_comm_t nccl_comm = direction->comm;
    void *handle;
    atomic_store(&comm->has_failed, 1);
    direction->comm = NULL;
    if (ops->lend(stream, &handle) == ZF_OK) {
        (void)comm->nccl->ncclCommAbort(nccl_comm);
        ops->take_back(stream);
    }
    if (ops->synchronise(stream, ops->mark(stream), comm->env.timeout_ns / 16, NULL))
        atomic_store(&comm->holds_memory, 1);
}

static zf_status_t on_device(zfi_comm_t *comm, const zfi_exchange_t *exchange, direction_t *direction,
                             zf_error_t *err) {
    const zfi_device_ops_t *ops = comm->env.ops;
    const group_t *group = &comm->groups[exchange->group];
    zfi_run_clock_t clock = zfi_run_clock();
    zfi_range_t name = {direction->on_device + group->rank, direction->places + group->rank, sizeof(zfi_post_t)};
    zfi_op_t up = zfi_op_up(&name, 1);
    void *handle;
    direction->places[group->rank] = zfi_post_of(exchange, group->name);
    zf_status_t st = ops->enqueue(comm->env.device, exchange->stream, &up, 1);
    if (!st)
        st = ops->lend(exchange->stream, &handle);
    if (st)
        return no_commands(comm, st, err);
    int rc = enqueue(comm, group, direction, exchange, handle);
    ops->take_back(exchange->stream);
    if (rc == ZFI_NCCL_IN_PROGRESS)
        rc = take_up(comm, direction->comm, &clock,
                     zfi_roll_after_ns(&comm->env)); /* before, nothing of it need be on the stream */
    if (rc == ZFI_NCCL_IN_PROGRESS)
        return timed_out(comm, exchange, err);
    return rc ? failed(comm, exchange, direction->comm, rc, err) : wait_for(comm, exchange, direction, &clock, err);
}

static zf_status_t nccl_exchange(zfi_comm_t *comm, const zfi_exchange_t *exchange, zf_error_t *err) {
    int d = exchange->lane == ZFI_LANE_VALUES ? UP : DOWN;
    group_t *group = &comm->groups[exchange->group];
    direction_t *direction = &group->directions[d];
    zf_status_t st = ZF_OK;
    if (!exchange->stream)
        return zfi_comm_host.exchange(comm->host, exchange, err);
    if (group->size == 1)
        return ZF_OK; /* every part is there already */
    if (!direction->is_connected && !atomic_load(&comm->has_failed))
        st = begin(comm, group, d, exchange->lane, exchange->stream, err);
    if (st)
        return is_poisoned(comm) ? ZF_ERR_POISONED : st;
    if (!direction->comm)
        return zfi_error(err, ZF_ERR_RANKS, "ranks", "the transport ended with an earlier error");
    st = on_device(comm, exchange, direction, err);
    if (st)
        give_up(comm, direction, exchange->stream);
    return st;
}

const zfi_comm_ops_t zfi_comm_nccl = {
    .name = "nccl",
    .open = nccl_open,
    .close = nccl_close,
    .join = nccl_join,
    .place = nccl_place,
    .exchange = nccl_exchange,
    .holds_memory = nccl_holds_memory,
};
