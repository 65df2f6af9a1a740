/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/offload/scalars.h - a step's scalars: made on the device, sent down with its importance record, reported. */
#ifndef ZFI_OFFLOAD_SCALARS_H
#define ZFI_OFFLOAD_SCALARS_H

#include "instance/run.h"

/* [hook] What the step brings goes up; norm over all ranks, clip factor, applied; signals finished. */
void zfi_scalars_make(zfi_run_t *run, uint64_t t);
/* [control] The step's row goes up again. */
void zfi_scalars_input(zfi_run_t *run, uint64_t t);
/* [hook] Scalars and importance record of step t go down; signals down. */
void zfi_scalars_record(zfi_run_t *run, uint64_t t);
/* [hook] Last program of step t: its report; signals stepped. */
void zfi_scalars_report(zfi_run_t *run, uint64_t t);

#endif
