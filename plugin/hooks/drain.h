/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/drain.h - bringing an instance to rest. */
#pragma once

#include "instance/instance.h"

/* [control] Everything that was pushed is over, but publishes that are still due (their values wait). Visible values
 * are as they would be without it. The caller has entered the hook. */
zf_status_t zfi_drain(zf_instance_t *inst, zf_error_t *err);

/* [control] The same, but what waits to be fetched goes on waiting: nothing is written to the host's parameters, whose
 * memory may be gone. */
zf_status_t zfi_drain_but_unfetched(zf_instance_t *inst, zf_error_t *err);

/* [control] Whether what was pushed is over within this many nanoseconds: ZF_ERR_TIMEOUT otherwise, without a record,
 * which ends nothing. */
zf_status_t zfi_drain_within(zf_instance_t *inst, uint64_t ns, zf_error_t *err);

/* [control] A drained instance closes its windows and is drained again: FLUSH. Of parameters that are held or foreign
 * nothing becomes visible. */
zf_status_t zfi_close_windows(zf_instance_t *inst, zf_error_t *err);
