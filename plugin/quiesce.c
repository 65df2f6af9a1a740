/* plugin/quiesce.c - DRAIN, FLUSH and params_changed (contracts in zf/plugin.h; rules in SCHEDULE.md, "Between steps").
 */
#include "quiesce.h"

#include <string.h>

#include "deliver.h"
#include "device/device.h"
#include "error.h"
#include "fault.h"
#include "hooks.h"
#include "offload/transfer.h"
#include "offload/workers.h"
#include "step.h"
#include "window.h"

enum { AT_REST = 1u << ZFI_STATE_BOUND | 1u << ZFI_STATE_ACTIVE | 1u << ZFI_STATE_QUIESCED };

static uint64_t uploads_at_rest(const zf_instance_t *inst) {
    uint64_t room = zfi_timeline_now(&inst->publish_due) + ZFI_RING_CHUNKS;
    return room < inst->next_publish ? room : inst->next_publish;
}

static zf_status_t wait_all(zf_instance_t *inst) {
    zf_status_t st = zfi_wait(inst, &inst->stream->executed, zfi_queue_newest(inst->stream), &inst->count.host_wait_ns);
    if (!st)
        st = zfi_wait(inst, &inst->batches, inst->n_batches, &inst->count.host_wait_ns);
    if (!st)
        st = zfi_wait(inst, &inst->down, inst->t, &inst->count.host_wait_ns);
    if (!st)
        st = zfi_wait(inst, &inst->jobs, inst->next_job, &inst->count.host_wait_ns);
    if (!st)
        st = zfi_wait(inst, &inst->control, inst->t, &inst->count.host_wait_ns);
    if (!st) /* what is due later stops where the device's ring is full */
        st = zfi_wait(inst, &inst->up, uploads_at_rest(inst), &inst->count.host_wait_ns);
    return st;
}

/* The caller's error after a wait: the one that ended the instance, or the wait's own. */
static zf_status_t report(const zf_instance_t *inst, zf_status_t st, const char *what, zf_error_t *err) {
    if (!st)
        return ZF_OK;
    if (atomic_load(&inst->is_poisoned))
        return zfi_error_copy(err, &inst->poison);
    return zfi_error(err, st, "quiesce", "%s", what);
}

zf_status_t zfi_drain(zf_instance_t *inst, zf_error_t *err) {
    zf_status_t st = zfi_deliver_flush(inst);
    if (!st && inst->waiting_choice) {
        /* control must get rid of entering state to come to rest; taking it early is not visible */
        st = zfi_deliver_begin(inst);
        if (!st)
            st = zfi_push_enter_state(inst);
    }
    if (!st)
        st = wait_all(inst);
    return report(inst, st, "the device did not come to rest", err);
}

/* ---- FLUSH ------------------------------------------------------------------------------------------------------- */

static zf_status_t close_all(zf_instance_t *inst) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < inst->n_due && !st; i++)
        st = zfi_push_publish(inst, &inst->due[i]);
    inst->n_due = 0;
    for (uint32_t c = 0; c < inst->plan.n_cohorts && !st; c++) {
        zfi_close_t close;
        if (zfi_sums_on_device(inst) && inst->plan.cohorts[c].n_chunks && !zfi_is_warm_up(inst, inst->t))
            st = zfi_push_round_sums(inst, c);
        zfi_window_close(inst, c, inst->t, 1, &close);
        if (close.n_chunks == 0)
            continue;
        if (!st)
            st = zfi_push_work(inst, &close);
        if (!st)
            st = zfi_push_publish(inst, &close);
    }
    zfi_window_restart(inst);
    return st;
}

/* Moments mode: what runs ahead goes on from the host's state. */
static zf_status_t reload_all(zf_instance_t *inst) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < inst->n_params && !st; i++)
        if (inst->params[i].has_state)
            st = inst->device->reload_selected(inst, i);
    return st ? st : zfi_wait(inst, &inst->stream->executed, zfi_queue_newest(inst->stream), NULL);
}

static zf_status_t flush(zf_instance_t *inst, zf_error_t *err) {
    zf_status_t st = zfi_drain(inst, err);
    if (st)
        return st;
    st = close_all(inst);
    if (!st)
        st = wait_all(inst);
    if (!st && zfi_is_moments(inst))
        st = reload_all(inst);
    return report(inst, st, "the open windows could not be closed", err);
}

zf_status_t zfi_quiesce(zf_instance_t *inst, int32_t mode, zf_error_t *err) {
    zf_status_t st = zfi_enter(inst, AT_REST, "quiesce", err);
    if (st)
        return st;
    if (mode != ZF_QUIESCE_DRAIN && mode != ZF_QUIESCE_FLUSH)
        st = zfi_error(err, ZF_ERR_ARGUMENT, "quiesce", "mode = %d; allowed: %d (DRAIN), %d (FLUSH)", mode,
                       ZF_QUIESCE_DRAIN, ZF_QUIESCE_FLUSH);
    else if (mode == ZF_QUIESCE_FLUSH || ZFI_FAULT_DRAIN_FLUSHES)
        st = flush(inst, err);
    else
        st = zfi_drain(inst, err);
    if (!st && ZFI_FAULT_PUBLISH_LOST_ON_DRAIN)
        for (uint32_t i = 0; i < inst->plan.n_matrices; i++)
            inst->skip_publish_below[i] = inst->next_publish;
    if (!st)
        inst->state = ZFI_STATE_QUIESCED;
    zfi_leave(inst);
    return st;
}

/* ---- params_changed ---------------------------------------------------------------------------------------------- */

/* Everything is idle. Slots of the coming step (t + 1) stay: their row is not cleared. */
static void clear_moment(const zf_instance_t *inst, const zfi_matrix_t *matrix, void *moments) {
    if (moments)
        memset(zfi_moment_at(inst, moments, matrix->state_base), 0,
               matrix->rows * matrix->cols * zfi_moment_nbytes(inst));
}

static zf_status_t take_over(zf_instance_t *inst, uint32_t id, uint32_t flags) {
    const zfi_param_t *param = &inst->params[id];
    uint64_t oldest = inst->t > inst->config.update_interval ? inst->t - inst->config.update_interval : 0;
    zf_status_t st = inst->device->read_visible(inst, id);
    for (uint64_t t = oldest + 1; t <= inst->t; t++)
        zfi_row(inst, t)->present[id] = 0;
    for (uint32_t i = param->first_matrix; i < param->first_matrix + param->n_matrices; i++) {
        const zfi_matrix_t *matrix = &inst->plan.matrices[i];
        inst->skip_publish_below[i] = inst->next_publish;
        if (!(flags & ZF_CHANGED_RESET))
            continue;
        clear_moment(inst, matrix, inst->hs.m);
        clear_moment(inst, matrix, inst->hs.v);
        if (zfi_is_mean(inst))
            memset(inst->hs.n + matrix->channel_base, 0, matrix->n_channels * sizeof *inst->hs.n);
        else
            inst->hs.n[i] = 0;
    }
    if (!st)
        st = zfi_wait(inst, &inst->stream->executed, zfi_queue_newest(inst->stream), NULL);
    return st ? st : inst->device->reload_selected(inst, id);
}

static zf_status_t check_changed(zf_instance_t *inst, const uint32_t *ids, uint32_t n, uint32_t flags,
                                 zf_error_t *err) {
    if (flags & ~ZF_CHANGED_RESET)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "params_changed", "unknown flags 0x%x", flags);
    if (n && !ids)
        return zfi_error(err, ZF_ERR_ARGUMENT, "params_changed", "ids is NULL with n = %u", n);
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] >= inst->n_params)
            return zfi_error(err, ZF_ERR_PARAM, "params_changed", "unknown parameter id %u; %u are bound", ids[i],
                             inst->n_params);
    return ZF_OK;
}

zf_status_t zfi_params_changed(zf_instance_t *inst, const uint32_t *ids, uint32_t n, uint32_t flags, zf_error_t *err) {
    zf_status_t st = zfi_enter(inst, AT_REST, "params_changed", err);
    if (st)
        return st;
    st = check_changed(inst, ids, n, flags, err);
    if (!st)
        st = zfi_drain(inst, err);
    for (uint32_t i = 0; i < n && !st; i++) {
        uint32_t owner = inst->params[ids[i]].owner;
        if (inst->params[owner].has_state)
            st = take_over(inst, owner, flags);
        if (atomic_exchange(&inst->overwritten[owner], 0))
            atomic_fetch_sub(&inst->n_overwritten, 1);
    }
    if (!st)
        st = zfi_wait(inst, &inst->stream->executed, zfi_queue_newest(inst->stream), NULL);
    zfi_leave(inst);
    return st;
}
