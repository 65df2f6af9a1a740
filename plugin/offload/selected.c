/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/offload/selected.c - selected channels on the device stream (contract in selected.h). */
#include "offload/selected.h"

enum { LAUNCH_ELEMS = 1 << 18, MOST_LAUNCHES = 64 }; /* selected elements per launch: the grain of param_fetch */

uint32_t zfi_selected_launch_end(const zfi_run_t *run, uint32_t first) {
    const zfi_config_t *config = &run->engine->config;
    double share = zfi_config_is_topk_auto(config) ? config->max_topk_ratio : 1; /* k may not be known yet */
    uint64_t elems = 0, most = run->plan.n_sel_elems / MOST_LAUNCHES;
    uint32_t end = first;
    if (most < LAUNCH_ELEMS)
        most = LAUNCH_ELEMS;
    while (end < run->plan.n_matrices && (end == first || elems < most)) {
        const zfi_matrix_t *matrix = &run->plan.matrices[end++];
        elems += (uint64_t)(share * matrix->k_most) * zfi_channel_elems(matrix);
    }
    return end;
}

zf_status_t zfi_selected_run_ahead(zfi_run_t *run, uint64_t t, uint32_t first, uint32_t end) {
    zfi_run_ahead_args_t args = {.data = run->dev.data,
                                 .step = zfi_device_input(run, t),
                                 .scalars = zfi_device_scalars(run, t),
                                 .first = first,
                                 .end = end,
                                 .counts_only = zfi_is_warm_up(&run->engine->config, t)};
    zfi_op_t op = zfi_op_launch(ZFI_KERNEL_RUN_AHEAD, &args, sizeof args);
    return zfi_enqueue(run->engine, run->engine->stream, &op, 1);
}

zf_status_t zfi_selected_show_entered(zfi_run_t *run, uint64_t choice_step) {
    zfi_engine_t *engine = run->engine;
    zfi_enter_maps_args_t args = {.data = run->dev.data, .entering = zfi_device_entering(run)};
    zfi_op_t ops[] = {zfi_op_wait(&engine->lines.entered, choice_step, &engine->count.stall_select_ns),
                      zfi_op_launch(ZFI_KERNEL_SHOW_ENTERED, &args, sizeof args),
                      zfi_op_signal(&engine->lines.shown, choice_step + 1)};
    return zfi_enqueue(engine, engine->stream, ops, 3);
}

zf_status_t zfi_selected_round_moments(zfi_run_t *run, const zfi_close_t *close) {
    const zfi_cohort_plan_t *cohort = &run->plan.cohorts[close->cohort];
    zfi_round_moments_args_t args = {run->dev.data, cohort->first_matrix, cohort->n_matrices,
                                     zfi_rounding_key(close->step)};
    zfi_op_t op = zfi_op_launch(ZFI_KERNEL_ROUND_MOMENTS, &args, sizeof args);
    if (run->engine->config.moments == ZFI_MOMENTS_F32 || close->is_warm_up)
        return ZF_OK; /* in warm-up nothing is selected */
    return zfi_enqueue(run->engine, run->engine->stream, &op, 1);
}
