/* SPDX-License-Identifier: Apache-2.0 */
/* matmul.h - matrix products, the one place that knows the BLAS.
 *
 * Matrices are row-major with a stated row stride. One thread is used: several runs side by side are faster than one
 * run on several threads, and a run gives the same bits every time. */
#pragma once

#include "real.h"

#include <stddef.h>

typedef struct host_matrix {
    const host_real_t *data;
    size_t stride;     /* elements from one row to the next */
    int is_transposed; /* the product uses the transpose of what is stored */
} host_matrix_t;

/* out [m, n] = scale * a [m, k] * b [k, n] + keep * out; out_stride as in host_matrix_t. Any of m, n, k may be 0. */
void host_matmul(size_t m, size_t n, size_t k, double scale, host_matrix_t a, host_matrix_t b, double keep,
                 host_real_t *out, size_t out_stride);
