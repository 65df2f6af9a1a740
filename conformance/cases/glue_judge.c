/* SPDX-License-Identifier: Apache-2.0 */
/* glue_judge.c - figures and verdicts of one plugin arm against AdamW, arm 0 (glue_judge.h). */
#include "glue_judge.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

static int judge_metric(const zg_campaign_t *c, const zg_result_t *results, size_t arm, double margin,
                        glue_verdict_t *out, glue_error_t *err) {
    size_t n = c->arms[arm].n_seeds;
    double *scores = calloc(2 * n, sizeof *scores);
    int st;

    if (scores == NULL)
        return glue_fail(err, "out of memory");
    for (size_t i = 0; i < n; i++) {
        scores[i] = zg_result_of(c, results, arm, i + 1)->metric;
        scores[n + i] = zg_result_of(c, results, ZG_ADAMW, i + 1)->metric;
    }
    st = glue_verdict(scores, scores + n, n, margin, out, err);
    free(scores);
    return st;
}

/* A loss that is not a number differs by infinity. */
static double relative_difference(double x, double y) {
    double d = fabs(x - y) / fmax(fabs(y), 1e-12);

    return isfinite(d) ? d : INFINITY;
}

static void judge_start(const zg_campaign_t *c, const zg_result_t *results, size_t arm, size_t n_start,
                        zg_start_t *out) {
    size_t n = n_start < ZG_START_STEPS ? n_start : ZG_START_STEPS;

    *out = (zg_start_t){.n_steps = n < c->n_steps ? n : c->n_steps, .n_equal_steps = c->n_steps};
    for (size_t seed = 1; seed <= c->arms[arm].n_seeds; seed++) {
        const double *x = zg_result_of(c, results, arm, seed)->losses;
        const double *y = zg_result_of(c, results, ZG_ADAMW, seed)->losses;

        for (size_t i = 0; i < c->n_steps; i++) {
            double d = relative_difference(x[i], y[i]);

            if (d > 0.0 && i < out->n_equal_steps)
                out->n_equal_steps = i;
            if (i < out->n_steps && d > out->largest_difference) {
                out->largest_difference = d;
                out->seed = seed;
                out->step = i + 1;
            }
        }
    }
    out->is_equal = out->n_equal_steps >= out->n_steps;
    out->conforms = out->largest_difference <= ZG_START_TOLERANCE;
}

static double value_nbytes(const zg_campaign_t *c) { return c->dtype[0] == 'b' ? 2.0 : 4.0; }

static void find_link(const zg_campaign_t *c, const zg_result_t *results, size_t arm, const zg_probe_t *probe,
                      zg_link_t *out) {
    double nbytes = value_nbytes(c) * zg_result_of(c, results, arm, 1)->n_params;
    double interval = zg_probe_number(probe, "zenflow.update_interval", NAN);
    double n_cohorts = interval;
    double closes = zg_mean_counter(c, results, arm, "window_closes") / (double)c->n_steps;

    *out = (zg_link_t){.down = zg_mean_counter(c, results, arm, "down_bytes_per_step"),
                       .publish = zg_mean_counter(c, results, arm, "up_publish_bytes_per_step"),
                       .enter = zg_mean_counter(c, results, arm, "up_enter_bytes_per_step"),
                       .down_formula = nbytes,
                       .publish_formula = nbytes / interval,
                       .warm_up = nbytes * (closes / n_cohorts - 1.0 / interval),
                       .interval = interval};
}

static void find_memory(const zg_campaign_t *c, const zg_result_t *results, size_t arm, const zg_probe_t *probe,
                        zg_memory_t *out) {
    double n_params = zg_result_of(c, results, arm, 1)->n_params, nbytes = value_nbytes(c);
    double s = zg_probe_number(probe, "zenflow.update_interval", NAN);
    size_t n = c->arms[arm].n_seeds, rss = offsetof(zg_result_t, peak_rss_nbytes);
    double beyond = zg_mean(c, results, arm, n, rss) - zg_mean(c, results, ZG_ADAMW, n, rss);

    *out = (zg_memory_t){.formula = 12.0 + nbytes * ((s + 1.0) / 2.0 + 1.0) + nbytes / s,
                         .planned = zg_mean_counter(c, results, arm, "host_planned_bytes_per_param"),
                         .mapped = zg_mean_counter(c, results, arm, "host_bytes_per_param"),
                         .device = zg_mean_counter(c, results, arm, "device_bytes_per_param")};
    out->outside = beyond / n_params + 12.0 - out->device;
}

int zg_has_learned(const zg_campaign_t *c, const zg_result_t *results, double *out_first_loss) {
    size_t n = c->n_steps < 10 ? c->n_steps : 10, n_seeds = c->arms[ZG_ADAMW].n_seeds;
    double sum = 0.0;

    for (size_t seed = 1; seed <= n_seeds; seed++)
        for (size_t i = 0; i < n; i++)
            sum += zg_result_of(c, results, ZG_ADAMW, seed)->losses[i];
    *out_first_loss = sum / (double)(n * n_seeds);
    return zg_mean(c, results, ZG_ADAMW, n_seeds, offsetof(zg_result_t, last_quarter)) <
           ZG_LEARNED_SHARE * *out_first_loss;
}

int zg_judge(const zg_campaign_t *c, const zg_result_t *results, size_t arm, double margin, size_t n_start,
             const zg_probe_t *probe, zg_judgement_t *out, glue_error_t *err) {
    size_t n = c->arms[arm].n_seeds, quarter = offsetof(zg_result_t, last_quarter);
    size_t seconds = offsetof(zg_result_t, seconds);

    *out = (zg_judgement_t){.last_quarter = zg_mean(c, results, arm, n, quarter),
                            .last_quarter_adamw = zg_mean(c, results, ZG_ADAMW, n, quarter),
                            .stall_us = zg_mean_counter(c, results, arm, "stall_us_per_step"),
                            .step_us = 1e6 * zg_mean(c, results, arm, n, seconds) / (double)c->n_steps,
                            .step_us_adamw = 1e6 * zg_mean(c, results, ZG_ADAMW, n, seconds) / (double)c->n_steps};
    out->last_quarter_ratio = out->last_quarter / out->last_quarter_adamw;
    judge_start(c, results, arm, n_start, &out->start);
    find_link(c, results, arm, probe, &out->link);
    find_memory(c, results, arm, probe, &out->memory);
    return judge_metric(c, results, arm, margin, &out->verdict, err);
}
