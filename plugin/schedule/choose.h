/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/schedule/choose.h - which channels a choice takes: ranking, swaps, whether a set is kept (SCHEDULE.md, step
 * 8). */
#pragma once

#include "instance/run.h"

/* [control] Makes the choices of a step: for every matrix of a cohort that chooses, the entering channels (rising) and
 * the positions they take, those of the leaving ones (rising; at the first choice 0, 1, 2 ...). Their importance
 * becomes 0. The host's maps are left alone. */
void zfi_choose(const zfi_plan_t *plan, const zfi_pace_t *pace, zfi_selection_t *sel, const zfi_step_row_t *row,
                zfi_counters_t *count);
