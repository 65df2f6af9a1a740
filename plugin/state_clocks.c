/* plugin/state_clocks.c - the rows of clocks and of the open windows' steps (contract in state_table.h). */
#include <math.h>
#include <string.h>

#include "interval.h"
#include "state_table.h"

/* ---- clocks -------------------------------------------------------------------------------------------------------
 */

#define CLOCK(name, value)                                                                                             \
    static uint64_t get_##name(const zf_instance_t *inst, uint32_t cohort) {                                           \
        (void)cohort;                                                                                                  \
        return value;                                                                                                  \
    }                                                                                                                  \
    static void put_##name(zf_instance_t *inst, uint32_t cohort, uint64_t x) {                                         \
        (void)cohort;                                                                                                  \
        value = x;                                                                                                     \
    }
CLOCK(t, inst->t)
CLOCK(base, inst->clock_base)
CLOCK(steps_before, inst->steps_before)
CLOCK(waiting_choice, inst->waiting_choice)
CLOCK(epoch_end, inst->epoch_end)
CLOCK(window_first, inst->window_first[cohort])
CLOCK(last_choice, inst->last_choice[cohort])
CLOCK(n_applied, inst->count.steps_applied)
CLOCK(n_skipped, inst->count.steps_skipped)
#undef CLOCK

/* 0 where the decision belongs to no open window: nobody will ask for it. */
#define READY(n)                                                                                                       \
    static uint64_t get_ready_##n(const zf_instance_t *inst, uint32_t cohort) {                                        \
        uint64_t t = inst->t + n;                                                                                      \
        return inst->config.is_interval_auto && zfi_interval_has_record(inst->window_first[cohort], t) &&              \
               inst->sel.ready[t % ZFI_READY_DEPTH][cohort];                                                           \
    }                                                                                                                  \
    static void put_ready_##n(zf_instance_t *inst, uint32_t cohort, uint64_t x) {                                      \
        if (inst->config.is_interval_auto)                                                                             \
            inst->sel.ready[(inst->t + n) % ZFI_READY_DEPTH][cohort] = (uint8_t)x;                                     \
    }
READY(1)
READY(2)
#undef READY

const zfi_state_clock_t zfi_state_clocks[ZFI_N_CLOCKS] = {
    [ZFI_CLOCK_T] = {"step", 0, get_t, put_t},
    [ZFI_CLOCK_BASE] = {"clock_base", 0, get_base, put_base},
    [ZFI_CLOCK_STEPS_BEFORE] = {"steps_before", 0, get_steps_before, put_steps_before},
    [ZFI_CLOCK_N_APPLIED] = {"steps_applied", 0, get_n_applied, put_n_applied},
    [ZFI_CLOCK_N_SKIPPED] = {"steps_skipped", 0, get_n_skipped, put_n_skipped},
    [ZFI_CLOCK_WAITING_CHOICE] = {"waiting_choice", 0, get_waiting_choice, put_waiting_choice},
    [ZFI_CLOCK_EPOCH_END] = {"epoch_end", 0, get_epoch_end, put_epoch_end},
    [ZFI_CLOCK_WINDOW_FIRST] = {"window_first", 1, get_window_first, put_window_first},
    [ZFI_CLOCK_LAST_CHOICE] = {"last_choice", 1, get_last_choice, put_last_choice},
    [ZFI_CLOCK_READY_1] = {"ready_1", 1, get_ready_1, put_ready_1},
    [ZFI_CLOCK_READY_2] = {"ready_2", 1, get_ready_2, put_ready_2},
};

/* ---- steps --------------------------------------------------------------------------------------------------------
 */

static uint64_t n_present(const zfi_state_shape_t *shape) { return shape->n_params; }

static void get_present(const zfi_state_io_t *io, const zfi_step_row_t *row, void *out) {
    for (uint32_t i = 0; i < io->n_ids; i++)
        ((uint8_t *)out)[i] = row->present[io->ids[i]];
}

static void put_present(const zfi_state_io_t *io, zfi_step_row_t *row, const void *values) {
    for (uint32_t i = 0; i < io->n_ids; i++)
        row->present[io->ids[i]] = ((const uint8_t *)values)[i];
}

static int bad_present(const zfi_state_shape_t *shape, const void *values) {
    for (uint32_t i = 0; i < shape->n_params; i++)
        if (((const uint8_t *)values)[i] > 1)
            return 1;
    return 0;
}

static uint64_t n_scalars(const zfi_state_shape_t *shape) {
    (void)shape;
    return ZFI_N_STEP_SCALARS;
}

/* What went into the step, and its report. Numbers of parameters are those of the checkpoint: order in its list. */
static void get_scalars(const zfi_state_io_t *io, const zfi_step_row_t *row, void *out) {
    const zfi_step_scalars_t *from = &row->scalars;
    double bad = -1;
    for (uint32_t i = 0; i < io->n_ids; i++)
        if (io->ids[i] == from->nonfinite_param)
            bad = i;
    memcpy(out,
           (double[ZFI_N_STEP_SCALARS]){from->applied, from->norm, from->clip_factor, from->s_exact, (double)from->s,
                                        bad, row->n_present, row->report.skip_reason},
           ZFI_N_STEP_SCALARS * sizeof(double));
}

static void put_scalars(const zfi_state_io_t *io, zfi_step_row_t *row, const void *values) {
    const double *x = values;
    uint32_t bad = x[5] >= 0 ? io->ids[(uint32_t)x[5]] : ZF_NO_ID;
    row->scalars = (zfi_step_scalars_t){x[0] != 0, bad, x[1], x[2], x[3], (float)x[4]};
    row->dev = row->scalars;
    row->n_present = (uint32_t)x[6];
    row->report = (zf_step_report_t){
        .struct_size = sizeof row->report,
        .has_report = 1,
        .step = row->t + io->inst->steps_before,
        .applied = row->scalars.applied,
        .skip_reason = (int32_t)x[7],
        .nonfinite_param = bad,
        .n_present = row->n_present,
        .grad_norm = x[1],
        .clip_factor = x[2],
        .n_skipped = io->inst->count.steps_skipped,
    };
}

static int bad_scalars(const zfi_state_shape_t *shape, const void *values) {
    const double *x = values;
    if ((x[0] != 0 && x[0] != 1) || !(x[5] >= -1 && x[5] < shape->n_params) || x[5] != floor(x[5]))
        return 1;
    if (!(x[6] >= 0 && x[6] <= UINT32_MAX) || !(x[7] >= 0 && x[7] <= 1000))
        return 1;
    if (x[0] == 1 && (!isfinite(x[1]) || x[1] < 0 || !isfinite(x[3]) || !isfinite(x[4])))
        return 1;
    return (double)(float)x[4] != x[4] && !isnan(x[4]);
}

static uint64_t n_hyper(const zfi_state_shape_t *shape) { return 5u * (uint64_t)shape->n_groups; }

static void get_hyper(const zfi_state_io_t *io, const zfi_step_row_t *row, void *out) {
    double *to = out;
    for (uint32_t i = 0; i < io->inst->n_groups; i++, to += 5) {
        const zfi_hyper_t *h = &row->hyper[i];
        memcpy(to, (double[5]){h->lr, h->beta1, h->beta2, h->eps, h->weight_decay}, 5 * sizeof *to);
    }
}

static void put_hyper(const zfi_state_io_t *io, zfi_step_row_t *row, const void *values) {
    const double *x = values;
    for (uint32_t i = 0; i < io->inst->n_groups; i++, x += 5)
        row->hyper[i] = (zfi_hyper_t){x[0], x[1], x[2], x[3], x[4]};
}

static int bad_hyper(const zfi_state_shape_t *shape, const void *values) {
    const double *x = values;
    for (uint32_t i = 0; i < shape->n_groups; i++, x += 5) {
        zf_group_hyper_t h = {
            .struct_size = sizeof h, .lr = x[0], .beta1 = x[1], .beta2 = x[2], .eps = x[3], .weight_decay = x[4]};
        if (zfi_rule_check(&h, i, NULL))
            return 1;
    }
    return 0;
}

const zfi_state_steps_t zfi_state_steps[ZFI_N_STATE_STEPS] = {
    [ZFI_STEPS_PRESENT] = {"present", ZFI_STATE_U8, n_present, get_present, put_present, bad_present},
    [ZFI_STEPS_SCALARS] = {"scalars", ZFI_STATE_F64, n_scalars, get_scalars, put_scalars, bad_scalars},
    [ZFI_STEPS_HYPER] = {"hyper", ZFI_STATE_F64, n_hyper, get_hyper, put_hyper, bad_hyper},
};
