/* SPDX-License-Identifier: Apache-2.0 */
/* ablation.h - the area "ablation" of zf-conform: what each idea is worth, so that the defaults follow from figures.
 *
 * Model: one factor at a time around the plugin's defaults, and the pairs that matter (what a longer window costs
 * depends on the lag, on prediction, on what is kept of it). Every level is trained from scratch like the arms of
 * "curves", at each peak rate, over the same seeds as AdamW; what a mode loses grows with delay times rate, so one rate
 * settles nothing. Levels whose effective configuration is the same share their runs; those that the plugin refuses are
 * listed with its message, never as run.
 *
 * Against the default, a level is "better" when its loss of the last quarter is lower for every seed at every rate and
 * by 0.5 % in the mean of each, "as good" when no rate's mean is more than 0.5 % higher. It "costs more" when link or
 * host bytes grow by over 2 %, the device waits over 1.5 times as long and 50 us more, or a closing step has to wait
 * for its replay (publish_lag = 0), whatever that took on this small model. A default is to be reconsidered where a
 * level of its factor is better at no more cost, or as good and cheaper. */
#ifndef ZF_CONFORMANCE_CASES_ABLATION_H
#define ZF_CONFORMANCE_CASES_ABLATION_H

#include "glue_options.h"
#include "glue_probe.h"

enum { ZA_MAX_LEVELS = 48, ZA_MAX_RATES = 2, ZA_MAX_OWN_SETS = 5 };

typedef struct za_level {
    const char *factor, *title;
    const char *sets[ZA_MAX_OWN_SETS]; /* a leading "?" = only where the plugin has the key */
} za_level_t;

/* A level as this plugin takes it. */
typedef struct za_choice {
    const za_level_t *level;
    char refusal[sizeof((glue_error_t *)0)->text]; /* "" = it runs */
    size_t arm;                                    /* among the arms of a rate; 0 is AdamW, 1 the default */
} za_choice_t;

typedef struct za_ablation {
    zg_options_t options;
    zg_campaign_t campaign;
    const char *rates[ZA_MAX_RATES];
    size_t n_rates, n_seeds;
    za_choice_t choices[ZA_MAX_LEVELS];
    size_t n_choices;
    zg_probe_t probes[ZA_MAX_LEVELS + 2]; /* [arm] */
    zg_arm_t arms[ZA_MAX_RATES * (ZA_MAX_LEVELS + 2)];
    size_t n_arms; /* of a rate */
    char host_path[ZG_MAX_PATH];
} za_ablation_t;

enum { ZA_ADAMW, ZA_DEFAULT };

size_t za_n_levels(void);
const za_level_t *za_level(size_t i);

/* The arm of a rate in the campaign. */
static inline size_t za_arm(const za_ablation_t *a, size_t rate, size_t arm) { return rate * a->n_arms + arm; }

/* ---- figures (ablation_judge.c) ---------------------------------------------------------------------------------- */

typedef struct za_spread {
    double mean, low, high; /* over the seeds */
} za_spread_t;

typedef struct za_figures {
    za_spread_t quarter;                     /* loss of the last quarter to AdamW's of the same seed; 1 = equal */
    za_spread_t curve;                       /* the same of the loss over all steps */
    za_spread_t to_default;                  /* loss of the last quarter to the default's of the same seed */
    double quarter_loss, dev_metric, to_dev; /* to_dev: dev metric - AdamW's, points */
    double link, host, stall_us;
    int has_failed; /* a run ended with a failure: no figure counts */
} za_figures_t;

za_figures_t za_figures(const za_ablation_t *a, const zg_result_t *results, size_t rate, size_t arm);

/* "better", "better, costs more: link +60 %", "as good and cheaper", "worse", ... against the default. */
typedef struct za_verdict {
    int is_default, is_better, is_as_good, costs_more, is_cheaper, has_failed;
    char text[200];
} za_verdict_t;

za_verdict_t za_judge(const za_ablation_t *a, const zg_result_t *results, size_t arm);

/* ---- output (ablation_report.c) ---------------------------------------------------------------------------------- */

/* Table and what follows for each factor, on standard output; JSON and Markdown into the campaign's folder
 * (ablation.json, ablation.md); the Markdown also between the markers "ablation" of the --readme. */
int za_report(const za_ablation_t *ablation, const zg_result_t *results, glue_error_t *err);

int za_ablation_main(int argc, char **argv);

#endif
