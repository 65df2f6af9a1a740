/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/resident.c - the update of resident matrices on the device stream (contract in resident.h), and the
 * updater of a run in which all of them are.
 *
 * A gradient is read when it is delivered, for its statistics, and again once s is known; in between it lies in the
 * host's memory or in staging (hooks/deliver.c). Nothing travels but the step's input, scalars and report. */
#include "step/resident.h"

#include "base/error.h"
#include "schedule/window.h"
#include "step/control.h"
#include "step/publish.h"
#include "step/publisher.h"
#include "step/updater.h"

void zfi_resident_update(const zfi_device_side_t *side, uint64_t t, uint32_t first, uint32_t end) {
    const zfi_plan_t *plan = side->plan;
    uint32_t n = plan->n_resident_segments, from = zfi_first_segment(plan->resident_segments, n, first);
    uint32_t to = zfi_first_segment(plan->resident_segments, n, end);
    zfi_update_all_args_t args = {.data = side->dev->data,
                                  .step = zfi_device_input(side->dev, t),
                                  .scalars = zfi_device_scalars(side->dev, t),
                                  .first = first,
                                  .end = end,
                                  .first_segment = plan->n_segments + from,
                                  .end_segment = plan->n_segments + to,
                                  .key = zfi_rounding_key(t)};
    if (plan->n_resident) /* counts move with every rank's, on all of them */
        zfi_list_add(&side->engine->to_device, zfi_op_launch(ZFI_KERNEL_UPDATE_ALL, &args, sizeof args));
}

void zfi_resident_show(zfi_publishing_t *publishing) {
    const zfi_device_side_t *side = publishing->side;
    uint64_t *writes = publishing->writes->run_ahead;
    zfi_update_all_args_t args = {.data = side->dev->data,
                                  .end = side->plan->n_matrices,
                                  .first_segment = side->plan->n_segments,
                                  .end_segment = side->plan->n_segments + side->plan->n_resident_segments,
                                  .only_shows = 1};
    if (!side->plan->n_resident)
        return;
    zfi_list_add(&side->engine->to_device, zfi_op_launch(ZFI_KERNEL_UPDATE_ALL, &args, sizeof args));
    zfi_publish_note(side->engine, publishing->writes, &writes[side->plan->n_launches - 1]);
}

void zfi_resident_end(zfi_engine_t *engine, uint64_t t) {
    zfi_list_add(&engine->to_device, zfi_op_signal(&engine->lines.used, t));
}

void zfi_resident_alone(const zfi_device_side_t *side, uint64_t t, int is_warm_up, uint32_t first, uint32_t end) {
    (void)is_warm_up;
    zfi_resident_update(side, t, first, end);
}

static void end(zfi_run_t *run, uint64_t t) {
    zfi_resident_end(run->engine, t);
    run->publisher->end(&run->publishing, t);
    zfi_window_pass(&run->plan, &run->clock, t);
}

static void flush(zfi_run_t *run) { zfi_resident_show(&run->publishing); }

const zfi_updater_t zfi_updater_whole = {zfi_resident_alone, end, zfi_control_pass, flush, 1 << 24};

zf_status_t zfi_resident_check(zfi_engine_t *engine, const zfi_param_t *params) {
    zf_error_t error = {.struct_size = sizeof error};
    uint64_t found = __atomic_load_n(&engine->totals->nonfinite_param, __ATOMIC_ACQUIRE);
    if (found == 0)
        return ZF_OK;
    zfi_error_scoped(&error, ZF_ERR_NONFINITE, ZF_SCOPE_INSTANCE, 0, "update",
                     "a weight of \"%s\" became Inf or NaN: lower the learning rate or check the gradients",
                     params[found - 1].name);
    (void)zfi_error_about(&error, ZF_ERR_NONFINITE, (uint32_t)found - 1);
    zfi_poison(engine, &error);
    return ZF_ERR_POISONED;
}
