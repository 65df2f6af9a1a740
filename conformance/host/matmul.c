/* SPDX-License-Identifier: Apache-2.0 */
/* matmul.c - matrix products by OpenBLAS, large ones in bf16 by oneDNN where that is asked for (matmul.h). */
#include "matmul.h"

#include "matmul_bf16.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>

static size_t n_threads; /* 0: not set yet */
static int is_bf16;

/* Products of fewer multiplications stay fp32: those of attention over one row of the batch, and the classifier. */
static const size_t bf16_min_products = (size_t)1 << 20;

void host_matmul_set_threads(size_t n) {
    n_threads = n;
    openblas_set_num_threads((int)n);
}

const char *host_matmul_use_bf16(void) {
    const char *missing = host_matmul_bf16_missing();
    is_bf16 = missing == NULL;
    return missing;
}

int host_matmul_is_bf16(void) { return is_bf16; }

void host_matmul(size_t m, size_t n, size_t k, double scale, host_matrix_t a, host_matrix_t b, double keep,
                 host_real_t *out, size_t out_stride) {
    enum CBLAS_TRANSPOSE op_a = a.is_transposed ? CblasTrans : CblasNoTrans;
    enum CBLAS_TRANSPOSE op_b = b.is_transposed ? CblasTrans : CblasNoTrans;
    blasint rows = (blasint)m, columns = (blasint)n, inner = (blasint)k;
    if (m == 0 || n == 0)
        return;
    if (n_threads == 0)
        host_matmul_set_threads(1);
    if (is_bf16 && scale == 1.0 && m * n * k >= bf16_min_products) {
        if (host_matmul_bf16(m, n, k, a, b, keep, out, out_stride, n_threads) == 0)
            return;
        fprintf(stderr, "zf-host: oneDNN failed in a product of [%zu, %zu] and [%zu, %zu]\n", m, k, k, n);
        abort();
    }
#ifdef HOST_COMPUTE_IN_DOUBLE
    cblas_dgemm(CblasRowMajor, op_a, op_b, rows, columns, inner, scale, a.data, (blasint)a.stride, b.data,
                (blasint)b.stride, keep, out, (blasint)out_stride);
#else
    cblas_sgemm(CblasRowMajor, op_a, op_b, rows, columns, inner, (float)scale, a.data, (blasint)a.stride, b.data,
                (blasint)b.stride, (float)keep, out, (blasint)out_stride);
#endif
}
