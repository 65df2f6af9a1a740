/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/offload/sums.h - moments mode with accumulate_on = device: the sums of the open windows (SCHEDULE.md). */
#ifndef ZFI_SUMS_H
#define ZFI_SUMS_H

#include "instance/run.h"

/* [hook] The gradients of step t join the sums; signals used. */
void zfi_sums_add(zfi_run_t *run, uint64_t t);
/* [hook] A cohort's sums become what travels, as the next transfer; signals rounded. */
void zfi_sums_round(zfi_run_t *run, uint32_t cohort);
/* [hook] Down: both sums of the window into the pieces of the close; signals sums. */
void zfi_sums_copy_down(zfi_run_t *run, const zfi_close_t *close);
/* [control] The sums of matrices [first, first + n) begin anew. */
void zfi_sums_restart(zfi_run_t *run, uint32_t first, uint32_t n);

#endif
