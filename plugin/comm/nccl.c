/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/comm/nccl.c - the transport over NCCL (contract in comm.h).
 *
 * Model. What lies in the device's memory goes by NCCL, on the stream that the exchange names; what lies in the host's
 * goes by the host's zf.collectives/1, which also carry the ids that NCCL begins with. NCCL moves bytes as any
 * transport does, and sums nothing: an all-to-all is a group of sends and receives. Each direction has a communicator
 * of its own, gradients and values, so that neither waits for the other; both are made without blocking.
 *
 * An exchange is over when its stream is; meanwhile NCCL is asked for asynchronous errors. A communicator that failed,
 * or whose exchange has passed the deadline, is aborted, which ends its kernels. NCCL does not tell which rank is
 * missing: in the last quarter of the time the ranks that wait call the roll by the host's collectives, and say where
 * they are. Whoever does not answer is named.
 *
 * NCCL pairs whatever two ranks call next. So each exchange takes along its name, 16 bytes of each rank, and what ranks
 * have given each other for different things ends the instance before anything reads it.
 *
 * Threads: a communicator is used by its lane's thread alone; by the control thread before those run and after them.
 *
 * Hardware queues. An exchange of one direction may have to run on one rank while the other direction's stands before
 * it on another rank: where streams share hardware queues that would be a deadlock, so it is refused. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/timeline.h"
#include "comm/comm.h"
#include "comm/nccl_library.h"

enum { DOWN, UP, N_DIRECTIONS };
enum { PAUSE_NS = 1000000 }; /* between two looks at asynchronous errors */

static const char *const direction_names[N_DIRECTIONS] = {"gradients", "values"};

/* The name of an exchange. */
typedef struct place {
    int32_t purpose;
    uint32_t bucket;
    uint64_t step;
} place_t;

/* One direction. */
typedef struct direction {
    zfi_nccl_comm_t comm; /* NULL: none, or aborted */
    place_t *places;      /* [size] page-locked: what ranks have called the exchange, ... */
    place_t *on_device;   /* [size] ... as it travels */
    place_t *answers;     /* [size] of a roll call */
    zfi_arena_t arena;    /* holds places and answers */
    int is_pinned;
} direction_t;

struct zfi_comm {
    zfi_comm_env_t env;
    zfi_comm_t *host; /* of the host's collectives */
    const zfi_nccl_t *nccl;
    uint32_t rank, size;
    direction_t directions[N_DIRECTIONS];
    _Atomic int has_failed, holds_memory;
};

static uint32_t nccl_rank(const zfi_comm_t *comm) { return comm ? comm->rank : 0; }
static uint32_t nccl_size(const zfi_comm_t *comm) { return comm ? comm->size : 1; }
static int nccl_holds_memory(const zfi_comm_t *comm) {
    return comm && (atomic_load(&comm->holds_memory) || zfi_comm_host.holds_memory(comm->host));
}

/* "remote process exited (6): ..." */
static void describe(const zfi_comm_t *comm, zfi_nccl_comm_t nccl_comm, int rc, char *out, size_t nbytes) {
    const char *last = comm->nccl->ncclGetLastError(nccl_comm);
    snprintf(out, nbytes, "%s (%d)%s%.160s", comm->nccl->ncclGetErrorString(rc), rc, last && *last ? ": " : "",
             last ? last : "");
}

/* ---- what ranks tell each other before NCCL begins --------------------------------------------------------------- */

/* Of one rank. The ids count from rank 0 alone. */
typedef struct ticket {
    int32_t can; /* 1: it can use NCCL */
    int32_t version;
    char why_not[240];
    zfi_nccl_id_t ids[N_DIRECTIONS];
} ticket_t;

static zf_status_t look(zfi_comm_t *comm, ticket_t *out, zf_error_t *err) {
    zfi_device_info_t info = {0};
    int version = 0;
    zf_status_t st = zfi_nccl_library(&comm->nccl, &version, err);
    out->version = version;
    if (st)
        return st;
    if (!comm->env.ops->lend)
        return zfi_error(err, ZF_ERR_RANKS, "create", "NCCL moves the memory of CUDA devices; this one is \"%s\"",
                         comm->env.ops->name);
    comm->env.ops->info(comm->env.device, &info);
    if (info.has_few_queues)
        return zfi_error(err, ZF_ERR_RANKS, "create",
                         "CUDA_DEVICE_MAX_CONNECTIONS lets streams share hardware queues, where NCCL in two directions "
                         "can stand still; unset it");
    for (int d = 0; d < N_DIRECTIONS && comm->rank == 0; d++) {
        int rc = comm->nccl->ncclGetUniqueId(&out->ids[d]);
        char text[256];
        if (!rc)
            continue;
        describe(comm, NULL, rc, text, sizeof text);
        return zfi_error(err, ZF_ERR_RANKS, "create", "ncclGetUniqueId: %s", text);
    }
    return ZF_OK;
}

/* The first rank that cannot, or that has another version than rank 0. */
static zf_status_t judge(const zfi_comm_t *comm, const ticket_t *tickets, zf_error_t *err) {
    for (uint32_t r = 0; r < comm->size; r++) {
        if (!tickets[r].can)
            return zfi_error(err, ZF_ERR_RANKS, "create",
                             "[shard] transport = nccl: rank %" PRIu32 " of %" PRIu32
                             " cannot use it: %.*s. Set transport = host on every rank to do without NCCL",
                             r, comm->size, (int)sizeof tickets[r].why_not, tickets[r].why_not);
        if (tickets[r].version != tickets[0].version)
            return zfi_error(err, ZF_ERR_RANKS, "create",
                             "[shard] transport = nccl: rank %" PRIu32 " has NCCL %d, rank 0 has %d: use the same", r,
                             tickets[r].version, tickets[0].version);
    }
    return ZF_OK;
}

/* Every rank comes here, also one that cannot, so that none waits for it in vain. */
static zf_status_t exchange_tickets(zfi_comm_t *comm, zfi_nccl_id_t *out_ids, zf_error_t *err) {
    zf_error_t why = {.struct_size = sizeof why};
    ticket_t *tickets = calloc(comm->size, sizeof *tickets);
    zfi_exchange_t all = {.purpose = ZF_COLLECTIVE_FOR_TRANSPORT,
                          .bucket = ZF_NO_ID,
                          .recv = tickets,
                          .nbytes = sizeof *tickets,
                          .lane = ZFI_LANE_GRADIENTS};
    zf_status_t st;
    if (!tickets)
        return zfi_error(err, ZF_ERR_MEMORY, "create", "no memory for what %" PRIu32 " ranks begin NCCL with",
                         comm->size);
    tickets[comm->rank].can = look(comm, &tickets[comm->rank], &why) == ZF_OK;
    snprintf(tickets[comm->rank].why_not, sizeof tickets->why_not, "%.239s",
             tickets[comm->rank].can ? "" : why.message);
    st = zfi_comm_host.exchange(comm->host, &all, err);
    if (!st)
        st = judge(comm, tickets, err);
    if (!st)
        memcpy(out_ids, tickets[0].ids, sizeof tickets->ids);
    if (!zfi_comm_host.holds_memory(comm->host))
        free(tickets);
    return st;
}

/* ---- communicators ----------------------------------------------------------------------------------------------- */

static void pause_a_little(void) { nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS / 10}, NULL); }

static int is_poisoned(const zfi_comm_t *comm) { return atomic_load(comm->env.is_poisoned) != 0; }

/* Until what was begun on a communicator has been taken up: ncclSuccess, the error, or ncclInProgress where the time is
 * over, or the instance ended. */
static int take_up(const zfi_comm_t *comm, zfi_nccl_comm_t nccl_comm, uint64_t end_ns) {
    int state = ZFI_NCCL_IN_PROGRESS;
    for (;;) {
        int rc = comm->nccl->ncclCommGetAsyncError(nccl_comm, &state);
        if (rc || state != ZFI_NCCL_IN_PROGRESS)
            return rc ? rc : state;
        if (zfi_now_ns() > end_ns || is_poisoned(comm))
            return state;
        pause_a_little();
    }
}

static zf_status_t not_connected(zfi_comm_t *comm, int d, int rc, zf_error_t *err) {
    char text[256];
    if (rc == ZFI_NCCL_IN_PROGRESS)
        return zfi_error(err, ZF_ERR_TIMEOUT, "create",
                         "rank %" PRIu32 " of %" PRIu32 ": NCCL's communicator of %s was not there within %" PRIu64
                         " ms ([host] deadline_ms, less an eighth): a rank has not come, or NCCL cannot reach it "
                         "(NCCL_DEBUG=INFO says more)",
                         comm->rank, comm->size, direction_names[d], comm->env.timeout_ns / 1000000);
    describe(comm, comm->directions[d].comm, rc, text, sizeof text);
    return zfi_error_scoped(err, ZF_ERR_RANKS, ZF_SCOPE_CALL, rc, "create",
                            "rank %" PRIu32 " of %" PRIu32 ": NCCL's communicator of %s: %s", comm->rank, comm->size,
                            direction_names[d], text);
}

/* [a stream is lent] */
static zf_status_t connect(zfi_comm_t *comm, const zfi_nccl_id_t *ids, zf_error_t *err) {
    uint64_t end_ns = zfi_now_ns() + comm->env.timeout_ns;
    for (int d = 0; d < N_DIRECTIONS; d++) {
        zfi_nccl_config_t config = {
            .size = sizeof config, .magic = ZFI_NCCL_CONFIG_MAGIC, .version = ZFI_NCCL_CONFIG_VERSION, .blocking = 0};
        int rc = comm->nccl->ncclCommInitRankConfig(&comm->directions[d].comm, (int)comm->size, ids[d], (int)comm->rank,
                                                    &config);
        if (rc == ZFI_NCCL_IN_PROGRESS)
            rc = take_up(comm, comm->directions[d].comm, end_ns);
        if (rc) {
            atomic_store(&comm->has_failed, 1);
            return not_connected(comm, d, rc, err);
        }
    }
    return ZF_OK;
}

/* NCCL takes the device of the calling thread: a stream is lent for that. */
static zf_status_t connect_on_device(zfi_comm_t *comm, const zfi_nccl_id_t *ids, zf_error_t *err) {
    zfi_stream_t *stream = NULL;
    void *handle;
    zf_status_t st = comm->env.ops->stream_create(comm->env.device, "zf-nccl", &stream, err);
    if (st)
        return st;
    st = comm->env.ops->lend(stream, &handle);
    if (!st) {
        st = connect(comm, ids, err);
        comm->env.ops->take_back(stream);
    }
    comm->env.ops->stream_destroy(stream);
    return st;
}

/* Either way it is gone; one that others still need may be given up, but is not waited for without end. */
static void disconnect(zfi_comm_t *comm, int d) {
    zfi_nccl_comm_t nccl_comm = comm->directions[d].comm;
    int rc;
    comm->directions[d].comm = NULL;
    if (!nccl_comm)
        return;
    rc = atomic_load(&comm->has_failed) ? -1 : comm->nccl->ncclCommFinalize(nccl_comm);
    if (rc == ZFI_NCCL_IN_PROGRESS)
        rc = take_up(comm, nccl_comm, zfi_now_ns() + comm->env.timeout_ns);
    if (rc == ZFI_NCCL_SUCCESS)
        (void)comm->nccl->ncclCommDestroy(nccl_comm);
    else
        (void)comm->nccl->ncclCommAbort(nccl_comm);
}

/* What names the exchanges of one direction. */
static zf_status_t map_places(zfi_comm_t *comm, direction_t *direction, zf_error_t *err) {
    const zfi_device_ops_t *ops = comm->env.ops;
    uint64_t nbytes = comm->size * sizeof(place_t);
    void *memory = NULL;
    int is_pageable;
    zf_status_t st;
    (void)zfi_arena_take(&direction->arena, 2 * nbytes, 1);
    st = zfi_arena_map(&direction->arena, "names of exchanges", err);
    if (!st)
        st = ops->pin(comm->env.device, direction->arena.base, direction->arena.total_nbytes, &is_pageable, err);
    direction->is_pinned = !st;
    if (!st)
        st = ops->alloc(comm->env.device, nbytes, "names of exchanges", &memory, err);
    direction->places = (place_t *)(void *)direction->arena.base;
    direction->answers = direction->places + comm->size;
    direction->on_device = memory;
    return st;
}

static void free_places(zfi_comm_t *comm, direction_t *direction) {
    const zfi_device_ops_t *ops = comm->env.ops;
    if (nccl_holds_memory(comm))
        return; /* left to what may still write there */
    if (direction->is_pinned)
        ops->unpin(comm->env.device, direction->arena.base, direction->arena.total_nbytes);
    zfi_arena_free(&direction->arena);
    if (direction->on_device)
        ops->free(comm->env.device, direction->on_device, comm->size * sizeof(place_t));
}

static void nccl_close(zfi_comm_t *comm) {
    if (!comm)
        return;
    for (int d = 0; d < N_DIRECTIONS; d++) {
        disconnect(comm, d);
        free_places(comm, &comm->directions[d]);
    }
    zfi_comm_host.close(comm->host);
    free(comm);
}

static zf_status_t nccl_open(const zfi_comm_env_t *env, zfi_comm_t **out, zf_error_t *err) {
    zfi_comm_t *comm = calloc(1, sizeof *comm);
    zfi_nccl_id_t ids[N_DIRECTIONS];
    zf_status_t st;
    if (!comm)
        return zfi_error(err, ZF_ERR_MEMORY, "create", "no memory for a transport");
    comm->env = *env;
    st = zfi_comm_host.open(env, &comm->host, err);
    if (!st) {
        comm->rank = zfi_comm_host.rank(comm->host);
        comm->size = zfi_comm_host.size(comm->host);
    }
    if (!st && comm->size > 1)
        st = exchange_tickets(comm, ids, err);
    for (int d = 0; d < N_DIRECTIONS && !st && comm->size > 1; d++)
        st = map_places(comm, &comm->directions[d], err);
    if (!st && comm->size > 1)
        st = connect_on_device(comm, ids, err);
    if (st)
        nccl_close(comm);
    else
        *out = comm;
    return st;
}

/* ---- exchange ---------------------------------------------------------------------------------------------------- */

static int is_taken(int rc) { return rc == ZFI_NCCL_SUCCESS || rc == ZFI_NCCL_IN_PROGRESS; }

/* [a stream is lent] This rank's n bytes, in place among those of all. */
static int all_gather(const zfi_comm_t *comm, zfi_nccl_comm_t to, void *all, size_t n, void *stream) {
    return comm->nccl->ncclAllGather((unsigned char *)all + comm->rank * n, all, n, ZFI_NCCL_UINT8, to, stream);
}

/* [a stream is lent] Part r of send to rank r. */
static int all_to_all(const zfi_comm_t *comm, zfi_nccl_comm_t over, const zfi_exchange_t *exchange, void *stream) {
    size_t n = (size_t)exchange->nbytes;
    const unsigned char *send = exchange->send;
    unsigned char *recv = exchange->recv;
    int rc = ZFI_NCCL_SUCCESS;
    for (uint32_t i = 1; i < comm->size && is_taken(rc); i++) {
        uint32_t to = (comm->rank + i) % comm->size, from = (comm->rank + comm->size - i) % comm->size;
        rc = comm->nccl->ncclSend(send + to * n, n, ZFI_NCCL_UINT8, (int)to, over, stream);
        if (is_taken(rc))
            rc = comm->nccl->ncclRecv(recv + from * n, n, ZFI_NCCL_UINT8, (int)from, over, stream);
    }
    return rc;
}

/* [a stream is lent] The exchange, and its name. */
static int enqueue(const zfi_comm_t *comm, const direction_t *direction, const zfi_exchange_t *exchange, void *stream) {
    int rc = comm->nccl->ncclGroupStart(), ended;
    if (is_taken(rc))
        rc = all_gather(comm, direction->comm, direction->on_device, sizeof(place_t), stream);
    if (is_taken(rc) && exchange->send)
        rc = all_to_all(comm, direction->comm, exchange, stream);
    else if (is_taken(rc))
        rc = all_gather(comm, direction->comm, exchange->recv, (size_t)exchange->nbytes, stream);
    ended = comm->nccl->ncclGroupEnd();
    return is_taken(rc) ? ended : rc;
}

static zf_status_t no_commands(const zfi_comm_t *comm, zf_status_t st, zf_error_t *err) {
    return is_poisoned(comm) ? ZF_ERR_POISONED
                             : zfi_error(err, st, "ranks", "the device takes no more commands in an exchange");
}

/* Of an exchange; what is left of the time is for the roll call. */
static uint64_t waits_ns(const zfi_comm_t *comm) { return comm->env.timeout_ns / 4 * 3; }

static zf_status_t failed(const zfi_comm_t *comm, const zfi_exchange_t *exchange, zfi_nccl_comm_t nccl_comm, int rc,
                          zf_error_t *err) {
    char name[96], text[256];
    zfi_exchange_name(exchange, name, sizeof name);
    describe(comm, nccl_comm, rc, text, sizeof text);
    return zfi_error_scoped(err, ZF_ERR_RANKS, ZF_SCOPE_INSTANCE, rc, "ranks",
                            "rank %" PRIu32 " of %" PRIu32 ": %s: NCCL failed: %s", comm->rank, comm->size, name, text);
}

static place_t name_of(const zfi_exchange_t *exchange) {
    return (place_t){exchange->purpose, exchange->bucket, exchange->step};
}

/* Returns a rank that does not answer, or ZF_NO_ID; *out_has_all: all that wait have told where. */
static uint32_t call_the_roll(zfi_comm_t *comm, const zfi_exchange_t *exchange, direction_t *direction,
                              int *out_has_all) {
    zf_error_t why = {.struct_size = sizeof why};
    uint32_t late = ZF_NO_ID;
    zfi_exchange_t roll = {.purpose = ZF_COLLECTIVE_FOR_TRANSPORT,
                           .bucket = ZF_NO_ID,
                           .recv = direction->answers,
                           .nbytes = sizeof *direction->answers,
                           .lane = exchange->lane,
                           .timeout_ns = comm->env.timeout_ns - waits_ns(comm),
                           .out_late = &late};
    direction->answers[comm->rank] = name_of(exchange);
    *out_has_all = zfi_comm_host.exchange(comm->host, &roll, &why) == ZF_OK;
    return late;
}

/* A rank that has come to another exchange, or ZF_NO_ID. */
static uint32_t find_elsewhere(const zfi_comm_t *comm, const place_t *places, zfi_exchange_t *out_there) {
    const place_t *own = &places[comm->rank];
    for (uint32_t r = 0; r < comm->size; r++) {
        const place_t *place = &places[r];
        *out_there = (zfi_exchange_t){.purpose = place->purpose, .bucket = place->bucket, .step = place->step};
        if (place->purpose != own->purpose || place->bucket != own->bucket || place->step != own->step)
            return r;
    }
    return ZF_NO_ID;
}

static zf_status_t timed_out(zfi_comm_t *comm, const zfi_exchange_t *exchange, direction_t *direction,
                             zf_error_t *err) {
    char name[96], there_name[96], what[256];
    uint64_t ms = waits_ns(comm) / 1000000;
    zfi_exchange_t there;
    int has_all = 0;
    uint32_t who;
    if (is_poisoned(comm))
        return ZF_ERR_POISONED;
    who = call_the_roll(comm, exchange, direction, &has_all);
    if (is_poisoned(comm))
        return ZF_ERR_POISONED;
    zfi_exchange_name(exchange, name, sizeof name);
    if (!has_all && who != ZF_NO_ID)
        snprintf(what, sizeof what, "rank %" PRIu32 " has not come to %s", who, name);
    else if (!has_all)
        snprintf(what, sizeof what, "a rank has not come to %s", name);
    else if ((who = find_elsewhere(comm, direction->answers, &there)) == ZF_NO_ID)
        snprintf(what, sizeof what, "every rank has come to %s, but NCCL has not ended it", name);
    else {
        zfi_exchange_name(&there, there_name, sizeof there_name);
        snprintf(what, sizeof what, "rank %" PRIu32 " has not come to %s but to %s", who, name, there_name);
    }
    return zfi_error_scoped(
        err, ZF_ERR_TIMEOUT, ZF_SCOPE_INSTANCE, 0, "ranks",
        "%s within %" PRIu64 " ms (two thirds of [host] deadline_ms)%s (this is rank %" PRIu32 " of %" PRIu32 ")", what,
        ms, has_all ? "; NCCL_DEBUG=INFO says more" : ": it is dead, stopped, late, or does something else", comm->rank,
        comm->size);
}

/* What has come belongs to different exchanges. */
static zf_status_t check_names(const zfi_comm_t *comm, const zfi_exchange_t *exchange, const direction_t *direction,
                               zf_error_t *err) {
    char name[96], there_name[96];
    zfi_exchange_t there;
    uint32_t who = find_elsewhere(comm, direction->places, &there);
    if (who == ZF_NO_ID)
        return ZF_OK;
    zfi_exchange_name(exchange, name, sizeof name);
    zfi_exchange_name(&there, there_name, sizeof there_name);
    return zfi_error_scoped(err, ZF_ERR_RANKS, ZF_SCOPE_INSTANCE, 0, "ranks",
                            "rank %" PRIu32 " has not come to %s but to %s: every rank has to do the same in the same "
                            "order (this is rank %" PRIu32 " of %" PRIu32 ")",
                            who, name, there_name, comm->rank, comm->size);
}

/* Until the stream has done it, NCCL has failed, or the time is over. */
static zf_status_t wait_for(zfi_comm_t *comm, const zfi_exchange_t *exchange, direction_t *direction, uint64_t end_ns,
                            zf_error_t *err) {
    const zfi_device_ops_t *ops = comm->env.ops;
    zfi_range_t names = {direction->places, direction->on_device, comm->size * sizeof(place_t)};
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
        if (is_poisoned(comm) || zfi_now_ns() > end_ns)
            return timed_out(comm, exchange, direction, err);
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
    uint64_t end_ns = zfi_now_ns() + waits_ns(comm);
    zfi_range_t name = {direction->on_device + comm->rank, direction->places + comm->rank, sizeof(place_t)};
    zfi_op_t up = zfi_op_up(&name, 1);
    void *handle;
    zf_status_t st;
    int rc;
    direction->places[comm->rank] = name_of(exchange);
    st = ops->enqueue(comm->env.device, exchange->stream, &up, 1);
    if (!st)
        st = ops->lend(exchange->stream, &handle);
    if (st)
        return no_commands(comm, st, err);
    rc = enqueue(comm, direction, exchange, handle);
    ops->take_back(exchange->stream);
    if (rc == ZFI_NCCL_IN_PROGRESS)
        rc = take_up(comm, direction->comm, end_ns); /* before, nothing of it need be on the stream */
    if (rc == ZFI_NCCL_IN_PROGRESS)
        return timed_out(comm, exchange, direction, err);
    return rc ? failed(comm, exchange, direction->comm, rc, err) : wait_for(comm, exchange, direction, end_ns, err);
}

static zf_status_t nccl_exchange(zfi_comm_t *comm, const zfi_exchange_t *exchange, zf_error_t *err) {
    direction_t *direction = &comm->directions[exchange->lane == ZFI_LANE_VALUES ? UP : DOWN];
    zf_status_t st;
    if (!exchange->stream)
        return zfi_comm_host.exchange(comm->host, exchange, err);
    if (!direction->comm)
        return zfi_error(err, ZF_ERR_RANKS, "ranks", "the transport ended with an earlier error");
    st = on_device(comm, exchange, direction, err);
    if (st)
        give_up(comm, direction, exchange->stream);
    return st;
}

static zf_status_t nccl_join(zfi_comm_t *comm, uint32_t group, uint32_t *out_index, zf_error_t *err) {
    (void)comm;
    *out_index = 0;
    return zfi_error(err, ZF_ERR_CONFIG, "ranks",
                     "process group %" PRIu32
                     ": over NCCL there is group 0 alone in this version; set [shard] transport "
                     "= host",
                     group);
}

static zfi_member_t nccl_place(const zfi_comm_t *comm, uint32_t index) {
    (void)index;
    return (zfi_member_t){nccl_rank(comm), nccl_size(comm)};
}

const zfi_comm_ops_t zfi_comm_nccl = {
    .name = "nccl",
    .open = nccl_open,
    .close = nccl_close,
    .rank = nccl_rank,
    .size = nccl_size,
    .join = nccl_join,
    .place = nccl_place,
    .exchange = nccl_exchange,
    .holds_memory = nccl_holds_memory,
};
