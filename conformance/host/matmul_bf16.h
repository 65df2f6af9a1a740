/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_bf16.h - matrix products of operands rounded to bf16, summed in fp32, by oneDNN: what mixed-precision trainers
 * compute, and several times faster than fp32 on processors with AMX or AVX-512 BF16. */
#pragma once

#include "matmul.h"

/* Why there are no such products here (built without oneDNN, a processor that lacks them), or NULL where there are. */
const char *host_matmul_bf16_missing(void);

/* out = a * b + keep * out, on n_threads threads; shapes and strides as in host_matmul. Returns 0, or -1 where oneDNN
 * failed (out of memory): out may be partly written then. Not for two threads at once. */
int host_matmul_bf16(size_t m, size_t n, size_t k, host_matrix_t a, host_matrix_t b, double keep, host_real_t *out,
                     size_t out_stride, size_t n_threads);
