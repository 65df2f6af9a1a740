/* SPDX-License-Identifier: Apache-2.0 */
/* exact_values.c - the numbers of a case (exact_case.h): hyper-parameters of each step, gradients, weights. */
#include <math.h>
#include <string.h>

#include "exact_case.h"

static float draw_value(zx_rng_t *r, double scale) { return (float)(zx_uniform(r, -1.0, 1.0) * scale); }

/* Some elements become the ends of a data type's range: in it the largest fp16, normal and denormal ones. */
static void draw_ends(const zx_case_t *c, zx_rng_t r, void *values, zo_dtype_t dtype, uint64_t n) {
    static const float ends[] = {65504.0f, 0x1p-14f, 0x1p-24f, 0x3FFp-24f, 0x1p-126f, 0x1p-133f, 0.0f, 65472.0f};
    if (c->ranks || !zx_is_wide(c) || !zx_chance(&r, 30))
        return;
    for (uint64_t i = 0; i < n; i++)
        if (zx_chance(&r, 3))
            zo_narrow(values, dtype, i, (zx_chance(&r, 50) ? 1.0f : -1.0f) * ends[zx_below(&r, 8)]);
}

void *zx_case_values(zx_case_t *c, const zx_param_t *p) {
    uint64_t n = zx_n_elems(p);
    void *values = zx_alloc(n * zo_dtype_nbytes(p->decl.dtype));
    double scale = zx_log_uniform(&c->rng, 1e-3, 10.0);
    for (uint64_t i = 0; i < n; i++)
        zo_narrow(values, p->decl.dtype, i, draw_value(&c->rng, scale));
    draw_ends(c, c->rng, values, p->decl.dtype, n);
    return values;
}

/* Half of the cases keep a step's hyper-parameters for some more, so that they are as a plugin may expect; or all but
 * one of them. */
static int stays(const zx_case_t *c) { return c->index % 2 == 0 && c->n_hyper % 5 != 0; }

static int is_one_other(zx_case_t *c) {
    int is_due = zx_is_early(c) ? c->n_hyper % 5 != 0 && c->n_hyper % 2 == 0 : stays(c) && zx_chance(&c->rng, 15);
    return is_due && c->index % 2 == 0;
}

/* By so little that a comparison in few digits does not see it, or by a tenth. */
void zx_change_hyper(zx_rng_t *r, zo_hyper_t *h) {
    double *const members[] = {&h->lr, &h->beta1, &h->beta2, &h->eps, &h->weight_decay};
    double *at = members[zx_below(r, 5)];
    *at = *at == 0.0 ? 0.01 : *at * (1.0 - zx_log_uniform(r, 0x1p-20, 0.1));
}

/* Bias corrections that are neither 0 nor 1 yet, behind as many updates. */
static double late_beta(zx_case_t *c, double beta) {
    if (!c->late_counts || zx_chance(&c->rng, 30))
        return beta;
    return 1.0 - zx_log_uniform(&c->rng, 0.01, 5.0) / c->late_counts;
}

void zx_case_hyper(zx_case_t *c, zo_hyper_t *out) {
    int is_one = is_one_other(c);
    for (uint32_t i = 0; i < c->n_groups; i++) {
        out[i] = c->base[i];
        out[i].lr *= zx_uniform(&c->rng, 0.1, 1.5);
        if (zx_chance(&c->rng, 30))
            out[i].weight_decay *= zx_uniform(&c->rng, 0.5, 1.5);
        if (zx_chance(&c->rng, 3))
            out[i].lr = 0.0;
        if (c->is_beta_changing) {
            out[i].beta1 *= zx_uniform(&c->rng, 0.8, 1.0);
            out[i].beta2 *= zx_uniform(&c->rng, 0.9, 1.0);
        }
        out[i].beta1 = late_beta(c, out[i].beta1);
        out[i].beta2 = late_beta(c, out[i].beta2);
        if (stays(c))
            out[i] = c->last[i];
    }
    if (is_one)
        zx_change_hyper(&c->rng, &out[zx_below(&c->rng, c->n_groups)]);
    memcpy(c->last, out, c->n_groups * sizeof *out);
    c->n_hyper++;
}

/* Channels differ in size, and differently at every step: selections change. */
static double channel_factor(uint64_t salt, uint64_t i) {
    zx_rng_t r = {.state = salt + i % 7 * 1000 + i % 11};
    return zx_log_uniform(&r, 0.2, 2.0);
}

int zx_idles(const zx_case_t *c, zx_idle_t kind) { return c->idle == kind && c->n_hyper / c->idle_span % 2 == 1; }

/* Of each run of 128 elements, or all have gradients at every step, or some never do: none, one, a quarter, all but
 * one; or all have the same, or a few are tiny. */
static float masked(const zx_param_t *p, uint64_t i, float g) {
    zx_rng_t r = {.state = p->mask + i / 128 * 131}, own = {.state = p->mask + i};
    uint32_t kind = zx_below(&r, 10), one = zx_below(&r, 128), quarter = zx_below(&own, 4);
    int is_kept = kind == 1 ? i % 128 == one : kind < 5 ? quarter == 0 : kind == 5 ? i % 128 != one : kind != 0;
    if (kind == 6)
        g = (float)p->grad_scale;
    if (kind == 7 && quarter)
        g *= 0x1p-60f;
    return is_kept ? g : 0.0f;
}

void *zx_case_grad(zx_case_t *c, const zx_param_t *p) {
    uint64_t n = zx_n_elems(p), salt = zx_rng_bits(&c->rng);
    void *grad = zx_alloc(n * zo_dtype_nbytes(p->decl.grad_dtype));
    double factor[77];
    for (uint64_t i = 0; i < 77; i++)
        factor[i] = channel_factor(salt, i);
    for (uint64_t i = 0; i < n; i++) {
        float g = draw_value(&c->rng, p->grad_scale * factor[i % 77]);
        if (p->grad_style == ZX_INTEGERS)
            g = (float)zx_below(&c->rng, 3) - 1.0f;
        else if (p->grad_style == ZX_SPARSE && zx_chance(&c->rng, 70))
            g = zx_chance(&c->rng, 50) ? 0.0f : -0.0f;
        else if (p->grad_style == ZX_TINY_GRADS)
            g *= salt % 2 ? (zx_chance(&c->rng, 50) ? 0x1p-126f : 0x1p-120f) /* denormals; */
                          : (zx_chance(&c->rng, 50) ? 0x1p-60f : 0x1p-54f);  /* or squares about the least for fp32 */
        if (p->mask && !c->ranks) /* whose sums are to be exact */
            g = masked(p, i, g);
        if (zx_idles(c, ZX_ZEROS))
            g = 0.0f;
        if (p->grad_unit > 0.0f)
            g = fminf(fmaxf(nearbyintf(g / ZX_QUANTUM), -127.0f), 127.0f) * p->grad_unit;
        zo_narrow(grad, p->decl.grad_dtype, i, g);
        if (c->ranks && zo_widen(grad, p->decl.grad_dtype, i) == 0.0f)
            zo_narrow(grad, p->decl.grad_dtype, i, 0.0f); /* +0: what sums over ranks give */
    }
    if (!p->mask)
        draw_ends(c, (zx_rng_t){.state = salt}, grad, p->decl.grad_dtype, n);
    return grad;
}
