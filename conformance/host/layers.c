/* layers.c - the row-wise building blocks of layers.h. */
#include "layers.h"

#include "matmul.h"

#include <string.h>

void host_linear_forward(const host_real_t *x, const host_real_t *weight, const host_real_t *bias, size_t n,
                         size_t n_in, size_t n_out, host_real_t *y) {
    for (size_t i = 0; i < n; i++)
        memcpy(y + i * n_out, bias, n_out * sizeof *y);
    host_matmul(n, n_out, n_in, 1.0, (host_matrix_t){.data = x, .stride = n_in},
                (host_matrix_t){.data = weight, .stride = n_in, .is_transposed = 1}, 1.0, y, n_out);
}

void host_linear_backward(const host_real_t *x, const host_real_t *weight, const host_real_t *dy, size_t n, size_t n_in,
                          size_t n_out, int keep_dx, host_real_t *dx, host_real_t *d_weight, host_real_t *d_bias) {
    host_matmul(n_out, n_in, n, 1.0, (host_matrix_t){.data = dy, .stride = n_out, .is_transposed = 1},
                (host_matrix_t){.data = x, .stride = n_in}, 1.0, d_weight, n_in);
    for (size_t i = 0; i < n; i++)
        host_add(d_bias, dy + i * n_out, n_out);
    if (dx != NULL)
        host_matmul(n, n_in, n_out, 1.0, (host_matrix_t){.data = dy, .stride = n_out},
                    (host_matrix_t){.data = weight, .stride = n_in}, keep_dx ? 1.0 : 0.0, dx, n_in);
}

static void normalise_row(const host_real_t *x, size_t width, double eps, host_real_t *normal,
                          host_real_t *out_inverse_deviation) {
    host_real_t mean = 0, variance = 0, inverse;

    for (size_t j = 0; j < width; j++)
        mean += x[j];
    mean /= (host_real_t)width;
    for (size_t j = 0; j < width; j++) {
        normal[j] = x[j] - mean;
        variance += normal[j] * normal[j];
    }
    inverse = 1 / host_real_sqrt(variance / (host_real_t)width + (host_real_t)eps);
    for (size_t j = 0; j < width; j++)
        normal[j] *= inverse;
    *out_inverse_deviation = inverse;
}

void host_layer_norm_forward(const host_real_t *x, const host_real_t *weight, const host_real_t *bias, size_t n,
                             size_t width, double eps, host_real_t *y, host_real_t *normal,
                             host_real_t *inverse_deviation) {
    for (size_t i = 0; i < n; i++) {
        host_real_t *row = normal + i * width;

        normalise_row(x + i * width, width, eps, row, &inverse_deviation[i]);
        for (size_t j = 0; j < width; j++)
            y[i * width + j] = row[j] * weight[j] + bias[j];
    }
}

/* dx = inverse_deviation * (g - mean(g) - normal * mean(g * normal)), g = dy * weight. */
static void layer_norm_backward_row(const host_real_t *dy, const host_real_t *weight, const host_real_t *normal,
                                    host_real_t inverse_deviation, size_t width, host_real_t *dx) {
    host_real_t mean_g = 0, mean_g_normal = 0;

    for (size_t j = 0; j < width; j++) {
        host_real_t g = dy[j] * weight[j];

        mean_g += g;
        mean_g_normal += g * normal[j];
    }
    mean_g /= (host_real_t)width;
    mean_g_normal /= (host_real_t)width;
    for (size_t j = 0; j < width; j++)
        dx[j] = inverse_deviation * (dy[j] * weight[j] - mean_g - normal[j] * mean_g_normal);
}

void host_layer_norm_backward(const host_real_t *dy, const host_real_t *weight, const host_real_t *normal,
                              const host_real_t *inverse_deviation, size_t n, size_t width, host_real_t *dx,
                              host_real_t *d_weight, host_real_t *d_bias) {
    for (size_t i = 0; i < n; i++) {
        const host_real_t *dy_row = dy + i * width, *normal_row = normal + i * width;

        for (size_t j = 0; j < width; j++) {
            d_weight[j] += dy_row[j] * normal_row[j];
            d_bias[j] += dy_row[j];
        }
        layer_norm_backward_row(dy_row, weight, normal_row, inverse_deviation[i], width, dx + i * width);
    }
}

void host_gelu_forward(const host_real_t *x, size_t n_elems, host_real_t *y, host_real_t *cdf) {
    const host_real_t sqrt_half = (host_real_t)0.70710678118654752440;

    for (size_t i = 0; i < n_elems; i++) {
        cdf[i] = (host_real_t)0.5 * (1 + host_real_erf(x[i] * sqrt_half));
        y[i] = x[i] * cdf[i];
    }
}

void host_gelu_backward(const host_real_t *dy, const host_real_t *x, const host_real_t *cdf, size_t n_elems,
                        host_real_t *dx) {
    const host_real_t inverse_sqrt_2pi = (host_real_t)0.39894228040143267794;

    for (size_t i = 0; i < n_elems; i++) {
        host_real_t density = inverse_sqrt_2pi * host_real_exp((host_real_t)-0.5 * x[i] * x[i]);

        dx[i] = dy[i] * (cdf[i] + x[i] * density);
    }
}

void host_softmax(host_real_t *x, size_t n, size_t width, size_t stride) {
    for (size_t i = 0; i < n; i++) {
        host_real_t *row = x + i * stride;
        host_real_t largest = row[0], sum = 0;

        for (size_t j = 1; j < width; j++)
            largest = row[j] > largest ? row[j] : largest;
        for (size_t j = 0; j < width; j++) {
            row[j] = host_real_exp(row[j] - largest);
            sum += row[j];
        }
        for (size_t j = 0; j < width; j++)
            row[j] /= sum;
    }
}

void host_add(host_real_t *x, const host_real_t *y, size_t n_elems) {
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
