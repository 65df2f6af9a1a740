/* plugin/deliver.c - grads_ready: checks, batches, slots (contracts in deliver.h and zf/plugin.h).
 *
 * A call is checked whole before anything changes. Deliveries are collected in batches; a batch wakes the device and
 * down streams once, when it is full, when the host asks for a fence, or at step. */
#include "deliver.h"

#include <inttypes.h>
#include <string.h>

#include "device/device.h"
#include "error.h"
#include "hooks.h"
#include "memory.h"
#include "offload/transfer.h"
#include "stream.h"
#include "struct.h"
#include "tensor.h"
#include "window.h"

enum {
    KINDS = ZF_GRAD_PART | ZF_GRAD_TOTAL,
    ENDS = ZF_GRAD_MORE | ZF_GRAD_LAST | ZF_GRAD_UNKNOWN,
    KNOWN_FLAGS = KINDS | ENDS | ZF_GRAD_REPLACE | ZF_GRAD_ASYNC_READ
};

/* ---- batches ----------------------------------------------------------------------------------------------------- */

static zfi_batch_t *open_batch(zf_instance_t *inst) { return &inst->batch_ring[inst->n_batches % ZFI_N_BATCHES]; }

zf_status_t zfi_deliver_flush(zf_instance_t *inst) {
    zf_status_t st;
    if (open_batch(inst)->n == 0)
        return ZF_OK;
    st = inst->device->ship(inst, inst->n_batches);
    if (!st)
        st = zfi_transfer_gradients(inst, inst->n_batches);
    if (st)
        return st;
    inst->n_batches++;
    if (inst->n_batches >= ZFI_N_BATCHES)
        st = zfi_wait(inst, &inst->batches, inst->n_batches - ZFI_N_BATCHES + 1, &inst->count.host_wait_ns);
    open_batch(inst)->n = 0;
    open_batch(inst)->nbytes = 0;
    open_batch(inst)->needs_job = 0;
    return st;
}

zf_status_t zfi_deliver_begin(zf_instance_t *inst) {
    zf_status_t st;
    if (inst->has_begun)
        return ZF_OK;
    st = inst->device->begin(inst, inst->t + 1, inst->waiting_choice);
    inst->has_begun = 1;
    return st;
}

/* The coming step's gradients stay on the device, which reads them a second time once s is known. */
static int is_summed_on_device(const zf_instance_t *inst) {
    return zfi_sums_on_device(inst) && !zfi_is_warm_up(inst, inst->t + 1);
}

/* Slots for a parameter's segments in this step. */
static zf_status_t take_slots(zf_instance_t *inst, const zfi_param_t *param) {
    zfi_batch_t *batch = open_batch(inst);
    if (is_summed_on_device(inst))
        return ZF_OK;
    for (uint32_t i = 0; i < param->n_refs; i++) {
        uint32_t segment = inst->plan.param_segments[param->first_ref + i];
        zf_status_t st = zfi_window_slot(inst, inst->plan.segments[segment].chunk, &batch->needs_job);
        if (st)
            return st;
    }
    return ZF_OK;
}

static int is_staged(const zf_instance_t *inst, const zfi_param_t *param, const void *source) {
    return inst->staging_arena.base && source == zfi_staging(inst, param->id);
}

static zf_status_t append(zf_instance_t *inst, const zfi_param_t *param, uint32_t flags, const void *source,
                          const int64_t *strides) {
    zfi_grad_state_t *grad = &inst->grads[param->id];
    zfi_batch_t *batch = open_batch(inst);
    zfi_delivery_t *entry = &batch->entries[batch->n];
    uint64_t nbytes = param->n_elems * zfi_dtype_nbytes(param->grad_dtype);
    zf_status_t st = (flags & ZFI_DELIVER_SHIP) ? take_slots(inst, param) : ZF_OK;
    if (st)
        return st;
    entry->param = param->id;
    entry->flags = flags;
    entry->source = source;
    entry->staging_batch = 0;
    if ((flags & (ZFI_DELIVER_STRIDED | ZFI_DELIVER_SUM | ZFI_DELIVER_FROM_SUM | ZFI_DELIVER_KEEP)) ||
        is_staged(inst, param, source)) {
        uint64_t this_batch = inst->n_batches + 1;
        if (grad->staging_batch != this_batch)
            entry->staging_batch = grad->staging_batch;
        grad->staging_batch = this_batch; /* a second use in one batch runs in order and needs no wait */
    }
    if (strides)
        memcpy(entry->strides, strides, sizeof entry->strides);
    batch->step = inst->t + 1;
    batch->n++;
    batch->nbytes += nbytes;
    if (flags & ZFI_DELIVER_SHIP) {
        grad->is_shipped = 1;
        grad->shipped_nbytes = nbytes;
    }
    if (batch->n < ZFI_BATCH_ENTRIES && batch->nbytes < ZFI_BATCH_NBYTES)
        return ZF_OK;
    return zfi_deliver_flush(inst);
}

/* ---- one item ---------------------------------------------------------------------------------------------------- */

typedef struct checked_item {
    const zfi_param_t *param; /* the owner of the state; NULL: nothing to do (zero-size) */
    uint32_t flags;
    zfi_view_t view;
} checked_item_t;

static zf_status_t check_flags(uint32_t flags, const char *name, zf_error_t *err) {
    uint32_t kind = flags & KINDS, end = flags & ENDS;
    if (flags & ~(uint32_t)KNOWN_FLAGS)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "grads_ready", "gradient of \"%s\": unknown flags 0x%x", name,
                         flags);
    if (kind == 0 || kind == KINDS)
        return zfi_error(err, ZF_ERR_ARGUMENT, "grads_ready",
                         "gradient of \"%s\": flags 0x%x need exactly one of PART "
                         "and TOTAL",
                         name, flags);
    if (end & (end - 1))
        return zfi_error(err, ZF_ERR_ARGUMENT, "grads_ready",
                         "gradient of \"%s\": flags 0x%x allow one of MORE, LAST "
                         "and UNKNOWN",
                         name, flags);
    return ZF_OK;
}

static zf_status_t check_view(const zfi_param_t *param, const zfi_view_t *view, zf_error_t *err) {
    char have[128], need[128];
    if (view->dtype != param->grad_dtype)
        return zfi_error(err, ZF_ERR_DTYPE, "grads_ready", "gradient of \"%s\" is %s, declared %s", param->name,
                         zfi_dtype_name(view->dtype), zfi_dtype_name(param->grad_dtype));
    if (view->ndim == param->ndim && memcmp(view->shape, param->shape, (size_t)view->ndim * sizeof *view->shape) == 0)
        return ZF_OK;
    zfi_shape_text(have, sizeof have, view->ndim, view->shape);
    zfi_shape_text(need, sizeof need, param->ndim, param->shape);
    return zfi_error(err, ZF_ERR_SHAPE, "grads_ready", "gradient of \"%s\" has shape %s, need %s", param->name, have,
                     need);
}

static zf_status_t check_item(zf_instance_t *inst, const zf_grad_item_t *items, uint32_t i, uint32_t elem_size,
                              checked_item_t *out, zf_error_t *err) {
    zf_grad_item_t item;
    const zfi_param_t *named;
    zf_status_t st = zfi_struct_read_item(&item, items, i, elem_size, sizeof item, sizeof item, "zf_grad_item_t", err);
    if (st)
        return st;
    if (item.id >= inst->n_params)
        return zfi_error(err, ZF_ERR_PARAM, "grads_ready", "item %u: unknown parameter id %u; %u are bound", i, item.id,
                         inst->n_params);
    named = &inst->params[item.id];
    out->param = &inst->params[named->owner];
    out->flags = item.flags;
    st = check_flags(item.flags, named->name, err);
    if (!st && (out->param->flags & ZF_PARAM_FROZEN))
        st = zfi_error(err, ZF_ERR_PARAM, "grads_ready", "\"%s\" was declared frozen: it takes no gradient",
                       named->name);
    if (!st)
        st = zfi_tensor_check(item.tensor, "gradient", named->name, inst->device_type, &out->view, err);
    if (!st)
        st = check_view(named, &out->view, err);
    if (!out->param->has_state)
        out->param = NULL;
    return st;
}

/* Whether a delivery is the whole gradient, so that no sum is needed. */
static int ships_as_it_is(const checked_item_t *item, int had_sum) {
    return (item->flags & ZF_GRAD_TOTAL) || ((item->flags & ZF_GRAD_LAST) && !had_sum);
}

/* The order of deliveries within a step. */
static zf_status_t follow(zfi_protocol_t *grad, const checked_item_t *item, zf_error_t *err) {
    uint8_t kind = (uint8_t)(item->flags & KINDS);
    if (item->flags & ZF_GRAD_REPLACE)
        grad->delivered = grad->is_last = grad->has_sum = 0;
    if (grad->is_last)
        return zfi_error(err, ZF_ERR_STATE, "grads_ready",
                         "gradient of \"%s\" was delivered with LAST before in this "
                         "step: deliver it again with REPLACE, or call step first",
                         item->param->name);
    if (grad->delivered && grad->delivered != kind)
        return zfi_error(err, ZF_ERR_STATE, "grads_ready", "gradient of \"%s\": PART and TOTAL are mixed in one step",
                         item->param->name);
    grad->has_sum = !ships_as_it_is(item, grad->has_sum);
    grad->delivered = kind;
    grad->is_last = (item->flags & ZF_GRAD_LAST) != 0;
    return ZF_OK;
}

/* A shipment that does not count any more. */
static void lose_shipment(zf_instance_t *inst, zfi_grad_state_t *grad) {
    if (grad->is_shipped)
        atomic_fetch_add(&inst->count.lost_overlap_nbytes, grad->shipped_nbytes);
    grad->is_shipped = 0;
}

/* Copies into staging on the host's thread, which may then reuse its memory. */
static zf_status_t stage(zf_instance_t *inst, const checked_item_t *item, const void **out_source) {
    const zfi_param_t *param = item->param;
    size_t elem = zfi_dtype_nbytes(param->grad_dtype);
    void *staging = zfi_staging(inst, param->id);
    uint64_t used_by = inst->grads[param->id].staging_batch;
    zf_status_t st = used_by == inst->n_batches + 1 ? zfi_deliver_flush(inst) : ZF_OK;
    if (!st)
        st = zfi_wait(inst, &inst->batches, used_by, &inst->count.host_wait_ns);
    if (!st && zfi_sums_on_device(inst)) /* the step before may still be adding what lies there */
        st = zfi_wait(inst, &inst->summed, inst->t, &inst->count.host_wait_ns);
    if (st)
        return st;
    if (item->view.is_contiguous)
        memcpy(staging, item->view.data, param->n_elems * elem);
    else
        zfi_tensor_pack(staging, item->view.data, elem, item->view.ndim, item->view.shape, item->view.strides);
    *out_source = staging;
    return ZF_OK;
}

/* Takes one checked item; *out_must_wait is set where the device reads the host's memory and the host expects the hook
 * to have finished with it. */
static zf_status_t take_item(zf_instance_t *inst, const checked_item_t *item, int is_host_thread, int wants_fence,
                             int *out_must_wait) {
    const zfi_param_t *param = item->param;
    zfi_grad_state_t *grad = &inst->grads[param->id];
    const void *source = item->view.data;
    int is_strided = !item->view.is_contiguous, is_sync = is_host_thread && !(item->flags & ZF_GRAD_ASYNC_READ);
    int had_sum, ships_directly;
    uint32_t flags;
    zf_status_t st;
    had_sum = grad->now.has_sum && !(item->flags & ZF_GRAD_REPLACE);
    st = follow(&grad->now, item, NULL);
    if (st)
        return ZF_ERR_INTERNAL; /* checked before */
    ships_directly = ships_as_it_is(item, had_sum);
    if (is_sync && ships_directly) {
        st = stage(inst, item, &source);
        is_strided = 0;
    }
    if (st)
        return st;
    flags = is_strided ? ZFI_DELIVER_STRIDED : 0;
    if (ships_directly) {
        flags |= ZFI_DELIVER_SHIP;
        if (wants_fence && !is_sync && !is_strided && is_summed_on_device(inst))
            flags |= ZFI_DELIVER_KEEP;
    } else {
        flags |= ZFI_DELIVER_SUM | (had_sum ? 0u : ZFI_DELIVER_SUM_FIRST);
        if (item->flags & ZF_GRAD_LAST)
            flags |= ZFI_DELIVER_SHIP;
        *out_must_wait |= is_sync;
    }
    lose_shipment(inst, grad);
    zfi_row(inst, inst->t + 1)->present[param->id] = 1;
    return append(inst, param, flags, source, item->view.strides);
}

/* ---- the hook ---------------------------------------------------------------------------------------------------- */

/* Checks every item, also against those before it in the same call, and maps what they need. */
static zf_status_t check_all(zf_instance_t *inst, const zf_grad_item_t *items, uint32_t n, uint32_t elem_size,
                             int is_host_thread, int wants_fence, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    int needs_staging = 0, needs_sums = 0;
    inst->n_calls++;
    for (uint32_t i = 0; i < n && !st; i++) {
        checked_item_t item;
        zfi_grad_state_t *grad;
        st = check_item(inst, items, i, elem_size, &item, err);
        if (st || !item.param)
            continue;
        grad = &inst->grads[item.param->id];
        if (grad->trial_call != inst->n_calls)
            grad->trial = grad->now;
        grad->trial_call = inst->n_calls;
        st = follow(&grad->trial, &item, err);
        needs_sums |= grad->trial.has_sum;
        needs_staging |= grad->trial.has_sum || !item.view.is_contiguous ||
                         (is_host_thread && !(item.flags & ZF_GRAD_ASYNC_READ)) ||
                         (wants_fence && zfi_sums_on_device(inst)); /* in warm-up too: mapped once, at the start */
    }
    if (!st && needs_staging)
        st = zfi_memory_need_staging(inst, err);
    if (!st && needs_sums)
        st = zfi_memory_need_sums(inst, err);
    return st;
}

static zf_status_t take_all(zf_instance_t *inst, const zf_grad_item_t *items, uint32_t n, uint32_t elem_size,
                            int is_host_thread, int wants_fence) {
    int must_wait = 0;
    zf_status_t st = zfi_deliver_begin(inst);
    for (uint32_t i = 0; i < n && !st; i++) {
        checked_item_t item;
        st = check_item(inst, items, i, elem_size, &item, NULL);
        if (!st && item.param)
            st = take_item(inst, &item, is_host_thread, wants_fence, &must_wait);
        if (!wants_fence && (!is_host_thread || (item.flags & ZF_GRAD_ASYNC_READ)))
            zfi_row(inst, inst->t + 1)->waits_for_down = 1;
    }
    if (!st && (must_wait || wants_fence))
        st = zfi_deliver_flush(inst);
    if (!st && must_wait)
        st = zfi_wait(inst, &inst->shipped, inst->n_batches, &inst->count.host_wait_ns);
    return st;
}

zf_status_t zfi_grads_ready(zf_instance_t *inst, const zf_grad_item_t *items, uint32_t n, uint32_t elem_size,
                            const zf_stream_t *stream, zf_fence_t *out_done, zf_error_t *err) {
    unsigned legal = 1u << ZFI_STATE_BOUND | 1u << ZFI_STATE_ACTIVE | 1u << ZFI_STATE_QUIESCED;
    zf_fence_t fence = {.struct_size = sizeof fence, .kind = ZF_FENCE_HOST_COUNTER};
    int is_host_thread = 0;
    zf_status_t st = zfi_enter(inst, legal, "grads_ready", err);
    if (st)
        return st;
    st = zfi_struct_check_out(out_done, "zf_fence_t", err);
    if (!st)
        st = zfi_array_check(items, n, 1, elem_size, sizeof *items, "items", err);
    if (!st)
        st = zfi_stream_use(inst, stream, &is_host_thread, err);
    if (!st)
        st = check_all(inst, items, n, elem_size, is_host_thread, out_done != NULL, err);
    if (!st) {
        st = take_all(inst, items, n, elem_size, is_host_thread, out_done != NULL);
        if (st && atomic_load(&inst->is_poisoned))
            st = zfi_error_copy(err, &inst->poison);
        else if (st)
            zfi_error(err, st, "grads_ready", "the device did not take the gradients");
        if (inst->state != ZFI_STATE_ACTIVE)
            inst->state = ZFI_STATE_ACTIVE;
    }
    if (!st) {
        fence.counter = (const uint64_t *)&inst->batches.value;
        fence.value = inst->n_batches;
        zfi_struct_write(out_done, &fence, sizeof fence);
    }
    zfi_leave(inst);
    return st;
}

/* ---- at step ----------------------------------------------------------------------------------------------------- */

zf_status_t zfi_deliver_finish(zf_instance_t *inst) {
    zfi_step_row_t *row = zfi_row(inst, inst->t + 1);
    zf_status_t st = zfi_deliver_begin(inst);
    row->n_present = 0;
    for (uint32_t i = 0; i < inst->n_params && !st; i++) {
        if (!row->present[i])
            continue;
        row->n_present++;
        if (!inst->grads[i].is_shipped)
            st = append(inst, &inst->params[i], ZFI_DELIVER_FROM_SUM | ZFI_DELIVER_SHIP, NULL, NULL);
    }
    return st ? st : zfi_deliver_flush(inst);
}

void zfi_deliver_reset(zf_instance_t *inst) {
    for (uint32_t i = 0; i < inst->n_params; i++) {
        inst->grads[i].now = (zfi_protocol_t){0};
        inst->grads[i].is_shipped = 0;
    }
}
