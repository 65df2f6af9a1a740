/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/clocks.c - the rows of clocks and of the open windows' steps (contract in state/table.h). */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "schedule/interval.h"
#include "state/table.h"

/* ---- clocks ------------------------------------------------------------------------------------------------------ */

#define MEMBER(member) offsetof(zfi_clock_t, member)
const zfi_state_clock_t zfi_state_clocks[ZFI_N_CLOCKS] = {
    [ZFI_CLOCK_T] = {"step", 0, MEMBER(t)},
    [ZFI_CLOCK_BASE] = {"clock_base", 0, MEMBER(base)},
    [ZFI_CLOCK_STEPS_BEFORE] = {"steps_before", 0, MEMBER(steps_before)},
    [ZFI_CLOCK_N_APPLIED] = {"steps_applied", 0, MEMBER(n_applied)},
    [ZFI_CLOCK_N_SKIPPED] = {"steps_skipped", 0, MEMBER(n_skipped)},
    [ZFI_CLOCK_WAITING_CHOICE] = {"waiting_choice", 0, MEMBER(waiting_choice)},
    [ZFI_CLOCK_EPOCH_END] = {"epoch_end", 0, MEMBER(epoch_end)},
    [ZFI_CLOCK_WINDOW_FIRST] = {"window_first", 1, MEMBER(window_first)},
    [ZFI_CLOCK_LAST_CHOICE] = {"last_choice", 1, MEMBER(last_choice)},
    [ZFI_CLOCK_READY_1] = {"ready_1", 1, 0},
    [ZFI_CLOCK_READY_2] = {"ready_2", 1, 0},
};
#undef MEMBER

static uint64_t *place_of(const zfi_state_t *state, int clock, uint32_t cohort) {
    void *member = (char *)state->windows->clock + zfi_state_clocks[clock].offset;
    return zfi_state_clocks[clock].is_per_cohort ? *(uint64_t **)member + cohort : member;
}

/* The decision for step t + 1, or t + 2. */
static uint8_t *ready_of(const zfi_state_t *state, int clock, uint32_t cohort) {
    uint64_t t = state->windows->clock->t + 1 + (uint64_t)(clock - ZFI_CLOCK_READY_1);
    return &state->sel->ready[t % ZFI_READY_DEPTH][cohort];
}

/* 0 where the decision belongs to no open window: nobody will ask for it. */
static uint64_t get_ready(const zfi_state_t *state, int clock, uint32_t cohort) {
    uint64_t t = state->windows->clock->t + 1 + (uint64_t)(clock - ZFI_CLOCK_READY_1);
    return state->windows->clock->pace.is_auto &&
           zfi_interval_has_record(state->windows->clock->window_first[cohort], t) && *ready_of(state, clock, cohort);
}

uint64_t zfi_state_clock_get(const zfi_state_t *state, int clock, uint32_t cohort) {
    if (clock == ZFI_CLOCK_N_APPLIED) /* statistics: a load takes them over with the run (state/replace.c) */
        return state->engine->totals->n_applied;
    if (clock == ZFI_CLOCK_N_SKIPPED)
        return state->engine->totals->n_skipped;
    return clock >= ZFI_CLOCK_READY_1 ? get_ready(state, clock, cohort) : *place_of(state, clock, cohort);
}

void zfi_state_clock_put(const zfi_state_t *state, int clock, uint32_t cohort, uint64_t value) {
    if (clock < ZFI_CLOCK_READY_1)
        *place_of(state, clock, cohort) = value;
    else if (state->windows->clock->pace.is_auto)
        *ready_of(state, clock, cohort) = (uint8_t)value;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

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
        if ((int64_t)io->ids[i] == from->nonfinite_param)
            bad = i;
    memcpy(out,
           (double[ZFI_N_STEP_SCALARS]){from->applied, from->norm, from->clip_factor, from->s_exact, (double)from->s,
                                        bad, row->n_present, from->applied ? ZF_SKIP_NONE : ZF_SKIP_NONFINITE},
           ZFI_N_STEP_SCALARS * sizeof(double));
}

static void put_scalars(const zfi_state_io_t *io, zfi_step_row_t *row, const void *values) {
    const double *x = values;
    row->scalars = (zfi_step_scalars_t){.applied = x[0] != 0,
                                        .norm = x[1],
                                        .clip_factor = x[2],
                                        .s_exact = x[3],
                                        .s = (float)x[4],
                                        .nonfinite_param = x[5] >= 0 ? (int64_t)io->ids[(uint32_t)x[5]] : ZFI_NO_PARAM};
    row->reported = row->scalars;
    row->n_present = (uint32_t)x[6];
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
    for (uint32_t i = 0; i < io->state->ranks->n_groups; i++, to += 5) {
        const zfi_hyper_t *h = &row->hyper[i];
        memcpy(to, (double[5]){h->lr, h->beta1, h->beta2, h->eps, h->weight_decay}, 5 * sizeof *to);
    }
}

void zfi_state_hyper(const double values[5], zfi_hyper_t *out) {
    *out = (zfi_hyper_t){values[0], values[1], values[2], values[3], values[4]};
}

static void put_hyper(const zfi_state_io_t *io, zfi_step_row_t *row, const void *values) {
    const double *x = values;
    for (uint32_t i = 0; i < io->state->ranks->n_groups; i++, x += 5)
        zfi_state_hyper(x, &row->hyper[i]);
}

static int bad_hyper(const zfi_state_shape_t *shape, const void *values) {
    const double *x = values;
    for (uint32_t i = 0; i < shape->n_groups; i++, x += 5) {
        zf_group_hyper_t h = {
            .struct_size = sizeof h, .lr = x[0], .beta1 = x[1], .beta2 = x[2], .eps = x[3], .weight_decay = x[4]};
        if (zfi_rule_check(&h, i, "state", NULL))
            return 1;
    }
    return 0;
}

const zfi_state_steps_t zfi_state_steps[ZFI_N_STATE_STEPS] = {
    [ZFI_STEPS_PRESENT] = {"present", ZFI_STATE_U8, n_present, get_present, put_present, bad_present},
    [ZFI_STEPS_SCALARS] = {"scalars", ZFI_STATE_F64, n_scalars, get_scalars, put_scalars, bad_scalars},
    [ZFI_STEPS_HYPER] = {"hyper", ZFI_STATE_F64, n_hyper, get_hyper, put_hyper, bad_hyper},
};
