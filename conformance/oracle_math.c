/* oracle_math.c - the arithmetic of the oracle: conversions, the update rule, and the sums that decide in their stated
 * order (kernels/kernels.h). Written from that page alone. */
#include "oracle_state.h"

#include <math.h>
#include <string.h>

uint64_t zo_dtype_nbytes(zo_dtype_t dtype) { return dtype == ZO_F32 ? 4 : 2; }

float zo_widen(const void *src, zo_dtype_t dtype, uint64_t i) {
    uint32_t bits;
    float x;

    if (dtype == ZO_F32)
        return ((const float *)src)[i];
    bits = (uint32_t)((const uint16_t *)src)[i] << 16;
    memcpy(&x, &bits, sizeof x);
    return x;
}

void zo_narrow(void *dst, zo_dtype_t dtype, uint64_t i, float x) {
    uint32_t bits, upper, lower;

    if (dtype == ZO_F32) {
        ((float *)dst)[i] = x;
        return;
    }
    memcpy(&bits, &x, sizeof bits);
    upper = bits >> 16;
    lower = bits & 0xFFFFu;
    if (isnan(x))
        upper |= 0x40u; /* quiet */
    else if (lower > 0x8000u || (lower == 0x8000u && (upper & 1u)))
        upper++;
    ((uint16_t *)dst)[i] = (uint16_t)upper;
}

/* b^n by repeated squaring, low bit first. */
static double zo_power(double b, uint32_t n) {
    double result = 1.0;

    for (; n; n >>= 1) {
        if (n & 1u)
            result *= b;
        b *= b;
    }
    return result;
}

zo_scalars_t zo_scalars_of(const zo_hyper_t *h, float s, uint32_t n) {
    double bc1 = 1.0 - zo_power(h->beta1, n), bc2 = 1.0 - zo_power(h->beta2, n);
    zo_scalars_t k = {.s = s,
                      .b1 = (float)h->beta1,
                      .one_minus_b1 = (float)(1.0 - h->beta1),
                      .b2 = (float)h->beta2,
                      .one_minus_b2 = (float)(1.0 - h->beta2),
                      .inv_sqrt_bc2 = (float)(1.0 / sqrt(bc2)),
                      .eps = (float)h->eps,
                      .neg_step = (float)(-h->lr / bc1),
                      .decay = (float)(1.0 - h->lr * h->weight_decay)};
    return k;
}

void zo_update(float *w, float *m, float *v, float grad, const zo_scalars_t *k) {
    float g = grad * k->s;
    float d;

    *m = fmaf(k->b1, *m, k->one_minus_b1 * g);
    *v = fmaf(k->b2, *v, (k->one_minus_b2 * g) * g);
    d = fmaf(sqrtf(*v), k->inv_sqrt_bc2, k->eps);
    *w = fmaf(k->neg_step, *m / d, *w * k->decay);
}

/* One block of up to 4096 terms: 32 lanes, then a binary tree. x(i) = term(g[i]). */
static double block_sum(const float *g, uint64_t n, int is_square) {
    double lane[32] = {0};

    for (uint64_t i = 0; i < n; i++)
        lane[i % 32] += is_square ? (double)g[i] * (double)g[i] : fabs((double)g[i]);
    for (unsigned off = 16; off > 0; off /= 2)
        for (unsigned l = 0; l < off; l++)
            lane[l] += lane[l + off];
    return lane[0];
}

double zo_linear_sum(const float *g, uint64_t n, int is_square) {
    double sum = 0.0;

    for (uint64_t i = 0; i < n; i += 4096)
        sum += block_sum(g + i, n - i < 4096 ? n - i : 4096, is_square);
    return sum;
}

double zo_column_sum(const float *g, uint64_t rows, uint64_t cols, uint64_t c) {
    double sum = 0.0;

    for (uint64_t r = 0; r < rows; r += 64) {
        double block = 0.0;

        for (uint64_t i = r; i < rows && i < r + 64; i++)
            block += fabs((double)g[i * cols + c]);
        sum += block;
    }
    return sum;
}
