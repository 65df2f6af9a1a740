/* SPDX-License-Identifier: Apache-2.0 */
/* glue_report.c - the table and the JSON file of the area "glue" (glue_report.h). */
#define _POSIX_C_SOURCE 200809L
#include "glue_report.h"

#include "glue_file.h"
#include "json_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CURVE_POINTS = 200 };

static const char *source_name(const zg_campaign_t *c) {
    return c->data_dir == NULL ? "SYNTHETIC corpus (generated; says nothing about GLUE)" : "official files";
}

const char *zg_encoder_name(const zg_campaign_t *c, char *out, size_t nbytes) {
    if (c->model_dir == NULL)
        (void)snprintf(out, nbytes, "encoder from scratch");
    else
        (void)snprintf(out, nbytes, "pretrained encoder (sha256 %.8s)", c->model_hash[1]);
    return out;
}

const char *zg_device_name(const zg_campaign_t *c, const zg_result_t *results, char *text, size_t nbytes) {
    (void)zj_text(zg_result_of(c, results, 0, 1)->json, "report.device", text, nbytes);
    return text;
}

void zg_print_source(FILE *file, const zg_campaign_t *c, const zg_result_t *results, const char *plugin_version) {
    char encoder[80], device[160];

    (void)fprintf(file, "task %s, %s: %zu train rows (sha256 %.8s), %zu dev rows (%.8s)\n", c->task->name,
                  source_name(c), c->n_train, c->train_hash, c->n_dev, c->dev_hash);
    if (c->n_second_dev > 0)
        (void)fprintf(file, "second dev set %s: %zu rows (%.8s)\n", c->task->second_dev_file, c->n_second_dev,
                      c->second_dev_hash);
    if (c->n_skipped > 0)
        (void)fprintf(file, "SKIPPED %zu lines that lack columns\n", c->n_skipped);
    if (c->device != NULL)
        (void)fprintf(file, "trained on %s\n", zg_device_name(c, results, device, sizeof device));
    (void)fprintf(file,
                  "reference host: %s, %.0f parameters in %s, products in %s; %zu steps of %zu rows, peak rate %s, "
                  "AdamW\nplugin %s\n",
                  zg_encoder_name(c, encoder, sizeof encoder), zg_result_of(c, results, 0, 1)->n_params, c->dtype,
                  c->products, c->n_steps, c->batch, c->lr, plugin_version);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static void print_cell(const zg_campaign_t *c, const zg_result_t *results, size_t arm, size_t seed) {
    if (seed <= c->arms[arm].n_seeds)
        (void)printf("  %12.2f", zg_result_of(c, results, arm, seed)->metric);
    else
        (void)printf("  %12s", "-");
}

/* The score that GLUE reports beside the metric; it is not judged. */
static void print_second(const zg_report_t *r) {
    const zg_campaign_t *c = r->campaign;
    const glue_task_t *task = c->task;
    size_t second = offsetof(zg_result_t, second);

    if (task->second_dev_file == NULL && task->second_metric == GLUE_NO_METRIC)
        return;
    (void)printf("  mean of %s x 100:",
                 task->second_dev_file != NULL ? task->second_dev_file : glue_metric_name(task->second_metric));
    for (size_t arm = 0; arm < ZG_N_ARMS; arm++)
        (void)printf("%s %s %.2f", arm > 0 ? "," : "", c->arms[arm].title,
                     zg_mean(c, r->results, arm, c->arms[arm].n_seeds, second));
    (void)printf("\n");
}

static void print_seeds(const zg_report_t *r) {
    const zg_campaign_t *c = r->campaign;
    size_t n_both = c->arms[ZG_ZENFLOW].n_seeds, metric = offsetof(zg_result_t, metric);

    (void)printf("\n%s x 100 on the dev set\n  seed  %12s  %12s  %12s  %12s\n", glue_metric_name(c->task->metric),
                 c->arms[0].title, c->arms[1].title, c->arms[2].title, "ZenFlow-AdamW");
    for (size_t seed = 1; seed <= n_both; seed++) {
        (void)printf("  %4zu", seed);
        for (size_t arm = 0; arm < ZG_N_ARMS; arm++)
            print_cell(c, r->results, arm, seed);
        (void)printf("  %+12.2f\n", zg_result_of(c, r->results, ZG_ZENFLOW, seed)->metric -
                                        zg_result_of(c, r->results, ZG_ADAMW, seed)->metric);
    }
    (void)printf("  mean");
    for (size_t arm = 0; arm < ZG_N_ARMS; arm++)
        (void)printf("  %12.2f", zg_mean(c, r->results, arm, c->arms[arm].n_seeds, metric));
    (void)printf("  %+12.2f\n", r->judgements[ZG_ZENFLOW].verdict.mean_difference);
    print_second(r);
    if (c->arms[ZG_SYNCHRONOUS].n_seeds < n_both)
        (void)printf("  (the synchronous mode ran %zu seeds only; its differences below are over those)\n",
                     c->arms[ZG_SYNCHRONOUS].n_seeds);
}

static void print_start(const zg_start_t *s) {
    if (s->n_steps == 0) {
        (void)printf("  start         not checked: the plugin does not say how long its warm-up is\n");
        return;
    }
    (void)printf("  start         %s: loss of steps 1..%zu against AdamW's, ", s->conforms ? "PASS" : "FAIL",
                 s->n_steps);
    if (s->is_equal)
        (void)printf("equal in every digit (so up to step %zu)\n", s->n_equal_steps);
    else
        (void)printf("largest relative difference %.1e (seed %zu, step %zu; allowed %.0e)\n", s->largest_difference,
                     s->seed, s->step, ZG_START_TOLERANCE);
}

static void print_link(const zg_link_t *l, const zg_campaign_t *c) {
    double formula = l->down_formula + l->publish_formula, counted = l->down + l->publish;

    (void)printf("  link          %.0f bytes per step = %.3f x the formula's %.0f: %sM(1 + 1/S), S = %.0f\n", counted,
                 counted / formula, formula, c->dtype[0] == 'b' ? "2" : "fp32: 4", l->interval);
    (void)printf(
        "                down (gradients, records) %.0f, formula %.0f; up (published) %.0f, formula %.0f,\n"
        "                of which closes beyond one per window (warm-up, flush) %.0f; entering state beside it %.0f\n",
        l->down, l->down_formula, l->publish, l->publish_formula, l->warm_up, l->enter);
}

static void print_arm(const zg_report_t *r, size_t arm) {
    const zg_judgement_t *j = &r->judgements[arm];
    const zg_memory_t *m = &j->memory;
    char text[400];

    (void)glue_verdict_print(&j->verdict, text, sizeof text);
    (void)printf("\n%s against AdamW\n  metric        %s\n", r->campaign->arms[arm].title, text);
    print_start(&j->start);
    (void)printf("  last quarter  mean training loss %.4f, AdamW %.4f: %+.2f %%\n", j->last_quarter,
                 j->last_quarter_adamw, 100.0 * (j->last_quarter_ratio - 1.0));
    print_link(&j->link, r->campaign);
    (void)printf(
        "  stall         %.0f us per step, a step takes %.0f us (AdamW %.0f us; %zu runs share this machine)\n",
        j->stall_us, j->step_us, j->step_us_adamw, r->campaign->n_jobs);
    if (r->campaign->device != NULL) { /* what the driver maps into the process is not the plugin's */
        (void)printf(
            "  host memory   bytes per parameter: formula %.2f, planned %.2f, mapped %.2f; on the device %.2f\n",
            m->formula, m->planned, m->mapped, m->device);
        return;
    }
    (void)printf(
        "  host memory   bytes per parameter: formula %.2f, planned %.2f, mapped %.2f; from outside %.1f (peak "
        "RSS\n                beyond the AdamW run's, + that run's own 12, - the device's %.2f, which lie in "
        "host memory here)\n",
        m->formula, m->planned, m->mapped, m->outside, m->device);
}

/* Every line of the INI file that says something, and every --set: what the arm ZenFlow was told. */
static void print_settings(const zg_campaign_t *c) {
    const zg_arm_t *arm = &c->arms[ZG_ZENFLOW];
    char *text = c->config_path != NULL ? zg_read_whole(c->config_path) : NULL, *rest = text, *line;
    const char *between = " ";

    (void)printf("ZenFlow is set by");
    while (text != NULL && (line = strtok_r(rest, "\r\n", &rest)) != NULL)
        if (strchr(";#", *line) == NULL) {
            (void)printf("%s%s", between, line);
            between = ", ";
        }
    for (size_t i = 0; i < arm->n_sets; i++, between = ", ")
        (void)printf("%s%s", between, arm->sets[i]);
    (void)printf("%s\n", between[0] == ' ' ? " the plugin's defaults" : "");
    free(text);
}

static void print_ranks(const zg_report_t *r) {
    const zg_campaign_t *c = r->campaign;

    if (c->n_ranks != 0)
        (void)printf(
            "the plugin trained on %zu ranks of this machine, which share each batch, at [shard] stage %.0f; AdamW in "
            "one process\n(bytes, stall and memory below are rank 0's, their formulas one process's)\n",
            c->n_ranks, r->shard_stage);
}

static const char *verdict_word(int exit_status) {
    return exit_status == 0 ? "PASS" : exit_status == 1 ? "FAIL" : "INCONCLUSIVE";
}

void zg_print_glue(const zg_report_t *r) {
    char ranks[40] = "";

    zg_print_source(stdout, r->campaign, r->results, r->plugin_version);
    print_settings(r->campaign);
    print_ranks(r);
    print_seeds(r);
    print_arm(r, ZG_SYNCHRONOUS);
    print_arm(r, ZG_ZENFLOW);
    if (!r->has_learned)
        (void)printf("\nAdamW itself has not learned yet (training loss %.4f at the start, %.4f in the last quarter): "
                     "equal scores say\nnothing; longer runs are needed (--steps)\n",
                     r->first_loss, r->judgements[ZG_ZENFLOW].last_quarter_adamw);
    if (r->campaign->n_ranks != 0)
        (void)snprintf(ranks, sizeof ranks, " on %zu ranks", r->campaign->n_ranks);
    (void)printf("\n%s%s%s: the plugin %s\n", r->campaign->data_dir == NULL ? "on a SYNTHETIC corpus, " : "",
                 verdict_word(r->exit_status), ranks,
                 r->exit_status == 0   ? "trains as well as AdamW within the margin"
                 : r->exit_status == 1 ? "does not train as AdamW does"
                 : !r->has_learned     ? "cannot be judged by runs that learn nothing"
                                       : "needs more seeds to be judged");
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

json_t *zg_source_json(const char *area, int exit_status, const zg_campaign_t *c, const zg_result_t *results,
                       const char *plugin_version) {
    json_t *rows = json_pack("{s:I, s:I, s:I, s:I}", "train", (json_int_t)c->n_train, "dev", (json_int_t)c->n_dev,
                             "second_dev", (json_int_t)c->n_second_dev, "skipped", (json_int_t)c->n_skipped);
    json_t *hashes =
        json_pack("{s:s, s:s, s:s}", "train", c->train_hash, "dev", c->dev_hash, "vocabulary", c->vocab_hash);

    char device[160];
    json_t *out =
        json_pack("{s:s, s:i, s:s, s:s, s:b, s:o, s:s, s:s, s:o, s:o, s:s, s:s, s:I, s:I, s:I, s:f}", "area", area,
                  "exit_status", exit_status, "task", c->task->name, "metric", glue_metric_name(c->task->metric),
                  "is_synthetic", c->data_dir == NULL, "rows", rows, "encoder_sha256", c->model_hash[1],
                  "config_sha256", c->config_hash, "sha256", hashes, "plugin", zj_string(plugin_version), "dtype",
                  c->dtype, "products", c->products, "parameters", (json_int_t)zg_result_of(c, results, 0, 1)->n_params,
                  "steps", (json_int_t)c->n_steps, "batch", (json_int_t)c->batch, "lr", strtod(c->lr, NULL));

    if (out != NULL && c->device != NULL)
        (void)json_object_set_new(out, "device", json_string(zg_device_name(c, results, device, sizeof device)));
    return out;
}

/* One member of every seed's result. */
static json_t *seeds_json(const zg_report_t *r, size_t arm, size_t member) {
    const zg_campaign_t *c = r->campaign;
    json_t *list = json_array();

    for (size_t seed = 1; seed <= c->arms[arm].n_seeds; seed++) {
        const char *result = (const char *)zg_result_of(c, r->results, arm, seed);

        (void)json_array_append_new(list, zj_real(*(const double *)(const void *)(result + member)));
    }
    return list;
}

static json_t *link_json(const zg_link_t *l) {
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "down", zj_real(l->down), "down_formula",
                     zj_real(l->down_formula), "publish", zj_real(l->publish), "publish_formula",
                     zj_real(l->publish_formula), "publish_warm_up", zj_real(l->warm_up), "enter", zj_real(l->enter));
}

static json_t *memory_json(const zg_memory_t *m) {
    return json_pack("{s:o, s:o, s:o, s:o}", "formula", zj_real(m->formula), "planned", zj_real(m->planned), "mapped",
                     zj_real(m->mapped), "from_outside", zj_real(m->outside));
}

static json_t *judgement_json(const zg_judgement_t *j) {
    json_t *start = json_pack("{s:b, s:I, s:I, s:o}", "conforms", j->start.conforms, "steps",
                              (json_int_t)j->start.n_steps, "equal_steps", (json_int_t)j->start.n_equal_steps,
                              "largest_difference", zj_real(j->start.largest_difference));

    return json_pack(
        "{s:s, s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "verdict", glue_verdict_name(j->verdict.kind),
        "mean_difference", zj_real(j->verdict.mean_difference), "lower", zj_real(j->verdict.lower), "upper",
        zj_real(j->verdict.upper), "seeds_needed", (json_int_t)j->verdict.n_seeds_needed, "start", start,
        "last_quarter_ratio", zj_real(j->last_quarter_ratio), "link_bytes_per_step", link_json(&j->link),
        "host_bytes_per_parameter", memory_json(&j->memory), "device_bytes_per_parameter", zj_real(j->memory.device),
        "stall_us_per_step", zj_real(j->stall_us), "step_us", zj_real(j->step_us));
}

/* Mean training loss over the arm's seeds. out: [n_steps] */
static void mean_losses(const zg_campaign_t *c, const zg_result_t *results, size_t arm, double *out) {
    for (size_t i = 0; i < c->n_steps; i++) {
        out[i] = 0.0;
        for (size_t seed = 1; seed <= c->arms[arm].n_seeds; seed++)
            out[i] += zg_result_of(c, results, arm, seed)->losses[i] / (double)c->arms[arm].n_seeds;
    }
}

static json_t *losses_json(const zg_report_t *r, size_t arm) {
    size_t n = r->campaign->n_steps;
    double *losses = calloc(n, sizeof *losses);
    json_t *list = NULL;

    if (losses != NULL) {
        mean_losses(r->campaign, r->results, arm, losses);
        list = zj_reals(losses, n, 6);
    }
    free(losses);
    return list;
}

static json_t *arm_json(const zg_report_t *r, size_t arm) {
    const zg_arm_t *a = &r->campaign->arms[arm];
    json_t *out = json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "name", a->name, "title", a->title, "set",
                            zj_strings(a->sets, a->n_sets), "metric", seeds_json(r, arm, offsetof(zg_result_t, metric)),
                            "last_quarter_loss", seeds_json(r, arm, offsetof(zg_result_t, last_quarter)), "dev_loss",
                            seeds_json(r, arm, offsetof(zg_result_t, dev_loss)), "mean_losses", losses_json(r, arm));
    json_t *judgement = arm != ZG_ADAMW ? judgement_json(&r->judgements[arm]) : NULL;

    if (isfinite(zg_result_of(r->campaign, r->results, arm, 1)->second))
        (void)json_object_set_new(out, "second_metric", seeds_json(r, arm, offsetof(zg_result_t, second)));
    if (judgement != NULL)
        (void)json_object_update(out, judgement);
    json_decref(judgement);
    return out;
}

int zg_write_glue_json(const zg_report_t *r, const char *path, glue_error_t *err) {
    json_t *out = zg_source_json("glue", r->exit_status, r->campaign, r->results, r->plugin_version);
    json_t *arms = json_array();

    for (size_t arm = 0; arm < r->campaign->n_arms; arm++)
        (void)json_array_append_new(arms, arm_json(r, arm));
    (void)json_object_set_new(out, "verdict", json_string(verdict_word(r->exit_status)));
    (void)json_object_set_new(out, "adamw_has_learned", json_boolean(r->has_learned));
    (void)json_object_set_new(out, "margin", zj_real(r->margin));
    if (r->campaign->n_ranks != 0) {
        (void)json_object_set_new(out, "ranks", json_integer((json_int_t)r->campaign->n_ranks));
        (void)json_object_set_new(out, "shard_stage", zj_real(r->shard_stage));
    }
    (void)json_object_set_new(out, "arms", arms);
    return zj_write(out, path, err);
}

/* Centred running mean over 2 * half + 1 values, fewer at the ends. out: [n], not y */
static void smooth(const double *y, size_t n, size_t half, double *out) {
    for (size_t i = 0; i < n; i++) {
        size_t first = i > half ? i - half : 0, last = i + half < n ? i + half : n - 1;
        double sum = 0.0;

        for (size_t j = first; j <= last; j++)
            sum += y[j];
        out[i] = sum / (double)(last - first + 1);
    }
}

void zg_add_curve(json_t *object, const zg_campaign_t *c, const zg_result_t *results, size_t arm) {
    size_t every = c->n_steps / CURVE_POINTS > 0 ? c->n_steps / CURVE_POINTS : 1, n = 0;
    double *mean = calloc(2 * c->n_steps, sizeof *mean), *curve;

    if (mean == NULL)
        return;
    curve = mean + c->n_steps;
    mean_losses(c, results, arm, mean);
    smooth(mean, c->n_steps, c->n_steps / 80, curve);
    for (size_t i = every - 1; i < c->n_steps; i += every)
        mean[n++] = curve[i];
    (void)json_object_set_new(object, "curve_every", json_integer((json_int_t)every));
    (void)json_object_set_new(object, "curve", zj_reals(mean, n, 5));
    free(mean);
}
