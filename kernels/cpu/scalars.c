/* SPDX-License-Identifier: Apache-2.0 */
/* scalars.c - the scalars of one update from its hyper-parameters: the one place where update rules differ outside the
 * kernels. IEEE double arithmetic without contraction, so that host and device make the same bits.
 *
 * AdamW: Loshchilov & Hutter, arXiv 1711.05101; Adam: Kingma & Ba, arXiv 1412.6980; Nesterov's momentum: Sutskever et
 * al., ICML 2013; Lion: Chen et al., arXiv 2302.06675. */
#include <math.h>

#include "../kernels.h"

double zfi_power(double b, uint32_t n) {
    double result = 1.0;
    for (; n; n >>= 1) {
        if (n & 1u)
            result *= b;
        b *= b;
    }
    return result;
}

static int has_bias_correction(zfi_rule_t rule) { return rule == ZFI_RULE_ADAMW || rule == ZFI_RULE_ADAM; }

/* A scalar that a rule does not read is filled all the same: one function, and no scalar that depends on who asks. */
zfi_scalars_t zfi_rule_scalars(zfi_rule_t rule, const zfi_hyper_t *h, float s, uint32_t n) {
    zfi_scalars_t out;
    double correction = has_bias_correction(rule) ? 1.0 - zfi_power(h->beta1, n) : 1.0;
    out.s = s;
    out.b1 = (float)h->beta1;
    out.one_minus_b1 = (float)(1.0 - h->beta1);
    out.b2 = (float)h->beta2;
    out.one_minus_b2 = (float)(1.0 - h->beta2);
    out.inv_sqrt_bc2 = (float)(1.0 / sqrt(1.0 - zfi_power(h->beta2, n)));
    out.eps = (float)h->eps;
    out.neg_step = (float)(-h->lr / correction);
    out.decay = (float)(1.0 - h->lr * h->weight_decay);
    out.l2 = (float)h->weight_decay;
    return out;
}
