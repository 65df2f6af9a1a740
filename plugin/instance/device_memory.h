/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/device_memory.h - bytes to and from the device's memory while everything else rests.
 *
 * All of it is [control] and returns when it is done. It is our own finite work, on memory that may be freed next, so
 * it is waited for without a deadline. A status other than ZF_OK means that the device did not take all of it; what it
 * took has run. */
#pragma once

#include "instance/run.h"

/* Operations on the device stream, behind what was collected for it. */
zf_status_t zfi_device_run(zfi_engine_t *engine, const zfi_op_t *ops, uint32_t n);

zf_status_t zfi_device_write(zfi_engine_t *engine, void *to, const void *from, uint64_t nbytes);
/* Also while the device's memory is released. */
zf_status_t zfi_device_read(zfi_engine_t *engine, void *to, const void *from, uint64_t nbytes);
/* Bytes := 0. */
zf_status_t zfi_device_clear(zfi_engine_t *engine, void *to, uint64_t nbytes);
