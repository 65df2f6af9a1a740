/* SPDX-License-Identifier: Apache-2.0 */
/* layers.c - the row-wise building blocks of layers.h. */
#include "layers.h"

#include "approx.h"

#include <string.h>

/* ---- loops over elements ----------------------------------------------------------------------------------------- */

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

HOST_CLONES void host_layer_norm_forward(const host_real_t *x, const host_real_t *weight, const host_real_t *bias,
                                         size_t n, size_t width, double eps, host_real_t *y, host_real_t *normal,
                                         host_real_t *inverse_deviation) {
    for (size_t i = 0; i < n; i++) {
        inverse_deviation[i] = normalise_row(x + i * width, width, eps, normal + i * width);
        scale_row(normal + i * width, weight, bias, width, y + i * width);
    }
}

/* dx = inverse_deviation * (g - mean(g) - normal * mean(g * normal)), g = dy * weight. */
HOST_ALWAYS_INLINE void layer_norm_backward_row(const host_real_t *restrict weight, const host_real_t *restrict normal,
                                                host_real_t inverse_deviation, size_t width, host_real_t *restrict d,
                                                host_real_t *restrict d_weight, host_real_t *restrict d_bias) {
    host_real_t mean_g, mean_g_normal;

    for (size_t j = 0; j < width; j++) {
        d_weight[j] += d[j] * normal[j];
        d_bias[j] += d[j];
        d[j] *= weight[j];
    }
    mean_g = sum(d, width) / (host_real_t)width;
    mean_g_normal = dot(d, normal, width) / (host_real_t)width;
    for (size_t j = 0; j < width; j++)
        d[j] = inverse_deviation * (d[j] - mean_g - normal[j] * mean_g_normal);
}

HOST_CLONES void host_layer_norm_backward(const host_real_t *weight, const host_real_t *normal,
                                          const host_real_t *inverse_deviation, size_t n, size_t width, host_real_t *d,
                                          host_real_t *d_weight, host_real_t *d_bias) {
    for (size_t i = 0; i < n; i++)
        layer_norm_backward_row(weight, normal + i * width, inverse_deviation[i], width, d + i * width, d_weight,
                                d_bias);
}

/* The tail is computed for |x|, where it is small and exact, and mirrored. */
HOST_CLONES void host_gelu_forward(const host_real_t *restrict x, size_t n_elems, host_real_t *restrict y,
                                   host_real_t *restrict cdf) {
    for (size_t i = 0; i < n_elems; i++) {
        host_real_t t = x[i] < 0 ? -x[i] : x[i];
        host_real_t tail = host_approx_tail(t, host_approx_exp((host_real_t)-0.5 * t * t));

        cdf[i] = x[i] < 0 ? tail : 1 - tail;
        y[i] = x[i] * cdf[i];
    }
}

HOST_CLONES void host_gelu_backward(const host_real_t *restrict x, const host_real_t *restrict cdf, size_t n_elems,
                                    host_real_t *restrict d) {
    const host_real_t inverse_sqrt_2pi = (host_real_t)0.39894228040143267794;

    for (size_t i = 0; i < n_elems; i++)
        d[i] *= cdf[i] + x[i] * inverse_sqrt_2pi * host_approx_exp((host_real_t)-0.5 * x[i] * x[i]);
}

/* Rows may be shorter than a vector register, so exp runs over all of them at once. */
HOST_CLONES void host_softmax_forward(host_real_t *x, size_t n, size_t width) {
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
HOST_CLONES void host_softmax_backward(const host_real_t *restrict softmax, size_t n, size_t width,
                                       host_real_t *restrict d) {
    for (size_t i = 0; i < n; i++) {
        host_real_t mean = dot(d + i * width, softmax + i * width, width);

        for (size_t j = 0; j < width; j++)
            d[i * width + j] = softmax[i * width + j] * (d[i * width + j] - mean);
    }
}

HOST_CLONES void host_add(host_real_t *restrict x, const host_real_t *restrict y, size_t n_elems) {
    for (size_t i = 0; i < n_elems; i++)
        x[i] += y[i];
}

void host_dropout(host_real_t *x, size_t n_elems, double probability, glue_rng_t rng) {
    const host_real_t scale = (host_real_t)(1.0 / (1.0 - probability));

    if (probability <= 0.0)
        return;
    for (size_t i = 0; i < n_elems; i++)
        x[i] = glue_rng_uniform(rng, i) < probability ? 0 : x[i] * scale;
}
