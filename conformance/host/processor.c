/* SPDX-License-Identifier: Apache-2.0 */
/* processor.c - compute.h's table on the processor: each call is done when it returns. Loops over elements are compiled
 * for several instruction sets (real.h). */
#include "approx.h"
#include "bfloat16.h"
#include "compute.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void *allocate(host_compute_t *c, size_t nbytes) {
    (void)c;
    return calloc(nbytes ? nbytes : 1, 1);
}

static void release(host_compute_t *c, void *there) {
    (void)c;
    free(there);
}

static void copy(host_compute_t *c, void *to, const void *from, size_t nbytes) {
    (void)c;
    memcpy(to, from, nbytes);
}

static void zero(host_compute_t *c, void *there, size_t nbytes) {
    (void)c;
    memset(there, 0, nbytes);
}

static void matmul(host_compute_t *c, size_t m, size_t n, size_t k, host_matrix_t a, host_matrix_t b, double keep,
                   host_real_t *out) {
    (void)c;
    host_matmul(m, n, k, 1.0, a, b, keep, out, n);
}

/* ---- sums of a row ----------------------------------------------------------------------------------------------- */

/* Sums are kept in lanes, one per element of a vector register, and joined by a binary tree: fast and more exact than
 * one running sum. */
enum { N_LANES = 16 };

HOST_ALWAYS_INLINE host_real_t join_lanes(host_real_t *lanes) {
    for (size_t half = N_LANES / 2; half > 0; half /= 2)
        for (size_t lane = 0; lane < half; lane++)
            lanes[lane] += lanes[lane + half];
    return lanes[0];
}

HOST_ALWAYS_INLINE host_real_t sum(const host_real_t *x, size_t n) {
    host_real_t lanes[N_LANES] = {0};
    size_t j = 0;
    for (; j + N_LANES <= n; j += N_LANES)
        for (size_t lane = 0; lane < N_LANES; lane++)
            lanes[lane] += x[j + lane];
    for (size_t lane = 0; j + lane < n; lane++)
        lanes[lane] += x[j + lane];
    return join_lanes(lanes);
}

HOST_ALWAYS_INLINE host_real_t dot(const host_real_t *x, const host_real_t *y, size_t n) {
    host_real_t lanes[N_LANES] = {0};
    size_t j = 0;
    for (; j + N_LANES <= n; j += N_LANES)
        for (size_t lane = 0; lane < N_LANES; lane++)
            lanes[lane] += x[j + lane] * y[j + lane];
    for (size_t lane = 0; j + lane < n; lane++)
        lanes[lane] += x[j + lane] * y[j + lane];
    return join_lanes(lanes);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

HOST_CLONES static void add(host_compute_t *c, host_real_t *restrict x, const host_real_t *restrict y, size_t n) {
    (void)c;
    for (size_t i = 0; i < n; i++)
        x[i] += y[i];
}

static void fill_rows(host_compute_t *c, host_real_t *y, const host_real_t *row, size_t n, size_t width) {
    (void)c;
    for (size_t i = 0; i < n; i++)
        memcpy(y + i * width, row, width * sizeof *y);
}

static void sum_rows(host_compute_t *c, const host_real_t *x, size_t n, size_t width, host_real_t *sum_of_rows) {
    for (size_t i = 0; i < n; i++)
        add(c, sum_of_rows, x + i * width, width);
}

HOST_ALWAYS_INLINE host_real_t normalise_row(const host_real_t *restrict x, size_t width, double eps,
                                             host_real_t *restrict normal) {
    host_real_t mean = sum(x, width) / (host_real_t)width, inverse;
    for (size_t j = 0; j < width; j++)
        normal[j] = x[j] - mean;
    inverse = 1 / host_real_sqrt(dot(normal, normal, width) / (host_real_t)width + (host_real_t)eps);
    for (size_t j = 0; j < width; j++)
        normal[j] *= inverse;
    return inverse;
}

HOST_ALWAYS_INLINE void scale_row(const host_real_t *restrict normal, const host_real_t *restrict weight,
                                  const host_real_t *restrict bias, size_t width, host_real_t *restrict y) {
    for (size_t j = 0; j < width; j++)
        y[j] = normal[j] * weight[j] + bias[j];
}

HOST_CLONES static void norm_forward(host_compute_t *c, host_affine_arrays_t p, size_t n, size_t width, double eps,
                                     host_real_t *x, host_real_t *normal, host_real_t *inverse_deviation) {
    (void)c;
    for (size_t i = 0; i < n; i++) {
        inverse_deviation[i] = normalise_row(x + i * width, width, eps, normal + i * width);
        scale_row(normal + i * width, p.weight, p.bias, width, x + i * width);
    }
}

/* dx = inverse_deviation * (g - mean(g) - normal * mean(g * normal)), g = dy * weight. */
HOST_ALWAYS_INLINE void norm_backward_row(const host_real_t *restrict weight, const host_real_t *restrict normal,
                                          host_real_t inverse_deviation, size_t width, host_real_t *restrict d,
                                          host_real_t *restrict d_weight, host_real_t *restrict d_bias) {
    for (size_t j = 0; j < width; j++) {
        d_weight[j] += d[j] * normal[j];
        d_bias[j] += d[j];
        d[j] *= weight[j];
    }
    host_real_t mean_g = sum(d, width) / (host_real_t)width;
    host_real_t mean_g_normal = dot(d, normal, width) / (host_real_t)width;
    for (size_t j = 0; j < width; j++)
        d[j] = inverse_deviation * (d[j] - mean_g - normal[j] * mean_g_normal);
}

HOST_CLONES static void norm_backward(host_compute_t *c, const host_real_t *weight, const host_real_t *normal,
                                      const host_real_t *inverse_deviation, size_t n, size_t width, host_real_t *d,
                                      host_affine_arrays_t grad) {
    (void)c;
    for (size_t i = 0; i < n; i++)
        norm_backward_row(weight, normal + i * width, inverse_deviation[i], width, d + i * width, grad.weight,
                          grad.bias);
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

/* The tail is computed for |x|, where it is small and exact, and mirrored. */
HOST_CLONES static void gelu_forward(host_compute_t *c, const host_real_t *restrict x, size_t n,
                                     host_real_t *restrict y, host_real_t *restrict cdf) {
    (void)c;
    for (size_t i = 0; i < n; i++) {
        host_real_t t = x[i] < 0 ? -x[i] : x[i];
        host_real_t tail = host_approx_tail(t, host_approx_exp((host_real_t)-0.5 * t * t));
        cdf[i] = x[i] < 0 ? tail : 1 - tail;
        y[i] = x[i] * cdf[i];
    }
}

HOST_CLONES static void gelu_backward(host_compute_t *c, const host_real_t *restrict x, const host_real_t *restrict cdf,
                                      size_t n, host_real_t *restrict d) {
    const host_real_t inverse_sqrt_2pi = (host_real_t)0.39894228040143267794;
    (void)c;
    for (size_t i = 0; i < n; i++)
        d[i] *= cdf[i] + x[i] * inverse_sqrt_2pi * host_approx_exp((host_real_t)-0.5 * x[i] * x[i]);
}

static void dropout(host_compute_t *c, host_real_t *x, size_t n, double probability, glue_rng_t rng) {
    const host_real_t scale = (host_real_t)(1.0 / (1.0 - probability));
    (void)c;
    for (size_t i = 0; i < n && probability > 0.0; i++)
        x[i] = glue_rng_uniform(rng, i) < probability ? 0 : x[i] * scale;
}

static void tanh_forward(host_compute_t *c, host_real_t *x, size_t n) {
    (void)c;
    for (size_t i = 0; i < n; i++)
        x[i] = host_real_tanh(x[i]);
}

static void tanh_backward(host_compute_t *c, const host_real_t *y, size_t n, host_real_t *d) {
    (void)c;
    for (size_t i = 0; i < n; i++)
        d[i] *= 1 - y[i] * y[i];
}

/* ---- attention, one sequence and head at a time ------------------------------------------------------------------ */

/* Each row of x [n, width] becomes its softmax. Rows may be shorter than a vector register, so exp runs over all of
 * them at once. */
HOST_CLONES static void softmax_forward(host_real_t *x, size_t n, size_t width) {
    for (size_t i = 0; i < n; i++) {
        host_real_t *row = x + i * width, largest = row[0];
        for (size_t j = 1; j < width; j++)
            largest = row[j] > largest ? row[j] : largest;
        for (size_t j = 0; j < width; j++)
            row[j] -= largest;
    }
    for (size_t i = 0; i < n * width; i++)
        x[i] = host_approx_exp(x[i]);
    for (size_t i = 0; i < n; i++) {
        host_real_t *row = x + i * width, inverse = 1 / sum(row, width);
        for (size_t j = 0; j < width; j++)
            row[j] *= inverse;
    }
}

/* d = softmax * (d - sum over the row of d * softmax) */
HOST_CLONES static void softmax_backward(const host_real_t *restrict softmax, size_t n, size_t width,
                                         host_real_t *restrict d) {
    for (size_t i = 0; i < n; i++) {
        host_real_t mean = dot(d + i * width, softmax + i * width, width);
        for (size_t j = 0; j < width; j++)
            d[i * width + j] = softmax[i * width + j] * (d[i * width + j] - mean);
    }
}

/* One head of one sequence: [length, head_width] blocks inside [n_tokens, n_heads * head_width] arrays. */
typedef struct block {
    size_t offset; /* elements from the array's start */
    size_t length, width, stride;
} block_t;

static block_t block_of(const host_attention_shape_t *shape, size_t sequence, size_t head) {
    size_t first = (size_t)shape->starts[sequence], end = (size_t)shape->starts[sequence + 1];
    size_t stride = shape->n_heads * shape->head_width;
    return (block_t){.offset = first * stride + head * shape->head_width,
                     .length = end - first,
                     .width = shape->head_width,
                     .stride = stride};
}

static host_matrix_t rows_of(const block_t *b, const host_real_t *array) {
    return (host_matrix_t){.data = array + b->offset, .stride = b->stride};
}

static host_matrix_t columns_of(const block_t *b, const host_real_t *array) {
    return (host_matrix_t){.data = array + b->offset, .stride = b->stride, .is_transposed = 1};
}

static double scale_of(const host_attention_shape_t *shape) { return 1.0 / sqrt((double)shape->head_width); }

static void attention_forward(host_compute_t *c, const host_attention_shape_t *shape, const host_real_t *q,
                              const host_real_t *k, const host_real_t *v, host_real_t *probs, host_real_t *context) {
    (void)c;
    for (size_t s = 0; s < shape->n_sequences; s++)
        for (size_t h = 0; h < shape->n_heads; h++) {
            block_t b = block_of(shape, s, h);
            host_matmul(b.length, b.length, b.width, scale_of(shape), rows_of(&b, q), columns_of(&b, k), 0.0, probs,
                        b.length);
            softmax_forward(probs, b.length, b.length);
            host_matmul(b.length, b.width, b.length, 1.0, (host_matrix_t){.data = probs, .stride = b.length},
                        rows_of(&b, v), 0.0, context + b.offset, b.stride);
            probs += b.length * b.length;
        }
}

static void attention_backward(host_compute_t *c, const host_attention_shape_t *shape, const host_real_t *q,
                               const host_real_t *k, const host_real_t *v, const host_real_t *probs,
                               const host_real_t *d_context, host_real_t *d_probs, host_real_t *dq, host_real_t *dk,
                               host_real_t *dv) {
    (void)c;
    for (size_t s = 0; s < shape->n_sequences; s++)
        for (size_t h = 0; h < shape->n_heads; h++) {
            block_t b = block_of(shape, s, h);
            host_matrix_t p_transposed = {.data = probs, .stride = b.length, .is_transposed = 1};
            host_matrix_t d_scores = {.data = d_probs, .stride = b.length};
            host_matrix_t d_scores_transposed = {.data = d_probs, .stride = b.length, .is_transposed = 1};
            host_matmul(b.length, b.width, b.length, 1.0, p_transposed, rows_of(&b, d_context), 0.0, dv + b.offset,
                        b.stride);
            host_matmul(b.length, b.length, b.width, 1.0, rows_of(&b, d_context), columns_of(&b, v), 0.0, d_probs,
                        b.length);
            softmax_backward(probs, b.length, b.length, d_probs);
            host_matmul(b.length, b.width, b.length, scale_of(shape), d_scores, rows_of(&b, k), 0.0, dq + b.offset,
                        b.stride);
            host_matmul(b.length, b.width, b.length, scale_of(shape), d_scores_transposed, rows_of(&b, q), 0.0,
                        dk + b.offset, b.stride);
            probs += b.length * b.length;
        }
}

/* ---- chosen rows, types ------------------------------------------------------------------------------------------ */

static void add_row(const void *table, host_dtype_t type, size_t first, size_t width, host_real_t *x) {
    if (type == HOST_FLOAT32)
        for (size_t j = 0; j < width; j++)
            x[j] += (host_real_t)((const float *)table)[first + j];
    else
        for (size_t j = 0; j < width; j++)
            x[j] += (host_real_t)host_float_from_bfloat16(((const uint16_t *)table)[first + j]);
}

static void add_chosen(host_compute_t *c, const void *table, host_dtype_t type, const int32_t *rows, size_t n,
                       size_t width, host_real_t *x) {
    (void)c;
    for (size_t i = 0; i < n; i++)
        add_row(table, type, (size_t)rows[i] * width, width, x + i * width);
}

static void add_to_chosen(host_compute_t *c, host_real_t *table, const int32_t *rows, size_t n, size_t width,
                          const host_real_t *x) {
    for (size_t i = 0; i < n; i++)
        add(c, table + (size_t)rows[i] * width, x + i * width, width);
}

static void take_chosen(host_compute_t *c, const host_real_t *table, const int32_t *rows, size_t n, size_t width,
                        host_real_t *x) {
    (void)c;
    for (size_t i = 0; i < n; i++)
        memcpy(x + i * width, table + (size_t)rows[i] * width, width * sizeof *x);
}

static void widen(host_compute_t *c, const void *value, host_dtype_t type, size_t n, host_real_t *wide) {
    const uint16_t *narrow = value;
    (void)c;
    if (type == HOST_FLOAT32)
        for (size_t i = 0; i < n; i++)
            wide[i] = (host_real_t)((const float *)value)[i];
    else
        for (size_t i = 0; i < n; i++)
            wide[i] = (host_real_t)host_float_from_bfloat16(narrow[i]);
}

static void narrow(host_compute_t *c, const host_real_t *wide, host_dtype_t type, size_t n, void *value) {
    (void)c;
    if (type == HOST_FLOAT32)
        for (size_t i = 0; i < n; i++)
            ((float *)value)[i] = (float)wide[i];
    else
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)value)[i] = host_bfloat16_from_float((float)wide[i]);
}

static const host_compute_ops_t processor_ops = {
    .name = "processor", .copy_in = copy, .copy_out = copy, HOST_COMPUTE_OWN};

host_compute_t *host_compute_processor(void) {
    static host_compute_t processor = {.ops = &processor_ops, .device_type = 1 /* ZF_DEVICE_CPU */};
    return &processor;
}
