/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/backends.c - the list of backends. A new one is a line here; a test that brings its own links another
 * list in place of this file. */
#include "device/cpu/cpu.h"
#include "device/cuda/cuda.h"

const zfi_device_ops_t *const zfi_backends[] = {&zfi_device_cpu, &zfi_device_cuda};
const uint32_t zfi_n_backends = sizeof zfi_backends / sizeof *zfi_backends;
