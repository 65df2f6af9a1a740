/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/params.h - what the CUDA kernels are launched with, where that is not the argument of ../launch.h
 * itself.
 *
 * A kernel of launch.h becomes one or more CUDA kernels. Each takes two parameters by value: its arguments, and the
 * address of a word in device memory that is not zero once the instance has ended by an error: then a kernel does
 * nothing, since what it would read may not have arrived. Arguments are those of launch.h, but for the lists that
 * launch.h keeps in host memory: a batch's gradients travel with the launch. */
#pragma once

#include "../launch.h"

enum {
    ZFI_CUDA_THREADS = 256,       /* of a block of every kernel but those of one thread */
    ZFI_CUDA_MOST_GRADIENTS = 64, /* in one launch of zf_statistics */
    ZFI_CUDA_MOST_RANGES = 128    /* in one of zf_copy_ranges */
};

typedef struct zfi_cuda_gradient {
    const void *grad;
    uint32_t param, unused;
} zfi_cuda_gradient_t;

/* zf_statistics, and zf_norm_params behind it: no parameter stands in the list twice. */
typedef struct zfi_cuda_statistics {
    const zfi_data_t *data;
    uint32_t n, turn;
    int gathers, unused;
    zfi_cuda_gradient_t list[ZFI_CUDA_MOST_GRADIENTS];
} zfi_cuda_statistics_t;

/* zf_copy_ranges: ranges of two- or four-byte elements that do not overlap; `to` may be page-locked host memory. */
typedef struct zfi_cuda_ranges {
    uint32_t n, unused;
    zfi_range_t list[ZFI_CUDA_MOST_RANGES];
} zfi_cuda_ranges_t;

/* zf_gate: sets *has_ended where *word says that the instance has ended. */
typedef struct zfi_cuda_gate {
    const uint64_t *word;
    uint32_t *has_ended;
} zfi_cuda_gate_t;
