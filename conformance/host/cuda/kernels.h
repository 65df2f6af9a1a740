/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.h - what kernels.cu and what launches it agree on. */
#pragma once

#include <stdint.h>

enum {
    HOST_CUDA_THREADS = 128,    /* of a block */
    HOST_CUDA_ROW_THREADS = 32, /* of attention, whose rows are short */
    HOST_CUDA_MOST_BLOCKS = 4096
};

/* Where a token's sequence lies. */
typedef struct host_cuda_place {
    int32_t first, length; /* tokens */
    uint64_t probs;        /* elements before its [heads][length][length] */
} host_cuda_place_t;
