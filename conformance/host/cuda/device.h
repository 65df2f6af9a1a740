/* SPDX-License-Identifier: Apache-2.0 */
/* device.h - a CUDA device as a place to compute (compute.h): driver, memory, one stream, kernels.cu and products.
 *
 * The driver is opened at run time, so a zf-host that was built with this runs on machines without CUDA. One stream
 * orders everything; copy_out waits for it, nothing else does. The primary context is current on the thread that opened
 * the device from then on, which is the thread that trains. */
#pragma once

#include "compute.h"

/* is_bf16: products round their operands to bf16. Release with host_compute_close. A build without nvcc, a machine
 * without driver, device or cuBLAS: an error that says so. */
int host_cuda_open(int device, int is_bf16, host_compute_t **out, glue_error_t *err);
