/* SPDX-License-Identifier: Apache-2.0 */
/* compute.c - the processor's table of compute.h: functions that are the layers' own. */
#include "compute.h"

#include "bfloat16.h"
#include "layers.h"

#include <stdlib.h>
#include <string.h>

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

static void fill_rows(host_compute_t *c, host_real_t *y, const host_real_t *row, size_t n, size_t width) {
    (void)c;
    for (size_t i = 0; i < n; i++)
        memcpy(y + i * width, row, width * sizeof *y);
}

static void sum_rows(host_compute_t *c, const host_real_t *x, size_t n, size_t width, host_real_t *sum) {
    (void)c;
    for (size_t i = 0; i < n; i++)
        host_add(sum, x + i * width, width);
}

static void attention_forward(host_compute_t *c, const host_attention_shape_t *shape, const host_real_t *q,
                              const host_real_t *k, const host_real_t *v, host_real_t *probs, host_real_t *context) {
    (void)c;
    host_attention_forward(shape, q, k, v, probs, context);
}

static void attention_backward(host_compute_t *c, const host_attention_shape_t *shape, const host_real_t *q,
                               const host_real_t *k, const host_real_t *v, const host_real_t *probs,
                               const host_real_t *d_context, host_real_t *d_probs, host_real_t *dq, host_real_t *dk,
                               host_real_t *dv) {
    (void)c;
    host_attention_backward(shape, q, k, v, probs, d_context, d_probs, dq, dk, dv);
}

static void norm_forward(host_compute_t *c, host_affine_arrays_t p, size_t n, size_t width, double eps, host_real_t *x,
                         host_real_t *normal, host_real_t *inverse_deviation) {
    (void)c;
    host_layer_norm_forward(x, p.weight, p.bias, n, width, eps, x, normal, inverse_deviation);
}

static void norm_backward(host_compute_t *c, const host_real_t *weight, const host_real_t *normal,
                          const host_real_t *inverse_deviation, size_t n, size_t width, host_real_t *d,
                          host_affine_arrays_t grad) {
    (void)c;
    host_layer_norm_backward(weight, normal, inverse_deviation, n, width, d, grad.weight, grad.bias);
}

static void gelu_forward(host_compute_t *c, const host_real_t *x, size_t n, host_real_t *y, host_real_t *cdf) {
    (void)c;
    host_gelu_forward(x, n, y, cdf);
}

static void gelu_backward(host_compute_t *c, const host_real_t *x, const host_real_t *cdf, size_t n, host_real_t *d) {
    (void)c;
    host_gelu_backward(x, cdf, n, d);
}

static void add(host_compute_t *c, host_real_t *x, const host_real_t *y, size_t n) {
    (void)c;
    host_add(x, y, n);
}

static void dropout(host_compute_t *c, host_real_t *x, size_t n, double probability, glue_rng_t rng) {
    (void)c;
    host_dropout(x, n, probability, rng);
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
    (void)c;
    for (size_t i = 0; i < n; i++)
        host_add(table + (size_t)rows[i] * width, x + i * width, width);
}

static void take_chosen(host_compute_t *c, const host_real_t *table, const int32_t *rows, size_t n, size_t width,
                        host_real_t *x) {
    (void)c;
    for (size_t i = 0; i < n; i++)
        memcpy(x + i * width, table + (size_t)rows[i] * width, width * sizeof *x);
}

static void put_chosen(host_compute_t *c, host_real_t *table, const int32_t *rows, size_t n, size_t width,
                       const host_real_t *x) {
    (void)c;
    for (size_t i = 0; i < n; i++)
        memcpy(table + (size_t)rows[i] * width, x + i * width, width * sizeof *x);
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

static const host_compute_ops_t processor_ops = {.name = "processor",
                                                 .allocate = allocate,
                                                 .release = release,
                                                 .copy_in = copy,
                                                 .copy_out = copy,
                                                 .copy = copy,
                                                 .zero = zero,
                                                 .matmul = matmul,
                                                 .fill_rows = fill_rows,
                                                 .sum_rows = sum_rows,
                                                 .attention_forward = attention_forward,
                                                 .attention_backward = attention_backward,
                                                 .norm_forward = norm_forward,
                                                 .norm_backward = norm_backward,
                                                 .gelu_forward = gelu_forward,
                                                 .gelu_backward = gelu_backward,
                                                 .add = add,
                                                 .dropout = dropout,
                                                 .tanh_forward = tanh_forward,
                                                 .tanh_backward = tanh_backward,
                                                 .add_chosen = add_chosen,
                                                 .add_to_chosen = add_to_chosen,
                                                 .take_chosen = take_chosen,
                                                 .put_chosen = put_chosen,
                                                 .widen = widen,
                                                 .narrow = narrow};

host_compute_t *host_compute_processor(void) {
    static host_compute_t processor = {.ops = &processor_ops, .device_type = 1 /* ZF_DEVICE_CPU */};

    return &processor;
}

void host_compute_linear(host_compute_t *c, const host_real_t *x, host_affine_arrays_t p, size_t n, size_t n_in,
                         size_t n_out, host_real_t *y) {
    c->ops->fill_rows(c, y, p.bias, n, n_out);
    c->ops->matmul(c, n, n_out, n_in, (host_matrix_t){.data = x, .stride = n_in},
                   (host_matrix_t){.data = p.weight, .stride = n_in, .is_transposed = 1}, 1.0, y);
}

void host_compute_linear_back(host_compute_t *c, const host_real_t *x, const host_real_t *weight, const host_real_t *dy,
                              size_t n, size_t n_in, size_t n_out, int keep_dx, host_real_t *dx,
                              host_affine_arrays_t grad) {
    c->ops->matmul(c, n_out, n_in, n, (host_matrix_t){.data = dy, .stride = n_out, .is_transposed = 1},
                   (host_matrix_t){.data = x, .stride = n_in}, 1.0, grad.weight);
    c->ops->sum_rows(c, dy, n, n_out, grad.bias);
    c->ops->matmul(c, n, n_in, n_out, (host_matrix_t){.data = dy, .stride = n_out},
                   (host_matrix_t){.data = weight, .stride = n_in}, keep_dx ? 1.0 : 0.0, dx);
}

int host_compute_check(const host_compute_t *compute, glue_error_t *err) {
    return compute->error.text[0] == '\0' ? 0 : glue_fail(err, "%s", compute->error.text);
}

void host_compute_close(host_compute_t *compute) {
    if (compute != NULL)
        compute->ops->close(compute);
}
