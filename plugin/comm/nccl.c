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
 * missing.
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

#include "base/error.h"
#include "base/timeline.h"
#include "comm/comm.h"
#include "comm/nccl_library.h"

enum { DOWN, UP, N_DIRECTIONS };
enum { PAUSE_NS = 1000000 }; /* between two looks at asynchronous errors */

static const char *const direction_names[N_DIRECTIONS] = {"gradients", "values"};

struct zfi_comm {
    zfi_comm_env_t env;
    zfi_comm_t *host; /* of the host's collectives */
    const zfi_nccl_t *nccl;
    uint32_t rank, size;
    zfi_nccl_comm_t directions[N_DIRECTIONS]; /* NULL: none, or aborted */
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
    describe(comm, comm->directions[d], rc, text, sizeof text);
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
        int rc =
            comm->nccl->ncclCommInitRankConfig(&comm->directions[d], (int)comm->size, ids[d], (int)comm->rank, &config);
        if (rc == ZFI_NCCL_IN_PROGRESS)
            rc = take_up(comm, comm->directions[d], end_ns);
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
    zfi_nccl_comm_t nccl_comm = comm->directions[d];
    int rc;
    comm->directions[d] = NULL;
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

static void nccl_close(zfi_comm_t *comm) {
    if (!comm)
        return;
    for (int d = 0; d < N_DIRECTIONS; d++)
        disconnect(comm, d);
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
    if (!st && comm->size > 1)
        st = connect_on_device(comm, ids, err);
    if (st)
        nccl_close(comm);
    else
        *out = comm;
    return st;
}

/* ---- exchange ---------------------------------------------------------------------------------------------------- */

/* [a stream is lent] Every rank's part to every rank, in place; or part r of send to rank r. */
static int enqueue(const zfi_comm_t *comm, zfi_nccl_comm_t nccl_comm, const zfi_exchange_t *exchange, void *stream) {
    const zfi_nccl_t *nccl = comm->nccl;
    size_t n = (size_t)exchange->nbytes;
    const unsigned char *send = exchange->send;
    unsigned char *recv = exchange->recv;
    int rc, ended;
    if (!send)
        return nccl->ncclAllGather(recv + comm->rank * n, recv, n, ZFI_NCCL_UINT8, nccl_comm, stream);
    rc = nccl->ncclGroupStart();
    for (uint32_t i = 1; i < comm->size && (!rc || rc == ZFI_NCCL_IN_PROGRESS); i++) {
        uint32_t to = (comm->rank + i) % comm->size, from = (comm->rank + comm->size - i) % comm->size;
        rc = nccl->ncclSend(send + to * n, n, ZFI_NCCL_UINT8, (int)to, nccl_comm, stream);
        if (!rc || rc == ZFI_NCCL_IN_PROGRESS)
            rc = nccl->ncclRecv(recv + from * n, n, ZFI_NCCL_UINT8, (int)from, nccl_comm, stream);
    }
    ended = nccl->ncclGroupEnd();
    return rc && rc != ZFI_NCCL_IN_PROGRESS ? rc : ended;
}

static zf_status_t failed(const zfi_comm_t *comm, const zfi_exchange_t *exchange, zfi_nccl_comm_t nccl_comm, int rc,
                          zf_error_t *err) {
    char name[96], text[256];
    zfi_exchange_name(exchange, name, sizeof name);
    describe(comm, nccl_comm, rc, text, sizeof text);
    return zfi_error_scoped(err, ZF_ERR_RANKS, ZF_SCOPE_INSTANCE, rc, "ranks",
                            "rank %" PRIu32 " of %" PRIu32 ": %s: NCCL failed: %s", comm->rank, comm->size, name, text);
}

static zf_status_t timed_out(const zfi_comm_t *comm, const zfi_exchange_t *exchange, zf_error_t *err) {
    char name[96];
    if (is_poisoned(comm))
        return ZF_ERR_POISONED;
    zfi_exchange_name(exchange, name, sizeof name);
    return zfi_error_scoped(err, ZF_ERR_TIMEOUT, ZF_SCOPE_INSTANCE, 0, "ranks",
                            "a rank has not come to %s within %" PRIu64 " ms ([host] deadline_ms, less an eighth): it "
                            "is dead, stopped, late, or does something else. NCCL does not tell which (this is rank "
                            "%" PRIu32 " of %" PRIu32 ")",
                            name, comm->env.timeout_ns / 1000000, comm->rank, comm->size);
}

/* Until the stream has done it, NCCL has failed, or the time is over. */
static zf_status_t wait_for(zfi_comm_t *comm, const zfi_exchange_t *exchange, zfi_nccl_comm_t nccl_comm,
                            uint64_t end_ns, zf_error_t *err) {
    const zfi_device_ops_t *ops = comm->env.ops;
    zf_status_t st = ops->enqueue(comm->env.device, exchange->stream, NULL, 0);
    uint64_t mark = ops->mark(exchange->stream);
    int state = ZFI_NCCL_SUCCESS, rc;
    if (st)
        return is_poisoned(comm) ? ZF_ERR_POISONED
                                 : zfi_error(err, st, "ranks", "the device took no more commands in an exchange");
    while ((st = ops->synchronise(exchange->stream, mark, PAUSE_NS, NULL)) == ZF_ERR_TIMEOUT) {
        rc = comm->nccl->ncclCommGetAsyncError(nccl_comm, &state);
        if (rc || (state && state != ZFI_NCCL_IN_PROGRESS))
            return failed(comm, exchange, nccl_comm, rc ? rc : state, err);
        if (is_poisoned(comm) || zfi_now_ns() > end_ns)
            return timed_out(comm, exchange, err);
    }
    return is_poisoned(comm) ? ZF_ERR_POISONED : ZF_OK;
}

/* Ends its kernels. Where they run on, nobody may free what they read and write. */
static void give_up(zfi_comm_t *comm, int d, zfi_stream_t *stream) {
    const zfi_device_ops_t *ops = comm->env.ops;
    zfi_nccl_comm_t nccl_comm = comm->directions[d];
    void *handle;
    atomic_store(&comm->has_failed, 1);
    comm->directions[d] = NULL;
    if (ops->lend(stream, &handle) == ZF_OK) {
        (void)comm->nccl->ncclCommAbort(nccl_comm);
        ops->take_back(stream);
    }
    if (ops->synchronise(stream, ops->mark(stream), comm->env.timeout_ns / 16, NULL))
        atomic_store(&comm->holds_memory, 1);
}

static zf_status_t on_device(zfi_comm_t *comm, const zfi_exchange_t *exchange, int d, zf_error_t *err) {
    zfi_nccl_comm_t nccl_comm = comm->directions[d];
    uint64_t end_ns = zfi_now_ns() + comm->env.timeout_ns;
    void *handle;
    zf_status_t st = comm->env.ops->lend(exchange->stream, &handle);
    int rc;
    if (st)
        return is_poisoned(comm) ? ZF_ERR_POISONED : zfi_error(err, st, "ranks", "the device lends no stream");
    rc = enqueue(comm, nccl_comm, exchange, handle);
    comm->env.ops->take_back(exchange->stream);
    if (rc == ZFI_NCCL_IN_PROGRESS)
        rc = take_up(comm, nccl_comm, end_ns); /* before, nothing of it need be on the stream */
    if (rc == ZFI_NCCL_IN_PROGRESS)
        return timed_out(comm, exchange, err);
    return rc ? failed(comm, exchange, nccl_comm, rc, err) : wait_for(comm, exchange, nccl_comm, end_ns, err);
}

static zf_status_t nccl_exchange(zfi_comm_t *comm, const zfi_exchange_t *exchange, zf_error_t *err) {
    int d = exchange->lane == ZFI_LANE_VALUES ? UP : DOWN;
    zf_status_t st;
    if (!exchange->stream)
        return zfi_comm_host.exchange(comm->host, exchange, err);
    if (!comm->directions[d])
        return zfi_error(err, ZF_ERR_RANKS, "ranks", "the transport ended with an earlier error");
    st = on_device(comm, exchange, d, err);
    if (st)
        give_up(comm, d, exchange->stream);
    return st;
}

const zfi_comm_ops_t zfi_comm_nccl = {
    .name = "nccl",
    .open = nccl_open,
    .close = nccl_close,
    .rank = nccl_rank,
    .size = nccl_size,
    .exchange = nccl_exchange,
    .holds_memory = nccl_holds_memory,
};
