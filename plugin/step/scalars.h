/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/scalars.h - a step's scalars: made on the device, sent down with its importance record, reported. */
#pragma once

#include "instance/run.h"

/* [hook] What the step brings goes up; norm over all ranks, clip factor, applied; signals finished. */
void zfi_scalars_make(const zfi_device_side_t *side, zfi_ranks_t *ranks, const zfi_step_row_t *row);
/* [hook] Scalars of the step go down, with the importance record if it is of one part; signals down and recorded. */
void zfi_scalars_down(const zfi_device_side_t *side, const zfi_selection_t *sel, zfi_step_row_t *row);
/* [hook] The record if it is of several parts. Its later parts wait until the control thread has counted the first, and
 * that may first wait for the replays of this step: so it comes when everything else of the step is enqueued and the
 * control thread has been given the step. */
void zfi_scalars_record(const zfi_device_side_t *side, const zfi_selection_t *sel, uint64_t t);
/* [hook] Last program of a step: its report; signals stepped. */
void zfi_scalars_report(const zfi_device_side_t *side, zfi_step_row_t *row);
