/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/offload/sums.c - sums kept on the device (contract in sums.h).
 *
 * A gradient is read when it is delivered, for its statistics, and again once s is known, for the sums; in between it
 * lies in the host's memory or in staging (hooks/deliver.c). Sums lie in the order of the host's state, fp32. A close
 * rounds its cohort's in place, where gradients have two bytes; the next step overwrites them, so it waits for the
 * newest transfer. */
#include "offload/sums.h"

void zfi_sums_add(zfi_run_t *run, uint64_t t) {
    zfi_engine_t *engine = run->engine;
    zfi_list_t *device = &engine->to_device;
    zfi_add_sums_args_t args = {run->dev.data, zfi_device_input(run, t), zfi_device_scalars(run, t)};
    if (!zfi_is_warm_up(&engine->config, t)) {
        zfi_list_add(device, zfi_op_wait(&engine->lines.sums, run->clock.n_sums, &engine->count.stall_pool_ns));
        zfi_list_add(device, zfi_op_launch(ZFI_KERNEL_ADD_SUMS, &args, sizeof args));
    }
    zfi_list_add(device, zfi_op_signal(&engine->lines.used, t));
}

void zfi_sums_round(zfi_run_t *run, uint32_t cohort) {
    zfi_engine_t *engine = run->engine;
    const zfi_cohort_plan_t *plan = &run->plan.cohorts[cohort];
    zfi_round_sums_args_t args = {run->dev.data, plan->first_chunk, plan->n_chunks};
    run->clock.cohort_sums[cohort] = ++run->clock.n_sums;
    zfi_list_add(&engine->to_device, zfi_op_launch(ZFI_KERNEL_ROUND_SUMS, &args, sizeof args));
    zfi_list_add(&engine->to_device, zfi_op_signal(&engine->lines.rounded, run->clock.n_sums));
}

void zfi_sums_restart(zfi_run_t *run, uint32_t first, uint32_t n) {
    if (zfi_sums_on_device(&run->engine->config))
        zfi_list_add(&run->engine->to_device, zfi_op_fill(run->dev.head.has_dense + first, n));
}

/* ---- down -------------------------------------------------------------------------------------------------------- */

/* Whether a gradient of this parameter came in the window; params_changed makes it 0 for what it drops. */
static int has_gradients(const zfi_run_t *run, const zfi_close_t *close, uint32_t param) {
    for (uint32_t k = 0; k < close->n_slots; k++)
        if (zfi_row(run, close->first_step + k)->present[param])
            return 1;
    return 0;
}

/* One of the two sums of a chunk into a piece. Returns the bytes. */
static uint64_t copy_sum(zfi_run_t *run, const zfi_close_t *close, uint32_t number, const float *sum,
                         unsigned char *piece) {
    const zfi_chunk_t *chunk = &run->plan.chunks[number];
    size_t elem = zfi_dtype_nbytes(zfi_sum_dtype(chunk));
    const unsigned char *from = (const unsigned char *)(sum + chunk->state_base);
    uint64_t nbytes = 0;
    for (uint32_t i = chunk->first_segment; i < chunk->first_segment + chunk->n_segments; i++) {
        const zfi_segment_t *segment = &run->plan.segments[i];
        size_t at = segment->chunk_offset * elem;
        if (!has_gradients(run, close, run->plan.matrices[segment->matrix].param))
            continue;
        zfi_list_copy(&run->engine->to_down, ZFI_OP_DOWN, piece + at, from + at, segment->n_elems * elem);
        nbytes += segment->n_elems * elem;
    }
    return nbytes;
}

void zfi_sums_copy_down(zfi_run_t *run, const zfi_close_t *close) {
    zfi_engine_t *engine = run->engine;
    zfi_list_t *down = &engine->to_down;
    uint64_t nbytes = 0;
    zfi_list_add(down, zfi_op_wait(&engine->lines.rounded, close->sums, NULL));
    zfi_list_add(down, zfi_op_wait(&engine->lines.jobs, close->needs_job, &engine->count.stall_pool_ns));
    for (uint32_t i = 0; i < close->n_chunks; i++) {
        uint32_t number = zfi_cohort_chunk(&run->plan, close->cohort, i);
        nbytes += copy_sum(run, close, number, run->dev.head.sum1, zfi_slot(run, number, close->table, 0));
        nbytes += copy_sum(run, close, number, run->dev.head.sum2, zfi_slot(run, number, close->table, 1));
    }
    zfi_list_add(down, zfi_op_signal(&engine->lines.sums, close->sums));
    atomic_fetch_add(&engine->count.down_grad_nbytes, nbytes);
}
