/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/batch.h - deliveries are collected in a batch, which wakes the device and down streams once. */
#pragma once

#include "instance/instance.h"

/* [hook] The batch that is being filled. */
zfi_batch_t *zfi_batch_open(zf_instance_t *inst);

/* [hook] Pushes the open batch, if it holds anything. */
zf_status_t zfi_batch_flush(zf_instance_t *inst);

/* [hook] An entry of the open batch (flags: ZFI_GRADIENT_...); source and strides as there. Takes slots with SHIP
 * but not LANDED. */
zf_status_t zfi_batch_append(zf_instance_t *inst, const zfi_param_t *param, uint32_t flags, const void *source,
                             const int64_t *strides);
