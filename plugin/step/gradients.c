/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/gradients.c - a batch of gradients: statistics on the device stream, copies on the down stream
 * (contract in gradients.h).
 *
 * The device reads what the host delivered, or staging; the down stream copies the same memory once the statistics are
 * taken, so that one `batches` value frees it. Of resident matrices, gradients stay there and nothing is copied. */
#include "step/gradients.h"

#include "instance/gradient_place.h"

enum { NEEDS_COLLECTING = ZFI_GRADIENT_SUM | ZFI_GRADIENT_FROM_SUM | ZFI_GRADIENT_STRIDED | ZFI_GRADIENT_KEEP };

void zfi_gradients_begin(zfi_engine_t *engine, const zfi_plan_t *plan, zfi_clock_t *clock) {
    uint64_t t = clock->t + 1, choice_step = clock->waiting_choice;
    if (clock->has_begun)
        return;
    clock->has_begun = 1;
    if (t > 2) { /* what the statistics write next was copied down */
        zfi_list_add(&engine->to_device, zfi_op_wait(&engine->lines.down, t - 2, &engine->count.stall_pool_ns));
        if (plan->n_record_parts)
            zfi_list_add(&engine->to_device, zfi_op_wait(&engine->lines.recorded, zfi_first_record_part(plan, t - 1),
                                                         &engine->count.stall_pool_ns));
    }
    if (choice_step)
        zfi_list_add(&engine->to_device, zfi_op_wait(&engine->lines.maps, choice_step, &engine->count.stall_select_ns));
}

/* ---- the device stream ------------------------------------------------------------------------------------------- */

static int needs_collecting(const zfi_batch_t *batch) {
    for (uint32_t i = 0; i < batch->n; i++)
        if (batch->gradients[i].flags & NEEDS_COLLECTING)
            return 1;
    return 0;
}

static void take_statistics(const zfi_device_side_t *side, const zfi_batch_t *batch, uint64_t number, int selects) {
    zfi_engine_t *engine = side->engine;
    zfi_gradients_args_t args = {side->dev->data, batch->gradients, batch->n, (uint32_t)(batch->step & 1),
                                 selects && !zfi_is_sharded(engine)}; /* sharded: ranks/selected_sums.h */
    zfi_list_t *device = &engine->to_device;
    if (batch->staging_batch)
        zfi_list_add(device, zfi_op_wait(&engine->lines.batches, batch->staging_batch, &engine->count.stall_pool_ns));
    if (needs_collecting(batch))
        zfi_list_add(device, zfi_op_launch(ZFI_KERNEL_COLLECT, &args, sizeof args));
    args.data = side->dev->own;
    zfi_list_add(device, zfi_op_launch(ZFI_KERNEL_STATISTICS, &args, sizeof args));
    zfi_list_add(device, zfi_op_signal(&engine->lines.shipped, number + 1));
}

/* ---- the down stream --------------------------------------------------------------------------------------------- */

/* Copies what this rank keeps of it. Returns the bytes. */
static uint64_t copy_gradient(const zfi_device_side_t *side, const zfi_slots_t *slots, const zfi_step_row_t *row,
                              const zfi_gradient_t *gradient) {
    const zfi_param_t *param = &side->params[gradient->param];
    size_t elem = zfi_dtype_nbytes(param->grad_dtype);
    uint64_t nbytes = 0;
    for (uint32_t i = 0; i < param->n_refs; i++) {
        const zfi_segment_t *segment = &side->plan->segments[side->plan->param_segments[param->first_ref + i]];
        zfi_range_t range = zfi_gradient_to_slot(side->plan, slots, row, segment, gradient->grad, elem);
        if (range.to == range.from) /* it was delivered in the memory that carries it */
            continue;
        zfi_list_copy(&side->engine->to_down, ZFI_OP_DOWN, range.to, range.from, range.nbytes);
        nbytes += range.nbytes;
    }
    return nbytes;
}

static void copy_down(const zfi_device_side_t *side, const zfi_windows_t *windows, const zfi_batch_t *batch,
                      uint64_t number) {
    zfi_engine_t *engine = side->engine;
    zfi_list_t *down = &engine->to_down;
    uint64_t nbytes = 0;
    zfi_list_add(down, zfi_op_wait(&engine->lines.shipped, number + 1, NULL));
    zfi_list_add(down, zfi_op_wait(&engine->lines.jobs, batch->needs_job, &engine->count.stall_pool_ns));
    for (uint32_t i = 0; i < batch->n; i++) {
        const zfi_gradient_t *gradient = &batch->gradients[i];
        if (gradient->flags & ZFI_GRADIENT_AGAIN) /* the same slot: not in one operation with the former copy */
            zfi_list_end_copy(down);
        if ((gradient->flags & (ZFI_GRADIENT_SHIP | ZFI_GRADIENT_LANDED)) == ZFI_GRADIENT_SHIP)
            nbytes += copy_gradient(side, windows->slots, zfi_row(windows->rows, batch->step), gradient);
    }
    zfi_list_add(down, zfi_op_signal(&engine->lines.batches, number + 1));
    atomic_fetch_add(&engine->count.down_grad_nbytes, nbytes);
}

void zfi_gradients_ship(const zfi_device_side_t *side, const zfi_windows_t *windows, const zfi_batch_t *batch,
                        uint64_t number) {
    const zfi_clock_t *clock = windows->clock;
    take_statistics(side, batch, number, clock->pace.selects && !zfi_is_warm_up(clock, batch->step));
    copy_down(side, windows, batch, number);
}
