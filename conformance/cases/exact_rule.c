/* SPDX-License-Identifier: Apache-2.0 */
/* exact_rule.c - update rules that only the host knows (ZF_RULE_CALLBACK), with no, one and two moments.
 *
 * Model: one function per element, which the oracle calls as it is; the callback is a loop over it, so any cut of the
 * work must give the same bits. The functions use every scalar, n, and which element of which parameter it is, so that
 * a wrong one shows. */
#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
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

/* Any number that a checkpoint takes: denormals, zeros, common ones; without one the largest and infinities, too. */
static float wild(uint64_t number, uint64_t n, int is_wildest) {
    zx_rng_t r = {.state = number * 31 + n};
    uint64_t drawn = zx_rng_bits(&r);
    uint32_t bits = (uint32_t)drawn,
             sizes[8] = {bits % 0x800000u,
                         0,
                         is_wildest ? 0x7F7FFFFFu - bits % 0x20000u : 0x7F000000u + bits % 0x20000u,
                         is_wildest ? 0x7F800000u : 0x7F000000u,
                         0x00800000u + bits % 0x20000u,
                         0x30000000u + bits % 0x20000000u,
                         0x30000000u + bits % 0x20000000u,
                         0x3F800000u + bits % 0x20000u};
    uint32_t of = sizes[drawn >> 32 & 7] | (uint32_t)(drawn >> 40 & 1) << 31;
    float x;
    memcpy(&x, &of, sizeof x);
    return x;
}

/* What is left of a moment, of any size, in [0, 1). */
static float rest_of(const float *moment) {
    uint32_t bits;
    memcpy(&bits, moment, sizeof bits);
    return (float)(bits * 2654435761u >> 16) * 0x1p-16f;
}

/* Moments that no sum makes: how they are kept shows in what the next update takes from them. */
static void wild_moments(const zx_rule_t *rule, uint64_t number, float *w, float *m, float *v, float g,
                         const zo_hyper_t *h, uint64_t n, float rate) {
    float u = g / (fabsf(g) + (1.0f + (float)h->eps)) + rest_of(m) + (v ? rest_of(v) : 0.0f);
    *m = wild(2 * number, n, rule->is_wild > 1);
    if (v)
        *v = fabsf(wild(2 * number + 1, n, rule->is_wild > 1));
    *w = fmaf(-rate, u, *w * (float)(1.0 - h->lr * h->weight_decay));
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
    if (rule->callback.n_moments > 0 && rule->is_wild)
        wild_moments(rule, number, w, m, rule->callback.n_moments > 1 ? v : NULL, g, h, n, rate);
    else if (rule->callback.n_moments == 0)
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

/* ---- rules of whole matrices ------------------------------------------------------------------------------------- */

/* Every element depends on its whole matrix, on its neighbour, and on all that the update is told. */
void zx_rule_whole(void *ctx, const zo_whole_t *u) {
    const uint64_t n = u->rows * u->cols;
    const zo_hyper_t *h = &u->hyper;
    const float keep = (float)(1.0 - h->lr * h->weight_decay), b1 = (float)h->beta1, b2 = (float)h->beta2;
    const float rate = (float)(h->lr / sqrt((double)u->n)) * share_of(zo_number(u->param, u->batch * 64 + u->rows));
    double sum = 0.0;
    (void)ctx;
    for (uint64_t i = 0; i < n; i++)
        sum += (double)u->g[i];
    float mean = (float)(sum / (double)n) * u->s;
    for (uint64_t i = 0; i < n; i++) {
        float g = fmaf(0.25f, u->g[(i + 1) % n] * u->s, u->g[i] * u->s) + mean, of_m = g, of_v = fabsf(g);
        if (u->m)
            of_m = u->m[i] = fmaf(b1, u->m[i], (1.0f - b1) * g);
        if (u->v)
            of_v = u->v[i] = fminf(fmaf(b2, u->v[i], (1.0f - b2) * (g * g)), 0x1p126f);
        u->w[i] = fmaf(-rate, of_m / (1.0f + (float)h->eps + sqrtf(of_v)), u->w[i] * keep);
    }
}

/* One parameter's matrices of a call, and copies of what an update computes with: behind each other, as in the arrays.
 */
typedef struct zx_wholes {
    const zf_matrix_update_t *first;
    uint64_t n_elems; /* of one */
    uint32_t n;
    float *w, *m, *v, *g;
} zx_wholes_t;

static const zf_matrix_update_t *update_at(const void *updates, uint32_t i, uint32_t elem_size) {
    return (const void *)((const char *)updates + (size_t)i * elem_size);
}

static zo_dtype_t dtype_of(zf_dtype_t d) {
    return d.bits == 32 ? ZO_F32 : d.code == ZF_DTYPE_CODE_BFLOAT ? ZO_BF16 : ZO_F16;
}

static int is_bad_whole(const zx_case_t *c, const zf_matrix_update_t *u, const zf_matrix_update_t *before) {
    const zx_param_t *p = u->param < c->n_params ? &c->params[u->param] : NULL;
    uint32_t n_moments = p ? c->config.groups[p->decl.group].n_moments : 0;
    int is_half = c->config.moments == ZO_MOMENTS_BF16 || c->config.moments == ZO_MOMENTS_STOCHASTIC;
    return !p || !zx_is_whole(c, p) || u->group != p->decl.group || u->n == 0 || !u->w || !u->g ||
           u->s != (double)(float)u->s || (u->m != NULL) != (n_moments > 0) || (u->v != NULL) != (n_moments > 1) ||
           u->moments_dtype.bits != (is_half ? 16 : 32) || (u->store != NULL) != is_half ||
           dtype_of(u->grad_dtype) != p->decl.grad_dtype || u->batch >= zx_n_matrices(&p->decl) ||
           u->rows * u->cols * zx_n_matrices(&p->decl) != zx_n_elems(p) ||
           (before && (before->param > u->param || (before->param == u->param && before->batch + 1 != u->batch))) ||
           ((!before || before->param != u->param) && u->batch != 0);
}

static void take(const zx_wholes_t *all, uint32_t i, const zf_matrix_update_t *u) {
    uint64_t first = i * all->n_elems;
    for (uint64_t e = 0; e < all->n_elems; e++) {
        all->g[first + e] = zo_widen(u->g, dtype_of(u->grad_dtype), e);
        all->w[first + e] = u->w[e];
        all->m[first + e] = u->m ? zo_widen(u->m, dtype_of(u->moments_dtype), e) : 0.0f;
        all->v[first + e] = u->v ? zo_widen(u->v, dtype_of(u->moments_dtype), e) : 0.0f;
    }
}

/* Where the type asks for it, in ranges, of which one goes on into further matrices. */
static void put_moment(const zx_wholes_t *all, uint32_t which, const float *values) {
    const zf_matrix_update_t *u = all->first;
    uint64_t n = all->n * all->n_elems, middle = n / 3 + u->n % 7;
    if (!(which ? u->v : u->m))
        return;
    if (!u->store) {
        memcpy(which ? u->v : u->m, values, n * sizeof *values);
        return;
    }
    middle = middle < n ? middle : n;
    u->store(u, which, middle, n - middle, values + middle);
    u->store(u, which, 0, middle, values);
}

/* All matrices of a parameter at once, or each by itself. */
static void update_param(const zx_case_t *c, const zx_wholes_t *all, uint32_t elem_size) {
    int is_one_by_one = all->first->n % 2 == 0;
    for (uint32_t i = 0; i < all->n; i++) {
        const zf_matrix_update_t *u = update_at(all->first, i, elem_size);
        uint64_t first = i * all->n_elems;
        take(all, i, u);
        const zo_whole_t whole = {.param = u->param,
                                  .batch = u->batch,
                                  .rows = u->rows,
                                  .cols = u->cols,
                                  .n = u->n,
                                  .w = all->w + first,
                                  .m = u->m ? all->m + first : NULL,
                                  .v = u->v ? all->v + first : NULL,
                                  .g = all->g + first,
                                  .s = (float)u->s,
                                  .hyper = {u->lr, u->beta1, u->beta2, u->eps, u->weight_decay}};
        zx_rule_whole(c->whole.ctx, &whole);
        memcpy(u->w, whole.w, all->n_elems * sizeof *u->w);
        const zx_wholes_t one = {.first = u, .n_elems = all->n_elems, .n = 1};
        if (is_one_by_one) {
            put_moment(&one, 0, whole.m);
            put_moment(&one, 1, whole.v);
        }
    }
    if (is_one_by_one)
        return;
    put_moment(all, 1, all->v);
    put_moment(all, 0, all->m);
}

static int32_t update_wholes(void *ctx, const zf_matrix_update_t *updates, uint32_t n, uint32_t elem_size) {
    zx_case_t *c = ctx;
    const zf_matrix_update_t *u, *before = NULL;
    for (uint32_t i = 0; i < n; before = u, i++) {
        u = update_at(updates, i, elem_size);
        if (!is_bad_whole(c, u, before))
            continue;
        c->rules[0].n_bad_calls++;
        return 1;
    }
    for (uint32_t i = 0, k; i < n; i = k) {
        u = update_at(updates, i, elem_size);
        for (k = i + 1; k < n && update_at(updates, k, elem_size)->param == u->param;)
            k++;
        uint64_t n_elems = u->rows * u->cols, n_all = (k - i) * n_elems;
        float *room = zx_alloc(4 * n_all * sizeof *room);
        const zx_wholes_t all = {u, n_elems, k - i, room, room + n_all, room + 2 * n_all, room + 3 * n_all};
        update_param(c, &all, elem_size);
        free(room);
    }
    return 0;
}

/* ---- which groups have one, and which memory carries --------------------------------------------------------------
 */

void zx_rule_draw(zx_case_t *c, int has) {
    enum { STREAM = 6000 };
    zx_rng_t r = zx_rng(c->seed, (uint64_t)c->law + STREAM, c->index);
    int is_whole = zx_chance(&r, 45), is_carrying = zx_chance(&r, 45);
    if (!c->config.sees_edits || !(has & ZX_IS_ALONE) || c->law == 1 || c->law == 6)
        return;
    c->is_carrying = is_carrying;
    c->is_ask &= !is_carrying;
    c->is_rebound |= is_carrying;
    c->p_edit = is_carrying ? 0 : c->p_edit;
    for (uint32_t i = 0; is_whole && (has & ZX_HAS_MATRICES) && i < ZX_MAX_GROUPS; i++) {
        zx_rule_t *rule = &c->rules[i];
        uint32_t n_moments = i ? zx_below(&r, 3) : zx_between(&r, 1, 2);
        if (!zx_chance(&r, 60) && i)
            continue;
        zx_rule_init(rule, n_moments, i);
        rule->is_whole = c->has_whole = 1;
        rule->callback.update = NULL;
        rule->callback.name = "whole matrices";
        c->config.groups[i].rule = ZO_CALLBACK;
        c->config.groups[i].whole = zx_rule_whole;
        c->config.groups[i].n_moments = n_moments;
    }
    if (c->has_whole && zx_chance(&r, 50))
        c->config.moments = ZO_MOMENTS_STOCHASTIC;
}

int zx_case_is_contiguous(const zx_case_t *c, const zx_param_t *p) { return c->is_carrying || zx_is_whole(c, p); }

void zx_case_settle_param(const zx_case_t *c, zx_param_t *p) {
    if (zx_is_whole(c, p) && p->home == ZF_HOME_HOST)
        zx_case_set_home(p, ZF_HOME_PLUGIN);
    if (c->is_carrying && zo_dtype_nbytes(p->decl.grad_dtype) != zo_dtype_nbytes(p->decl.dtype))
        p->decl.grad_dtype = p->decl.dtype;
    p->decl.is_carried = c->is_carrying && !p->decl.is_stateless;
}

/* ---- what bind_params is told ------------------------------------------------------------------------------------ */

static const void *whole_rules(zx_case_t *c) {
    c->whole = (zf_matrix_rules_t){.struct_size = sizeof c->whole,
                                   .flags = ZF_CHAINED_REQUIRED,
                                   .id = ZF_EXT_MATRIX,
                                   .ctx = c,
                                   .update = update_wholes};
    return c->has_whole ? &c->whole : NULL;
}

zf_bind_args_t zx_bind_args(zx_case_t *c, zf_group_decl_t groups[ZX_MAX_GROUPS]) {
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
                            .group_size = sizeof *groups,
                            .next = whole_rules(c)};
}

int zx_is_rule_alike(const zx_case_t *c, uint32_t a, uint32_t b) {
    return c->config.groups[a].rule == c->config.groups[b].rule &&
           (c->config.groups[a].rule != ZO_CALLBACK ||
            (c->rules[a].callback.n_moments == c->rules[b].callback.n_moments &&
             c->rules[a].is_whole == c->rules[b].is_whole));
}

void zx_rule_init(zx_rule_t *rule, uint32_t n_moments, uint32_t group) {
    rule->callback = (zf_rule_callback_t){.struct_size = sizeof rule->callback,
                                          .n_moments = n_moments,
                                          .name = names[n_moments],
                                          .ctx = rule,
                                          .update = update};
    rule->group = group;
    rule->is_whole = 0;
    rule->n_bad_calls = 0;
    rule->is_slow = 0;
}
