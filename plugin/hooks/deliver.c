/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/deliver.c - grads_ready: checks, batches, slots (contracts in deliver.h and zf/plugin.h).
 *
 * A call is checked whole before anything changes. Deliveries are collected in batches; a batch wakes the device and
 * down streams once, when it is full, when the host asks for a fence, or at step. */
#include "hooks/deliver.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/struct.h"
#include "base/tensor.h"
#include "hooks/batch.h"
#include "hooks/hooks.h"
#include "hooks/named.h"
#include "hooks/reduce.h"
#include "hooks/stream.h"
#include "instance/gradient_place.h"
#include "instance/memory.h"
#include "ranks/buffers.h"
#include "replay/early.h"
#include "schedule/expect.h"
#include "step/updater.h"

enum {
    KINDS = ZF_GRAD_PART | ZF_GRAD_TOTAL,
    ENDS = ZF_GRAD_MORE | ZF_GRAD_LAST | ZF_GRAD_UNKNOWN,
    KNOWN_FLAGS = KINDS | ENDS | ZF_GRAD_REPLACE | ZF_GRAD_ASYNC_READ | ZF_GRAD_LENT
};

typedef struct checked_item {
    const zfi_param_t *param; /* the owner of the state; NULL: nothing to do (zero-size) */
    uint32_t flags;
    uint32_t first_batch, n_batches; /* a part of its matrices; n_batches = 0: all */
    int is_carried;                  /* it lies in the memory of its parameter's values */
    zfi_view_t view;
} checked_item_t;

enum { MOST_KEPT = 64 }; /* as many items of a call are taken as they were checked; later ones are read once more */

/* ---- streams ----------------------------------------------------------------------------------------------------- */

zf_status_t zfi_deliver_on(zf_instance_t *inst, const zf_stream_t *given, int *out_is_host_thread, zf_error_t *err) {
    zfi_stream_t *stream = NULL;
    zf_status_t st = zfi_stream_resolve(inst, given, "stream", &stream, out_is_host_thread, err);
    if (st || stream == inst->engine.stream)
        return st;
    st = zfi_hook_failed(inst, zfi_batch_flush(inst), "stream",
                         "the device did not take the gradients that were delivered on the former stream", err);
    return st ? st : zfi_stream_change(inst, stream, err);
}

/* ---- one item ---------------------------------------------------------------------------------------------------- */

static zf_status_t check_flags(uint32_t flags, const char *name, zf_error_t *err) {
    uint32_t kind = flags & KINDS, end = flags & ENDS;
    if (flags & ~(uint32_t)KNOWN_FLAGS)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "grads_ready", "gradient of \"%s\": unknown flags 0x%x", name,
                         flags);
    if (kind == 0 || kind == KINDS)
        return zfi_error(err, ZF_ERR_ARGUMENT, "grads_ready",
                         "gradient of \"%s\": flags 0x%x need exactly one of PART and TOTAL", name, flags);
    if (end & (end - 1))
        return zfi_error(err, ZF_ERR_ARGUMENT, "grads_ready",
                         "gradient of \"%s\": flags 0x%x allow one of MORE, LAST and UNKNOWN", name, flags);
    return ZF_OK;
}

static zf_status_t check_view(const zfi_param_t *param, const zfi_view_t *view, zf_error_t *err) {
    char have[128], need[128];
    if (view->dtype != param->grad_dtype)
        return zfi_error(err, ZF_ERR_DTYPE, "grads_ready", "gradient of \"%s\" is %s, declared %s", param->name,
                         zfi_dtype_name(view->dtype), zfi_dtype_name(param->grad_dtype));
    if (zfi_param_has_shape(param, view->ndim, view->shape))
        return ZF_OK;
    zfi_shape_text(have, sizeof have, view->ndim, view->shape);
    zfi_shape_text(need, sizeof need, param->ndim, param->shape);
    return zfi_error(err, ZF_ERR_SHAPE, "grads_ready", "gradient of \"%s\" has shape %s, need %s", param->name, have,
                     need);
}

/* Gradients are read while weights are written. Strided views may interleave: of them the first element counts. Memory
 * that carries has the whole gradient, element by element. */
static zf_status_t check_own_memory(const zfi_param_t *param, const zfi_view_t *view, int *out_is_carried,
                                    zf_error_t *err) {
    size_t grad = view->is_contiguous ? view->n_elems * view->elem_nbytes : view->elem_nbytes;
    size_t weight = (param->is_contiguous ? param->n_elems : 1) * zfi_dtype_nbytes(param->dtype);
    *out_is_carried = param->carries && view->is_contiguous && view->data == param->visible;
    if (*out_is_carried || param->n_elems == 0 || param->is_sharded || view->data + grad <= param->visible ||
        param->visible + weight <= view->data)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_PARAM, "grads_ready",
                     "gradient of \"%s\" lies at %p, in the memory of the parameter itself (%p): give the tensor that "
                     "holds the gradient",
                     param->name, (const void *)view->data, (const void *)param->visible);
}

/* Matrices are the owner's, as in every other list. */
static zf_status_t check_range(const zf_grad_item_t *item, const zfi_param_t *param, checked_item_t *out,
                               zf_error_t *err) {
    const uint64_t n_batch = out->param->n_batch;
    zf_status_t st =
        zfi_named_check_range(param, n_batch, item->first_batch, item->n_batches, "gradient of ", "grads_ready", err);
    out->first_batch = item->first_batch;
    out->n_batches = item->n_batches == n_batch ? 0 : item->n_batches;
    if (!st && out->n_batches && !(item->flags & ZF_GRAD_LAST))
        return zfi_error(err, ZF_ERR_ARGUMENT, "grads_ready",
                         "gradient of \"%s\": flags 0x%x of a range of its matrices need LAST", param->name,
                         item->flags);
    return st;
}

static zf_status_t check_item(zf_instance_t *inst, const zf_grad_item_t *items, uint32_t i, uint32_t elem_size,
                              checked_item_t *out, zf_error_t *err) {
    zf_grad_item_t item;
    zf_status_t st = ZFI_READ_ITEM_CHAINED(&item, items, i, elem_size, zf_grad_item_t, err);
    if (!st)
        st = zfi_reserved_check(item.reserved0, "zf_grad_item_t", err);
    if (st)
        return st;
    if (item.id >= inst->run->n_params)
        return zfi_error(err, ZF_ERR_PARAM, "grads_ready", "item %u: unknown parameter id %u; %u are bound", i, item.id,
                         inst->run->n_params);
    const zfi_param_t *named = &inst->run->params[item.id];
    out->param = &inst->run->params[named->owner];
    out->flags = item.flags & ZF_GRAD_LENT ? item.flags | ZF_GRAD_ASYNC_READ : item.flags;
    st = check_flags(item.flags, named->name, err);
    if (!st && (out->param->flags & ZF_PARAM_FROZEN))
        st = zfi_error(err, ZF_ERR_PARAM, "grads_ready", "\"%s\" was declared frozen: it takes no gradient",
                       named->name);
    if (!st)
        st = zfi_tensor_check(item.tensor, "gradient", named->name, inst->engine.device_type, &out->view, err);
    if (!st)
        st = check_view(named, &out->view, err);
    if (!st)
        st = check_own_memory(named, &out->view, &out->is_carried, err);
    if (!st && out->is_carried)
        out->flags |= ZF_GRAD_ASYNC_READ;
    if (!st)
        st = check_range(&item, named, out, err);
    if (!out->param->has_state)
        out->param = NULL;
    return zfi_error_about(err, st, item.id);
}

/* Whether a delivery is the whole gradient, so that no sum is needed. */
static int ships_as_it_is(const checked_item_t *item, int had_sum) {
    return (item->flags & ZF_GRAD_TOTAL) || ((item->flags & ZF_GRAD_LAST) && !had_sum);
}

/* The next range of matrices of a gradient that is delivered so; the last one completes it. */
static zf_status_t follow_range(zfi_protocol_t *grad, const checked_item_t *item, zf_error_t *err) {
    uint32_t first = item->first_batch, end = first + item->n_batches;
    if (grad->delivered && grad->to == 0)
        return zfi_error(err, ZF_ERR_STATE, "grads_ready",
                         "gradient of \"%s\": a range of its matrices after a delivery of all in one step: use REPLACE",
                         item->param->name);
    if (grad->to != 0 && end != grad->from && first != grad->to)
        return zfi_error(
            err, ZF_ERR_STATE, "grads_ready",
            "gradient of \"%s\": matrices %u..%u do not adjoin those delivered before in this step, %u..%u",
            item->param->name, first, end - 1, grad->from, grad->to - 1);
    if (grad->to == 0)
        grad->from = first, grad->to = end;
    else if (first == grad->to)
        grad->to = end;
    else
        grad->from = first;
    grad->delivered = (uint8_t)(item->flags & KINDS);
    grad->is_last = (uint64_t)grad->to - grad->from == item->param->n_batch;
    return ZF_OK;
}

/* The order of deliveries within a step. */
static zf_status_t follow(zfi_protocol_t *grad, const checked_item_t *item, zf_error_t *err) {
    uint8_t kind = (uint8_t)(item->flags & KINDS);
    if (item->flags & ZF_GRAD_REPLACE)
        *grad = (zfi_protocol_t){0};
    if (grad->is_last)
        return zfi_error(err, ZF_ERR_STATE, "grads_ready",
                         "gradient of \"%s\" was delivered with LAST before in this step: deliver it again with "
                         "REPLACE, or call step first",
                         item->param->name);
    if (grad->delivered && grad->delivered != kind)
        return zfi_error(err, ZF_ERR_STATE, "grads_ready", "gradient of \"%s\": PART and TOTAL are mixed in one step",
                         item->param->name);
    if (item->n_batches)
        return follow_range(grad, item, err);
    if (grad->to)
        return zfi_error(err, ZF_ERR_STATE, "grads_ready",
                         "gradient of \"%s\": all matrices after a range of them in one step: use REPLACE",
                         item->param->name);
    grad->has_sum = !ships_as_it_is(item, grad->has_sum);
    grad->delivered = kind;
    grad->is_last = (item->flags & ZF_GRAD_LAST) != 0;
    return ZF_OK;
}

/* A shipment that does not count any more. */
static void lose_shipment(zf_instance_t *inst, uint32_t id) {
    zfi_incoming_t *incoming = &inst->run->incoming;
    if (incoming->is_shipped[id])
        atomic_fetch_add(&inst->engine.count.lost_overlap_nbytes, incoming->grads[id].shipped_nbytes);
    incoming->is_shipped[id] = 0;
}

/* On the host's thread: staging is free once what `used_by` shipped from it has travelled, and what exchanges or
 * updates read of the step before. */
static zf_status_t wait_for_staging(zf_instance_t *inst, uint32_t param, uint64_t used_by) {
    zf_status_t st = used_by == inst->engine.n_batches + 1 ? zfi_batch_flush(inst) : ZF_OK;
    if (!st)
        st = zfi_wait(&inst->engine, &inst->engine.lines.batches, used_by, &inst->engine.count.host_wait_ns);
    if (!st && zfi_is_reduced(inst->run))
        st = zfi_buffers_wait(inst->run->engine, &inst->run->reduction, inst->run->buckets.of_param[param]);
    if (!st && inst->run->params[param].has_resident)
        st = zfi_wait(&inst->engine, &inst->engine.lines.used, inst->run->clock.t, &inst->engine.count.host_wait_ns);
    return st;
}

/* Copies into staging on the host's thread, which may then reuse its memory. */
static zf_status_t stage(zf_instance_t *inst, const checked_item_t *item, const void **out_source) {
    const zfi_param_t *param = item->param;
    size_t elem = zfi_dtype_nbytes(param->grad_dtype);
    void *staging = zfi_gradient_staged(zfi_gradient_place(&inst->run->ranks), param->id);
    zf_status_t st = wait_for_staging(inst, param->id, inst->run->incoming.grads[param->id].staging_batch);
    if (st)
        return st;
    if (item->view.is_contiguous)
        memcpy(staging, item->view.data, param->n_elems * elem);
    else
        zfi_pack(staging, item->view.data, elem, item->view.ndim, item->view.shape, item->view.strides);
    *out_source = staging;
    return ZF_OK;
}

/* A piece of a range: a strided tensor and its place in the contiguous copy of all matrices. */
typedef struct piece {
    unsigned char *to;
    const unsigned char *from;
    int ndim;
    int64_t shape[ZF_MAX_NDIM], strides[ZF_MAX_NDIM];
} piece_t;

/* One piece where the matrices of the range lie at equal distances, else one per matrix. */
static uint32_t n_pieces(const checked_item_t *item) {
    return item->view.is_contiguous || item->param->n_batch_axes == 1 ? 1 : item->n_batches;
}

static void find_piece(const zf_instance_t *inst, const checked_item_t *item, uint32_t k, piece_t *out) {
    const zfi_param_t *param = item->param;
    const zfi_view_t *view = &item->view;
    uint64_t matrix = item->first_batch + k, n_elems = param->n_elems / param->n_batch, rest = matrix, offset = 0;
    int outer = param->n_batch_axes;
    for (int i = outer - 1; i >= 0; i--) {
        offset += rest % (uint64_t)view->shape[i] * (uint64_t)view->strides[i];
        rest /= (uint64_t)view->shape[i];
    }
    out->to = (unsigned char *)zfi_gradient_staged(zfi_gradient_place(&inst->run->ranks), param->id) +
              matrix * n_elems * view->elem_nbytes;
    out->from = view->data + offset * view->elem_nbytes;
    if (view->is_contiguous) {
        out->ndim = 1;
        out->shape[0] = (int64_t)(item->n_batches * n_elems);
        out->strides[0] = 1;
        return;
    }
    if (outer == 1) {
        *out = (piece_t){.to = out->to, .from = out->from, .ndim = view->ndim};
        memcpy(out->shape, view->shape, sizeof out->shape);
        memcpy(out->strides, view->strides, sizeof out->strides);
        out->shape[0] = item->n_batches;
        return;
    }
    out->ndim = view->ndim - outer;
    memcpy(out->shape, view->shape + outer, (size_t)out->ndim * sizeof *out->shape);
    memcpy(out->strides, view->strides + outer, (size_t)out->ndim * sizeof *out->strides);
}

/* The device copies a piece into staging; nothing is shipped yet. */
static zf_status_t append_piece(zf_instance_t *inst, const checked_item_t *item, const piece_t *piece) {
    zfi_grad_state_t *grad = &inst->run->incoming.grads[item->param->id];
    zfi_batch_t *batch = zfi_batch_open(inst);
    zfi_gradient_t *entry = &batch->gradients[batch->n];
    uint64_t this_batch = inst->engine.n_batches + 1, n_elems = 1;
    memset(entry, 0, sizeof *entry);
    entry->param = item->param->id;
    entry->flags = ZFI_GRADIENT_STRIDED;
    entry->source = piece->from;
    entry->grad = piece->to;
    entry->ndim = piece->ndim;
    for (int i = 0; i < piece->ndim; i++) {
        entry->shape[i] = piece->shape[i];
        entry->strides[i] = piece->strides[i];
        n_elems *= (uint64_t)piece->shape[i];
    }
    if (grad->range_batch != this_batch && grad->range_batch > batch->staging_batch)
        batch->staging_batch = grad->range_batch; /* the pieces themselves are in order on the device */
    grad->staging_batch = this_batch;
    batch->step = inst->run->clock.t + 1;
    batch->n++;
    batch->nbytes += n_elems * item->view.elem_nbytes;
    if (batch->n < ZFI_BATCH_ENTRIES && batch->nbytes < inst->run->updater->batch_nbytes)
        return ZF_OK;
    return zfi_batch_flush(inst);
}

/* Copies the range into staging, on the host's thread or on the device; the last one ships the whole. */
static zf_status_t take_range(zf_instance_t *inst, const checked_item_t *item, int is_sync) {
    zfi_grad_state_t *grad = &inst->run->incoming.grads[item->param->id];
    const zfi_protocol_t *now = &inst->run->incoming.now[item->param->id];
    zf_status_t st = ZF_OK;
    inst->run->incoming.has_ranges = 1;
    lose_shipment(inst, item->param->id);
    if (now->to - now->from == item->n_batches) /* the first */
        grad->range_batch = grad->staging_batch;
    if (is_sync)
        st = wait_for_staging(inst, item->param->id, grad->range_batch);
    for (uint32_t k = 0; k < n_pieces(item) && !st; k++) {
        piece_t piece;
        find_piece(inst, item, k, &piece);
        if (is_sync)
            zfi_pack(piece.to, piece.from, item->view.elem_nbytes, piece.ndim, piece.shape, piece.strides);
        else
            st = append_piece(inst, item, &piece);
    }
    if (st || !now->is_last)
        return st;
    zfi_row(&inst->run->rows, inst->run->clock.t + 1)->present[item->param->id] = 1;
    if (zfi_is_reduced(inst->run)) /* it is where it goes to the other ranks from */
        return ZF_OK;
    /* what the ranges replace may be in the same list */
    return zfi_batch_append(inst, item->param, ZFI_GRADIENT_SHIP | ZFI_GRADIENT_AGAIN,
                            zfi_gradient_staged(zfi_gradient_place(&inst->run->ranks), item->param->id), NULL);
}

/* Several ranks: staging is where gradients go to the other ranks from; nothing is shipped before they are summed. */
static zf_status_t take_for_ranks(zf_instance_t *inst, const zfi_param_t *param, uint32_t flags, const void *source,
                                  const int64_t *strides) {
    uint32_t sums = flags & (ZFI_GRADIENT_SUM | ZFI_GRADIENT_SUM_FIRST), to_come = flags & ZFI_GRADIENT_STRIDED;
    if (sums && (flags & ZFI_GRADIENT_SHIP))
        to_come |= ZFI_GRADIENT_ROUND;
    if (!sums && !to_come && source != zfi_gradient_staged(zfi_gradient_place(&inst->run->ranks), param->id))
        to_come = ZFI_GRADIENT_KEEP;
    return sums || to_come ? zfi_batch_append(inst, param, sums | to_come, source, strides) : ZF_OK;
}

/* Takes one checked item; *out_must_wait is set where the device reads the host's memory and the host expects the hook
 * to have finished with it. */
static zf_status_t take_item(zf_instance_t *inst, const checked_item_t *item, int is_host_thread, int wants_fence,
                             int *out_must_wait) {
    const zfi_param_t *param = item->param;
    zfi_protocol_t *now = &inst->run->incoming.now[param->id];
    const void *source = item->view.data;
    int is_strided = !item->view.is_contiguous, is_sync = is_host_thread && !(item->flags & ZF_GRAD_ASYNC_READ);
    uint32_t flags;
    int had_sum = now->has_sum && !(item->flags & ZF_GRAD_REPLACE);
    if (now->is_last) /* REPLACE: it may be read already */
        zfi_early_drop(inst->run->early);
    zf_status_t st = follow(now, item, NULL);
    if (st)
        return ZF_ERR_INTERNAL; /* checked before */
    if (zfi_is_reduced(inst->run))
        st = zfi_buffers_open(inst->run->engine, &inst->run->reduction, inst->run->buckets.of_param[param->id]);
    if (st)
        return st;
    if (item->n_batches)
        return take_range(inst, item, is_sync);
    int ships_directly = ships_as_it_is(item, had_sum);
    if (is_sync && ships_directly) {
        st = stage(inst, item, &source);
        is_strided = 0;
    }
    if (st)
        return st;
    flags = is_strided ? ZFI_GRADIENT_STRIDED : 0;
    if (ships_directly) {
        flags |= ZFI_GRADIENT_SHIP;
        if (wants_fence && !is_sync && !is_strided && param->has_resident && !item->is_carried)
            flags |= ZFI_GRADIENT_KEEP;
    } else {
        flags |= ZFI_GRADIENT_SUM | (had_sum ? 0u : ZFI_GRADIENT_SUM_FIRST);
        if (item->flags & ZF_GRAD_LAST)
            flags |= ZFI_GRADIENT_SHIP;
        *out_must_wait |= is_sync;
    }
    if (inst->run->incoming.is_shipped[param->id])
        flags |= ZFI_GRADIENT_AGAIN;
    lose_shipment(inst, param->id);
    zfi_row(&inst->run->rows, inst->run->clock.t + 1)->present[param->id] = 1;
    if (zfi_is_reduced(inst->run))
        return take_for_ranks(inst, param, flags, source, item->view.strides);
    return zfi_batch_append(inst, param, flags, source, item->view.strides);
}

/* ---- the hook ---------------------------------------------------------------------------------------------------- */

/* Checks every item, also against those before it in the same call, and maps what they need. */
static zf_status_t check_all(zf_instance_t *inst, const zf_grad_item_t *items, uint32_t n, uint32_t elem_size,
                             int is_host_thread, int wants_fence, checked_item_t kept[MOST_KEPT], zf_error_t *err) {
    zf_status_t st = ZF_OK;
    int needs_staging = 0, needs_sums = 0, has_final = 0;
    uint32_t n_buffers = 0;
    inst->n_calls++;
    for (uint32_t i = 0; i < n && !st; i++) {
        checked_item_t last, *item = i < MOST_KEPT ? &kept[i] : &last;
        st = check_item(inst, items, i, elem_size, item, err);
        if (st || !item->param)
            continue;
        zfi_grad_state_t *grad = &inst->run->incoming.grads[item->param->id];
        if (grad->trial_call != inst->n_calls)
            grad->trial = inst->run->incoming.now[item->param->id];
        grad->trial_call = inst->n_calls;
        int was_last = grad->trial.is_last;
        st = zfi_error_about(err, follow(&grad->trial, item, err), item->param->id);
        if (!st && zfi_is_reduced(inst->run))
            st = zfi_reduce_check(inst, item->param->id, item->flags, was_last && has_final, err);
        has_final |= grad->trial.is_last && !was_last;
        if (!st && zfi_is_reduced(inst->run))
            n_buffers = zfi_buffers_try(&inst->run->ranks, inst->n_calls, item->param->id,
                                        grad->trial.is_last - was_last, is_host_thread);
        needs_sums |= grad->trial.has_sum;
        needs_staging |= grad->trial.has_sum || item->n_batches || !item->view.is_contiguous ||
                         (is_host_thread && !(item->flags & ZF_GRAD_ASYNC_READ)) ||
                         (wants_fence && item->param->has_resident && !item->is_carried);
    }
    if (!st && needs_staging)
        st = zfi_memory_need_staging(&inst->run->ranks, err);
    if (!st && needs_sums)
        st = zfi_memory_need_sums(&inst->run->ranks, err);
    if (!st && n_buffers)
        st = zfi_buffers_need(&inst->run->ranks, n_buffers, err);
    return st;
}

static zf_status_t take_all(zf_instance_t *inst, const zf_grad_item_t *items, uint32_t n, uint32_t elem_size,
                            int is_host_thread, int wants_fence, const checked_item_t kept[MOST_KEPT]) {
    int must_wait = 0;
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < n && !st; i++) {
        checked_item_t again;
        const checked_item_t *item = i < MOST_KEPT ? &kept[i] : &again;
        if (i >= MOST_KEPT)
            st = check_item(inst, items, i, elem_size, &again, NULL);
        if (!st && item->param)
            st = take_item(inst, item, is_host_thread, wants_fence, &must_wait);
        if (!st && item->param && zfi_is_reduced(inst->run))
            st = zfi_reduce_note(inst, item->param->id, inst->run->incoming.now[item->param->id].is_last);
        if (!wants_fence && (!is_host_thread || (item->flags & ZF_GRAD_ASYNC_READ)))
            zfi_row(&inst->run->rows, inst->run->clock.t + 1)->waits_for_down = 1;
    }
    if (!st && (must_wait || wants_fence))
        st = zfi_batch_flush(inst);
    if (!st && must_wait)
        st = zfi_wait(&inst->engine, &inst->engine.lines.shipped, inst->engine.n_batches,
                      &inst->engine.count.host_wait_ns);
    return st;
}

zf_status_t zfi_grads_ready(zf_instance_t *inst, const zf_grad_item_t *items, uint32_t n, uint32_t elem_size,
                            const zf_stream_t *stream, zf_fence_t *out_done, zf_error_t *err) {
    zf_fence_t fence = {.struct_size = sizeof fence, .kind = ZF_FENCE_HOST_COUNTER};
    int is_host_thread = 0;
    checked_item_t kept[MOST_KEPT];
    zf_status_t st = zfi_hook_begin(inst, ZFI_IN_TRAINING, "grads_ready", err);
    if (st)
        return st;
    st = zfi_struct_check_out(out_done, "zf_fence_t", err);
    if (!st)
        st = ZFI_CHECK_ARRAY(items, n, 1, elem_size, zf_grad_item_t, "items", err);
    if (!st)
        st = zfi_deliver_on(inst, stream, &is_host_thread, err);
    if (!st)
        st = check_all(inst, items, n, elem_size, is_host_thread, out_done != NULL, kept, err);
    if (!st) {
        st = take_all(inst, items, n, elem_size, is_host_thread, out_done != NULL, kept);
        st = zfi_hook_failed(inst, st, "grads_ready", "the device did not take the gradients", err);
        if (inst->state != ZFI_STATE_ACTIVE)
            inst->state = ZFI_STATE_ACTIVE;
    }
    if (!st) {
        fence.counter = (const uint64_t *)&inst->engine.lines.batches.value;
        fence.value = inst->engine.n_batches;
        zfi_struct_write(out_done, &fence, sizeof fence);
    }
    return zfi_hook_end(inst, st, err);
}

int zfi_deliver_has_begun(const zf_instance_t *inst) {
    const zfi_step_row_t *row = zfi_row(&inst->run->rows, inst->run->clock.t + 1);
    return inst->run->incoming.has_ranges || memchr(row->present, 1, inst->run->n_params);
}

/* ---- at step ----------------------------------------------------------------------------------------------------- */

zf_status_t zfi_deliver_check(const zf_instance_t *inst, zf_error_t *err) {
    for (uint32_t i = 0; i < inst->run->n_params && inst->run->incoming.has_ranges; i++) {
        const zfi_protocol_t *grad = &inst->run->incoming.now[i];
        if (grad->to != 0 && !grad->is_last)
            return zfi_error_about(
                err,
                zfi_error_scoped(err, ZF_ERR_STATE, ZF_SCOPE_PARAM, 0, "step",
                                 "gradient of \"%s\": matrices %u..%u of %" PRIu64
                                 " were delivered; deliver the others before step, or drop all with DISCARD",
                                 inst->run->params[i].name, grad->from, grad->to - 1, inst->run->params[i].n_batch),
                i);
    }
    return ZF_OK;
}

zf_status_t zfi_deliver_finish(zf_instance_t *inst) {
    zfi_run_t *run = inst->run;
    zfi_step_row_t *row = zfi_row(&run->rows, run->clock.t + 1);
    zf_status_t st = ZF_OK;
    if (zfi_is_reduced(run))
        return zfi_reduce_finish(inst);
    uint32_t n_open = zfi_expect_note(&run->incoming, run->n_params, row);
    for (uint32_t i = 0; i < run->n_params && n_open && !st; i++)
        if (row->present[i] && !run->incoming.is_shipped[i])
            st = zfi_batch_append(inst, &run->params[i], ZFI_GRADIENT_FROM_SUM | ZFI_GRADIENT_SHIP, NULL, NULL);
    return st ? st : zfi_batch_flush(inst);
}

void zfi_deliver_reset(zf_instance_t *inst) {
    zfi_incoming_t *incoming = &inst->run->incoming;
    memset(incoming->now, 0, inst->run->n_params * sizeof *incoming->now);
    memset(incoming->is_shipped, 0, inst->run->n_params);
    incoming->has_ranges = 0;
    zfi_reduce_reset(inst->run);
}
