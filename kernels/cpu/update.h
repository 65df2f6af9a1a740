/* SPDX-License-Identifier: Apache-2.0 */
/* update.h - one update of one vector of elements by each rule (kernels.h: zfi_scalars_t). */
#pragma once

#include "lanes.h"

/* zfi_scalars_t with one value per lane; what a rule does not use is optimised away. */
typedef struct lanes_scalars {
    vf s, b1, one_minus_b1, b2, one_minus_b2, inv_sqrt_bc2, eps, neg_step, decay, l2;
} lanes_scalars_t;

static ALWAYS_INLINE lanes_scalars_t splat_scalars(const zfi_scalars_t *a) {
    return (lanes_scalars_t){
        .s = vf_splat(a->s),
        .b1 = vf_splat(a->b1),
        .one_minus_b1 = vf_splat(a->one_minus_b1),
        .b2 = vf_splat(a->b2),
        .one_minus_b2 = vf_splat(a->one_minus_b2),
        .inv_sqrt_bc2 = vf_splat(a->inv_sqrt_bc2),
        .eps = vf_splat(a->eps),
        .neg_step = vf_splat(a->neg_step),
        .decay = vf_splat(a->decay),
        .l2 = vf_splat(a->l2),
    };
}

/* State of one vector of elements; ratio = m/d of the last update of AdamW and Adam, v unused by rules without it. */
typedef struct lanes_state {
    vf w, m, v, ratio;
} lanes_state_t;

static ALWAYS_INLINE vf vf_sign(vf x) {
    const vf zero = vf_splat(0.0f), one = vf_splat(1.0f);
    const vu positive = (vu)(x > zero), negative = (vu)(x < zero);
    return (vf)((positive & (vu)one) | (negative & (vu)-one) | (~(positive | negative) & (vu)x));
}

/* a where the mask is set, else b. */
static ALWAYS_INLINE vf vf_select(vu mask, vf a, vf b) { return (vf)((mask & (vu)a) | (~mask & (vu)b)); }

/* m/d from the new m and v. */
static ALWAYS_INLINE vf ratio_of(vf m, vf v, const lanes_scalars_t *a) {
    return m / vf_fma(vf_sqrt(v), a->inv_sqrt_bc2, a->eps);
}

/* rule is a constant where it matters. */
static ALWAYS_INLINE void update(zfi_rule_t rule, lanes_state_t *x, vf grad, const lanes_scalars_t *a) {
    vf g = grad * a->s;
    if (rule == ZFI_RULE_LION) {
        vf c = vf_fma(a->b1, x->m, a->one_minus_b1 * g);

        x->w = vf_fma(a->neg_step, vf_sign(c), x->w * a->decay);
        x->m = vf_fma(a->b2, x->m, a->one_minus_b2 * g);
        return;
    }
    if (rule != ZFI_RULE_ADAMW)
        g = vf_fma(a->l2, x->w, g);
    if (rule == ZFI_RULE_SGD || rule == ZFI_RULE_SGD_NESTEROV) {
        const vu is_plain = (vu)(a->b1 == vf_splat(0.0f));
        vf m = vf_fma(a->b1, x->m, g), u = rule == ZFI_RULE_SGD ? m : vf_fma(a->b1, m, g);

        x->m = vf_select(is_plain, x->m, m);
        x->w = vf_fma(a->neg_step, vf_select(is_plain, g, u), x->w);
        return;
    }
    x->m = vf_fma(a->b1, x->m, a->one_minus_b1 * g);
    x->v = vf_fma(a->b2, x->v, (a->one_minus_b2 * g) * g);
    x->ratio = ratio_of(x->m, x->v, a);
    x->w = vf_fma(a->neg_step, x->ratio, rule == ZFI_RULE_ADAMW ? x->w * a->decay : x->w);
}
