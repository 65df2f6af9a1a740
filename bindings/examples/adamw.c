/* SPDX-License-Identifier: Apache-2.0 */
/* adamw.c - see adamw.h. */
#include "adamw.h"

#include <math.h>

static double power(double b, unsigned n) {
    double result = 1.0;
    for (; n > 0; n >>= 1, b *= b)
        result *= n & 1u ? b : 1.0;
    return result;
}

void init_adamw(adamw_t *opt, const model_t *model) {
    opt->w = model->params;
    opt->m = allocate(model->offset[N_TENSORS]);
    opt->v = allocate(model->offset[N_TENSORS]);
    opt->n = 0;
}

void adamw_step(adamw_t *opt, const model_t *model, double lr) {
    const double beta1 = 0.9, beta2 = 0.999;
    ++opt->n;
    for (int t = 0; t < N_TENSORS; ++t) {
        float b1 = (float)beta1, c1 = (float)(1.0 - beta1), b2 = (float)beta2, c2 = (float)(1.0 - beta2);
        float inv_sqrt_bc2 = (float)(1.0 / sqrt(1.0 - power(beta2, opt->n))), eps = (float)1e-8;
        float neg_step = (float)(-lr / (1.0 - power(beta1, opt->n)));
        float decay = (float)(1.0 - lr * (specs[t].group == DECAY ? 0.01 : 0.0));
        for (size_t i = model->offset[t]; i < model->offset[t + 1]; ++i) {
            float g = model->grads[i];
            opt->m[i] = fmaf(b1, opt->m[i], c1 * g);
            opt->v[i] = fmaf(b2, opt->v[i], (c2 * g) * g);
            opt->w[i] = fmaf(neg_step, opt->m[i] / fmaf(sqrtf(opt->v[i]), inv_sqrt_bc2, eps), opt->w[i] * decay);
        }
    }
}
