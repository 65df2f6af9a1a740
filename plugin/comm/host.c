/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/comm/host.c - the transport over zf.collectives/1 of the host (contract in comm.h).
 *
 * An exchange is started, then asked for until it is over: at first without a pause, since a small one between ranks
 * that are in step takes microseconds, then with longer and longer ones. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/error.h"
#include "base/timeline.h"
#include "comm/comm.h"

enum { ASKED_AT_ONCE = 16, FIRST_PAUSE_NS = 5000, LONGEST_PAUSE_NS = 500000 };

struct zfi_comm {
    zfi_comm_env_t env;
    zf_collectives_ext_t table;
    uint32_t rank, size;
    uint64_t number[ZFI_N_LANES]; /* of the next exchange; each its thread's */
    _Atomic int is_ended, holds_memory;
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

/* ---- open and close ---------------------------------------------------------------------------------------------- */

int zfi_comm_is_offered(const zf_host_t *host, int *out_is_whole) {
    const zf_collectives_ext_t *table = host->get_extension ? host->get_extension(host->ctx, ZF_EXT_COLLECTIVES) : NULL;
    *out_is_whole =
        table && table->struct_size >= sizeof *table && table->group && table->start && table->test && table->abort;
    return table != NULL;
}

static zf_status_t find_place(zfi_comm_t *comm, zf_error_t *err) {
    zf_error_t why = {.struct_size = sizeof why};
    zf_status_t st = comm->table.group(comm->table.ctx, 0, &comm->rank, &comm->size, &why);
    if (st)
        return zfi_error(err, ZF_ERR_RANKS, "create", "%s of the host: group 0: status %d: %.200s", ZF_EXT_COLLECTIVES,
                         st, why.message);
    if (comm->size == 0 || comm->rank >= comm->size)
        return zfi_error(err, ZF_ERR_RANKS, "create", "%s of the host: rank %" PRIu32 " of %" PRIu32,
                         ZF_EXT_COLLECTIVES, comm->rank, comm->size);
    return ZF_OK;
}

static zf_status_t host_open(const zfi_comm_env_t *env, zfi_comm_t **out, zf_error_t *err) {
    const zf_collectives_ext_t *table = env->host->get_extension(env->host->ctx, ZF_EXT_COLLECTIVES);
    zfi_comm_t *comm = calloc(1, sizeof *comm);
    zf_status_t st;
    if (!comm)
        return zfi_error(err, ZF_ERR_MEMORY, "create", "no memory for a transport");
    comm->env = *env;
    comm->table = *table;
    st = find_place(comm, err);
    if (st)
        free(comm);
    else
        *out = comm;
    return st;
}

static void host_close(zfi_comm_t *comm) { free(comm); }
static uint32_t host_rank(const zfi_comm_t *comm) { return comm ? comm->rank : 0; }
static uint32_t host_size(const zfi_comm_t *comm) { return comm ? comm->size : 1; }
static int host_holds_memory(const zfi_comm_t *comm) { return comm && atomic_load(&comm->holds_memory); }

/* ---- exchange ---------------------------------------------------------------------------------------------------- */

static zf_status_t failed(const zfi_comm_t *comm, const zfi_exchange_t *exchange, zf_status_t st, const zf_error_t *why,
                          zf_error_t *err) {
    char name[96];
    zfi_exchange_name(exchange, name, sizeof name);
    return zfi_error_scoped(err, ZF_ERR_RANKS, ZF_SCOPE_INSTANCE, st, "ranks",
                            "rank %" PRIu32 " of %" PRIu32 ": %s: the transport failed with status %d: %.220s",
                            comm->rank, comm->size, name, st, why->message);
}

static zf_status_t timed_out(const zfi_comm_t *comm, const zfi_exchange_t *exchange, uint64_t request,
                             zf_error_t *err) {
    uint32_t late = ZF_NO_ID;
    char name[96], who[32] = "a rank";
    zfi_exchange_name(exchange, name, sizeof name);
    (void)comm->table.test(comm->table.ctx, request, &late, NULL);
    if (late != ZF_NO_ID)
        snprintf(who, sizeof who, "rank %" PRIu32, late);
    return zfi_error_scoped(err, ZF_ERR_TIMEOUT, ZF_SCOPE_INSTANCE, 0, "ranks",
                            "%s has not come to %s within %" PRIu64 " ms ([host] deadline_ms, less an eighth): it is "
                            "dead, stopped, late, or does something else (this is rank %" PRIu32 " of %" PRIu32 ")",
                            who, name, comm->env.timeout_ns / 1000000, comm->rank, comm->size);
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

/* Until it is over, or cannot be any more. */
static zf_status_t wait_for(zfi_comm_t *comm, const zfi_exchange_t *exchange, uint64_t request, zf_error_t *err) {
    zf_error_t why = {.struct_size = sizeof why};
    uint64_t end = zfi_now_ns() + comm->env.timeout_ns, n_asked = 0;
    zf_status_t st;
    while ((st = comm->table.test(comm->table.ctx, request, NULL, &why)) == ZF_IN_PROGRESS) {
        if (atomic_load(comm->env.is_poisoned))
            return ZF_ERR_POISONED;
        if (zfi_now_ns() > end)
            return timed_out(comm, exchange, request, err);
        pause_for(n_asked++);
    }
    return st ? failed(comm, exchange, st, &why, err) : ZF_OK;
}

static zf_status_t host_exchange(zfi_comm_t *comm, const zfi_exchange_t *exchange, zf_error_t *err) {
    zf_collective_t call = {.struct_size = sizeof call,
                            .kind = exchange->send ? ZF_COLLECTIVE_ALL_TO_ALL : ZF_COLLECTIVE_ALL_GATHER,
                            .purpose = exchange->purpose,
                            .bucket = exchange->bucket,
                            .step = exchange->step,
                            .number = comm->number[exchange->lane],
                            .lane = exchange->lane,
                            .send = exchange->send,
                            .recv = exchange->recv,
                            .nbytes = exchange->nbytes};
    zf_error_t why = {.struct_size = sizeof why};
    uint64_t request = 0;
    zf_status_t st;
    if (atomic_load(&comm->is_ended))
        return zfi_error(err, ZF_ERR_RANKS, "ranks", "the transport ended with an earlier error");
    comm->number[exchange->lane]++;
    st = comm->table.start(comm->table.ctx, &call, &request, &why);
    if (st) {
        atomic_store(&comm->is_ended, 1);
        return failed(comm, exchange, st, &why, err);
    }
    st = wait_for(comm, exchange, request, err);
    if (st) {
        atomic_store(&comm->is_ended, 1);
        give_up(comm, request);
    }
    return st;
}

const zfi_comm_ops_t zfi_comm_host = {
    .name = ZF_EXT_COLLECTIVES,
    .open = host_open,
    .close = host_close,
    .rank = host_rank,
    .size = host_size,
    .exchange = host_exchange,
    .holds_memory = host_holds_memory,
};
