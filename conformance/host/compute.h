/* SPDX-License-Identifier: Apache-2.0 */
/* compute.h - where the model computes, and where its arrays lie: on the processor, or on a CUDA device.
 *
 * Everything that the encoder does with an array is one call of the table below; encoder.c and backward.c never touch
 * an element. The processor's table is processor.c; a device's (cuda/device.h)
 * enqueues kernels and cuBLAS on one stream, which alone orders them, and copies wait for it. Arrays are row-major;
 * "there" is the table's own memory, everything else the host's. Lists of rows and what a batch begins with are the
 * host's, and may change when a call has returned.
 *
 * Calls do not fail one by one: the first error stays, and host_compute_check says it. */
#pragma once

#include "glue/error.h"
#include "glue/rng.h"
#include "matmul.h"
#include "real.h"

#include <stddef.h>
#include <stdint.h>

typedef struct host_compute host_compute_t;

/* The two arrays of a linear layer or a LayerNorm. */
typedef struct host_affine_arrays {
    host_real_t *weight, *bias;
} host_affine_arrays_t;

/* Sequences that lie back to back: number s has the rows starts[s] .. starts[s + 1] - 1, and its tokens attend to those
 * rows only. That is what a padding mask computes on padded batches, without the padding. */
typedef struct host_attention_shape {
    const int32_t *starts; /* [n_sequences + 1] */
    size_t n_sequences, n_heads, head_width;
} host_attention_shape_t;

/* The declared type of parameters and gradients. */
typedef enum host_dtype { HOST_FLOAT32, HOST_BFLOAT16 } host_dtype_t;

typedef struct host_compute_ops {
    const char *name;
    void *(*allocate)(host_compute_t *c, size_t nbytes); /* zeros; NULL: out of memory */
    void (*release)(host_compute_t *c, void *there);     /* NULL is nothing */
    void (*copy_in)(host_compute_t *c, void *there, const void *from, size_t nbytes);
    void (*copy_out)(host_compute_t *c, void *to, const void *there,
                     size_t nbytes);                                            /* waits: `to` holds it on return */
    void (*copy)(host_compute_t *c, void *to, const void *from, size_t nbytes); /* both there */
    void (*zero)(host_compute_t *c, void *there, size_t nbytes);

    /* matmul.h */
    void (*matmul)(host_compute_t *c, size_t m, size_t n, size_t k, host_matrix_t a, host_matrix_t b, double keep,
                   host_real_t *out);
    /* Each of n rows of y becomes `row`; the sum of n rows of x is added to `sum`. */
    void (*fill_rows)(host_compute_t *c, host_real_t *y, const host_real_t *row, size_t n, size_t width);
    void (*sum_rows)(host_compute_t *c, const host_real_t *x, size_t n, size_t width, host_real_t *sum);

    /* Multi-head self-attention. q, k, v and context are [n_tokens, n_heads * head_width]; probs holds [length, length]
     * per sequence and head, in that order. Backward writes dq, dk, dv; d_probs is scratch of (longest sequence)^2. */
    void (*attention_forward)(host_compute_t *c, const host_attention_shape_t *shape, const host_real_t *q,
                              const host_real_t *k, const host_real_t *v, host_real_t *probs, host_real_t *context);
    void (*attention_backward)(host_compute_t *c, const host_attention_shape_t *shape, const host_real_t *q,
                               const host_real_t *k, const host_real_t *v, const host_real_t *probs,
                               const host_real_t *d_context, host_real_t *d_probs, host_real_t *dq, host_real_t *dk,
                               host_real_t *dv);

    /* Row-wise layers over [n, width], each a pair; backward adds the parameters' derivatives and turns d, that of y,
     * into that of x. Layer normalisation (arXiv 1607.06450), in place: x = normal * weight + bias, normal being x with
     * mean 0 and variance 1 per row; normal [n, width] and inverse_deviation [n] are kept. GELU by the error function
     * (arXiv 1606.08415): y = x * cdf, which is kept. Inverted dropout: an element is zeroed where its draw is below
     * probability, else divided by 1 - probability; the same rng gives the same mask, so backward calls it on the
     * gradient. */
    void (*norm_forward)(host_compute_t *c, host_affine_arrays_t p, size_t n, size_t width, double eps, host_real_t *x,
                         host_real_t *normal, host_real_t *inverse_deviation);
    void (*norm_backward)(host_compute_t *c, const host_real_t *weight, const host_real_t *normal,
                          const host_real_t *inverse_deviation, size_t n, size_t width, host_real_t *d,
                          host_affine_arrays_t grad);
    void (*gelu_forward)(host_compute_t *c, const host_real_t *x, size_t n, host_real_t *y, host_real_t *cdf);
    void (*gelu_backward)(host_compute_t *c, const host_real_t *x, const host_real_t *cdf, size_t n, host_real_t *d);
    void (*add)(host_compute_t *c, host_real_t *x, const host_real_t *y, size_t n);
    void (*dropout)(host_compute_t *c, host_real_t *x, size_t n, double probability, glue_rng_t rng);
    void (*tanh_forward)(host_compute_t *c, host_real_t *x, size_t n);
    void (*tanh_backward)(host_compute_t *c, const host_real_t *y, size_t n, host_real_t *d); /* d *= 1 - y * y */

    /* rows[n] chooses rows of a table: they are added to those of x; x's are added to them, equal ones in x's order;
     * they are copied to those of x. */
    void (*add_chosen)(host_compute_t *c, const void *table, host_dtype_t type, const int32_t *rows, size_t n,
                       size_t width, host_real_t *x);
    void (*add_to_chosen)(host_compute_t *c, host_real_t *table, const int32_t *rows, size_t n, size_t width,
                          const host_real_t *x);
    void (*take_chosen)(host_compute_t *c, const host_real_t *table, const int32_t *rows, size_t n, size_t width,
                        host_real_t *x);

    /* Between the declared type of a parameter and what is computed in. */
    void (*widen)(host_compute_t *c, const void *value, host_dtype_t type, size_t n, host_real_t *wide);
    void (*narrow)(host_compute_t *c, const host_real_t *wide, host_dtype_t type, size_t n, void *value);

    void (*close)(host_compute_t *c); /* NULL: nothing to close */
} host_compute_ops_t;

/* Members of the table for a file whose functions have their names. */
#define HOST_COMPUTE_OWN                                                                                               \
    .allocate = allocate, .release = release, .copy = copy, .zero = zero, .matmul = matmul, .fill_rows = fill_rows,    \
    .sum_rows = sum_rows, .attention_forward = attention_forward, .attention_backward = attention_backward,            \
    .norm_forward = norm_forward, .norm_backward = norm_backward, .gelu_forward = gelu_forward,                        \
    .gelu_backward = gelu_backward, .add = add, .dropout = dropout, .tanh_forward = tanh_forward,                      \
    .tanh_backward = tanh_backward, .add_chosen = add_chosen, .add_to_chosen = add_to_chosen,                          \
    .take_chosen = take_chosen, .widen = widen, .narrow = narrow

/* Elements of probs. */
size_t host_attention_n_probs(const host_attention_shape_t *shape);

struct host_compute {
    const host_compute_ops_t *ops;
    int32_t device_type; /* ZF_DEVICE_... of what lies there, and the device's number */
    int32_t device_id;
    void *stream;       /* NULL: the calling thread computes; else the CUstream that does */
    glue_error_t error; /* the first one; empty: none */
    char what[160];     /* one line for reports: device and products; empty: the processor */
};

/* [any thread, for what is used by one] The processor: has no state, never closed. */
host_compute_t *host_compute_processor(void);

/* y [n, n_out] = x [n, n_in] * weight^T + bias; weight is [n_out, n_in]. */
void host_compute_linear(host_compute_t *c, const host_real_t *x, host_affine_arrays_t p, size_t n, size_t n_in,
                         size_t n_out, host_real_t *y);

/* Its derivatives: those of the parameters are added, dx is written, or with keep_dx added to. */
void host_compute_linear_back(host_compute_t *c, const host_real_t *x, const host_real_t *weight, const host_real_t *dy,
                              size_t n, size_t n_in, size_t n_out, int keep_dx, host_real_t *dx,
                              host_affine_arrays_t grad);

/* 0, or -1 with the first error that a call left. */
int host_compute_check(const host_compute_t *compute, glue_error_t *err);

/* compute may be NULL and is not the processor's. */
void host_compute_close(host_compute_t *compute);
