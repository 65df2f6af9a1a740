/* SPDX-License-Identifier: Apache-2.0 */
/* exact_rule.c - update rules that only the host knows (ZF_RULE_CALLBACK), with no, one and two moments.
 *
 * Model: one function per element, which the oracle calls as it is; the callback is a loop over it, so any cut of the
 * work must give the same bits. The functions use every scalar, n, and which element of which parameter it is, so that
 * a wrong one shows. */
#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

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
    *m = fmaf((float)h->beta1, *m, (float)(1.0 - h->beta1) * g);
    float far = g - *m;
    *v = fmaf((float)h->beta2, *v, (float)(1.0 - h->beta2) * (far * far));
    *w = fmaf(-rate, *m / (sqrtf(*v) + (1.0f + (float)h->eps)), *w * (float)(1.0 - h->lr * h->weight_decay));
}

/* In [1, 1.5): of each element its own. */
static float share_of(uint64_t number) {
    const uint32_t mixed = (uint32_t)((number * UINT64_C(0x9E3779B97F4A7C15)) >> 32);
    return 1.0f + 0x1p-9f * (float)(mixed >> 24);
}

void zx_rule_element(void *ctx, uint64_t number, float *w, float *m, float *v, float g, const zo_hyper_t *h,
                     uint64_t n) {
    const zx_rule_t *rule = ctx;
    float rate = (float)(h->lr / sqrt((double)n)) * share_of(number);
    if (rule->callback.n_moments == 0)
        no_moment(w, g, h, rate);
    else if (rule->callback.n_moments == 1)
        one_moment(w, m, g, h, rate);
    else
        two_moments(w, m, v, g, h, rate);
}

static int is_bad_call(const zx_rule_t *rule, const zf_rule_update_t *u) {
    uint32_t n_moments = rule->callback.n_moments;
    return u->struct_size < offsetof(zf_rule_update_t, weight_decay) + sizeof u->weight_decay ||
           u->group != rule->group || u->n == 0 || u->n_elems == 0 || !u->w || !u->g ||
           (u->m != NULL) != (n_moments > 0) || (u->v != NULL) != (n_moments > 1);
}

static int32_t update(void *ctx, const zf_rule_update_t *u) {
    zx_rule_t *rule = ctx;
    zo_hyper_t h = {.lr = u->lr, .beta1 = u->beta1, .beta2 = u->beta2, .eps = u->eps, .weight_decay = u->weight_decay};
    if (is_bad_call(rule, u)) {
        rule->n_bad_calls++;
        return 1;
    }
    if (atomic_exchange(&rule->is_slow, 0))
        usleep(4000);
    for (uint64_t i = 0; i < u->n_elems; i++)
        zx_rule_element(rule, zo_number(u->param, u->index ? u->index[i] : u->first + i), u->w + i,
                        u->m ? u->m + i : NULL, u->v ? u->v + i : NULL, u->g[i], &h, u->n);
    return 0;
}

zf_bind_args_t zx_bind_args(const zx_case_t *c, zf_group_decl_t groups[ZX_MAX_GROUPS]) {
    int is_all_adamw = 1;
    for (uint32_t i = 0; i < c->n_groups; i++) {
        zo_rule_t rule = c->config.groups[i].rule;
        groups[i] = (zf_group_decl_t){.struct_size = sizeof *groups,
                                      .rule = (uint32_t)rule,
                                      .callback = rule == ZO_CALLBACK ? &c->rules[i].callback : NULL};
        is_all_adamw &= rule == ZO_ADAMW;
    }
    if (is_all_adamw && c->index % 2)
        return (zf_bind_args_t){.struct_size = sizeof(zf_bind_args_t), .decl_size = sizeof(zf_param_decl_t)};
    return (zf_bind_args_t){.struct_size = sizeof(zf_bind_args_t),
                            .decl_size = sizeof(zf_param_decl_t),
                            .groups = groups,
                            .n_groups = c->n_groups,
                            .group_size = sizeof *groups};
}

int zx_is_rule_alike(const zx_case_t *c, uint32_t a, uint32_t b) {
    return c->config.groups[a].rule == c->config.groups[b].rule &&
           (c->config.groups[a].rule != ZO_CALLBACK ||
            c->rules[a].callback.n_moments == c->rules[b].callback.n_moments);
}

void zx_rule_init(zx_rule_t *rule, uint32_t n_moments, uint32_t group) {
    rule->callback = (zf_rule_callback_t){.struct_size = sizeof rule->callback,
                                          .n_moments = n_moments,
                                          .name = names[n_moments],
                                          .ctx = rule,
                                          .update = update};
    rule->group = group;
    rule->n_bad_calls = 0;
    rule->is_slow = 0;
}
