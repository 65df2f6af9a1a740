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

/* [control] FLUSH: all windows open anew. Without an automatic interval nothing happens, here and in resume. */
void zfi_interval_restart(const zfi_plan_t *plan, zfi_selection_t *sel);

/* [control] The measure is filled in by a load, at rest after step t: what follows from the clocks. */
void zfi_interval_resume(const zfi_plan_t *plan, const zfi_clock_t *clock, zfi_selection_t *sel);

/* [any-thread] Whether a cohort's window that opens with step `first` can be the open one after step t. Reads
 * pace, t and base alone. */
int zfi_interval_can_be_open(const zfi_clock_t *clock, uint32_t cohort, uint64_t first);

/* A matrix whose records count for its cohort. */
static inline int zfi_interval_measures(const zfi_matrix_t *matrix) {
    return matrix->is_choosable && matrix->k > 0 && matrix->k < matrix->n_channels;
}

/* Whether a decision for step t is from a record of the window that opens with step `first`; no other is asked for. */
static inline int zfi_interval_has_record(uint64_t first, uint64_t t) { return first + 2 <= t; }
