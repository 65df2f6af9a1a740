/* ablation_report.c - tables, JSON and plots of the area "ablation" (ablation.h). */
#define _POSIX_C_SOURCE 200809L
#include "ablation.h"

#include "glue_markers.h"
#include "glue_report.h"
#include "report/plot.h"
#include "report/text.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PANEL_WIDTH = 640, PANEL_HEIGHT = 300, GAP = 16, HEAD = 74, MAX_LINES = ZR_N_COLOURS, CELL = 64 };

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

static void put_rate(FILE *file, const view_t *v, size_t rate, size_t arm) {
    za_figures_t f = za_figures(v->a, v->results, rate, arm);

    (void)fprintf(file, "\n    {\"lr\": \"%s\", \"has_failed\": %s", v->a->rates[rate],
                  f.has_failed ? "true" : "false");
    if (!f.has_failed) {
        (void)fputs(", ", file);
        zg_put_number(file, "last_quarter_loss", f.quarter_loss, ", ");
        zg_put_number(file, "to_adamw", f.quarter.mean, ", ");
        zg_put_number(file, "to_adamw_low", f.quarter.low, ", ");
        zg_put_number(file, "to_adamw_high", f.quarter.high, ", ");
        zg_put_number(file, "all_steps_to_adamw", f.curve.mean, ", ");
        zg_put_number(file, "to_default", f.to_default.mean, ",\n     ");
        zg_put_number(file, "dev_metric", f.dev_metric, ", ");
        zg_put_number(file, "dev_to_adamw", f.to_dev, ", ");
        zg_put_number(file, "link_bytes_per_parameter_and_step", f.link, ", ");
        zg_put_number(file, "host_bytes_per_parameter", f.host, ", ");
        zg_put_number(file, "stall_us_per_step", f.stall_us, ",\n     ");
        zg_put_curve(file, &v->a->campaign, v->results, za_arm(v->a, rate, arm));
    }
    (void)fputs("}", file);
}

static void put_arm(FILE *file, const view_t *v, size_t arm) {
    const zg_arm_t *x = &v->a->arms[arm];

    (void)fprintf(file, "   {\"title\": \"%s\", \"set\": [", x->title);
    for (size_t i = 0; i < x->n_sets; i++) {
        (void)fputs(i > 0 ? ", " : "", file);
        zr_put_json(file, x->sets[i]);
    }
    (void)fputs("], \"rates\": [", file);
    for (size_t rate = 0; rate < v->a->n_rates; rate++) {
        (void)fputs(rate > 0 ? "," : "", file);
        put_rate(file, v, rate, arm);
    }
    (void)fprintf(file, "]}%s\n", arm + 1 < v->a->n_arms ? "," : "");
}

static void put_level(FILE *file, const view_t *v, size_t i) {
    const za_choice_t *choice = &v->a->choices[i];

    (void)fprintf(file, "   {\"factor\": \"%s\", \"level\": \"%s\", ", choice->level->factor, choice->level->title);
    if (choice->refusal[0] != '\0') {
        (void)fputs("\"not_run\": ", file);
        zr_put_json(file, choice->refusal);
    } else {
        (void)fprintf(file, "\"arm\": %zu, \"against_default\": ", choice->arm);
        zr_put_json(file, za_judge(v->a, v->results, choice->arm).text);
    }
    (void)fprintf(file, "}%s\n", i + 1 < v->a->n_choices ? "," : "");
}

static int has_failures(const view_t *v) {
    for (size_t arm = ZA_DEFAULT; arm < v->a->n_arms; arm++)
        if (za_judge(v->a, v->results, arm).has_failed)
            return 1;
    return 0;
}

static void put_json(FILE *file, const view_t *v) {
    (void)fprintf(file, "{\n  \"area\": \"ablation\",\n  \"exit_status\": %d,\n  \"is_quick\": %s,\n", has_failures(v),
                  v->a->options.is_quick ? "true" : "false");
    zg_put_source(file, &v->a->campaign, v->results, v->a->probes[ZA_DEFAULT].version);
    (void)fprintf(file, "  \"seeds\": %zu,\n  \"default\": ", v->a->n_seeds);
    zr_put_json(file, v->a->probes[ZA_DEFAULT].values);
    (void)fputs(",\n  \"levels\": [\n", file);
    for (size_t i = 0; i < v->a->n_choices; i++)
        put_level(file, v, i);
    (void)fputs("  ],\n  \"arms\": [\n", file);
    for (size_t arm = 0; arm < v->a->n_arms; arm++)
        put_arm(file, v, arm);
    (void)fputs("  ]\n}\n", file);
}

/* ---- plots ------------------------------------------------------------------------------------------------------- */

/* Smoothed loss relative to AdamW's in percent; NULL where there is none. Release with free. */
static double *relative_curve(const view_t *v, size_t rate, size_t arm) {
    const zg_campaign_t *c = &v->a->campaign;
    double *y = calloc(2 * c->n_steps, sizeof *y), *base = y != NULL ? y + c->n_steps : NULL;

    if (y == NULL || za_figures(v->a, v->results, rate, arm).has_failed ||
        zg_smooth_curve(c, v->results, za_arm(v->a, rate, arm), y) != 0 ||
        zg_smooth_curve(c, v->results, za_arm(v->a, rate, ZA_ADAMW), base) != 0) {
        free(y);
        return NULL;
    }
    for (size_t i = 0; i < c->n_steps; i++)
        y[i] = 100.0 * (y[i] / base[i] - 1.0);
    return y;
}

/* The panel of the factor that begins at choice i. Returns the next factor's first. */
static size_t put_panel(FILE *file, const view_t *v, size_t rate, size_t i, size_t place) {
    const char *factor = v->a->choices[i].level->factor;
    zr_line_t lines[MAX_LINES];
    double *curves[MAX_LINES];
    zr_plot_t plot = {.title = factor,
                      .x_label = "optimizer step",
                      .y_label = "loss relative to AdamW's, %",
                      .lines = lines,
                      .width = PANEL_WIDTH,
                      .height = PANEL_HEIGHT,
                      .x = (double)(place % 2) * (PANEL_WIDTH + GAP),
                      .y = HEAD + (double)(place / 2) * (PANEL_HEIGHT + GAP),
                      .y_most = 40.0,
                      .y_least = -40.0,
                      .has_zero = 1,
                      .has_legend = 1};

    for (; i < v->a->n_choices && strcmp(v->a->choices[i].level->factor, factor) == 0; i++) {
        const za_choice_t *choice = &v->a->choices[i];

        if (choice->refusal[0] != '\0' || plot.n_lines == MAX_LINES ||
            (curves[plot.n_lines] = relative_curve(v, rate, choice->arm)) == NULL)
            continue;
        lines[plot.n_lines] = (zr_line_t){.title = choice->level->title,
                                          .y = curves[plot.n_lines],
                                          .n = v->a->campaign.n_steps,
                                          .is_dashed = choice->arm != ZA_DEFAULT && plot.n_lines >= 4};
        plot.n_lines++;
    }
    zr_plot_lines(file, &plot);
    for (size_t k = 0; k < plot.n_lines; k++)
        free(curves[k]);
    return i;
}

static size_t count_factors(const za_ablation_t *a) {
    size_t n = 0;

    for (size_t i = 0; i < a->n_choices; i++)
        n += (size_t)is_first_of_factor(a, i);
    return n;
}

static void put_svg(FILE *file, const view_t *v, size_t rate) {
    const zg_campaign_t *c = &v->a->campaign;
    size_t n_rows = (count_factors(v->a) + 1) / 2, place = 0;
    char text[256];

    zr_svg_begin(file, 2 * PANEL_WIDTH + GAP, HEAD + (double)n_rows * (PANEL_HEIGHT + GAP));
    (void)snprintf(text, sizeof text, "Ablation: training loss relative to AdamW's, peak rate %s", v->a->rates[rate]);
    zr_put_text(file, 10, 28, "font-size=\"18\" font-weight=\"bold\"", text);
    (void)snprintf(text, sizeof text,
                   "%s, %s, %.0f parameters, %zu rows per step, mean over %zu seeds, smoothed; cut at 40 %%%s",
                   c->task->name, c->data_dir != NULL ? "official files" : "SYNTHETIC corpus",
                   zg_result_of(c, v->results, 0, 1)->n_params, c->batch, v->a->n_seeds,
                   v->a->options.is_quick ? "; QUICK: decides nothing" : "");
    zr_put_text(file, 10, 50, "class=\"quiet\"", text);
    for (size_t i = 0; i < v->a->n_choices;)
        i = put_panel(file, v, rate, i, place++);
    (void)fputs("</svg>\n", file);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static FILE *open_out(const view_t *v, const char *name, char path[ZG_MAX_PATH + 64], glue_error_t *err) {
    FILE *file;

    (void)snprintf(path, ZG_MAX_PATH + 64, "%s/%s", v->a->campaign.out_dir, name);
    file = fopen(path, "w");
    if (file == NULL)
        (void)glue_fail(err, "%s: cannot write: %s", path, strerror(errno));
    return file;
}

static int close_out(FILE *file, const char *path, glue_error_t *err) {
    int has_failed = ferror(file) != 0;

    if (fclose(file) != 0 || has_failed)
        return glue_fail(err, "%s: cannot write: %s", path, strerror(errno));
    (void)printf("%s\n", path);
    return 0;
}

static int write_files(const view_t *v, const char *markdown, glue_error_t *err) {
    char path[ZG_MAX_PATH + 64], name[64];
    FILE *file = open_out(v, "ablation.json", path, err);

    if (file == NULL)
        return -1;
    put_json(file, v);
    if (close_out(file, path, err) != 0 || (file = open_out(v, "ablation.md", path, err)) == NULL)
        return -1;
    (void)fputs(markdown, file);
    if (close_out(file, path, err) != 0)
        return -1;
    for (size_t rate = 0; rate < v->a->n_rates; rate++) {
        (void)snprintf(name, sizeof name, "ablation-%.16s.svg", v->a->rates[rate]);
        if ((file = open_out(v, name, path, err)) == NULL)
            return -1;
        put_svg(file, v, rate);
        if (close_out(file, path, err) != 0)
            return -1;
    }
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
