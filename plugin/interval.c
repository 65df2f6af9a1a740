/* plugin/interval.c - update_interval = auto (contract in interval.h; rules in SCHEDULE.md, "When windows close").
 *
 * The control thread adds up what each step's record holds in deferred and in selected channels of every matrix, and
 * says two steps ahead which cohorts are ready. It learns of closes and choices with the step's row, after the record
 * of that step: so a window's sums hold the records after its opening alone, and a decision for t knows every close
 * <= t-2. A window that opened at t-2 or later has no record to decide from: the hook does not ask. */
#include "interval.h"

#include <string.h>

#include "fault.h"
#include "window.h"

enum { SHORTEST_ASKED = 3 }; /* zfi_interval_has_record() */

/* ---- control ----------------------------------------------------------------------------------------------------- */

static void add_matrix(zf_instance_t *inst, uint32_t number, const zfi_step_row_t *row) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[number];
    const double *record = inst->sel.records[row->t % ZFI_RECORD_DEPTH] + matrix->sum_base;
    const uint8_t *mask = inst->sel.mask + matrix->channel_base;
    double sums[2] = {0.0, 0.0}; /* deferred, selected */
    for (uint32_t c = 0; c < matrix->n_channels; c++)
        sums[mask[c] != 0] += row->scalars.s_exact * record[c];
    inst->sel.deferred[number] += sums[0];
    inst->sel.selected[number] += sums[1];
}

static int has_caught_up(const zf_instance_t *inst, uint32_t number, uint64_t t) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[number];
    double n_steps = (double)(t - inst->sel.choice_step[matrix->cohort]);
    double deferred = inst->sel.deferred[number] / (double)(matrix->n_channels - matrix->k);
    return deferred >= inst->sel.selected[number] / (double)matrix->k / n_steps;
}

/* From the records <= t. */
static uint8_t is_ready(const zf_instance_t *inst, uint32_t c, uint64_t t) {
    const zfi_cohort_plan_t *cohort = &inst->plan.cohorts[c];
    uint32_t n = 0, n_ready = 0;
    for (uint32_t i = 0; i < cohort->n_matrices; i++) {
        uint32_t number = inst->plan.cohort_matrices[cohort->first_matrix + i];
        if (!zfi_interval_measures(&inst->plan.matrices[number]))
            continue;
        n++;
        n_ready += (uint32_t)has_caught_up(inst, number, t);
    }
    return n > 0 && (double)n_ready >= inst->config.auto_ratio * (double)n;
}

/* A close at this step opens a window without records, a choice begins the measure of the selected. */
static void begin_anew(zf_instance_t *inst, const zfi_step_row_t *row) {
    for (uint32_t i = 0; i < inst->plan.n_matrices; i++) {
        uint32_t c = inst->plan.matrices[i].cohort;
        if (row->closes[c])
            inst->sel.deferred[i] = 0.0;
        if (row->chooses[c])
            inst->sel.selected[i] = 0.0;
    }
    for (uint32_t c = 0; c < inst->plan.n_cohorts; c++)
        if (row->chooses[c])
            inst->sel.choice_step[c] = row->t;
}

void zfi_interval_take(zf_instance_t *inst, const zfi_step_row_t *row) {
    if (!inst->config.is_interval_auto)
        return;
    if (!zfi_is_warm_up(inst, row->t)) {
        for (uint32_t i = 0; i < inst->plan.n_matrices && row->scalars.applied; i++)
            if (zfi_interval_measures(&inst->plan.matrices[i]) && row->present[inst->plan.matrices[i].param])
                add_matrix(inst, i, row);
        for (uint32_t c = 0; c < inst->plan.n_cohorts; c++)
            inst->sel.ready[(row->t + 2) % ZFI_READY_DEPTH][c] = is_ready(inst, c, row->t);
    }
    begin_anew(inst, row);
    zfi_timeline_signal(&inst->decided, row->t + 2);
}

void zfi_interval_restart(zf_instance_t *inst) {
    if (inst->config.is_interval_auto)
        memset(inst->sel.deferred, 0, inst->plan.n_matrices * sizeof *inst->sel.deferred);
}

/* Control has taken every step <= t, and with each decided for the second step after it. */
void zfi_interval_resume(zf_instance_t *inst) {
    zfi_timeline_set(&inst->decided, inst->t + 2);
    if (inst->config.is_interval_auto)
        memcpy(inst->sel.choice_step, inst->last_choice, inst->plan.n_cohorts * sizeof *inst->last_choice);
}

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

static uint64_t bound_of(const zf_instance_t *inst, uint32_t cohort, uint64_t first) {
    return first == inst->clock_base + 1 && inst->config.stagger ? cohort + 1u : inst->config.update_interval;
}

static uint64_t shortest_of(const zf_instance_t *inst) {
    return inst->config.min_update_interval < SHORTEST_ASKED ? SHORTEST_ASKED : inst->config.min_update_interval;
}

int zfi_interval_can_be_open(const zf_instance_t *inst, uint32_t cohort, uint64_t first) {
    uint64_t base = inst->clock_base, earliest = bound_of(inst, cohort, base + 1);
    if (zfi_is_warm_up(inst, inst->t) || !inst->config.is_interval_auto)
        return first == zfi_window_first(inst, cohort);
    if (shortest_of(inst) < earliest)
        earliest = shortest_of(inst);
    if (first <= base || first > inst->t + 1 || (first > base + 1 && first - 1 - base < earliest))
        return 0;
    return inst->t + 1 - first < bound_of(inst, cohort, first);
}

zf_status_t zfi_interval_decide(zf_instance_t *inst, zfi_step_row_t *row) {
    uint64_t shortest = shortest_of(inst);
    for (uint32_t c = 0; c < inst->plan.n_cohorts; c++) {
        uint64_t length = row->t + 1 - inst->window_first[c];
        if (zfi_is_warm_up(inst, row->t) || !inst->config.is_interval_auto) {
            row->closes[c] = (uint8_t)zfi_window_closes(inst, c, row->t);
            continue;
        }
        row->closes[c] = length >= bound_of(inst, c, inst->window_first[c]);
        if (row->closes[c] || length < shortest)
            continue;
        if (zfi_wait(inst, &inst->decided, row->t, &inst->count.host_wait_ns))
            return ZF_ERR_POISONED;
        row->closes[c] = inst->sel.ready[row->t % ZFI_READY_DEPTH][c];
        if (row->closes[c])
            atomic_fetch_add(&inst->count.closes_by_data, 1);
    }
    return ZF_OK;
}
