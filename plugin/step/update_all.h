/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/update_all.h - deferred = none: every channel's state lies on the device and is updated there. */
#ifndef ZFI_UPDATE_ALL_H
#define ZFI_UPDATE_ALL_H

#include "instance/run.h"

/* [hook] ZF_ERR_POISONED, and the instance ends, where an update left a weight Inf or NaN. */
zf_status_t zfi_update_all_check(zfi_engine_t *engine, const zfi_param_t *params);

#endif
