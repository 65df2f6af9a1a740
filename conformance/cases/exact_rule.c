/* SPDX-License-Identifier: Apache-2.0 */
/* exact_rule.c - update rules that only the host knows (ZF_RULE_CALLBACK), with no, one and two moments.
 *
 * Model: one function per element, which the oracle calls as it is; the callback is a loop over it, so any cut of the
 * work must give the same bits. The functions use every scalar and n, so that a wrong one shows. */
#include <math.h>
#include <stddef.h>

#include "exact_case.h"

static const char *const names[] = {"normalised", "bounded momentum", "belief"};

static void no_moment(float *w, float g, const zo_hyper_t *h, float rate) {
    *w = fmaf(-rate, g / (fabsf(g) + (float)h->eps), *w * (float)(1.0 - h->lr * h->weight_decay));
}

static void one_moment(float *w, float *m, float g, const zo_hyper_t *h, float rate) {
    *m = fmaf((float)h->beta1, *m, g);
    *w = fmaf(-rate, *m / (1.0f + fabsf(*m)), *w * (float)(1.0 - h->lr * h->weight_decay));
}

static void two_moments(float *w, float *m, float *v, float g, const zo_hyper_t *h, float rate) {
    float far;

    *m = fmaf((float)h->beta1, *m, (float)(1.0 - h->beta1) * g);
    far = g - *m;
    *v = fmaf((float)h->beta2, *v, (float)(1.0 - h->beta2) * (far * far));
    *w = fmaf(-rate, *m / (sqrtf(*v) + (1.0f + (float)h->eps)), *w * (float)(1.0 - h->lr * h->weight_decay));
}

void zx_rule_element(void *ctx, float *w, float *m, float *v, float g, const zo_hyper_t *h, uint64_t n) {
    const zx_rule_t *rule = ctx;
    float rate = (float)(h->lr / sqrt((double)n));

    if (rule->callback.n_moments == 0)
        no_moment(w, g, h, rate);
    else if (rule->callback.n_moments == 1)
        one_moment(w, m, g, h, rate);
    else
        two_moments(w, m, v, g, h, rate);
}

static int is_bad_call(const zx_rule_t *rule, const zf_rule_update_t *u) {
    uint32_t n_moments = rule->callback.n_moments;

    return u->struct_size < sizeof *u || u->group >= rule->n_groups || u->n == 0 || u->n_elems == 0 || !u->w || !u->g ||
           (u->m != NULL) != (n_moments > 0) || (u->v != NULL) != (n_moments > 1);
}

static void update(void *ctx, const zf_rule_update_t *u) {
    zx_rule_t *rule = ctx;
    zo_hyper_t h = {.lr = u->lr, .beta1 = u->beta1, .beta2 = u->beta2, .eps = u->eps, .weight_decay = u->weight_decay};

    if (is_bad_call(rule, u)) {
        rule->n_bad_calls++;
        return;
    }
    for (uint64_t i = 0; i < u->n_elems; i++)
        zx_rule_element(rule, u->w + i, u->m ? u->m + i : NULL, u->v ? u->v + i : NULL, u->g[i], &h, u->n);
}

void zx_rule_init(zx_rule_t *rule, uint32_t n_moments, uint32_t n_groups) {
    rule->callback = (zf_rule_callback_t){.struct_size = sizeof rule->callback,
                                          .n_moments = n_moments,
                                          .name = names[n_moments],
                                          .ctx = rule,
                                          .update = update};
    rule->n_groups = n_groups;
    rule->n_bad_calls = 0;
}
