/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/collective.c - exchanges among ranks (contract in collective.h). */
#include "ranks/collective.h"

#include "base/timeline.h"

zf_status_t zfi_collective(zfi_engine_t *engine, const zfi_exchange_t *what) {
    zf_error_t err = {.struct_size = sizeof err};
    uint64_t sent_nbytes = (zfi_member(engine, what->group).n_ranks - 1) * what->nbytes;
    uint64_t began = zfi_now_ns(), traced = zfi_trace_begin(engine->trace);
    zfi_engine_exchanging(engine, 1);
    zf_status_t st = engine->comm_ops->exchange(engine->comm, what, &err);
    atomic_fetch_add(&engine->count.exchange_ns, zfi_now_ns() - began);
    zfi_trace_end(engine->trace, traced, zfi_purpose_name(what->purpose), (zfi_trace_number_t){"bucket", what->bucket},
                  (zfi_trace_number_t){"bytes_sent", sent_nbytes});
    if (st && st != ZF_ERR_POISONED)
        zfi_poison(engine, &err);
    zfi_engine_exchanging(engine, 0);
    if (st)
        return st;
    atomic_fetch_add(&engine->count.exchanges, 1);
    atomic_fetch_add(&engine->count.sent_nbytes, sent_nbytes);
    return ZF_OK;
}

zf_status_t zfi_gather_parts(zfi_engine_t *engine, const zfi_exchange_t *all) {
    const zfi_nodes_t *nodes = &engine->nodes;
    zfi_exchange_t between = *all, inside = *all;
    if (!zfi_has_two_levels(engine, all->group))
        return zfi_collective(engine, all);
    between.group = nodes->between_group;
    inside.group = nodes->inside_group;
    inside.nbytes *= nodes->between.n_ranks;
    between.recv = (unsigned char *)all->recv + nodes->inside.rank * inside.nbytes;
    zf_status_t st = zfi_collective(engine, &between);
    return st ? st : zfi_collective(engine, &inside);
}

typedef struct call {
    zfi_engine_t *engine;
    zfi_collective_fn fn;
    zfi_exchange_t what;
    zf_status_t *out_status;
} call_t;

static void run(void *raw) {
    const call_t *call = raw;
    *call->out_status = zfi_is_poisoned(call->engine) ? ZF_ERR_POISONED : call->fn(call->engine, &call->what);
}

zf_status_t zfi_collective_call(zfi_engine_t *engine, zfi_serial_t *thread, zfi_collective_fn fn,
                                const zfi_exchange_t *what) {
    zf_status_t outcome = ZF_ERR_POISONED;
    call_t call = {engine, fn, *what, &outcome};
    uint64_t began = zfi_now_ns();
    zf_status_t st = zfi_serial_call(thread, run, &call, sizeof call);
    atomic_fetch_add(&engine->count.host_wait_ns, zfi_now_ns() - began);
    return st ? st : outcome;
}
