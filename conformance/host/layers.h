/* SPDX-License-Identifier: Apache-2.0 */
/* layers.h - the row-wise building blocks, each as a forward and backward pair over [n_rows, width] arrays.
 *
 * Backward functions ADD parameter gradients (d_weight, d_bias) and WRITE input gradients, unless said otherwise. */
#ifndef ZF_CONFORMANCE_HOST_LAYERS_H
#define ZF_CONFORMANCE_HOST_LAYERS_H

#include "glue/rng.h"
#include "real.h"

#include <stddef.h>

/* Layer normalisation (Ba, Kiros and Hinton, arXiv 1607.06450): y = normal * weight + bias, normal being x with mean 0
 * and variance 1 per row. normal [n, width] and inverse_deviation [n] are kept for backward. y may be x. */
void host_layer_norm_forward(const host_real_t *x, const host_real_t *weight, const host_real_t *bias, size_t n,
                             size_t width, double eps, host_real_t *y, host_real_t *normal,
                             host_real_t *inverse_deviation);
/* In place: d is dy before and dx after. */
void host_layer_norm_backward(const host_real_t *weight, const host_real_t *normal,
                              const host_real_t *inverse_deviation, size_t n, size_t width, host_real_t *d,
                              host_real_t *d_weight, host_real_t *d_bias);

/* GELU by the error function (Hendrycks and Gimpel, arXiv 1606.08415): y = x * cdf, cdf = (1 + erf(x / sqrt 2)) / 2,
 * kept for backward. */
void host_gelu_forward(const host_real_t *x, size_t n_elems, host_real_t *y, host_real_t *cdf);
/* In place: d is dy before and dx after. */
void host_gelu_backward(const host_real_t *x, const host_real_t *cdf, size_t n_elems, host_real_t *d);

/* Each row of x [n, width] becomes its softmax, in place; and d, its derivative, that of what went in. */
void host_softmax_forward(host_real_t *x, size_t n, size_t width);
void host_softmax_backward(const host_real_t *softmax, size_t n, size_t width, host_real_t *d);

void host_add(host_real_t *x, const host_real_t *y, size_t n_elems);

/* Inverted dropout in place: an element is zeroed where its draw is below probability, else divided by 1 -
 * probability. The same rng gives the same mask, so backward calls it on the gradient.
 * probability 0 does nothing. */
void host_dropout(host_real_t *x, size_t n_elems, double probability, glue_rng_t rng);

#endif
