/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/schedule/window.h - the clocks: which step a slot belongs to, when cohorts close and choose, and what a close
 * frees.
 *
 * All of it runs on the host's thread and depends on submitted steps alone (SCHEDULE.md, "When windows close"). */
#pragma once

#include "instance/run.h"

/* [control] First state after memory is bound, or a load has set the newest step. */
void zfi_window_start(const zfi_windows_t *windows);

/* [control] Whether FLUSH would find a window with steps in it, or a publication that is due. */
int zfi_window_is_any_open(const zfi_windows_t *windows);

/* [control] Whether the open window of a matrix holds a gradient of this step. */
int zfi_window_has_slot(const zfi_windows_t *windows, uint32_t matrix, uint64_t step);

/* [hook] Readies the ring row of the step after clock->t. */
void zfi_window_prepare(const zfi_windows_t *windows);

/* [hook] Pieces for this step's slots of a parameter's chunks, allocated at first use; *needs_job rises to what must be
 * replayed before they are written. ZF_ERR_INTERNAL where the pool is empty, which the plan rules out. */
zf_status_t zfi_window_slots(const zfi_windows_t *windows, const zfi_param_t *param, uint64_t *needs_job);

/* [hook] Whether a cohort's window closes at step t by the clock (interval.h decides where that is automatic), and
 * whether it then chooses. */
int zfi_window_closes(const zfi_clock_t *clock, uint32_t cohort, uint64_t t);
int zfi_window_chooses(const zfi_clock_t *clock, uint32_t cohort, uint64_t t);

/* [hook] Closes a cohort's window at the end of step t: fills *out, numbers its jobs, frees its slots (to be written
 * again after those jobs) and opens the next window. publishes_all as in zfi_close_t. */
void zfi_window_close(const zfi_windows_t *windows, uint32_t cohort, uint64_t t, int publishes_all, zfi_close_t *out);

/* [hook] What zfi_window_close() will make of a cohort at step t, if its jobs begin with first_job; nothing changes. */
void zfi_window_expect(const zfi_plan_t *plan, const zfi_clock_t *clock, uint32_t cohort, uint64_t t,
                       uint64_t first_job, zfi_close_t *out);

/* [hook] Nothing is deferred: step t leaves nothing behind, and windows open after it. */
void zfi_window_pass(const zfi_plan_t *plan, zfi_clock_t *clock, uint64_t t);

/* [control] The window that is open now, as if it closed at the newest step; nothing changes. */
void zfi_window_open(const zfi_clock_t *clock, uint32_t cohort, zfi_close_t *out);

/* [control] FLUSH: the slots that the coming step already has move with it into new windows; clocks restart. */
void zfi_window_restart(const zfi_windows_t *windows);
