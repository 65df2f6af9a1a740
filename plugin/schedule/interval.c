/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/schedule/interval.c - update_interval = auto (contract in interval.h; rules in SCHEDULE.md, "When windows
 * close").
 *
 * The control thread adds up what each step's record holds in deferred and in selected channels of every matrix, and
 * says two steps ahead which cohorts are ready. It learns of closes and choices with the step's row, after the record
 * of that step: so a window's sums hold the records after its opening alone, and a decision for t knows every close
 * <= t-2. A window that opened at t-2 or later has no record to decide from: the hook does not ask. */
#include "schedule/interval.h"

#include <string.h>

#include "schedule/select.h"
#include "schedule/window.h"

enum { SHORTEST = 3 }; /* steps of a window before a record of it can be asked */

/* The share of a cohort's matrices that must have caught up. */
static const double ready_share = 0.5;

/* ---- control ----------------------------------------------------------------------------------------------------- */

/* Records are of one part here (plan.c). */
static void add_matrix(const zfi_plan_t *plan, zfi_selection_t *sel, uint32_t number, const zfi_step_row_t *row) {
    const zfi_matrix_t *matrix = &plan->matrices[number];
    const double *record = sel->records + (row->t - 1) % ZFI_RECORD_DEPTH * plan->record_sums + matrix->sum_base;
    const uint8_t *mask = sel->mask + matrix->channel_base;
    double sums[2] = {0.0, 0.0}; /* deferred, selected */
    for (uint32_t c = 0; c < matrix->n_channels; c++)
        sums[mask[c] != 0] += row->scalars.s_exact * record[c];
    sel->deferred[number] += sums[0];
    sel->selected[number] += sums[1];
}

static int has_caught_up(const zfi_plan_t *plan, const zfi_selection_t *sel, uint32_t number, uint64_t t) {
    const zfi_matrix_t *matrix = &plan->matrices[number];
    double n_steps = (double)(t - sel->choice_step[matrix->cohort]);
    double deferred = sel->deferred[number] / (double)(matrix->n_channels - matrix->k);
    return deferred >= sel->selected[number] / (double)matrix->k / n_steps;
}

/* From the records <= t. */
static uint32_t count_ready(const zfi_plan_t *plan, const zfi_selection_t *sel, uint32_t c, uint64_t t) {
    const zfi_cohort_plan_t *cohort = &plan->cohorts[c];
    uint32_t n = 0;
    for (uint32_t i = 0; i < cohort->n_matrices; i++) {
        uint32_t number = plan->cohort_matrices[cohort->first_matrix + i];
        if (zfi_interval_measures(&plan->matrices[number]) && zfi_select_counts(sel, number))
            n += (uint32_t)has_caught_up(plan, sel, number, t);
    }
    return n;
}

static uint32_t count_measured(const zfi_plan_t *plan, const zfi_cohort_plan_t *cohort) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < cohort->n_matrices; i++)
        n += (uint32_t)zfi_interval_measures(&plan->matrices[plan->cohort_matrices[cohort->first_matrix + i]]);
    return n;
}

/* A close at this step opens a window without records, a choice begins the measure of the selected. */
static void begin_anew(const zfi_plan_t *plan, zfi_selection_t *sel, const zfi_step_row_t *row) {
    for (uint32_t i = 0; i < plan->n_matrices; i++) {
        uint32_t c = plan->matrices[i].cohort;
        if (row->closes[c])
            sel->deferred[i] = 0.0;
        if (row->chooses[c])
            sel->selected[i] = 0.0;
    }
    for (uint32_t c = 0; c < plan->n_cohorts; c++)
        if (row->chooses[c])
            sel->choice_step[c] = row->t;
}

void zfi_interval_take(const zfi_plan_t *plan, zfi_selection_t *sel, const zfi_step_row_t *row) {
    for (uint32_t i = 0; i < plan->n_matrices && row->scalars.applied; i++)
        if (zfi_interval_measures(&plan->matrices[i]) && row->present[plan->matrices[i].param] &&
            zfi_select_counts(sel, i))
            add_matrix(plan, sel, i, row);
    for (uint32_t c = 0; c < plan->n_cohorts; c++)
        sel->n_ready[c] = count_ready(plan, sel, c, row->t);
}

void zfi_interval_conclude(const zfi_clock_t *clock, const zfi_plan_t *plan, zfi_selection_t *sel,
                           const zfi_step_row_t *row) {
    for (uint32_t c = 0; c < plan->n_cohorts && !zfi_is_warm_up(clock, row->t); c++) {
        uint32_t n = count_measured(plan, &plan->cohorts[c]);
        sel->ready[(row->t + 2) % ZFI_READY_DEPTH][c] = n > 0 && (double)sel->n_ready[c] >= ready_share * (double)n;
    }
    begin_anew(plan, sel, row);
}

void zfi_interval_restart(const zfi_plan_t *plan, zfi_selection_t *sel) {
    if (sel->deferred)
        memset(sel->deferred, 0, plan->n_matrices * sizeof *sel->deferred);
}

/* Control has taken every step <= t, and with each decided for the second step after it (timelines.h). */
void zfi_interval_resume(const zfi_plan_t *plan, const zfi_clock_t *clock, zfi_selection_t *sel) {
    if (!sel->deferred)
        return;
    zfi_interval_restart(plan, sel);
    memset(sel->selected, 0, plan->n_matrices * sizeof *sel->selected);
    for (uint32_t c = 0; c < plan->n_cohorts; c++)
        sel->choice_step[c] = clock->t;
}

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

static uint64_t bound_of(const zfi_clock_t *clock, uint32_t cohort, uint64_t first) {
    return first == clock->base + 1 ? cohort + 1u : clock->pace.interval;
}

zf_status_t zfi_interval_decide(zfi_engine_t *engine, uint32_t n_cohorts, const zfi_clock_t *clock,
                                const zfi_selection_t *sel, zfi_step_row_t *row) {
    for (uint32_t c = 0; c < n_cohorts; c++) {
        uint64_t length = row->t + 1 - clock->window_first[c];
        if (zfi_is_warm_up(clock, row->t) || !clock->pace.is_auto) {
            row->closes[c] = (uint8_t)zfi_window_closes(clock, c, row->t);
            continue;
        }
        row->closes[c] = length >= bound_of(clock, c, clock->window_first[c]);
        if (row->closes[c] || length < SHORTEST)
            continue;
        if (zfi_wait(engine, &engine->lines.decided, row->t, &engine->count.host_wait_ns))
            return ZF_ERR_POISONED;
        row->closes[c] = sel->ready[row->t % ZFI_READY_DEPTH][c];
        if (row->closes[c])
            atomic_fetch_add(&engine->count.closes_by_data, 1);
    }
    return ZF_OK;
}
