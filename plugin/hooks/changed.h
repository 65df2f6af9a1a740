/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/changed.h - weights that the host wrote: announced (params_changed), or found (step/guard.h). */
#pragma once

#include "instance/instance.h"

/* [hook] With on_overwrite = error: the error that names a parameter, where checks have found one so far. */
zf_status_t zfi_overwritten_report(zf_instance_t *inst, const char *origin, zf_error_t *err);

/* [hook] The same after a look at all visible values, which waits for the device. */
zf_status_t zfi_overwritten_look(zf_instance_t *inst, const char *origin, zf_error_t *err);

/* [control] zf.digest/0's written. */
zf_status_t zfi_written(zf_instance_t *inst, uint32_t flags, const uint32_t *ids, uint32_t n, uint8_t *out,
                        zf_error_t *err);
/* adopt of zf.digest/0. */
zf_status_t zfi_adopt(zf_instance_t *inst, const uint32_t *ids, uint32_t n, zf_error_t *err);
