/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/quiesce.c - DRAIN, FLUSH and params_changed (contracts in zf/plugin.h; rules in SCHEDULE.md, "Between
 * steps").
 */
#include "hooks/quiesce.h"

#include <string.h>

#include "base/error.h"
#include "hooks/batch.h"
#include "hooks/hooks.h"
#include "hooks/reduce.h"
#include "offload/at_fetch.h"
#include "offload/exchange.h"
#include "offload/lateness.h"
#include "offload/program.h"
#include "offload/publish.h"
#include "offload/sums.h"

enum { AT_REST = 1u << ZFI_STATE_BOUND | 1u << ZFI_STATE_ACTIVE | 1u << ZFI_STATE_QUIESCED };

zf_status_t zfi_drain(zf_instance_t *inst, zf_error_t *err) {
    zf_status_t st = zfi_batch_flush(inst);
    if (!st)
        st = zfi_program_rest(inst->run);
    return zfi_hook_failed(inst, st, "quiesce", "the device did not come to rest", err);
}

/* ---- FLUSH ------------------------------------------------------------------------------------------------------- */

/* Moments mode: what runs ahead goes on from the host's state. */
static zf_status_t reload_all(zf_instance_t *inst) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < inst->run->n_params && !st; i++)
        if (inst->run->params[i].has_state)
            st = zfi_exchange_reload_selected(inst->run, i);
    return st;
}

static zf_status_t flush(zf_instance_t *inst, zf_error_t *err) {
    zf_status_t st = zfi_drain(inst, err);
    if (st)
        return st;
    zfi_reduce_event(inst->run, ZF_QUIESCE_FLUSH, NULL, 0);
    st = zfi_program_close_all(inst->run);
    if (!st)
        st = zfi_program_rest(inst->run);
    if (!st && zfi_is_moments(&inst->engine.config))
        st = reload_all(inst);
    return zfi_hook_failed(inst, st, "quiesce", "the open windows could not be closed", err);
}

zf_status_t zfi_quiesce(zf_instance_t *inst, int32_t mode, zf_error_t *err) {
    zf_status_t st = zfi_hook_begin(inst, AT_REST, "quiesce", err);
    if (st)
        return st;
    if (mode != ZF_QUIESCE_DRAIN && mode != ZF_QUIESCE_FLUSH)
        st = zfi_error(err, ZF_ERR_ARGUMENT, "quiesce", "mode = %d; allowed: %d (DRAIN), %d (FLUSH)", mode,
                       ZF_QUIESCE_DRAIN, ZF_QUIESCE_FLUSH);
    else if (mode == ZF_QUIESCE_FLUSH)
        st = flush(inst, err);
    else
        st = zfi_drain(inst, err);
    if (!st)
        inst->state = ZFI_STATE_QUIESCED;
    zfi_hook_end(inst);
    return st;
}

/* ---- params_changed ---------------------------------------------------------------------------------------------- */

/* Everything is idle. Slots of the coming step (t + 1) stay: their row is not cleared. */
static void clear_moment(const zfi_run_t *run, const zfi_matrix_t *matrix, void *moments) {
    const zfi_config_t *config = &run->engine->config;
    const zfi_tile_t *tiles = &run->plan.tiles[matrix->first_tile];
    for (uint32_t i = 0; moments && i < matrix->n_tiles; i++)
        memset(zfi_moment_at(config, moments, tiles[i].state_base), 0, tiles[i].n_elems * zfi_moment_nbytes(config));
}

/* Moments and counts of a matrix begin anew. */
static void reset_matrix(zfi_run_t *run, uint32_t number) {
    const zfi_matrix_t *matrix = &run->plan.matrices[number];
    clear_moment(run, matrix, run->hs.m);
    clear_moment(run, matrix, run->hs.v);
    if (zfi_is_mean(&run->engine->config))
        memset(run->hs.n + matrix->channel_base, 0, matrix->n_channels * sizeof *run->hs.n);
    else
        run->hs.n[number] = 0;
}

static zf_status_t take_over(zfi_run_t *run, uint32_t id, uint32_t flags) {
    const zfi_param_t *param = &run->params[id];
    uint64_t interval = run->engine->config.update_interval, newest = run->clock.t;
    zf_status_t st = zfi_exchange_read_masters(run, id);
    for (uint64_t t = newest > interval ? newest - interval + 1 : 1; t <= newest; t++)
        zfi_row(run, t)->present[id] = 0;
    zfi_publish_drop(run, param->first_matrix, param->n_matrices);
    zfi_sums_restart(run, param->first_matrix, param->n_matrices);
    zfi_lateness_forget(run, param->first_matrix, param->n_matrices);
    for (uint32_t i = 0; i < param->n_matrices && (flags & ZF_CHANGED_RESET); i++)
        reset_matrix(run, param->first_matrix + i);
    return st ? st : zfi_exchange_reload_selected(run, id);
}

static zf_status_t check_changed(zf_instance_t *inst, const uint32_t *ids, uint32_t n, uint32_t flags,
                                 zf_error_t *err) {
    if (flags & ~ZF_CHANGED_RESET)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "params_changed", "unknown flags 0x%x", flags);
    if (n && !ids)
        return zfi_error(err, ZF_ERR_ARGUMENT, "params_changed", "ids is NULL with n = %u", n);
    for (uint32_t i = 0; i < n; i++)
        if (ids && ids[i] >= inst->run->n_params)
            return zfi_error(err, ZF_ERR_PARAM, "params_changed", "unknown parameter id %u; %u are bound", ids[i],
                             inst->run->n_params);
    return ZF_OK;
}

/* The parameters of a list, or 0 .. n-1. All rests and the host's writes are over, so our own stream does it: the
 * host's queue may be held up, and these waits have no deadline. */
static zf_status_t take_over_all(zf_instance_t *inst, const uint32_t *ids, uint32_t n, uint32_t flags) {
    zfi_stream_t *hosts = inst->engine.stream;
    zf_status_t st = ZF_OK;
    inst->engine.stream = inst->engine.own_stream;
    for (uint32_t i = 0; i < n && !st; i++) {
        uint32_t owner = inst->run->params[ids ? ids[i] : i].owner;
        if (!ids && owner != i)
            continue; /* a tied one: taken with its owner */
        if (inst->run->params[owner].has_state) {
            zfi_reduce_event(inst->run, flags, &owner, sizeof owner);
            st = take_over(inst->run, owner, flags);
        }
        if (__atomic_exchange_n(&inst->run->overwritten[owner], 0, __ATOMIC_RELAXED))
            __atomic_fetch_sub(&inst->engine.totals->n_params_overwritten, 1, __ATOMIC_RELAXED);
    }
    if (!st)
        st = zfi_synchronise(&inst->engine, 0);
    inst->engine.stream = hosts;
    return st;
}

/* What waits to be fetched of them would overwrite what the host has written. */
static zf_status_t drop_unfetched(zf_instance_t *inst, const uint32_t *ids, uint32_t n, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < n && !st; i++)
        st = zfi_at_fetch_drop(inst->run, inst->run->params[ids ? ids[i] : i].owner);
    return zfi_hook_failed(inst, st, "params_changed", "the device did not take the change", err);
}

zf_status_t zfi_params_changed(zf_instance_t *inst, const uint32_t *ids, uint32_t n, uint32_t flags, zf_error_t *err) {
    zf_status_t st = zfi_hook_begin(inst, AT_REST, "params_changed", err);
    if (st)
        return st;
    st = check_changed(inst, ids, n, flags, err);
    if (!st)
        st = zfi_reduce_refuse(inst, "params_changed", err);
    if (!st)
        st = drop_unfetched(inst, ids, ids ? n : inst->run->n_params, err);
    if (!st)
        st = zfi_drain(inst, err);
    if (!st)
        st = zfi_hook_failed(inst, take_over_all(inst, ids, ids ? n : inst->run->n_params, flags), "params_changed",
                             "the device did not take the changed parameters", err);
    zfi_hook_end(inst);
    return st;
}
