/* SPDX-License-Identifier: Apache-2.0 */
/* glue_curves.c - the area "curves": training loss of the plugin's modes beside AdamW's, from scratch.
 *
 * A short fine-tune hides a slow optimizer, so this looks at the loss itself: its mean over the last quarter of the
 * steps, over seeds, relative to AdamW's. Two modes have a bar (replay, published one step after the close): S = 4
 * within 5 %, S = 8 within 10 %. The others stand beside them to show what each idea is worth. */
#define _POSIX_C_SOURCE 200809L
#include "glue_area.h"

#include "glue_markers.h"
#include "glue_options.h"
#include "glue_report.h"
#include "json_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFORMS = 0, DOES_NOT = 1, COULD_NOT_RUN = 2, MAX_OWN_SETS = 3 };

typedef struct mode {
    const char *name, *title;
    const char *sets[MAX_OWN_SETS];
    double bar; /* last quarter relative to AdamW's; 0 = none */
} mode_t;

#define INTERVAL(s) "zenflow.update_interval=" s
#define LAG(l) "zenflow.publish_lag=" l
static const mode_t modes[] = {
    {.name = "adamw", .title = "AdamW"},
    {.name = "replay-4-lag1", .title = "replay, S = 4, lag 1", .sets = {INTERVAL("4"), LAG("1")}, .bar = 1.05},
    {.name = "replay-8-lag1", .title = "replay, S = 8, lag 1", .sets = {INTERVAL("8"), LAG("1")}, .bar = 1.10},
    {.name = "replay-16-lag1", .title = "replay, S = 16, lag 1", .sets = {INTERVAL("16"), LAG("1")}},
    {.name = "replay-4-lag0", .title = "replay, S = 4, lag 0", .sets = {INTERVAL("4"), LAG("0")}},
    {.name = "replay-8-lag0", .title = "replay, S = 8, lag 0", .sets = {INTERVAL("8"), LAG("0")}},
    {.name = "mean-4-lag1", .title = "mean, S = 4, lag 1", .sets = {INTERVAL("4"), LAG("1"), "zenflow.deferred=mean"}},
    {.name = "mean-8-lag1", .title = "mean, S = 8, lag 1", .sets = {INTERVAL("8"), LAG("1"), "zenflow.deferred=mean"}},
};

enum { N_MODES = sizeof modes / sizeof modes[0] };

typedef struct curves {
    zg_options_t options;
    zg_campaign_t campaign;
    zg_arm_t arms[N_MODES];
    zg_probe_t probe;
    char host_path[ZG_MAX_PATH];
} curves_t;

static int complain(const glue_error_t *err, int status) {
    (void)fprintf(stderr, "zf-conform curves: %s\n", err->text);
    return status;
}

static void make_arms(curves_t *v) {
    const zg_options_t *o = &v->options;

    for (size_t i = 0; i < N_MODES; i++) {
        zg_arm_t *arm = &v->arms[i];

        *arm = (zg_arm_t){.name = modes[i].name,
                          .title = modes[i].title,
                          .is_plugin = i > 0,
                          .n_seeds = o->n_seeds != 0 ? o->n_seeds
                                     : o->is_full    ? 12
                                                     : 5};
        memcpy(arm->sets, o->sets.list, o->sets.n * sizeof *arm->sets);
        arm->n_sets = o->sets.n;
        for (size_t j = 0; j < MAX_OWN_SETS && modes[i].sets[j] != NULL; j++)
            arm->sets[arm->n_sets++] = modes[i].sets[j];
    }
    v->campaign.arms = v->arms;
    v->campaign.n_arms = N_MODES;
}

static double mean_of(const curves_t *v, const zg_result_t *results, size_t arm, size_t member) {
    return zg_mean(&v->campaign, results, arm, v->arms[arm].n_seeds, member);
}

static double ratio_of(const curves_t *v, const zg_result_t *results, size_t arm) {
    size_t quarter = offsetof(zg_result_t, last_quarter);

    return mean_of(v, results, arm, quarter) / mean_of(v, results, 0, quarter);
}

/* Smallest and largest ratio of one seed. */
static void range_of(const curves_t *v, const zg_result_t *results, size_t arm, double *out_low, double *out_high) {
    *out_low = INFINITY;
    *out_high = -INFINITY;
    for (size_t seed = 1; seed <= v->arms[arm].n_seeds; seed++) {
        double ratio = zg_result_of(&v->campaign, results, arm, seed)->last_quarter /
                       zg_result_of(&v->campaign, results, 0, seed)->last_quarter;

        *out_low = fmin(*out_low, ratio);
        *out_high = fmax(*out_high, ratio);
    }
}

static const char *bar_text(const curves_t *v, const zg_result_t *results, size_t arm, char *out, size_t nbytes) {
    double bar = modes[arm].bar;

    if (bar > 0.0)
        (void)snprintf(out, nbytes, "+%.0f %%: %s", 100.0 * (bar - 1.0),
                       ratio_of(v, results, arm) <= bar ? "held" : "MISSED");
    else
        (void)snprintf(out, nbytes, "-");
    return out;
}

static void print_row(FILE *file, const curves_t *v, const zg_result_t *results, size_t arm, int is_markdown) {
    double low, high;
    char bar[32], beside[64] = "-", range[32] = "-";

    range_of(v, results, arm, &low, &high);
    if (arm > 0) {
        (void)snprintf(beside, sizeof beside, "%+.1f %%", 100.0 * (ratio_of(v, results, arm) - 1.0));
        (void)snprintf(range, sizeof range, "%+.1f .. %+.1f %%", 100.0 * (low - 1.0), 100.0 * (high - 1.0));
    }
    (void)fprintf(file,
                  is_markdown ? "| %s | %.4f | %s | %s | %s | %.2f |\n" : "  %-24s %8.4f  %9s  %18s  %-14s %8.2f\n",
                  v->arms[arm].title, mean_of(v, results, arm, offsetof(zg_result_t, last_quarter)), beside, range,
                  bar_text(v, results, arm, bar, sizeof bar), mean_of(v, results, arm, offsetof(zg_result_t, metric)));
}

static void print_table(const curves_t *v, const zg_result_t *results) {
    zg_print_source(stdout, &v->campaign, results, v->probe.version);
    (void)printf(
        "\nmean training loss of the last quarter of the steps, %zu seeds; dev %s x 100\n  %-24s %8s  %9s  %18s "
        " %-14s %8s\n",
        v->arms[0].n_seeds, glue_metric_name(v->campaign.task->metric), "", "loss", "to AdamW", "single seeds", "bar",
        "dev");
    for (size_t arm = 0; arm < N_MODES; arm++)
        print_row(stdout, v, results, arm, 0);
}

/* The same table as Markdown, between the markers "curves-<peak rate>" of a file. */
static int write_readme(const curves_t *v, const zg_result_t *results, glue_error_t *err) {
    const zg_campaign_t *c = &v->campaign;
    char *text = NULL, name[32], encoder[80];
    size_t nbytes = 0;
    FILE *file = open_memstream(&text, &nbytes);
    int st;

    if (file == NULL)
        return glue_fail(err, "out of memory");
    (void)fprintf(file,
                  "%s, %s (train sha256 `%.8s`, dev `%.8s`): %s, %.0f parameters in %s, products in %s, %zu steps of "
                  "%zu rows, peak\nrate %s, %zu seeds, plugin %s. Loss: mean training loss of the last quarter of the "
                  "steps.\n\n",
                  c->task->folder, c->data_dir != NULL ? "official files" : "layout, SYNTHETIC corpus", c->train_hash,
                  c->dev_hash, zg_encoder_name(c, encoder, sizeof encoder), zg_result_of(c, results, 0, 1)->n_params,
                  c->dtype, c->products, c->n_steps, c->batch, c->lr, v->arms[0].n_seeds, v->probe.version);
    (void)fprintf(file, "| optimizer | loss | to AdamW | single seeds | bar | dev %s |\n|---|---|---|---|---|---|\n",
                  glue_metric_name(c->task->metric));
    for (size_t arm = 0; arm < N_MODES; arm++)
        print_row(file, v, results, arm, 1);
    if (fclose(file) != 0)
        return glue_fail(err, "out of memory");
    (void)snprintf(name, sizeof name, "curves-%.16s", c->lr);
    st = zg_markers_replace(v->options.readme, name, text, err);
    free(text);
    return st;
}

static int find_status(const curves_t *v, const zg_result_t *results) {
    for (size_t arm = 1; arm < N_MODES; arm++)
        if (modes[arm].bar > 0.0 && !(ratio_of(v, results, arm) <= modes[arm].bar))
            return DOES_NOT;
    return CONFORMS;
}

static json_t *arm_json(const curves_t *v, const zg_result_t *results, size_t arm) {
    json_t *out = json_pack(
        "{s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "name", v->arms[arm].name, "title", v->arms[arm].title,
        "last_quarter_loss", zj_real(mean_of(v, results, arm, offsetof(zg_result_t, last_quarter))), "to_adamw",
        zj_real(ratio_of(v, results, arm)), "bar", zj_real(modes[arm].bar > 0.0 ? modes[arm].bar : NAN), "dev_metric",
        zj_real(mean_of(v, results, arm, offsetof(zg_result_t, metric))), "dev_loss",
        zj_real(mean_of(v, results, arm, offsetof(zg_result_t, dev_loss))));

    zg_add_curve(out, &v->campaign, results, arm);
    return out;
}

static int write_json(const curves_t *v, const zg_result_t *results, const char *path, glue_error_t *err) {
    json_t *out = zg_source_json("curves", find_status(v, results), &v->campaign, results, v->probe.version);
    json_t *arms = json_array();

    for (size_t arm = 0; arm < N_MODES; arm++)
        (void)json_array_append_new(arms, arm_json(v, results, arm));
    (void)json_object_set_new(out, "seeds", json_integer((json_int_t)v->arms[0].n_seeds));
    (void)json_object_set_new(out, "arms", arms);
    return zj_write(out, path, err);
}

static int write_all(const curves_t *v, const zg_result_t *results, glue_error_t *err) {
    char json_path[ZG_MAX_PATH + 64];

    (void)snprintf(json_path, sizeof json_path, "%s/curves-%.16s.json", v->campaign.out_dir, v->campaign.lr);
    if (write_json(v, results, json_path, err) != 0)
        return -1;
    (void)printf("%s\n", json_path);
    return v->options.readme != NULL ? write_readme(v, results, err) : 0;
}

static int judge(const curves_t *v, const zg_result_t *results) {
    int status = find_status(v, results);

    (void)printf("%s: %s\n", status == CONFORMS ? "PASS" : "FAIL",
                 status == CONFORMS ? "every bar is held" : "a bar is missed");
    return status;
}

static int prepare(curves_t *v, glue_error_t *err) {
    if (zg_options_campaign(&v->options, v->host_path, &v->campaign, err) != 0)
        return -1;
    make_arms(v);
    if (zg_probe(v->options.plugin, v->options.config, v->options.sets.list, v->options.sets.n, &v->probe, err) != 0)
        return -1;
    return zg_campaign_prepare(&v->campaign, err);
}

int zg_curves_main(int argc, char **argv) {
    static curves_t v;
    glue_error_t err = {""};
    zg_result_t *results = NULL;
    int status;

    if (zg_options_parse(argc, argv, &v.options, &err) != 0)
        return complain(&err, COULD_NOT_RUN);
    if (v.options.wants_help)
        return zg_options_help(argv[0], "zf-conform curves - training loss of the plugin's modes beside AdamW's");
    if (prepare(&v, &err) != 0)
        return complain(&err, COULD_NOT_RUN);
    status = zg_exit_status(zg_campaign_run(&v.campaign, &results, &err));
    if (status != CONFORMS)
        return complain(&err, status);
    print_table(&v, results);
    status = judge(&v, results);
    if (write_all(&v, results, &err) != 0)
        status = complain(&err, COULD_NOT_RUN);
    zg_results_free(&v.campaign, results);
    return status;
}
