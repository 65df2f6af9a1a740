/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/update_all.h - deferred = none: every channel's state lies on the device and is updated there. */
#ifndef ZFI_UPDATE_ALL_H
#define ZFI_UPDATE_ALL_H

#include "instance/run.h"

/* [hook] One launch of the update of matrices [first, end) at step t, which becomes visible at once. */
void zfi_update_all(zfi_run_t *run, uint64_t t, uint32_t first, uint32_t end);

/* [hook] FLUSH: visible = round(w) everywhere. */
void zfi_update_all_show(zfi_run_t *run);

/* [hook] The gradients of step t, which stayed where they were delivered, have been read; signals used. */
void zfi_update_all_end(zfi_run_t *run, uint64_t t);

/* [hook] ZF_ERR_POISONED, and the instance ends, where an update left a weight Inf or NaN. */
zf_status_t zfi_update_all_check(zfi_run_t *run);

#endif
