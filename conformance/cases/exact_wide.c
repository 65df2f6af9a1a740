/* SPDX-License-Identifier: Apache-2.0 */
/* exact_wide.c - settings of real runs (exact_case.h). */
#include "exact_case.h"

#include <math.h>
#include <string.h>

enum { OF_CONFIG = 0x77696465, OF_GROUPS = 0x67726f75, OF_SHAPES = 0x73686170, OF_SCALES = 0x7363616c };

/* ---- settings ---------------------------------------------------------------------------------------------------- */

/* S up to 64; it stays what law 1 and early cases made of it. */
static void widen_interval(zx_case_t *c, zx_rng_t *r) {
    if (c->config.update_interval > 1 && !c->config.is_interval_auto && !zx_is_early(c) && zx_chance(r, 25))
        c->config.update_interval = zx_between(r, 9, 64);
}

void zx_wide_config(zx_case_t *c) {
    zx_rng_t r = zx_rng(c->seed + OF_CONFIG, (uint64_t)c->law, c->index);
    if (!zx_is_wide(c))
        return;
    widen_interval(c, &r);
    if (c->config.topk_ratio > 0.0 && c->config.topk_ratio < 1.0)
        c->config.topk_ratio = zx_log_uniform(&r, 1e-3, 1.0);
    if (zx_chance(&r, 15))
        c->config.warm_up = zx_between(&r, 5, 40);
    if (zx_chance(&r, 20))
        c->config.select_interval = zx_between(&r, 12, 64);
    if (zx_chance(&r, 60))
        c->unscale = zx_chance(&r, 25) ? zx_log_uniform(&r, 0x1p-40, 0x1p24) : zx_log_uniform(&r, 0x1p-24, 0x1p4);
    if (c->clip_norm > 0.0)
        c->clip_norm = zx_log_uniform(&r, 1e-9, 1e9);
}

/* Weights stay finite over some hundred steps: a decay takes away less than twice of a weight. */
zo_hyper_t zx_wide_hyper(zx_rng_t *r) {
    zo_hyper_t h = {.lr = zx_log_uniform(r, 1e-8, zx_chance(r, 10) ? 1e5 : 1.0),
                    .beta1 = zx_chance(r, 15) ? 0.0 : 1.0 - zx_log_uniform(r, 1e-3, 1.0),
                    .beta2 = zx_chance(r, 10) ? 0.0 : 1.0 - zx_log_uniform(r, 1e-5, 1.0),
                    .eps = zx_log_uniform(r, 1e-30, 1.0)};
    h.weight_decay = zx_chance(r, 40) ? 0.0 : fmin(zx_log_uniform(r, 1e-4, 30.0), 0.8 / h.lr);
    return h;
}

void zx_wide_groups(zx_case_t *c) {
    zx_rng_t r = zx_rng(c->seed + OF_GROUPS, (uint64_t)c->law, c->index);
    if (!zx_is_wide(c))
        return;
    if (zx_chance(&r, 30))
        c->n_groups = zx_between(&r, ZX_COMMON_GROUPS + 1, ZX_MAX_GROUPS);
    for (uint32_t i = 0; i < c->n_groups; i++)
        c->base[i] = zx_wide_hyper(&r);
}

void zx_wide_shape(const zx_case_t *c, zo_decl_t *d) {
    enum { MOST = 2000, MOST_IN_FRONT = 32, MOST_COLUMNS = 600 };
    zx_rng_t r = zx_rng(c->seed + OF_SHAPES, (uint64_t)c->law, c->index * 1000003 + c->n_named);
    uint64_t n = 1, in_front = 1;
    if (!zx_is_wide(c) || d->ndim == 0 || !zx_chance(&r, 20))
        return;
    for (uint32_t i = 0; i < d->ndim; i++)
        n *= (uint64_t)d->shape[i];
    uint32_t more = zx_between(&r, 1, ZO_MAX_NDIM - d->ndim);
    memmove(d->shape + more, d->shape, d->ndim * sizeof *d->shape);
    for (uint32_t i = 0; i < more; i++) {
        d->shape[i] = n * in_front < MOST && in_front < MOST_IN_FRONT && zx_chance(&r, 40) ? 2 : 1;
        in_front *= (uint64_t)d->shape[i];
    }
    d->ndim += more;
    d->n_batch_axes = d->n_batch_axes || n > MOST_COLUMNS ? d->n_batch_axes + more : zx_between(&r, 0, more);
}

double zx_wide_scale(const zx_case_t *c, double scale) {
    zx_rng_t r = zx_rng(c->seed + OF_SCALES, (uint64_t)c->law, c->index * 1000003 + c->n_named);
    return zx_is_wide(c) && zx_chance(&r, 30)
               ? (zx_chance(&r, 80) ? zx_log_uniform(&r, 1e-21, 1e-4) : zx_log_uniform(&r, 10.0, 1e6))
               : scale;
}

uint32_t zx_wide_steps(const zx_case_t *c, uint32_t steps) {
    enum { LONG = 16, LONG_RUN = 60 };
    uint32_t enough = c->config.warm_up + c->config.update_interval + 8, least = c->config.warm_up + LONG + 8;
    if (c->config.update_interval > LONG && steps > enough)
        return enough;
    if (zx_is_long(c))
        return steps + LONG_RUN;
    return zx_is_wide(c) && c->config.select_interval > LONG && steps < least ? least : steps;
}
