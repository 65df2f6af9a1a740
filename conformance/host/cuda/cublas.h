/* SPDX-License-Identifier: Apache-2.0 */
/* cublas.h - products of fp32 matrices on a device by cuBLAS, which is opened at run time. */
#pragma once

#include "glue/error.h"
#include "matmul.h"

typedef struct host_cublas host_cublas_t;

/* For the current context; work goes to the stream. Fails where no libcublas.so of CUDA 12 or 13 is found, or it does
 * not start. Release with host_cublas_close. */
int host_cublas_open(void *stream, int is_bf16, host_cublas_t **out, glue_error_t *err);
void host_cublas_close(host_cublas_t *cublas);

/* Version as cuBLAS says it, 130000. */
int host_cublas_version(const host_cublas_t *cublas);

/* out [m, n], row-major and without gaps, = a [m, k] * b [k, n] + keep * out. 0, or cuBLAS's status. */
int host_cublas_matmul(host_cublas_t *cublas, size_t m, size_t n, size_t k, host_matrix_t a, host_matrix_t b,
                       double keep, host_real_t *out);
