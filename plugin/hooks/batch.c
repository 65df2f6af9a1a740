/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/batch.c - the open batch of deliveries (contract in batch.h). */
#include "hooks/batch.h"

#include <string.h>

#include "instance/gradient_place.h"
#include "instance/memory.h"
#include "replay/early.h"
#include "replay/workers.h"
#include "schedule/window.h"
#include "step/program.h"
#include "step/updater.h"

enum { COLLECTED = ZFI_GRADIENT_STRIDED | ZFI_GRADIENT_SUM | ZFI_GRADIENT_FROM_SUM | ZFI_GRADIENT_KEEP };

zfi_batch_t *zfi_batch_open(zf_instance_t *inst) {
    return &inst->run->incoming.batch_ring[inst->engine.n_batches % ZFI_N_BATCHES];
}

zf_status_t zfi_batch_flush(zf_instance_t *inst) {
    if (zfi_batch_open(inst)->n == 0)
        return ZF_OK;
    zf_status_t st = zfi_program_ship(inst->run, inst->engine.n_batches);
    if (st)
        return st;
    inst->engine.n_batches++;
    if (zfi_early_sent(inst->run->early, inst->engine.n_batches))
        zfi_workers_wake(inst->run->workers);
    if (inst->engine.n_batches >= ZFI_N_BATCHES)
        st = zfi_wait(&inst->engine, &inst->engine.lines.batches, inst->engine.n_batches - ZFI_N_BATCHES + 1,
                      &inst->engine.count.host_wait_ns);
    zfi_batch_open(inst)->n = 0;
    zfi_batch_open(inst)->nbytes = 0;
    zfi_batch_open(inst)->needs_job = 0;
    zfi_batch_open(inst)->staging_batch = 0;
    return st;
}

zf_status_t zfi_batch_append(zf_instance_t *inst, const zfi_param_t *param, uint32_t flags, const void *source,
                             const int64_t *strides) {
    zfi_grad_state_t *grad = &inst->run->incoming.grads[param->id];
    const zfi_gradient_place_t place = zfi_gradient_place(&inst->run->ranks);
    zfi_batch_t *batch = zfi_batch_open(inst);
    zfi_gradient_t *entry = &batch->gradients[batch->n];
    int is_collected = (flags & COLLECTED) != 0;
    uint64_t nbytes = param->n_elems * zfi_dtype_nbytes(param->grad_dtype);
    zf_status_t st = ZF_OK;
    if ((flags & (ZFI_GRADIENT_SHIP | ZFI_GRADIENT_LANDED)) == ZFI_GRADIENT_SHIP)
        st = zfi_window_slots(&inst->run->windows, param, &batch->needs_job);
    if (st)
        return st;
    entry->param = param->id;
    entry->flags = flags;
    entry->source = source;
    entry->grad = is_collected ? zfi_gradient_staged(place, param->id) : (void *)(uintptr_t)source;
    entry->sum = flags & (ZFI_GRADIENT_SUM | ZFI_GRADIENT_FROM_SUM) ? zfi_sum(&inst->run->mem, param->id) : NULL;
    if (is_collected || zfi_gradient_is_staged(place, param->id, source)) {
        uint64_t this_batch = inst->engine.n_batches + 1;
        if (is_collected && grad->staging_batch != this_batch && grad->staging_batch > batch->staging_batch)
            batch->staging_batch = grad->staging_batch;
        grad->staging_batch = this_batch; /* a second use in one batch runs in order and needs no wait */
    }
    if (param->carries && entry->grad != param->visible) /* it is copied there, where a value may be on its way */
        batch->needs_job = inst->run->clock.next_job;
    if (flags & ZFI_GRADIENT_STRIDED) {
        entry->ndim = param->ndim;
        memcpy(entry->shape, param->shape, sizeof entry->shape);
        memcpy(entry->strides, strides, sizeof entry->strides);
    }
    batch->step = inst->run->clock.t + 1;
    batch->n++;
    batch->nbytes += nbytes;
    if (flags & ZFI_GRADIENT_SHIP) {
        inst->run->incoming.is_shipped[param->id] = 1;
        grad->shipped_nbytes = nbytes;
        if (inst->run->incoming.now[param->id].is_last && !inst->run->buckets.n) /* else when it has landed */
            zfi_early_final(inst->run->early, param);
    }
    if (batch->n < ZFI_BATCH_ENTRIES && batch->nbytes < inst->run->updater->batch_nbytes)
        return ZF_OK;
    return zfi_batch_flush(inst);
}
