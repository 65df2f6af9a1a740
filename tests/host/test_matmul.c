/* SPDX-License-Identifier: Apache-2.0 */
/* test_matmul.c - products whose operands are rounded to bf16, against sums in double over rounded operands. Where they
 * cannot be computed the same test asks for the reason, and that products stay what they were. */
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/matmul.h"
#include "suite.h"

static float *filled(size_t n, uint32_t seed) {
    float *x = malloc(n * sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
    return x;
}

/* To nearest even, written apart from the host's. */
static double rounded(float x) {
    int exponent;
    double mantissa = frexp((double)x, &exponent);
    return ldexp(nearbyint(ldexp(mantissa, 8)), exponent - 8);
}

/* The operand as the product takes it, rows x columns without gaps. */
static double *dense(host_matrix_t a, size_t rows, size_t columns, int is_rounded) {
    double *x = malloc(rows * columns * sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++) {
            float value = a.is_transposed ? a.data[j * a.stride + i] : a.data[i * a.stride + j];
            x[i * columns + j] = is_rounded ? rounded(value) : (double)value;
        }
    return x;
}

/* One product with strides beyond the rows, and elements between the rows that must stay. */
static void check_product(size_t m, size_t n, size_t k, int a_transposed, int b_transposed, double keep, int is_bf16) {
    size_t a_stride = (a_transposed ? m : k) + 3, b_stride = (b_transposed ? k : n) + 1, stride = n + 2;
    float *a_data = filled((a_transposed ? k : m) * a_stride, 1),
          *b_data = filled((b_transposed ? n : k) * b_stride, 2);
    float *out = filled(m * stride, 3), *before = filled(m * stride, 3);
    host_matrix_t a = {.data = a_data, .stride = a_stride, .is_transposed = a_transposed};
    host_matrix_t b = {.data = b_data, .stride = b_stride, .is_transposed = b_transposed};
    double *x = dense(a, m, k, is_bf16), *y = dense(b, k, n, is_bf16);
    host_matmul(m, n, k, 1.0, a, b, keep, out, stride);
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < n; j++) {
            double sum = keep * (double)before[i * stride + j], bound = 0.0;
            for (size_t p = 0; p < k; p++) {
                double term = x[i * k + p] * y[p * n + j];
                sum += term;
                bound += fabs(term);
            }
            /* fp32 sums in any order; one operand not rounded would be off by 2^-9 of a term */
            ck_assert_double_eq_tol((double)out[i * stride + j], sum, 2e-6 * (bound + 1.0));
        }
        for (size_t j = n; j < stride; j++)
            ck_assert(out[i * stride + j] == before[i * stride + j]);
    }
    free(x);
    free(y);
    free(a_data);
    free(b_data);
    free(out);
    free(before);
}

static void check_all(int large_is_bf16) {
    for (int transposed = 0; transposed < 4; transposed++)
        for (int keep = 0; keep < 2; keep++) {
            check_product(131, 97, 113, transposed & 1, transposed >> 1, keep, large_is_bf16);
            check_product(31, 29, 37, transposed & 1, transposed >> 1, keep, 0);
        }
}

ZT_TEST(test_fp32) {
    ck_assert_int_eq(host_matmul_is_bf16(), 0);
    check_all(0);
}

ZT_TEST(test_bf16) {
    const char *missing = host_matmul_use_bf16();
    if (missing != NULL)
        printf("products in bf16 cannot be computed here: %s\n", missing);
    ck_assert_int_eq(host_matmul_is_bf16(), missing == NULL);
    check_all(missing == NULL);
    host_matmul_set_threads(2);
    check_all(missing == NULL);
}

ZT_SUITE("matmul")
