/* SPDX-License-Identifier: Apache-2.0 */
/* exact_gradients.c - how a step's gradients arrive: parts, running totals, deliveries that replace others, in any
 * order, in one call or many; holes; Inf and NaN, also in deliveries that are void by the time of the step. */
#include "exact_gradients.h"

#include <math.h>
#include <stdlib.h>

#include "exact_between.h"

enum {
    MOST_PARTS = 40,
    MAX_PER_PARAM = 2 + MOST_PARTS,
    MAX_DELIVERIES = ZX_MAX_PARAMS * MAX_PER_PARAM,
    MOST_ON_THEIR_WAY = 2
};

typedef struct zx_plan { /* of one parameter */
    zx_delivery_t list[MAX_PER_PARAM];
    uint32_t n, next;
} zx_plan_t;

static void poison(zx_case_t *c, const zx_param_t *p, void *grad) {
    uint64_t n = zx_n_elems(p);
    float bad = zx_chance(&c->rng, 50) ? NAN : (zx_chance(&c->rng, 50) ? INFINITY : -INFINITY);
    zo_narrow(grad, p->decl.grad_dtype, zx_rng_bits(&c->rng) % n, bad);
}

static void add(zx_case_t *c, zx_plan_t *plan, uint32_t param, uint32_t flags) {
    zx_delivery_t *d = &plan->list[plan->n++];
    *d = (zx_delivery_t){.param = param, .flags = flags, .values = zx_case_grad(c, &c->params[param])};
}

static void add_many(zx_case_t *c, zx_plan_t *plan, uint32_t param, uint32_t flags, uint32_t n) {
    int knows_last = zx_chance(&c->rng, 50);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t when = i + 1 < n ? ZF_GRAD_MORE : ZF_GRAD_LAST;
        uint32_t unknown = knows_last ? when : zx_chance(&c->rng, 50) ? ZF_GRAD_UNKNOWN : 0;
        if (!zx_is_early(c))
            when = unknown;
        add(c, plan, param, flags | when);
        plan->list[plan->n - 1].is_only = n == 1 && when == ZF_GRAD_LAST && (plan->n == 1 || (flags & ZF_GRAD_REPLACE));
        flags &= ~ZF_GRAD_REPLACE;
    }
}

static void plan_param(zx_case_t *c, zx_plan_t *plan, uint32_t param, int is_bad) {
    static const uint32_t micro_batches[] = {1, 1, 2, 3, 3, 7};
    uint32_t kind = zx_chance(&c->rng, 50) ? ZF_GRAD_PART : ZF_GRAD_TOTAL;
    uint32_t n = zx_chance(&c->rng, 40) ? 1 : micro_batches[zx_below(&c->rng, 6)];
    if (zx_is_wide(c) && zx_chance(&c->rng, 6))
        n = zx_between(&c->rng, 8, MOST_PARTS);
    plan->n = plan->next = 0;
    if (zx_chance(&c->rng, 15)) { /* void in the end */
        add_many(c, plan, param, zx_chance(&c->rng, 50) ? ZF_GRAD_PART : ZF_GRAD_TOTAL, zx_between(&c->rng, 1, 2));
        if (zx_chance(&c->rng, 25))
            poison(c, &c->params[param], plan->list[0].values);
        for (uint32_t i = 0; i < plan->n && c->ranks; i++) { /* nothing may be void that other ranks have */
            plan->list[i].flags = plan->list[i].flags & ~ZF_GRAD_LAST;
            plan->list[i].is_only = 0;
        }
        kind |= ZF_GRAD_REPLACE;
    }
    add_many(c, plan, param, kind, n);
    if (is_bad)
        poison(c, &c->params[param], plan->list[plan->n - 1].values);
}

static uint32_t plan_step(zx_case_t *c, zx_plan_t *plans, uint32_t *params) {
    uint32_t n = 0, bad = ZX_MAX_PARAMS;
    if (zx_chance(&c->rng, c->p_skip))
        bad = zx_below(&c->rng, c->n_params);
    for (uint32_t i = 0; i < c->n_params; i++) {
        plans[i].n = plans[i].next = 0;
        if (!zx_is_trainable(&c->params[i]) || zx_chance(&c->rng, c->p_hole) || zx_idles(c, ZX_HOLES))
            continue;
        plan_param(c, &plans[i], i, i == bad || zx_idles(c, ZX_SKIPS));
        params[n++] = i;
    }
    return n;
}

/* Deliveries of all parameters in one order that keeps each parameter's own. */
static uint32_t merge(zx_case_t *c, zx_plan_t *plans, uint32_t *params, uint32_t n_params, zx_delivery_t *out) {
    int is_shuffled = zx_chance(&c->rng, 60);
    uint32_t n = 0;
    while (n_params > 0) {
        uint32_t pick = is_shuffled ? zx_below(&c->rng, n_params) : n_params - 1;
        zx_plan_t *plan = &plans[params[pick]];
        out[n++] = plan->list[plan->next++];
        if (plan->next == plan->n)
            params[pick] = params[--n_params];
    }
    return n;
}

/* The step comes while the host's rules are still at work on its last gradients. */
static void slow_rules(zx_case_t *c) {
    for (uint32_t i = 0; i < c->n_groups && zx_is_early(c); i++)
        c->rules[i].is_slow = 1;
}

/* On a stream the device may wait for another rank's step then, for memory of buckets that lack a gradient there
 * (abi/ranks.md). Whatever the number of ranks, so that the case is the same. */
static int may_pause(const zx_run_t *run) {
    return !run->c->ranks || (!run->host.queue && !run->host.is_on_gpu) || run->c->n_params <= MOST_ON_THEIR_WAY;
}

void zx_run_gradients(zx_run_t *run) {
    zx_case_t *c = run->c;
    zx_plan_t *plans = zx_alloc(ZX_MAX_PARAMS * sizeof *plans);
    zx_delivery_t *all = zx_alloc(MAX_DELIVERIES * sizeof *all);
    uint32_t params[ZX_MAX_PARAMS], n = merge(c, plans, params, plan_step(c, plans, params), all);
    uint32_t style = zx_below(&c->rng, 3), chunk;
    for (uint32_t i = 0; i < n; i += chunk) {
        chunk = style == 0 ? n - i : (style == 1 ? 1 : zx_between(&c->rng, 1, n - i));
        if (i + chunk == n)
            slow_rules(c);
        zx_host_deliver(&run->host, all + i, chunk);
        for (uint32_t j = i; j < i + chunk; j++) {
            zo_deliver(run->oracle, all[j].param, all[j].values, (all[j].flags & ZF_GRAD_PART) != 0,
                       (all[j].flags & ZF_GRAD_REPLACE) != 0);
            free(all[j].values);
        }
        if (zx_chance(&c->rng, 4) && may_pause(run))
            zx_run_between(run);
        if (c->is_carrying)
            zx_run_mid_step(run);
    }
    free(plans);
    free(all);
}
