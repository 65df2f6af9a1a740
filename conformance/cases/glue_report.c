/* glue_report.c - the table, the JSON file and the plot of the area "glue" (glue_report.h). */
#define _POSIX_C_SOURCE 200809L
#include "glue_report.h"

#include "glue_file.h"
#include "report/plot.h"
#include "report/text.h"

#include <errno.h>
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

void zg_print_source(FILE *file, const zg_campaign_t *c, const zg_result_t *results, const char *plugin_version) {
    char encoder[80];

    (void)fprintf(file, "task %s, %s: %zu train rows (sha256 %.8s), %zu dev rows (%.8s)\n", c->task->name,
                  source_name(c), c->n_train, c->train_hash, c->n_dev, c->dev_hash);
    if (c->n_second_dev > 0)
        (void)fprintf(file, "second dev set %s: %zu rows (%.8s)\n", c->task->second_dev_file, c->n_second_dev,
                      c->second_dev_hash);
    if (c->n_skipped > 0)
        (void)fprintf(file, "SKIPPED %zu lines that lack columns\n", c->n_skipped);
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

static const char *verdict_word(int exit_status) {
    return exit_status == 0 ? "PASS" : exit_status == 1 ? "FAIL" : "INCONCLUSIVE";
}

void zg_print_glue(const zg_report_t *r) {
    zg_print_source(stdout, r->campaign, r->results, r->plugin_version);
    print_settings(r->campaign);
    print_seeds(r);
    print_arm(r, ZG_SYNCHRONOUS);
    print_arm(r, ZG_ZENFLOW);
    if (!r->has_learned)
        (void)printf("\nAdamW itself has not learned yet (training loss %.4f at the start, %.4f in the last quarter): "
                     "equal scores say\nnothing; longer runs are needed (--steps)\n",
                     r->first_loss, r->judgements[ZG_ZENFLOW].last_quarter_adamw);
    (void)printf("\n%s%s: the plugin %s\n", r->campaign->data_dir == NULL ? "on a SYNTHETIC corpus, " : "",
                 verdict_word(r->exit_status),
                 r->exit_status == 0   ? "trains as well as AdamW within the margin"
                 : r->exit_status == 1 ? "does not train as AdamW does"
                 : !r->has_learned     ? "cannot be judged by runs that learn nothing"
                                       : "needs more seeds to be judged");
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

void zg_put_number(FILE *file, const char *name, double value, const char *end) {
    if (isfinite(value))
        (void)fprintf(file, "\"%s\": %.9g%s", name, value, end);
    else
        (void)fprintf(file, "\"%s\": null%s", name, end);
}

void zg_put_source(FILE *file, const zg_campaign_t *c, const zg_result_t *results, const char *plugin_version) {
    (void)fprintf(file, "  \"task\": \"%s\",\n  \"metric\": \"%s\",\n  \"is_synthetic\": %s,\n", c->task->name,
                  glue_metric_name(c->task->metric), c->data_dir == NULL ? "true" : "false");
    (void)fprintf(file, "  \"rows\": {\"train\": %zu, \"dev\": %zu, \"second_dev\": %zu, \"skipped\": %zu},\n",
                  c->n_train, c->n_dev, c->n_second_dev, c->n_skipped);
    (void)fprintf(file, "  \"encoder_sha256\": \"%s\",\n  \"config_sha256\": \"%s\",\n", c->model_hash[1],
                  c->config_hash);
    (void)fprintf(file, "  \"sha256\": {\"train\": \"%s\", \"dev\": \"%s\", \"vocabulary\": \"%s\"},\n", c->train_hash,
                  c->dev_hash, c->vocab_hash);
    (void)fprintf(file, "  \"plugin\": \"%s\",\n  \"dtype\": \"%s\",\n  \"products\": \"%s\",\n", plugin_version,
                  c->dtype, c->products);
    (void)fprintf(file, "  \"parameters\": %.0f,\n  \"steps\": %zu,\n  \"batch\": %zu,\n  \"lr\": %s,\n",
                  zg_result_of(c, results, 0, 1)->n_params, c->n_steps, c->batch, c->lr);
}

static void put_list(FILE *file, const zg_report_t *r, size_t arm, size_t member, const char *name) {
    const zg_campaign_t *c = r->campaign;

    (void)fprintf(file, "\"%s\": [", name);
    for (size_t seed = 1; seed <= c->arms[arm].n_seeds; seed++) {
        const char *result = (const char *)zg_result_of(c, r->results, arm, seed);

        (void)fprintf(file, "%s%.9g", seed > 1 ? ", " : "", *(const double *)(const void *)(result + member));
    }
    (void)fputs("]", file);
}

static void put_judgement(FILE *file, const zg_judgement_t *j) {
    (void)fprintf(file, ",\n    \"verdict\": \"%s\", ", glue_verdict_name(j->verdict.kind));
    zg_put_number(file, "mean_difference", j->verdict.mean_difference, ", ");
    zg_put_number(file, "lower", j->verdict.lower, ", ");
    zg_put_number(file, "upper", j->verdict.upper, ", ");
    (void)fprintf(file, "\"seeds_needed\": %zu,\n    ", j->verdict.n_seeds_needed);
    (void)fprintf(file, "\"start\": {\"conforms\": %s, \"steps\": %zu, \"equal_steps\": %zu, ",
                  j->start.conforms ? "true" : "false", j->start.n_steps, j->start.n_equal_steps);
    zg_put_number(file, "largest_difference", j->start.largest_difference, "},\n    ");
    zg_put_number(file, "last_quarter_ratio", j->last_quarter_ratio, ",\n    \"link_bytes_per_step\": {");
    zg_put_number(file, "down", j->link.down, ", ");
    zg_put_number(file, "down_formula", j->link.down_formula, ", ");
    zg_put_number(file, "publish", j->link.publish, ", ");
    zg_put_number(file, "publish_formula", j->link.publish_formula, ", ");
    zg_put_number(file, "publish_warm_up", j->link.warm_up, ", ");
    zg_put_number(file, "enter", j->link.enter, "},\n    \"host_bytes_per_parameter\": {");
    zg_put_number(file, "formula", j->memory.formula, ", ");
    zg_put_number(file, "planned", j->memory.planned, ", ");
    zg_put_number(file, "mapped", j->memory.mapped, ", ");
    zg_put_number(file, "from_outside", j->memory.outside, "},\n    ");
    zg_put_number(file, "device_bytes_per_parameter", j->memory.device, ", ");
    zg_put_number(file, "stall_us_per_step", j->stall_us, ", ");
    zg_put_number(file, "step_us", j->step_us, "");
}

static void put_curve(FILE *file, const zg_report_t *r, size_t arm) {
    const zg_campaign_t *c = r->campaign;
    size_t n_seeds = c->arms[arm].n_seeds;

    (void)fputs(",\n    \"mean_losses\": [", file);
    for (size_t i = 0; i < c->n_steps; i++) {
        double sum = 0.0;

        for (size_t seed = 1; seed <= n_seeds; seed++)
            sum += zg_result_of(c, r->results, arm, seed)->losses[i];
        (void)fprintf(file, "%s%.6g", i == 0 ? "" : i % 20 == 0 ? ",\n      " : ", ", sum / (double)n_seeds);
    }
    (void)fputs("]", file);
}

static void put_arm(FILE *file, const zg_report_t *r, size_t arm) {
    const zg_arm_t *a = &r->campaign->arms[arm];

    (void)fprintf(file, "   {\"name\": \"%s\", \"title\": \"%s\", \"set\": [", a->name, a->title);
    for (size_t i = 0; i < a->n_sets; i++) {
        (void)fputs(i > 0 ? ", " : "", file);
        zr_put_json(file, a->sets[i]);
    }
    (void)fputs("],\n    ", file);
    put_list(file, r, arm, offsetof(zg_result_t, metric), "metric");
    if (isfinite(zg_result_of(r->campaign, r->results, arm, 1)->second)) {
        (void)fputs(",\n    ", file);
        put_list(file, r, arm, offsetof(zg_result_t, second), "second_metric");
    }
    (void)fputs(",\n    ", file);
    put_list(file, r, arm, offsetof(zg_result_t, last_quarter), "last_quarter_loss");
    (void)fputs(",\n    ", file);
    put_list(file, r, arm, offsetof(zg_result_t, dev_loss), "dev_loss");
    if (arm != ZG_ADAMW)
        put_judgement(file, &r->judgements[arm]);
    put_curve(file, r, arm);
    (void)fprintf(file, "}%s\n", arm + 1 < r->campaign->n_arms ? "," : "");
}

int zg_write_glue_json(const zg_report_t *r, const char *path, glue_error_t *err) {
    FILE *file = fopen(path, "w");
    int has_failed;

    if (file == NULL)
        return glue_fail(err, "%s: cannot write: %s", path, strerror(errno));
    (void)fputs("{\n  \"area\": \"glue\",\n", file);
    zg_put_source(file, r->campaign, r->results, r->plugin_version);
    (void)fprintf(file, "  \"verdict\": \"%s\",\n  \"exit_status\": %d,\n  ", verdict_word(r->exit_status),
                  r->exit_status);
    (void)fprintf(file, "\"adamw_has_learned\": %s,\n  ", r->has_learned ? "true" : "false");
    zg_put_number(file, "margin", r->margin, ",\n  \"arms\": [\n");
    for (size_t arm = 0; arm < r->campaign->n_arms; arm++)
        put_arm(file, r, arm);
    (void)fputs("  ]\n}\n", file);
    has_failed = ferror(file) != 0;
    if (fclose(file) != 0 || has_failed)
        return glue_fail(err, "%s: cannot write: %s", path, strerror(errno));
    return 0;
}

/* ---- the plot ---------------------------------------------------------------------------------------------------- */

static void mean_curve(const zg_campaign_t *c, const zg_result_t *results, size_t arm, double *out) {
    for (size_t i = 0; i < c->n_steps; i++) {
        out[i] = 0.0;
        for (size_t seed = 1; seed <= c->arms[arm].n_seeds; seed++)
            out[i] += zg_result_of(c, results, arm, seed)->losses[i] / (double)c->arms[arm].n_seeds;
    }
}

int zg_smooth_curve(const zg_campaign_t *c, const zg_result_t *results, size_t arm, double *out) {
    double *mean = calloc(c->n_steps, sizeof *mean);

    if (mean == NULL)
        return -1;
    mean_curve(c, results, arm, mean);
    zr_smooth(mean, c->n_steps, c->n_steps / 80, out);
    free(mean);
    return 0;
}

void zg_put_curve(FILE *file, const zg_campaign_t *c, const zg_result_t *results, size_t arm) {
    size_t every = c->n_steps / CURVE_POINTS > 0 ? c->n_steps / CURVE_POINTS : 1;
    double *curve = calloc(c->n_steps, sizeof *curve);

    (void)fprintf(file, "\"curve_every\": %zu, \"curve\": [", every);
    if (curve != NULL && zg_smooth_curve(c, results, arm, curve) == 0)
        for (size_t i = every - 1; i < c->n_steps; i += every)
            (void)fprintf(file, isfinite(curve[i]) ? "%s%.5g" : "%snull", i >= every ? "," : "", curve[i]);
    (void)fputs("]", file);
    free(curve);
}

int zg_write_plot(const zg_campaign_t *c, const zg_result_t *results, const int *is_dashed, const char *path,
                  glue_error_t *err) {
    size_t n = c->n_steps, half = n / 80;
    double *curves = calloc(n * c->n_arms, sizeof *curves);
    zr_line_t *lines = calloc(c->n_arms, sizeof *lines);
    char subtitle[200], y_label[120];
    zr_plot_t plot = {.title = "Training loss: host AdamW and the plugin",
                      .subtitle = subtitle,
                      .x_label = "optimizer step",
                      .y_label = y_label,
                      .lines = lines,
                      .n_lines = c->n_arms};
    int st = -1;

    (void)snprintf(subtitle, sizeof subtitle, "%s, %s, %.0f parameters, %zu rows per step, peak rate %s", c->task->name,
                   source_name(c), zg_result_of(c, results, 0, 1)->n_params, c->batch, c->lr);
    (void)snprintf(y_label, sizeof y_label, "%s (seed mean, %zu-step running mean)",
                   c->task->n_labels == 0 ? "squared error per row" : "cross entropy, nats per row", 2 * half + 1);
    if (curves == NULL || lines == NULL) {
        (void)glue_fail(err, "out of memory");
    } else {
        for (size_t arm = 0; arm < c->n_arms; arm++) {
            (void)zg_smooth_curve(c, results, arm, curves + arm * n);
            lines[arm] = (zr_line_t){.title = c->arms[arm].title,
                                     .y = curves + arm * n,
                                     .n = n,
                                     .is_dashed = is_dashed != NULL && is_dashed[arm]};
        }
        st = zr_plot_write(&plot, path, err);
    }
    free(lines);
    free(curves);
    return st;
}
