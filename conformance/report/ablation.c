/* ablation.c - the page's section of the ablation: what each level is worth, small multiples of loss curves. */
#include "page.h"

#include "glue_json.h"
#include "plot.h"
#include "text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 64, MAX_POINTS = 4096, MAX_LINES = ZR_N_COLOURS, MAX_RATES = 4 };

/* The i-th item of an array, or NULL. */
static const json_t *item_at(const json_t *json, const char *path, size_t i) {
    return json_array_get(zg_json_find(json, path), i);
}

/* The object of a level's arm at a rate; NULL where it was not run. */
static const json_t *run_of(const json_t *json, const json_t *level, size_t rate) {
    double arm = zg_json_number(level, "arm", -1.0);
    const json_t *item = arm >= 0.0 && arm < 1000.0 ? item_at(json, "arms", (size_t)arm) : NULL;

    return item != NULL ? item_at(item, "rates", rate) : NULL;
}

static size_t count_rates(const json_t *json) {
    size_t n = json_array_size(zg_json_find(item_at(json, "arms", 0), "rates"));

    return n < MAX_RATES ? n : MAX_RATES;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static void put_percent(FILE *file, double ratio) {
    char number[ZR_NUMBER_NBYTES];

    (void)fprintf(file, "<td class=\"n\">%s</td>", zr_signed(100.0 * (ratio - 1.0), 1, " %", number));
}

static void put_level(FILE *file, const json_t *json, const json_t *level, size_t n_rates, char last_factor[NAME]) {
    char factor[NAME], text[500];
    const json_t *first = run_of(json, level, 0);

    (void)zg_json_text(level, "factor", factor, sizeof factor);
    if (strcmp(factor, last_factor) != 0) {
        (void)fprintf(file, "<tr><th colspan=\"%zu\">", 2 * n_rates + 6);
        zr_put_html(file, factor);
        (void)fputs("</th></tr>\n", file);
    }
    (void)strcpy(last_factor, factor);
    (void)fputs("<tr>", file);
    (void)zg_json_text(level, "level", text, sizeof text);
    zr_cell_text(file, text);
    for (size_t rate = 0; rate < n_rates; rate++) {
        const json_t *run = run_of(json, level, rate);

        put_percent(file, zg_json_number(run, "to_adamw", NAN));
        put_percent(file, zg_json_number(run, "all_steps_to_adamw", NAN));
    }
    zr_cell_number(file, zg_json_number(first, "dev_to_adamw", NAN), 2);
    zr_cell_number(file, zg_json_number(first, "link_bytes_per_parameter_and_step", NAN), 2);
    zr_cell_number(file, zg_json_number(first, "host_bytes_per_parameter", NAN), 2);
    zr_cell_number(file, zg_json_number(first, "stall_us_per_step", NAN), 0);
    (void)fputs("<td class=\"wide\">", file);
    if (zg_json_text(level, "not_run", text, sizeof text)) {
        zr_put_verdict(file, "not run");
        (void)fputs(": ", file);
    } else {
        (void)zg_json_text(level, "against_default", text, sizeof text);
    }
    zr_put_html(file, text);
    (void)fputs("</td></tr>\n", file);
}

static void put_table(FILE *file, const json_t *json, size_t n_rates) {
    char heads_text[2 * MAX_RATES][NAME], last_factor[NAME] = "";
    const char *heads[2 * MAX_RATES + 6] = {"level"};
    const json_t *adamw = item_at(json, "arms", 0), *level;
    size_t n = 1, i;

    for (size_t rate = 0; rate < n_rates; rate++) {
        char lr[24];

        (void)zg_json_text(item_at(adamw, "rates", rate), "lr", lr, sizeof lr);
        (void)snprintf(heads_text[2 * rate], NAME, ">last quarter, %s", lr);
        (void)snprintf(heads_text[2 * rate + 1], NAME, ">all steps, %s", lr);
        heads[n++] = heads_text[2 * rate];
        heads[n++] = heads_text[2 * rate + 1];
    }
    heads[n++] = ">dev, points";
    heads[n++] = ">link B/param/step";
    heads[n++] = ">host B/param";
    heads[n++] = ">stall us/step";
    heads[n++] = "against the default";
    zr_table_begin(file, heads, n);
    json_array_foreach(zg_json_find(json, "levels"), i, level) put_level(file, json, level, n_rates, last_factor);
    zr_table_end(file);
    (void)fputs(
        "<p class=\"quiet\">Training losses relative to AdamW's of the same seeds; dev, bytes and stall at the first "
        "rate.</p>\n",
        file);
}

/* ---- small multiples --------------------------------------------------------------------------------------------- */

/* Percent above the base's curve; NULL where the two do not match. Release with free. */
static double *relative_curve(const json_t *run, const json_t *base, size_t *out_n) {
    double *y = calloc(2 * MAX_POINTS, sizeof *y);
    size_t n = y != NULL && run != NULL ? zg_json_numbers(run, "curve", y, MAX_POINTS) : 0;

    if (n == 0 || n > MAX_POINTS || zg_json_numbers(base, "curve", y + MAX_POINTS, MAX_POINTS) != n) {
        free(y);
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        y[i] = 100.0 * (y[i] / y[MAX_POINTS + i] - 1.0);
    *out_n = n;
    return y;
}

/* The panel of one factor; nothing where no level has a curve. */
static void put_panel(FILE *file, const json_t *json, const char *factor, size_t rate) {
    const json_t *base = item_at(item_at(json, "arms", 0), "rates", rate), *level;
    size_t i;
    double every = zg_json_number(base, "curve_every", 1.0);
    double *x = calloc(MAX_POINTS, sizeof *x), *curves[MAX_LINES];
    zr_line_t lines[MAX_LINES];
    char titles[MAX_LINES][NAME], name[NAME];
    const char *title_list[MAX_LINES];
    int is_dashed[MAX_LINES];
    zr_plot_t plot = {.x_label = "optimizer step",
                      .y_label = "loss relative to AdamW's, %",
                      .lines = lines,
                      .y_most = 40.0,
                      .y_least = -40.0,
                      .has_zero = 1};

    for (i = 0; x != NULL && i < MAX_POINTS; i++)
        x[i] = every * ((double)i + 1.0);
    json_array_foreach(zg_json_find(json, "levels"), i, level) {
        size_t k = plot.n_lines, n = 0;

        if (x == NULL || k == MAX_LINES || !zg_json_text(level, "factor", name, sizeof name) ||
            strcmp(name, factor) != 0 || (curves[k] = relative_curve(run_of(json, level, rate), base, &n)) == NULL)
            continue;
        (void)zg_json_text(level, "level", titles[k], NAME);
        title_list[k] = titles[k];
        is_dashed[k] = k >= 4;
        lines[k] = (zr_line_t){.title = titles[k], .x = x, .y = curves[k], .n = n, .is_dashed = is_dashed[k]};
        plot.n_lines++;
    }
    if (plot.n_lines > 0) {
        zr_figure_begin(file, factor, NULL);
        zr_plot_lines(file, &plot);
        zr_put_legend(file, title_list, is_dashed, plot.n_lines);
        zr_figure_end(file);
    }
    for (size_t k = 0; k < plot.n_lines; k++)
        free(curves[k]);
    free(x);
}

static void put_panels(FILE *file, const json_t *json, size_t rate) {
    char lr[24], last[NAME] = "", factor[NAME];
    const json_t *level;
    size_t i;

    (void)zg_json_text(item_at(item_at(json, "arms", 0), "rates", rate), "lr", lr, sizeof lr);
    (void)fputs("<h3>Training loss relative to AdamW's, peak rate ", file);
    zr_put_html(file, lr);
    (void)fputs("</h3>\n<p class=\"quiet\">Mean over the seeds, smoothed; cut at 40 %.</p>\n<div class=\"plots\">\n",
                file);
    json_array_foreach(zg_json_find(json, "levels"), i, level) {
        (void)zg_json_text(level, "factor", factor, sizeof factor);
        if (strcmp(factor, last) != 0)
            put_panel(file, json, factor, rate);
        (void)strcpy(last, factor);
    }
    (void)fputs("</div>\n", file);
}

void zr_put_ablation(FILE *file, const json_t *json) {
    size_t n_rates = count_rates(json);

    zr_put_source(file, json);
    if (json_is_true(zg_json_find(json, "is_quick")))
        (void)fputs("<p><strong>QUICK run: it shows that the command works and decides nothing.</strong></p>\n", file);
    if (n_rates == 0)
        return;
    put_table(file, json, n_rates);
    for (size_t rate = 0; rate < n_rates; rate++)
        put_panels(file, json, rate);
}

void zr_say_ablation(const json_t *json, char out[ZR_SUMMARY_NBYTES]) {
    size_t n_levels, n_not_run = 0;
    char seeds[ZR_NUMBER_NBYTES];
    const json_t *level;

    json_array_foreach(zg_json_find(json, "levels"), n_levels, level) n_not_run +=
        zg_json_find(level, "not_run") != NULL;
    (void)snprintf(out, ZR_SUMMARY_NBYTES, "%zu levels trained over %s seeds, %zu not run%s", n_levels - n_not_run,
                   zr_number(zg_json_number(json, "seeds", NAN), seeds), n_not_run,
                   json_is_true(zg_json_find(json, "is_quick")) ? "; QUICK: decides nothing" : "");
}
