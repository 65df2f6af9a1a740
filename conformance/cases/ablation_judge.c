/* SPDX-License-Identifier: Apache-2.0 */
/* ablation_judge.c - figures of an arm over its seeds, and what they say against the default (ablation.h). Pure. */
#include "ablation.h"

#include "json_file.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define MARGIN 0.005         /* of a loss: below this two levels are alike */
#define BYTES_TOLERANCE 1.02 /* of bytes: above this a level costs more */
#define STALL_TOLERANCE 1.5  /* of the stall, together with ... */
#define LAG "zenflow.publish_lag"
#define STALL_ALLOWANCE_US 50 /* ... this: times on a shared machine say little */

static const zg_result_t *run_of(const za_ablation_t *a, const zg_result_t *results, size_t rate, size_t arm,
                                 size_t seed) {
    return zg_result_of(&a->campaign, results, za_arm(a, rate, arm), seed);
}

static double mean_loss(const za_ablation_t *a, const zg_result_t *r) {
    double sum = 0.0;

    for (size_t i = 0; i < a->campaign.n_steps; i++)
        sum += r->losses[i];
    return sum / (double)a->campaign.n_steps;
}

static void add(za_spread_t *s, double ratio, size_t n) {
    s->mean += ratio / (double)n;
    s->low = fmin(s->low, ratio);
    s->high = fmax(s->high, ratio);
}

static int has_failed(const za_ablation_t *a, const zg_result_t *results, size_t rate, size_t arm) {
    for (size_t seed = 1; seed <= a->n_seeds; seed++)
        if (run_of(a, results, rate, arm, seed)->losses == NULL)
            return 1;
    return 0;
}

/* Of the seeds: whatever else runs on the machine only adds to it. */
static double least_stall(const za_ablation_t *a, const zg_result_t *results, size_t rate, size_t arm) {
    double least = NAN;

    for (size_t seed = 1; seed <= a->n_seeds; seed++)
        least =
            fmin(least, zj_number(run_of(a, results, rate, arm, seed)->json, "report.counters.stall_us_per_step", NAN));
    return least;
}

za_figures_t za_figures(const za_ablation_t *a, const zg_result_t *results, size_t rate, size_t arm) {
    const za_spread_t none = {0.0, INFINITY, -INFINITY};
    const zg_campaign_t *c = &a->campaign;
    size_t n = a->n_seeds, at = za_arm(a, rate, arm);
    za_figures_t f = {.quarter = none, .curve = none, .to_default = none};

    f.has_failed = has_failed(a, results, rate, arm) || has_failed(a, results, rate, ZA_DEFAULT) ||
                   has_failed(a, results, rate, ZA_ADAMW);
    for (size_t seed = 1; seed <= n && !f.has_failed; seed++) {
        const zg_result_t *r = run_of(a, results, rate, arm, seed), *adamw = run_of(a, results, rate, ZA_ADAMW, seed);

        add(&f.quarter, r->last_quarter / adamw->last_quarter, n);
        add(&f.curve, mean_loss(a, r) / mean_loss(a, adamw), n);
        add(&f.to_default, r->last_quarter / run_of(a, results, rate, ZA_DEFAULT, seed)->last_quarter, n);
        f.to_dev += (r->metric - adamw->metric) / (double)n;
    }
    f.quarter_loss = zg_mean(c, results, at, n, offsetof(zg_result_t, last_quarter));
    f.dev_metric = zg_mean(c, results, at, n, offsetof(zg_result_t, metric));
    f.link = zg_mean_counter(c, results, at, "link_bytes_per_step_per_param");
    f.host = zg_mean_counter(c, results, at, "host_bytes_per_param");
    f.stall_us = least_stall(a, results, rate, arm);
    return f;
}

/* Adds ", link +12 %" where the ratio says more or less than `tolerance` allows. */
static void add_cost(za_verdict_t *v, const char *name, double ratio) {
    size_t used = strlen(v->text);

    if (!(ratio > BYTES_TOLERANCE) && !(ratio < 1.0 / BYTES_TOLERANCE))
        return;
    v->costs_more |= ratio > BYTES_TOLERANCE;
    v->is_cheaper |= ratio < 1.0 / BYTES_TOLERANCE;
    (void)snprintf(v->text + used, sizeof v->text - used, ", %s %+.0f %%", name, 100.0 * (ratio - 1.0));
}

static void find_costs(za_verdict_t *v, const za_figures_t *f, const za_figures_t *base, const zg_probe_t *probe,
                       const zg_probe_t *base_probe) {
    size_t used;

    add_cost(v, "link", f->link / base->link);
    add_cost(v, "host memory", f->host / base->host);
    used = strlen(v->text);
    if (f->stall_us > STALL_TOLERANCE * base->stall_us && f->stall_us > base->stall_us + STALL_ALLOWANCE_US) {
        v->costs_more = 1;
        (void)snprintf(v->text + used, sizeof v->text - used, ", stall %.0f us (default %.0f)", f->stall_us,
                       base->stall_us);
    }
    used = strlen(v->text);
    if (zg_probe_number(probe, LAG, 1.0) < zg_probe_number(base_probe, LAG, 1.0)) {
        v->costs_more = 1;
        (void)snprintf(v->text + used, sizeof v->text - used, ", the closing step waits for its replay");
    }
    v->is_cheaper = v->is_cheaper && !v->costs_more;
}

za_verdict_t za_judge(const za_ablation_t *a, const zg_result_t *results, size_t arm) {
    za_verdict_t v = {.is_default = arm == ZA_DEFAULT, .is_better = 1, .is_as_good = 1};
    za_figures_t first = za_figures(a, results, 0, arm), base = za_figures(a, results, 0, ZA_DEFAULT);

    for (size_t rate = 0; rate < a->n_rates; rate++) {
        za_figures_t f = za_figures(a, results, rate, arm);

        v.has_failed |= f.has_failed;
        v.is_better &= f.to_default.high < 1.0 && f.to_default.mean <= 1.0 - MARGIN;
        v.is_as_good &= f.to_default.mean <= 1.0 + MARGIN;
    }
    if (v.is_default || v.has_failed) {
        v.is_better = 0;
        (void)snprintf(v.text, sizeof v.text, "%s", v.has_failed ? "a run FAILED" : "the default");
        return v;
    }
    (void)snprintf(v.text, sizeof v.text, "%s", v.is_better ? "better" : v.is_as_good ? "as good" : "worse");
    find_costs(&v, &first, &base, &a->probes[arm], &a->probes[ZA_DEFAULT]);
    return v;
}
