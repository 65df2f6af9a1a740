/* perf.c - the page's section of perf: bytes against the formulas, memory, stall. The timeline is timeline.c. */
#include "page.h"

#include "glue_json.h"
#include "plot.h"
#include "text.h"

#include <math.h>
#include <string.h>

enum { MAX_ROWS = 24, LABEL = 40 };

typedef struct row {
    const json_t *json; /* {"gradient", "interval", formulas, "measured": {...}} */
    char label[LABEL];
} row_t;

static double formula(const row_t *r, const char *name) { return zg_json_number(r->json, name, NAN); }

static double measured(const row_t *r, const char *name) {
    char path[64];

    (void)snprintf(path, sizeof path, "measured.%s", name);
    return zg_json_number(r->json, path, NAN);
}

static size_t read_rows(const json_t *json, row_t rows[MAX_ROWS]) {
    const json_t *item;
    size_t n;

    json_array_foreach(zg_json_find(json, "rows"), n, item) {
        char gradient[16], interval[ZR_NUMBER_NBYTES];

        if (n == MAX_ROWS)
            break;
        (void)zg_json_text(item, "gradient", gradient, sizeof gradient);
        rows[n].json = item;
        (void)snprintf(rows[n].label, LABEL, "%s, S = %.12s", gradient,
                       zr_number(zg_json_number(item, "interval", NAN), interval));
    }
    return n;
}

static void put_link(FILE *file, const row_t *rows, size_t n) {
    static const char *const parts[] = {"formula: g + 2/S", "down: gradients", "up: published", "down: records",
                                        "up: state of entering channels"};
    zr_bar_t bars[MAX_ROWS];
    zr_bars_t plot = {.x_label = "bytes per parameter and step", .bars = bars, .n_bars = n, .n_parts = 4};

    for (size_t i = 0; i < n; i++)
        bars[i] = (zr_bar_t){.label = rows[i].label,
                             .parts = {measured(&rows[i], "down"), measured(&rows[i], "up"),
                                       measured(&rows[i], "records"), measured(&rows[i], "enter")},
                             .mark = formula(&rows[i], "down_formula") + formula(&rows[i], "up_formula")};
    zr_figure_begin(file, "Bytes over the link against the formula",
                    "gradients of g bytes, windows of S steps; records and entering state are in no formula");
    zr_plot_bars(file, &plot);
    zr_put_legend(file, parts, NULL, 5);
    zr_figure_end(file);
}

static void put_memory(FILE *file, const row_t *rows, size_t n) {
    static const char *const parts[] = {"formula: 12 + g ((S + 1)/2 + 1) + 2/S", "w, m, v", "gradient slots",
                                        "waiting to be published", "beside: maps, records, batches"};
    zr_bar_t bars[MAX_ROWS];
    zr_bars_t plot = {.x_label = "host bytes per parameter", .bars = bars, .n_bars = n, .n_parts = 4};

    for (size_t i = 0; i < n; i++) {
        double sum = measured(&rows[i], "state") + measured(&rows[i], "slots") + measured(&rows[i], "publish");

        bars[i] = (zr_bar_t){.label = rows[i].label,
                             .parts = {measured(&rows[i], "state"), measured(&rows[i], "slots"),
                                       measured(&rows[i], "publish"), measured(&rows[i], "mapped") - sum},
                             .mark = formula(&rows[i], "host_formula")};
    }
    zr_figure_begin(file, "Host memory against the formula", "what is mapped, by use");
    zr_plot_bars(file, &plot);
    zr_put_legend(file, parts, NULL, 5);
    zr_figure_end(file);
}

static void put_stall(FILE *file, const row_t *rows, size_t n) {
    zr_bar_t bars[MAX_ROWS];
    zr_bars_t plot = {.x_label = "microseconds per step", .bars = bars, .n_bars = n, .n_parts = 1};

    for (size_t i = 0; i < n; i++)
        bars[i] = (zr_bar_t){.label = rows[i].label, .parts = {measured(&rows[i], "stall_us")}, .mark = NAN};
    zr_figure_begin(file, "Stall", "time the device waited for replays, selections or free slots; shown, not judged");
    zr_plot_bars(file, &plot);
    zr_figure_end(file);
}

static void put_row(FILE *file, const row_t *r) {
    char faults[256];
    double total = measured(r, "down") + measured(r, "up");

    (void)zg_json_text(r->json, "faults", faults, sizeof faults);
    (void)fputs("<tr>", file);
    zr_cell_text(file, r->label);
    (void)fputs("<td>", file);
    zr_put_verdict(file, faults[0] == '\0' ? "PASS" : "FAIL");
    (void)fputs("</td>", file);
    zr_cell_number(file, total, 4);
    zr_cell_number(file, total / (formula(r, "down_formula") + formula(r, "up_formula")), 4);
    zr_cell_number(file, measured(r, "planned"), 2);
    zr_cell_number(file, measured(r, "mapped"), 2);
    zr_cell_number(file, measured(r, "device_mapped"), 2);
    zr_cell_number(file, measured(r, "outside"), 2);
    zr_cell_number(file, measured(r, "hook_allocations") < 0.0 ? NAN : measured(r, "hook_allocations"), 0);
    zr_cell_number(file, measured(r, "stall_us"), 0);
    zr_cell_number(file, measured(r, "step_us"), 0);
    zr_cell_text(file, faults);
    (void)fputs("</tr>\n", file);
}

void zr_put_perf(FILE *file, const json_t *json) {
    const char *const heads[] = {"setting",           "result",         ">link B/param/step", ">to formula",
                                 ">host planned",     ">host mapped",   ">device mapped",     ">from outside",
                                 ">hook allocations", ">stall us/step", ">step us",           "faults"};
    const json_t *timeline = zg_json_find(json, "timeline");
    row_t rows[MAX_ROWS];
    char number[ZR_NUMBER_NBYTES];
    size_t n = read_rows(json, rows);

    (void)fprintf(
        file,
        "<p class=\"quiet\">A transformer's shapes in bfloat16, made-up gradients, %s million parameters; whole "
        "windows after warm-up. Memory in bytes per parameter.</p>\n",
        zr_fixed(n > 0 ? 1e-6 * measured(&rows[0], "n_elems") : NAN, 2, number));
    (void)fputs("<div class=\"plots\">\n", file);
    put_link(file, rows, n);
    put_memory(file, rows, n);
    put_stall(file, rows, n);
    (void)fputs("</div>\n", file);
    zr_table_begin(file, heads, sizeof heads / sizeof *heads);
    for (size_t i = 0; i < n; i++)
        put_row(file, &rows[i]);
    zr_table_end(file);
    if (json_is_object(timeline))
        zr_put_timeline(file, timeline);
    else
        (void)fputs("<p class=\"quiet\">This file holds no timeline.</p>\n", file);
}

void zr_say_perf(const json_t *json, char out[ZR_SUMMARY_NBYTES]) {
    row_t rows[MAX_ROWS];
    size_t n = read_rows(json, rows), n_faulty = 0;
    double most = 0.0;

    for (size_t i = 0; i < n; i++) {
        char faults[64];

        most = fmax(most, (measured(&rows[i], "down") + measured(&rows[i], "up")) /
                              (formula(&rows[i], "down_formula") + formula(&rows[i], "up_formula")));
        n_faulty += zg_json_text(rows[i].json, "faults", faults, sizeof faults) && faults[0] != '\0';
    }
    (void)snprintf(out, ZR_SUMMARY_NBYTES, "%zu settings, %zu with a fault; link bytes at most %.4f times the formula",
                   n, n_faulty, most);
}
