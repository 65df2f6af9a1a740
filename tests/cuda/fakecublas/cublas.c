/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakecublas/cublas.c - libcublas.so.13 for the reference host on the driver's double: the five functions
 * that conformance/host/cuda/cublas.c asks for, by OpenBLAS.
 *
 * It takes its arguments as cuBLAS does, column-major with leading dimensions, so that a host that exchanges a
 * transpose or a stride gets other values, or a finding of the driver's double where it reads past an array. It waits
 * for the stream, which cuBLAS does not: orders are the driver's double's to look for. Operands are rounded to bf16
 * where that is asked for. */
#define _GNU_SOURCE
#include <cblas.h>
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default"))) int

enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13 };
enum { COMPUTE_32F = 68, COMPUTE_32F_FAST_16BF = 75 };

typedef struct handle {
    CUstream stream;
} handle_t;

API cublasCreate_v2(handle_t **out) {
    const char *fails = getenv("FAKECUBLAS_FAIL");
    *out = fails != NULL ? NULL : calloc(1, sizeof **out);
    return *out != NULL ? SUCCESS : NOT_INITIALIZED;
}

API cublasDestroy_v2(handle_t *h) {
    free(h);
    return SUCCESS;
}

API cublasGetVersion_v2(handle_t *h, int *version) {
    *version = 130000;
    return h != NULL ? SUCCESS : NOT_INITIALIZED;
}

API cublasSetStream_v2(handle_t *h, CUstream stream) {
    h->stream = stream;
    return SUCCESS;
}

static void round_to_bf16(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
        memcpy(&x[i], &bits, sizeof bits);
    }
}

/* A column-major matrix of rows x columns, of which the last column is cut at its end. */
static size_t elements(int rows, int columns, int stride) {
    return rows > 0 && columns > 0 ? (size_t)stride * (size_t)(columns - 1) + (size_t)rows : 0;
}

static float *take(const void *there, size_t n) {
    float *here = malloc((n + 1) * sizeof *here);
    if (here == NULL ||
        (n > 0 && cuMemcpyDtoH(here, (CUdeviceptr)(uintptr_t)there, n * sizeof *here) != CUDA_SUCCESS)) {
        free(here);
        return NULL;
    }
    return here;
}

API cublasGemmEx(handle_t *h, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, int a_type,
                 int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,
                 int compute, int algorithm) {
    int a_rows = op_a ? k : m, a_columns = op_a ? m : k, b_rows = op_b ? n : k, b_columns = op_b ? k : n;
    int st = EXECUTION_FAILED;
    if (a_type != 0 || b_type != 0 || c_type != 0 || algorithm != -1 ||
        (compute != COMPUTE_32F && compute != COMPUTE_32F_FAST_16BF) || lda < a_rows || ldb < b_rows || ldc < m)
        return INVALID_VALUE;
    size_t n_a = elements(a_rows, a_columns, lda);
    size_t n_b = elements(b_rows, b_columns, ldb);
    size_t n_c = elements(m, n, ldc);
    if (cuStreamSynchronize(h->stream) != CUDA_SUCCESS)
        return EXECUTION_FAILED;
    float *x = take(a, n_a);
    float *y = take(b, n_b);
    float *z = take(c, n_c);
    if (x != NULL && y != NULL && z != NULL) {
        if (compute == COMPUTE_32F_FAST_16BF) {
            round_to_bf16(x, n_a);
            round_to_bf16(y, n_b);
        }
        cblas_sgemm(CblasColMajor, op_a ? CblasTrans : CblasNoTrans, op_b ? CblasTrans : CblasNoTrans, m, n, k,
                    *(const float *)alpha, x, lda, y, ldb, *(const float *)beta, z, ldc);
        if (n_c == 0 || cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)c, z, n_c * sizeof *z, h->stream) == CUDA_SUCCESS)
            st = cuStreamSynchronize(h->stream) == CUDA_SUCCESS ? SUCCESS : EXECUTION_FAILED;
    }
    free(x);
    free(y);
    free(z);
    return st;
}
