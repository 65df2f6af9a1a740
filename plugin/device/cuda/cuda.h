/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/cuda/cuda.h - the CUDA backend's table. A build without nvcc has one whose open says so (absent.c). */
#pragma once

#include "device/device.h"

extern const zfi_device_ops_t zfi_device_cuda;
