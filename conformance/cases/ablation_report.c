/* SPDX-License-Identifier: Apache-2.0 */
/* ablation_report.c - tables and JSON of the area "ablation" (ablation.h). */
#define _POSIX_C_SOURCE 200809L
#include "ablation.h"

#include "glue_markers.h"
#include "glue_report.h"
#include "json_file.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CELL = 64 };

typedef struct view {
    const za_ablation_t *a;
    const zg_result_t *results;
} view_t;

/* ---- the table --------------------------------------------------------------------------------------------------- */

static const char *percent(double ratio, char out[CELL]) {
    if (isfinite(ratio))
        (void)snprintf(out, CELL, "%+.1f %%", 100.0 * (ratio - 1.0));
    else
        (void)snprintf(out, CELL, "-");
    return out;
}

static const char *spread(const za_spread_t *s, char out[CELL]) {
    if (!isfinite(s->mean))
        return percent(s->mean, out);
    (void)snprintf(out, CELL, "%+.1f %% (%+.1f .. %+.1f)", 100.0 * (s->mean - 1.0), 100.0 * (s->low - 1.0),
                   100.0 * (s->high - 1.0));
    return out;
}

static int is_first_of_factor(const za_ablation_t *a, size_t i) {
    return i == 0 || strcmp(a->choices[i].level->factor, a->choices[i - 1].level->factor) != 0;
}

static void put_head(FILE *file, const za_ablation_t *a) {
    (void)fputs("| factor | level |", file);
    for (size_t rate = 0; rate < a->n_rates; rate++)
        (void)fprintf(file, " last quarter, %s | all steps, %s |", a->rates[rate], a->rates[rate]);
    (void)fprintf(file, " dev %s | link | host | stall | against the default |\n|---|---|",
                  glue_metric_name(a->campaign.task->metric));
    for (size_t i = 0; i < 2 * a->n_rates + 5; i++)
        (void)fputs("---|", file);
    (void)fputc('\n', file);
}

static void put_figures(FILE *file, const view_t *v, size_t arm) {
    za_figures_t first = za_figures(v->a, v->results, 0, arm);
    char text[CELL], more[CELL];

    for (size_t rate = 0; rate < v->a->n_rates; rate++) {
        za_figures_t f = za_figures(v->a, v->results, rate, arm);

        if (f.has_failed)
            (void)fputs(" - | - |", file);
        else
            (void)fprintf(file, " %s | %s |", spread(&f.quarter, text), percent(f.curve.mean, more));
    }
    if (first.has_failed)
        (void)fputs(" - | - | - | - |", file);
    else
        (void)fprintf(file, " %+.2f | %.2f | %.2f | %.0f |", first.to_dev, first.link, first.host, first.stall_us);
}

static void put_row(FILE *file, const view_t *v, size_t i) {
    const za_choice_t *choice = &v->a->choices[i];

    (void)fprintf(file, "| %s | %s |", is_first_of_factor(v->a, i) ? choice->level->factor : "", choice->level->title);
    if (choice->refusal[0] == '\0') {
        put_figures(file, v, choice->arm);
        (void)fprintf(file, " %s |\n", za_judge(v->a, v->results, choice->arm).text);
        return;
    }
    for (size_t k = 0; k < 2 * v->a->n_rates + 4; k++)
        (void)fputs(" - |", file);
    (void)fprintf(file, " not run: %s |\n",
                  strstr(choice->refusal, "not in this version") != NULL ? "not in this version" : "refused");
}

/* What the levels of the factor that begins at choice i say about its default. Returns the next factor's first. */
static size_t put_conclusion(FILE *file, const view_t *v, size_t i) {
    const za_ablation_t *a = v->a;
    const char *factor = a->choices[i].level->factor, *separator = "";
    size_t n_refused = 0, n_proposals = 0;

    (void)fprintf(file, "- `%s`: ", factor);
    for (; i < a->n_choices && strcmp(a->choices[i].level->factor, factor) == 0; i++) {
        const za_choice_t *choice = &a->choices[i];
        za_verdict_t verdict;

        if (choice->refusal[0] != '\0') {
            n_refused++;
            continue;
        }
        verdict = za_judge(a, v->results, choice->arm);
        if (verdict.is_default || verdict.has_failed || !verdict.is_as_good ||
            (!verdict.is_better && !verdict.is_cheaper))
            continue;
        (void)fprintf(file, "%s%s is %s%s", separator, choice->level->title, verdict.text,
                      verdict.costs_more ? "" : " (RECONSIDER)");
        separator = "; ";
        n_proposals++;
    }
    if (n_proposals == 0)
        (void)fputs("the default stands: no level is better, or as good and cheaper", file);
    if (n_refused > 0)
        (void)fprintf(file, "; %zu levels not run", n_refused);
    (void)fputc('\n', file);
    return i;
}

static void put_markdown(FILE *file, const view_t *v) {
    const za_ablation_t *a = v->a;
    const zg_campaign_t *c = &a->campaign;
    char encoder[80];

    (void)fprintf(
        file,
        "%s, %s (train sha256 `%.8s`, dev `%.8s`): %s, %.0f parameters in %s, products in %s, %zu steps of %zu "
        "rows, %zu seeds, plugin %s%s.\n",
        c->task->folder, c->data_dir != NULL ? "official files" : "layout, SYNTHETIC corpus", c->train_hash,
        c->dev_hash, zg_encoder_name(c, encoder, sizeof encoder), zg_result_of(c, v->results, 0, 1)->n_params, c->dtype,
        c->products, c->n_steps, c->batch, a->n_seeds, a->probes[ZA_DEFAULT].version,
        a->options.is_quick ? "; QUICK: too short to decide anything" : "");
    (void)fputs(
        "Losses are training losses relative to AdamW's of the same seeds: mean (smallest .. largest of a seed); dev "
        "in points against AdamW's,\nlink in bytes per parameter and step, host in bytes per parameter, stall in "
        "us per step (the least of the seeds), these at the first rate.\n\n",
        file);
    put_head(file, a);
    for (size_t i = 0; i < a->n_choices; i++)
        put_row(file, v, i);
    (void)fputs("\nWhat follows for the defaults:\n\n", file);
    for (size_t i = 0; i < a->n_choices;)
        i = put_conclusion(file, v, i);
}

/* The Markdown as a zero-terminated text; NULL when memory runs out. Release with free. */
static char *make_markdown(const view_t *v) {
    char *text = NULL;
    size_t nbytes = 0;
    FILE *file = open_memstream(&text, &nbytes);

    if (file == NULL)
        return NULL;
    put_markdown(file, v);
    if (fclose(file) == 0)
        return text;
    free(text);
    return NULL;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *rate_json(const view_t *v, size_t rate, size_t arm) {
    za_figures_t f = za_figures(v->a, v->results, rate, arm);
    json_t *out = json_pack("{s:s, s:b}", "lr", v->a->rates[rate], "has_failed", f.has_failed), *figures;

    if (f.has_failed)
        return out;
    figures = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "last_quarter_loss", zj_real(f.quarter_loss),
        "to_adamw", zj_real(f.quarter.mean), "to_adamw_low", zj_real(f.quarter.low), "to_adamw_high",
        zj_real(f.quarter.high), "all_steps_to_adamw", zj_real(f.curve.mean), "to_default", zj_real(f.to_default.mean),
        "dev_metric", zj_real(f.dev_metric), "dev_to_adamw", zj_real(f.to_dev), "link_bytes_per_parameter_and_step",
        zj_real(f.link), "host_bytes_per_parameter", zj_real(f.host), "stall_us_per_step", zj_real(f.stall_us));
    (void)json_object_update(out, figures);
    json_decref(figures);
    zg_add_curve(out, &v->a->campaign, v->results, za_arm(v->a, rate, arm));
    return out;
}

static json_t *arm_json(const view_t *v, size_t arm) {
    const zg_arm_t *x = &v->a->arms[arm];
    json_t *rates = json_array();

    for (size_t rate = 0; rate < v->a->n_rates; rate++)
        (void)json_array_append_new(rates, rate_json(v, rate, arm));
    return json_pack("{s:s, s:o, s:o}", "title", x->title, "set", zj_strings(x->sets, x->n_sets), "rates", rates);
}

static json_t *level_json(const view_t *v, size_t i) {
    const za_choice_t *choice = &v->a->choices[i];
    json_t *out = json_pack("{s:s, s:s}", "factor", choice->level->factor, "level", choice->level->title);

    if (choice->refusal[0] != '\0') {
        (void)json_object_set_new(out, "not_run", zj_string(choice->refusal));
    } else {
        (void)json_object_set_new(out, "arm", json_integer((json_int_t)choice->arm));
        (void)json_object_set_new(out, "against_default", zj_string(za_judge(v->a, v->results, choice->arm).text));
    }
    return out;
}

static int has_failures(const view_t *v) {
    for (size_t arm = ZA_DEFAULT; arm < v->a->n_arms; arm++)
        if (za_judge(v->a, v->results, arm).has_failed)
            return 1;
    return 0;
}

static json_t *ablation_json(const view_t *v) {
    const za_ablation_t *a = v->a;
    json_t *out = zg_source_json("ablation", has_failures(v), &a->campaign, v->results, a->probes[ZA_DEFAULT].version);
    json_t *levels = json_array(), *arms = json_array();

    for (size_t i = 0; i < a->n_choices; i++)
        (void)json_array_append_new(levels, level_json(v, i));
    for (size_t arm = 0; arm < a->n_arms; arm++)
        (void)json_array_append_new(arms, arm_json(v, arm));
    (void)json_object_set_new(out, "is_quick", json_boolean(a->options.is_quick));
    (void)json_object_set_new(out, "seeds", json_integer((json_int_t)a->n_seeds));
    (void)json_object_set_new(out, "default", zj_string(a->probes[ZA_DEFAULT].values));
    (void)json_object_set_new(out, "levels", levels);
    (void)json_object_set_new(out, "arms", arms);
    return out;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static int write_markdown(const char *markdown, const char *path, glue_error_t *err) {
    FILE *file = fopen(path, "w");
    int has_failed = file == NULL || fputs(markdown, file) < 0;

    if ((file != NULL && fclose(file) != 0) || has_failed)
        return glue_fail(err, "%s: cannot write: %s", path, strerror(errno));
    return 0;
}

static int write_files(const view_t *v, const char *markdown, glue_error_t *err) {
    char json_path[ZG_MAX_PATH + 64], text_path[ZG_MAX_PATH + 64];

    (void)snprintf(json_path, sizeof json_path, "%s/ablation.json", v->a->campaign.out_dir);
    (void)snprintf(text_path, sizeof text_path, "%s/ablation.md", v->a->campaign.out_dir);
    if (zj_write(ablation_json(v), json_path, err) != 0 || write_markdown(markdown, text_path, err) != 0)
        return -1;
    (void)printf("%s\n%s\n", json_path, text_path);
    return 0;
}

int za_report(const za_ablation_t *a, const zg_result_t *results, glue_error_t *err) {
    const view_t v = {a, results};
    char *markdown = make_markdown(&v);
    int st;

    if (markdown == NULL)
        return glue_fail(err, "out of memory");
    (void)puts(markdown);
    st = write_files(&v, markdown, err);
    if (st == 0 && a->options.readme != NULL)
        st = zg_markers_replace(a->options.readme, "ablation", markdown, err);
    free(markdown);
    return st;
}
