/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/scalars.h - a step's scalars: made on the device, sent down with its importance record, reported. */
#ifndef ZFI_OFFLOAD_SCALARS_H
#define ZFI_OFFLOAD_SCALARS_H

#include "instance/run.h"

/* [hook] What the step brings goes up; norm over all ranks, clip factor, applied; signals finished. */
void zfi_scalars_make(zfi_run_t *run, uint64_t t);
/* [control] The step's row goes up again. */
void zfi_scalars_input(zfi_run_t *run, uint64_t t);
/* [hook] Scalars of step t go down, with the importance record if it is of one part; signals down and recorded. */
void zfi_scalars_down(zfi_run_t *run, uint64_t t);
/* [hook] The record if it is of several parts. Its later parts wait until the control thread has counted the first, and
 * that may first wait for the replays of this step: so it comes when everything else of the step is enqueued and the
 * control thread has been given the step. */
void zfi_scalars_record(zfi_run_t *run, uint64_t t);
/* [hook] Last program of step t: its report; signals stepped. */
void zfi_scalars_report(zfi_run_t *run, uint64_t t);

#endif
