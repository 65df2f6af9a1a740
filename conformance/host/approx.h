/* SPDX-License-Identifier: Apache-2.0 */
/* approx.h - exp and the normal distribution's tail as branch-free polynomials, so that loops over them vectorise.
 *
 * In float within a few units in the last place: exp to 2e-7, the tail to 3e-7, relative. Coefficients
 * are least-squares fits with Lawson's weights towards the smallest largest error. The library's functions would be
 * called once per element, which costs as much as all matrix products of a small layer. Where the host computes in
 * double (real.h) the library's functions stand here. */
#pragma once

#include "real.h"

#include <stdint.h>
#include <string.h>

#ifdef HOST_COMPUTE_IN_DOUBLE

HOST_ALWAYS_INLINE double host_approx_exp(double x) { return exp(x); }
HOST_ALWAYS_INLINE double host_approx_tail(double t, double exp_of_minus_half_square) {
    (void)exp_of_minus_half_square;
    return 0.5 * erfc(t * 0.70710678118654752440);
}

#else

/* e^x for x <= 0; below -87 it is e^-87, about 1e-38. x = n log 2 + r, e^x = 2^n e^r, |r| <= log(2) / 2. */
HOST_ALWAYS_INLINE float host_approx_exp(float x) {
    const float to_integer = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    float clamped = x > -87.0f ? x : -87.0f;
    float shifted = clamped * 1.44269504f + to_integer;
    float n = shifted - to_integer;
    float r = (clamped - n * 0.693145752f) - n * 1.42860677e-6f; /* log 2 in two parts: the first product is exact */
    float p = 0.00138145965f, power;
    uint32_t bits;
    p = p * r + 0.00836871751f;
    p = p * r + 0.041668389f;
    p = p * r + 0.166665211f;
    p = p * r + 0.49999994f;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3f800000u; /* the low bits of shifted are n */
    memcpy(&power, &bits, sizeof power);
    return (1.0f + (r + r * r * p)) * power;
}

/* P(X > t) of a standard normal X, t >= 0, given e^(-t^2/2): the rest is smooth, a polynomial in 1 / (1 + 0.3 t). */
HOST_ALWAYS_INLINE float host_approx_tail(float t, float exp_of_minus_half_square) {
    float u = 1.0f / (1.0f + 0.3f * t);
    float p = 0.0383782908f;
    p = p * u - 0.169166118f;
    p = p * u + 0.228660077f;
    p = p * u - 0.0765064806f;
    p = p * u + 0.142535523f;
    p = p * u + 0.0946835205f;
    p = p * u + 0.12192034f;
    p = p * u + 0.119487688f;
    p = p * u + 7.16887598e-06f;
    return p * exp_of_minus_half_square;
}

#endif
