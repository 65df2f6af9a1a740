/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/selected.c - selected channels on the device stream (contract in selected.h). */
#include "step/selected.h"

void zfi_selected_run_ahead(const zfi_device_side_t *side, uint64_t t, int counts_only, uint32_t first, uint32_t end) {
    zfi_run_ahead_args_t args = {.data = side->dev->data,
                                 .step = zfi_device_input(side->dev, t),
                                 .scalars = zfi_device_scalars(side->dev, t),
                                 .first = first,
                                 .end = end,
                                 .counts_only = counts_only};
    zfi_list_add(&side->engine->to_device, zfi_op_launch(ZFI_KERNEL_RUN_AHEAD, &args, sizeof args));
}

void zfi_selected_show_entered(zfi_engine_t *engine, zfi_device_state_t *dev, uint64_t choice_step) {
    zfi_list_t *device = &engine->to_device;
    zfi_enter_maps_args_t args = {.data = dev->data, .entering = zfi_device_entering(dev)};
    zfi_list_add(device, zfi_op_wait(&engine->lines.entered, choice_step, &engine->count.stall_select_ns));
    zfi_list_add(device, zfi_op_launch(ZFI_KERNEL_SHOW_ENTERED, &args, sizeof args));
    zfi_list_add(device, zfi_op_signal(&engine->lines.shown, choice_step + 1));
}

void zfi_selected_round_moments(const zfi_device_side_t *side, const zfi_close_t *close) {
    const zfi_cohort_plan_t *cohort = &side->plan->cohorts[close->cohort];
    zfi_round_moments_args_t args = {side->dev->data, cohort->first_matrix, cohort->n_matrices,
                                     zfi_rounding_key(close->step)};
    if (side->dev->head.moments != ZFI_MOMENTS_F32 && !close->is_warm_up) /* in warm-up nothing is selected */
        zfi_list_add(&side->engine->to_device, zfi_op_launch(ZFI_KERNEL_ROUND_MOMENTS, &args, sizeof args));
}
