/* accuracy.c - the page's sections of glue and curves: scores per seed with intervals, loss curves, bytes, stall. */
#include "page.h"

#include "glue/verdict.h"
#include "glue_json.h"
#include "plot.h"
#include "text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ARMS = ZR_N_COLOURS, MAX_SEEDS = 256, MAX_STEPS = 1 << 20, NAME = 96 };

typedef struct arm {
    const json_t *json;
    char name[NAME];
    double scores[MAX_SEEDS];
    size_t n_seeds;
    double *losses; /* [n_steps] mean over the seeds, smoothed; NULL: none */
    size_t n_steps;
    double every; /* steps between two losses */
} arm_t;

typedef struct arms {
    arm_t list[MAX_ARMS];
    size_t n;
} arms_t;

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static void read_losses(arm_t *a, const char *path, double every) {
    size_t n = zg_json_numbers(a->json, path, NULL, 0);
    double *raw = n > 0 && n <= MAX_STEPS ? calloc(n, sizeof *raw) : NULL;

    a->losses = raw != NULL ? calloc(n, sizeof *raw) : NULL;
    if (a->losses != NULL) {
        a->n_steps = zg_json_numbers(a->json, path, raw, n);
        a->every = every;
        if (every > 1.0) /* smoothed before it was thinned */
            memcpy(a->losses, raw, n * sizeof *raw);
        else
            zr_smooth(raw, n, n / 80, a->losses);
    }
    free(raw);
}

/* Release with free_arms. */
static arms_t *read_arms(const json_t *json) {
    arms_t *arms = calloc(1, sizeof *arms);
    const json_t *item;
    size_t i;

    json_array_foreach(zg_json_find(json, "arms"), i, item) {
        arm_t *a;
        size_t n;

        if (arms == NULL || i == MAX_ARMS)
            break;
        a = &arms->list[arms->n++];

        a->json = item;
        if (!zg_json_text(item, "title", a->name, sizeof a->name))
            (void)zg_json_text(item, "name", a->name, sizeof a->name);
        n = zg_json_numbers(item, "metric", a->scores, MAX_SEEDS);
        a->n_seeds = n < MAX_SEEDS ? n : MAX_SEEDS;
        read_losses(a, "mean_losses", 1.0);
        if (a->losses == NULL)
            read_losses(a, "curve", zg_json_number(item, "curve_every", 1.0));
    }
    return arms;
}

static void free_arms(arms_t *arms) {
    for (size_t i = 0; arms != NULL && i < arms->n; i++)
        free(arms->list[i].losses);
    free(arms);
}

/* ---- loss curves ------------------------------------------------------------------------------------------------- */

typedef struct curves {
    zr_line_t lines[MAX_ARMS];
    const char *titles[MAX_ARMS];
    double *x, *y[MAX_ARMS];
    size_t n, n_points;
} curves_t;

/* Lines of the arms from `first` on; relative: to the first arm's, in percent, where both have the same seeds. */
static void make_lines(const arms_t *arms, int is_relative, curves_t *out) {
    const arm_t *base = &arms->list[0];

    *out = (curves_t){.n_points = base->n_steps, .x = calloc(base->n_steps, sizeof(double))};
    for (size_t i = 0; out->x != NULL && i < base->n_steps; i++)
        out->x[i] = ((double)i + 1.0) * base->every;
    for (size_t i = 0; out->x != NULL && i < arms->n; i++) {
        const arm_t *a = &arms->list[i];
        double *y = a->n_steps == base->n_steps && a->losses != NULL ? calloc(a->n_steps, sizeof *y) : NULL;

        out->titles[i] = a->name;
        out->y[i] = y;
        for (size_t j = 0; y != NULL && j < a->n_steps; j++)
            y[j] = !is_relative                  ? a->losses[j]
                   : a->n_seeds != base->n_seeds ? NAN
                                                 : 100.0 * (a->losses[j] / base->losses[j] - 1.0);
        out->lines[i] = (zr_line_t){.title = a->name, .x = out->x, .y = y, .n = y != NULL ? a->n_steps : 0};
        out->lines[i].is_dashed = strstr(a->name, "lag 0") != NULL || strstr(a->name, "synchronous") != NULL ||
                                  strstr(a->name, "mean") != NULL;
        out->n = i + 1;
    }
}

static void free_lines(curves_t *c) {
    for (size_t i = 0; i < c->n; i++)
        free(c->y[i]);
    free(c->x);
}

static void put_curve_figure(FILE *file, const arms_t *arms, const char *unit, int is_relative) {
    zr_plot_t plot = {.x_label = "optimizer step",
                      .y_label = is_relative ? "loss relative to AdamW's, %" : unit,
                      .has_zero = is_relative,
                      .y_most = is_relative ? 40.0 : 0.0,
                      .y_least = is_relative ? -40.0 : 0.0};
    int is_dashed[MAX_ARMS];
    curves_t c;

    make_lines(arms, is_relative, &c);
    plot.lines = c.lines;
    plot.n_lines = c.n;
    for (size_t i = 0; i < c.n; i++)
        is_dashed[i] = c.lines[i].is_dashed;
    zr_figure_begin(file, is_relative ? "Training loss relative to AdamW's" : "Training loss",
                    is_relative ? "mean over the seeds, smoothed; arms with AdamW's seeds only; cut at 40 %"
                                : "mean over the seeds, running mean over a fortieth of the steps");
    zr_plot_lines(file, &plot);
    zr_put_legend(file, c.titles, is_dashed, c.n);
    zr_figure_end(file);
    free_lines(&c);
}

static void put_curve_figures(FILE *file, const json_t *json, const arms_t *arms) {
    char metric[32];
    int is_regression = zg_json_text(json, "metric", metric, sizeof metric) &&
                        (strcmp(metric, "pearson") == 0 || strcmp(metric, "spearman") == 0);
    const char *unit = is_regression ? "squared error per row" : "cross entropy, nats per row";

    if (arms == NULL || arms->n == 0 || arms->list[0].losses == NULL) {
        (void)fputs("<p class=\"quiet\">This file holds no loss curves.</p>\n", file);
        return;
    }
    (void)fputs("<div class=\"plots\">\n", file);
    put_curve_figure(file, arms, unit, 0);
    if (arms->n > 1)
        put_curve_figure(file, arms, unit, 1);
    (void)fputs("</div>\n", file);
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* The two-sided 95 % interval of the mean. */
static void find_interval(const double *x, size_t n, double *out_mean, double *out_low, double *out_high) {
    double sum = 0.0, squares = 0.0, half;

    *out_mean = *out_low = *out_high = NAN;
    if (n == 0)
        return;
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    *out_mean = sum / (double)n;
    if (n < 2)
        return;
    for (size_t i = 0; i < n; i++)
        squares += (x[i] - *out_mean) * (x[i] - *out_mean);
    half = glue_student_quantile(0.975, (double)(n - 1)) * sqrt(squares / (double)(n - 1) / (double)n);
    *out_low = *out_mean - half;
    *out_high = *out_mean + half;
}

static void put_scores(FILE *file, const arms_t *arms, const char *metric) {
    char label[80];
    zr_row_t rows[MAX_ARMS];
    zr_dots_t plot = {.x_label = label, .rows = rows, .n_rows = arms->n, .limit = NAN};

    (void)snprintf(label, sizeof label, "%s x 100 on the dev set, points", metric);
    for (size_t i = 0; i < arms->n; i++) {
        const arm_t *a = &arms->list[i];

        rows[i] = (zr_row_t){.label = a->name, .values = a->scores, .n = a->n_seeds, .colour = (unsigned)i};
        find_interval(a->scores, a->n_seeds, &rows[i].mean, &rows[i].low, &rows[i].high);
    }
    zr_figure_begin(file, "Score of every seed", "dots: seeds; diamond and bar: mean and its 95 % interval");
    zr_plot_dots(file, &plot);
    zr_figure_end(file);
}

static void put_differences(FILE *file, const arms_t *arms, double margin) {
    static double differences[MAX_ARMS][MAX_SEEDS];
    char limit[64], number[ZR_NUMBER_NBYTES];
    zr_row_t rows[MAX_ARMS];
    zr_dots_t plot = {.x_label = "plugin - AdamW of the same seed, points",
                      .rows = rows,
                      .limit = -margin,
                      .limit_label = limit,
                      .has_zero = 1};

    (void)snprintf(limit, sizeof limit, "margin: %s", zr_signed(-margin, margin == floor(margin) ? 0 : 1, "", number));
    for (size_t i = 1; i < arms->n; i++) {
        const arm_t *a = &arms->list[i];
        zr_row_t *r = &rows[plot.n_rows++];

        for (size_t j = 0; j < a->n_seeds; j++)
            differences[i][j] = j < arms->list[0].n_seeds ? a->scores[j] - arms->list[0].scores[j] : NAN;
        *r = (zr_row_t){.label = a->name, .values = differences[i], .n = a->n_seeds, .colour = (unsigned)i};
        r->mean = zg_json_number(a->json, "mean_difference", NAN);
        r->low = zg_json_number(a->json, "lower", NAN);
        r->high = zg_json_number(a->json, "upper", NAN);
    }
    zr_figure_begin(file, "Difference of every seed",
                    "bar: one-sided 95 % bounds of the mean; PASS when its lower end lies right of the margin");
    zr_plot_dots(file, &plot);
    zr_figure_end(file);
}

static void put_seed_table(FILE *file, const arms_t *arms) {
    char heads_text[MAX_ARMS][NAME + 1];
    const char *heads[MAX_ARMS + 1] = {">seed"};

    for (size_t i = 0; i < arms->n; i++) {
        (void)snprintf(heads_text[i], sizeof heads_text[i], ">%.90s", arms->list[i].name);
        heads[i + 1] = heads_text[i];
    }
    (void)fputs("<details><summary>Scores as numbers</summary>\n", file);
    zr_table_begin(file, heads, arms->n + 1);
    for (size_t seed = 0; seed < arms->list[0].n_seeds; seed++) {
        (void)fputs("<tr>", file);
        zr_cell_number(file, (double)(seed + 1), 0);
        for (size_t i = 0; i < arms->n; i++)
            zr_cell_number(file, seed < arms->list[i].n_seeds ? arms->list[i].scores[seed] : NAN, 2);
        (void)fputs("</tr>\n", file);
    }
    zr_table_end(file);
    (void)fputs("</details>\n", file);
}

/* ---- glue -------------------------------------------------------------------------------------------------------- */

static void put_judgements(FILE *file, const arms_t *arms) {
    const char *const heads[] = {"arm",   "metric",        ">difference",    ">lower bound",      ">seeds",
                                 "start", ">last quarter", ">stall us/step", ">step us (shared)", ">host B/param"};

    zr_table_begin(file, heads, sizeof heads / sizeof *heads);
    for (size_t i = 1; i < arms->n; i++) {
        const json_t *json = arms->list[i].json, *start = zg_json_find(json, "start.conforms");
        char word[32], number[ZR_NUMBER_NBYTES];

        (void)fputs("<tr>", file);
        zr_cell_text(file, arms->list[i].name);
        (void)fputs("<td>", file);
        (void)zg_json_text(json, "verdict", word, sizeof word);
        zr_put_verdict(file, word);
        (void)fputs("</td>", file);
        zr_cell_number(file, zg_json_number(json, "mean_difference", NAN), 2);
        zr_cell_number(file, zg_json_number(json, "lower", NAN), 2);
        zr_cell_number(file, (double)arms->list[i].n_seeds, 0);
        (void)fputs("<td>", file);
        zr_put_verdict(file, start == NULL ? "-" : json_is_true(start) ? "PASS" : "FAIL");
        (void)fprintf(file, "</td><td class=\"n\">%s</td>",
                      zr_signed(100.0 * (zg_json_number(json, "last_quarter_ratio", NAN) - 1.0), 2, " %", number));
        zr_cell_number(file, zg_json_number(json, "stall_us_per_step", NAN), 0);
        zr_cell_number(file, zg_json_number(json, "step_us", NAN), 0);
        zr_cell_number(file, zg_json_number(json, "host_bytes_per_parameter.mapped", NAN), 2);
        (void)fputs("</tr>\n", file);
    }
    zr_table_end(file);
    (void)fputs(
        "<p class=\"quiet\">Start: the first losses against AdamW's. Last quarter: mean training loss of the last "
        "quarter of the steps, relative to AdamW's.</p>\n",
        file);
}

static void put_link(FILE *file, const arms_t *arms) {
    static const char *const parts[] = {"formula", "down: gradients, records", "up: published",
                                        "up: state of entering channels"};
    zr_bar_t bars[MAX_ARMS];
    zr_bars_t plot = {.x_label = "MB per optimizer step", .bars = bars, .n_parts = 3};

    for (size_t i = 1; i < arms->n; i++) {
        const json_t *json = arms->list[i].json;
        zr_bar_t *b = &bars[plot.n_bars++];

        *b = (zr_bar_t){.label = arms->list[i].name,
                        .parts = {1e-6 * zg_json_number(json, "link_bytes_per_step.down", NAN),
                                  1e-6 * zg_json_number(json, "link_bytes_per_step.publish", NAN),
                                  1e-6 * zg_json_number(json, "link_bytes_per_step.enter", NAN)},
                        .mark = 1e-6 * (zg_json_number(json, "link_bytes_per_step.down_formula", NAN) +
                                        zg_json_number(json, "link_bytes_per_step.publish_formula", NAN))};
    }
    zr_figure_begin(file, "Bytes over the link against the formula",
                    "counted where they are copied; vertical tick: 4M(1 + 1/S) bytes with fp32, 2M(1 + 1/S) with bf16");
    zr_plot_bars(file, &plot);
    zr_put_legend(file, parts, NULL, 4);
    zr_figure_end(file);
}

static void put_stall(FILE *file, const arms_t *arms) {
    zr_bar_t bars[MAX_ARMS];
    zr_bars_t plot = {.x_label = "microseconds per step", .bars = bars, .n_parts = 1};

    for (size_t i = 1; i < arms->n; i++)
        bars[plot.n_bars++] = (zr_bar_t){.label = arms->list[i].name,
                                         .parts = {zg_json_number(arms->list[i].json, "stall_us_per_step", NAN)},
                                         .mark = NAN};
    zr_figure_begin(file, "Stall", "time the device waited for replays, selections or free slots; shown, not judged");
    zr_plot_bars(file, &plot);
    zr_figure_end(file);
}

void zr_put_glue(FILE *file, const json_t *json) {
    arms_t *arms = read_arms(json);
    char metric[64];

    zr_put_source(file, json);
    (void)zg_json_text(json, "metric", metric, sizeof metric);
    if (arms != NULL && arms->n > 1) {
        put_judgements(file, arms);
        (void)fputs("<div class=\"plots\">\n", file);
        put_scores(file, arms, metric);
        put_differences(file, arms, zg_json_number(json, "margin", NAN));
        put_link(file, arms);
        put_stall(file, arms);
        (void)fputs("</div>\n", file);
        put_seed_table(file, arms);
    }
    put_curve_figures(file, json, arms);
    free_arms(arms);
}

void zr_say_glue(const json_t *json, char out[ZR_SUMMARY_NBYTES]) {
    const json_t *arms = zg_json_find(json, "arms"), *last = json_array_get(arms, json_array_size(arms) - 1);
    char difference[ZR_NUMBER_NBYTES], lower[ZR_NUMBER_NBYTES], margin[ZR_NUMBER_NBYTES], quarter[ZR_NUMBER_NBYTES];
    char task[32];
    int has_task = zg_json_text(json, "task", task, sizeof task);

    if (last == NULL)
        return;
    (void)snprintf(
        out, ZR_SUMMARY_NBYTES,
        "%s%splugin - AdamW = %s points over %zu seeds, lower bound %s, margin %s; loss of the last quarter %s%s", task,
        has_task ? ": " : "", zr_signed(zg_json_number(last, "mean_difference", NAN), 2, "", difference),
        zg_json_numbers(last, "metric", NULL, 0), zr_signed(zg_json_number(last, "lower", NAN), 2, "", lower),
        zr_number(zg_json_number(json, "margin", NAN), margin),
        zr_signed(100.0 * (zg_json_number(last, "last_quarter_ratio", NAN) - 1.0), 2, " %", quarter),
        json_is_true(zg_json_find(json, "is_synthetic")) ? "; SYNTHETIC corpus" : "");
}

/* ---- curves ------------------------------------------------------------------------------------------------------ */

static void put_curve_row(FILE *file, const arm_t *a) {
    double bar = zg_json_number(a->json, "bar", NAN), ratio = zg_json_number(a->json, "to_adamw", NAN);
    char number[ZR_NUMBER_NBYTES];

    (void)fputs("<tr>", file);
    zr_cell_text(file, a->name);
    zr_cell_number(file, zg_json_number(a->json, "last_quarter_loss", NAN), 4);
    (void)fprintf(file, "<td class=\"n\">%s</td><td>", zr_signed(100.0 * (ratio - 1.0), 1, " %", number));
    if (isfinite(bar)) {
        (void)fprintf(file, "%s: ", zr_signed(100.0 * (bar - 1.0), 0, " %", number));
        zr_put_verdict(file, ratio <= bar ? "held" : "MISSED");
    } else {
        (void)fputs("-", file);
    }
    (void)fputs("</td>", file);
    zr_cell_number(file, zg_json_number(a->json, "dev_metric", NAN), 2);
    (void)fputs("</tr>\n", file);
}

void zr_put_curves(FILE *file, const json_t *json) {
    const char *const heads[] = {"optimizer", ">loss", ">to AdamW", "bar", ">dev score"};
    char lr[ZR_NUMBER_NBYTES], seeds[ZR_NUMBER_NBYTES];
    arms_t *arms = read_arms(json);

    (void)fprintf(file, "<h3>Peak learning rate %s, %s seeds</h3>\n", zr_number(zg_json_number(json, "lr", NAN), lr),
                  zr_number(zg_json_number(json, "seeds", NAN), seeds));
    zr_put_source(file, json);
    zr_table_begin(file, heads, 5);
    for (size_t i = 0; arms != NULL && i < arms->n; i++)
        put_curve_row(file, &arms->list[i]);
    zr_table_end(file);
    (void)fputs("<p class=\"quiet\">Loss: mean training loss of the last quarter of the steps.</p>\n", file);
    put_curve_figures(file, json, arms);
    free_arms(arms);
}

void zr_say_curves(const json_t *json, char out[ZR_SUMMARY_NBYTES]) {
    char lr[ZR_NUMBER_NBYTES], to_adamw[ZR_NUMBER_NBYTES], over[ZR_NUMBER_NBYTES], name[NAME];
    const char *separator = ": ";
    const json_t *item;
    size_t i,
        used = (size_t)snprintf(out, ZR_SUMMARY_NBYTES, "peak rate %s", zr_number(zg_json_number(json, "lr", NAN), lr));

    json_array_foreach(zg_json_find(json, "arms"), i, item) {
        double bar = zg_json_number(item, "bar", NAN), ratio = zg_json_number(item, "to_adamw", NAN);

        if (!isfinite(bar) || used + 160 >= ZR_SUMMARY_NBYTES)
            continue;
        if (!zg_json_text(item, "title", name, sizeof name))
            (void)zg_json_text(item, "name", name, sizeof name);
        used += (size_t)snprintf(out + used, ZR_SUMMARY_NBYTES - used, "%s%.40s %s (bar %s)", separator, name,
                                 zr_signed(100.0 * (ratio - 1.0), 1, " %", to_adamw),
                                 zr_signed(100.0 * (bar - 1.0), 0, " %", over));
        separator = "; ";
    }
}
