/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/support.h - whether the device's backend has what a binding needs (ZFI_LACKS_... in device/device.h).
 *
 * A backend may begin with a part: AdamW on float32, say. What it lacks is asked for here alone, when parameters are
 * bound, and refused by name: the parameter or the key, and what to do instead. */
#pragma once

#include "instance/engine.h"
#include "plan/params.h"

/* [control] What the configuration and the ranks need. */
zf_status_t zfi_support_config(const zfi_engine_t *engine, const zfi_config_t *config, zf_error_t *err);
/* [control] What a parameter needs that has its rule. */
zf_status_t zfi_support_param(const zfi_engine_t *engine, const zfi_config_t *config, const zfi_param_t *param,
                              zf_error_t *err);
