/* adamw.h - the AdamW update of one vector of elements (kernels.h: zfi_scalars_t). */
#ifndef ZFI_ADAMW_H
#define ZFI_ADAMW_H

#include "lanes.h"

/* zfi_scalars_t with one value per lane. */
typedef struct lanes_scalars {
    vf s, b1, one_minus_b1, b2, one_minus_b2, inv_sqrt_bc2, eps, neg_step, decay;
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
    };
}

static ALWAYS_INLINE void adamw(vf *w, vf *m, vf *v, vf grad, const lanes_scalars_t *a) {
    vf g = grad * a->s;
    vf d;

    *m = vf_fma(a->b1, *m, a->one_minus_b1 * g);
    *v = vf_fma(a->b2, *v, (a->one_minus_b2 * g) * g);
    d = vf_fma(vf_sqrt(*v), a->inv_sqrt_bc2, a->eps);
    *w = vf_fma(a->neg_step, *m / d, *w * a->decay);
}

#endif
