/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/scalars.cuh - the scalars of one update and the update of one element by each rule, as kernels.h states
 * them (kernels/cpu/scalars.c, update.h); rounding of moments, and what updates tell the host. */
#pragma once

#include "common.cuh"

DEVICE double power_of(double b, uint32_t n) {
    double result = 1.0;
    for (; n; n >>= 1) {
        if (n & 1u)
            result = __dmul_rn(result, b);
        b = __dmul_rn(b, b);
    }
    return result;
}

DEVICE double one_minus(double x) { return __dsub_rn(1.0, x); }

DEVICE bool has_v(int rule) { return rule == ZFI_RULE_ADAMW || rule == ZFI_RULE_ADAM; }

DEVICE zfi_scalars_t rule_scalars(int rule, const zfi_hyper_t *hyper, float s, uint32_t n) {
    double correction = has_v(rule) ? one_minus(power_of(hyper->beta1, n)) : 1.0;
    zfi_scalars_t out;
    out.s = s;
    out.b1 = __double2float_rn(hyper->beta1);
    out.one_minus_b1 = __double2float_rn(one_minus(hyper->beta1));
    out.b2 = __double2float_rn(hyper->beta2);
    out.one_minus_b2 = __double2float_rn(one_minus(hyper->beta2));
    out.inv_sqrt_bc2 = __double2float_rn(__ddiv_rn(1.0, __dsqrt_rn(one_minus(power_of(hyper->beta2, n)))));
    out.eps = __double2float_rn(hyper->eps);
    out.neg_step = __double2float_rn(__ddiv_rn(-hyper->lr, correction));
    out.decay = __double2float_rn(one_minus(__dmul_rn(hyper->lr, hyper->weight_decay)));
    out.l2 = __double2float_rn(hyper->weight_decay);
    return out;
}

typedef struct state {
    float w, m, v; /* v is neither read nor written by rules without it */
} state_t;

DEVICE float sign_of(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }

DEVICE void update_lion(state_t *x, float g, const zfi_scalars_t *a) {
    float c = __fmaf_rn(a->b1, x->m, __fmul_rn(a->one_minus_b1, g));
    x->w = __fmaf_rn(a->neg_step, sign_of(c), __fmul_rn(x->w, a->decay));
    x->m = __fmaf_rn(a->b2, x->m, __fmul_rn(a->one_minus_b2, g));
}

DEVICE void update_sgd(int rule, state_t *x, float g, const zfi_scalars_t *a) {
    if (a->b1 == 0.0f) { /* m stays as it is */
        x->w = __fmaf_rn(a->neg_step, g, x->w);
        return;
    }
    x->m = __fmaf_rn(a->b1, x->m, g);
    x->w = __fmaf_rn(a->neg_step, rule == ZFI_RULE_SGD ? x->m : __fmaf_rn(a->b1, x->m, g), x->w);
}

DEVICE void update_adam(int rule, state_t *x, float g, const zfi_scalars_t *a) {
    float d, ratio;
    x->m = __fmaf_rn(a->b1, x->m, __fmul_rn(a->one_minus_b1, g));
    x->v = __fmaf_rn(a->b2, x->v, __fmul_rn(__fmul_rn(a->one_minus_b2, g), g));
    d = __fmaf_rn(__fsqrt_rn(x->v), a->inv_sqrt_bc2, a->eps);
    ratio = __fdiv_rn(x->m, d);
    x->w = __fmaf_rn(a->neg_step, ratio, rule == ZFI_RULE_ADAMW ? __fmul_rn(x->w, a->decay) : x->w);
}

DEVICE void update(int rule, state_t *x, float grad, const zfi_scalars_t *a) {
    float g = __fmul_rn(grad, a->s);
    if (rule == ZFI_RULE_ADAMW) {
        update_adam(rule, x, g, a);
        return;
    }
    if (rule == ZFI_RULE_LION) {
        update_lion(x, g, a);
        return;
    }
    g = __fmaf_rn(a->l2, x->w, g);
    if (rule == ZFI_RULE_ADAM)
        update_adam(rule, x, g, a);
    else
        update_sgd(rule, x, g, a);
}

/* A moment as it is rounded for two bytes; fp32. random: its lower 16 bits are added before the cut. */
DEVICE float round_moment(float x, int moments, uint32_t random) {
    uint32_t bits = __float_as_uint(x), carried;
    if (moments != ZFI_MOMENTS_BF16_STOCHASTIC)
        return bf16_to_f32(f32_to_bf16(x));
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return __uint_as_float((bits | 0x400000u) & 0xffff0000u);
    carried = bits + (random & 0xffffu);
    if ((carried & 0x7fffffffu) >= 0x7f800000u)
        carried = bits;
    return __uint_as_float(carried & 0xffff0000u);
}
