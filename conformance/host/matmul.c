/* SPDX-License-Identifier: Apache-2.0 */
/* matmul.c - matrix products by OpenBLAS (matmul.h). */
#include "matmul.h"

#include <cblas.h>

__attribute__((constructor)) static void use_one_thread(void) { openblas_set_num_threads(1); }

void host_matmul(size_t m, size_t n, size_t k, double scale, host_matrix_t a, host_matrix_t b, double keep,
                 host_real_t *out, size_t out_stride) {
    enum CBLAS_TRANSPOSE op_a = a.is_transposed ? CblasTrans : CblasNoTrans;
    enum CBLAS_TRANSPOSE op_b = b.is_transposed ? CblasTrans : CblasNoTrans;
    blasint rows = (blasint)m, columns = (blasint)n, inner = (blasint)k;
    if (m == 0 || n == 0)
        return;
#ifdef HOST_COMPUTE_IN_DOUBLE
    cblas_dgemm(CblasRowMajor, op_a, op_b, rows, columns, inner, scale, a.data, (blasint)a.stride, b.data,
                (blasint)b.stride, keep, out, (blasint)out_stride);
#else
    cblas_sgemm(CblasRowMajor, op_a, op_b, rows, columns, inner, (float)scale, a.data, (blasint)a.stride, b.data,
                (blasint)b.stride, (float)keep, out, (blasint)out_stride);
#endif
}
