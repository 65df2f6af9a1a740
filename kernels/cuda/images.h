/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/images.h - the compiled kernels as they are embedded: PTX, and machine code assembled from it. */
#pragma once

#include <stdint.h>

typedef struct zfi_cuda_image {
    int major; /* of the compute capability that it is for */
    const void *begin;
} zfi_cuda_image_t;

extern const char zfi_cuda_ptx[]; /* of compute_80; ends with a zero byte */
extern const zfi_cuda_image_t zfi_cuda_images[];
extern const uint32_t zfi_cuda_n_images;
