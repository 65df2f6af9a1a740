/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/schedule/interval.h - update_interval = auto: whether windows may close, from importance records
 * (SCHEDULE.md). */
#pragma once

#include "instance/run.h"

/* [own threads: control] After warm-up: takes the record of the row's step t, before the choice of t, and counts the
 * matrices that are ready. The record must be in host memory. */
void zfi_interval_take(const zfi_plan_t *plan, zfi_selection_t *sel, const zfi_step_row_t *row);

/* [own threads: control] From that count, of all ranks, which windows may close at t + 2. At every step. */
void zfi_interval_conclude(const zfi_clock_t *clock, const zfi_plan_t *plan, zfi_selection_t *sel,
                           const zfi_step_row_t *row);

/* [hook] Fills the row's closes; waits for a decision where one is needed. */
zf_status_t zfi_interval_decide(zfi_engine_t *engine, uint32_t n_cohorts, const zfi_clock_t *clock,
                                const zfi_selection_t *sel, zfi_step_row_t *row);

/* [control] FLUSH: all windows open again. Without an automatic interval nothing happens, here and in resume. */
void zfi_interval_restart(const zfi_plan_t *plan, zfi_selection_t *sel);

/* [control] A save, or a load, at rest after step t: both measures begin with the next record. */
void zfi_interval_resume(const zfi_plan_t *plan, const zfi_clock_t *clock, zfi_selection_t *sel);

/* A matrix whose records count for its cohort. */
static inline int zfi_interval_measures(const zfi_matrix_t *matrix) {
    return matrix->is_choosable && matrix->k > 0 && matrix->k < matrix->n_channels;
}
