/* plot_rows.c - plots of labelled rows along one horizontal axis: dots with intervals, stacked bars (plot.h). */
#include "plot.h"

#include "text.h"

#include <math.h>

enum {
    WIDTH = 560,
    LEFT = 118,
    RIGHT = 26,
    TOP = 10,
    BOTTOM = 48,
    DOT_ROW = 46,
    BAR_ROW = 30,
    ROOM = 22,
    LABEL_ROOM = 90
};

typedef struct axis {
    FILE *file;
    double low, high, tick;
    double bottom; /* pixel */
} axis_t;

static double x_of(const axis_t *a, double x) {
    return LEFT + (WIDTH - LEFT - RIGHT) * (fmin(fmax(x, a->low), a->high) - a->low) / (a->high - a->low);
}

static void widen(axis_t *a, double x) {
    if (isfinite(x)) {
        a->low = fmin(a->low, x);
        a->high = fmax(a->high, x);
    }
}

static void round_axis(axis_t *a) {
    if (!(a->high > a->low)) {
        a->low = isfinite(a->low) ? a->low - 0.5 : 0.0;
        a->high = a->low + 1.0;
    }
    a->tick = zr_nice_tick(a->high - a->low, 6.0);
    a->low = floor(a->low / a->tick + 1e-9) * a->tick;
    a->high = ceil(a->high / a->tick - 1e-9) * a->tick;
}

static void begin(const axis_t *a, const char *x_label) {
    (void)fprintf(a->file,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" height=\"%.0f\" "
                  "font-size=\"13\" role=\"img\" aria-label=\"",
                  WIDTH, a->bottom + BOTTOM, WIDTH, a->bottom + BOTTOM);
    zr_put_html(a->file, x_label);
    (void)fputs("\">\n", a->file);
    for (int i = 0; i <= (int)lround((a->high - a->low) / a->tick); i++) {
        double x = a->low + i * a->tick;

        (void)fprintf(a->file, "<path d=\"M%.1f %dV%.1f\" class=\"grid\"/>\n", x_of(a, x), TOP, a->bottom + 4);
        zr_put_tick(a->file, x_of(a, x), a->bottom + 18, "middle", x, a->tick);
    }
    (void)fprintf(a->file, "<path d=\"M%d %.1fH%d\" class=\"axis\"/>\n", LEFT, a->bottom, WIDTH - RIGHT);
    zr_put_text(a->file, (LEFT + WIDTH - RIGHT) / 2.0, a->bottom + 39, "text-anchor=\"middle\"", x_label);
}

/* ---- dots -------------------------------------------------------------------------------------------------------- */

static void put_interval(const axis_t *a, const zr_row_t *r, double y) {
    double low = x_of(a, isinf(r->low) ? a->low : r->low), high = x_of(a, isinf(r->high) ? a->high : r->high);

    if (isnan(r->low) || isnan(r->high))
        return;
    (void)fprintf(a->file, "<path d=\"M%.1f %.1fH%.1f%s%s\" class=\"mark\" stroke-width=\"2\"/>\n", low, y, high,
                  isinf(r->high) ? "" : "m0 -6v12", "");
    if (!isinf(r->low))
        (void)fprintf(a->file, "<path d=\"M%.1f %.1fv12\" class=\"mark\" stroke-width=\"2\"/>\n", low, y - 6);
}

static void put_row(const axis_t *a, const zr_row_t *r, double y) {
    zr_put_text(a->file, LEFT - 8, y + 4, "text-anchor=\"end\"", r->label);
    for (size_t i = 0; i < r->n; i++) /* three heights keep equal values apart */
        if (isfinite(r->values[i]))
            (void)fprintf(a->file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" class=\"f%u\" fill-opacity=\"0.55\"/>\n",
                          x_of(a, r->values[i]), y - 15 + 5.0 * (double)(i % 3), r->colour % ZR_N_COLOURS);
    put_interval(a, r, y + 9);
    if (isfinite(r->mean))
        (void)fprintf(a->file, "<path d=\"M%.1f %.1fl6 6l-6 6l-6 -6z\" class=\"f%u\"/>\n", x_of(a, r->mean), y + 3,
                      r->colour % ZR_N_COLOURS);
}

void zr_plot_dots(FILE *file, const zr_dots_t *plot) {
    axis_t a = {
        .file = file, .low = INFINITY, .high = -INFINITY, .bottom = TOP + ROOM + DOT_ROW * (double)plot->n_rows};
    int is_left;

    for (size_t i = 0; i < plot->n_rows; i++) {
        for (size_t j = 0; j < plot->rows[i].n; j++)
            widen(&a, plot->rows[i].values[j]);
        widen(&a, plot->rows[i].low);
        widen(&a, plot->rows[i].high);
    }
    widen(&a, plot->limit);
    if (plot->has_zero)
        widen(&a, 0.0);
    round_axis(&a);
    begin(&a, plot->x_label);
    if (plot->has_zero)
        (void)fprintf(file, "<path d=\"M%.1f %dV%.1f\" class=\"axis\"/>\n", x_of(&a, 0.0), TOP, a.bottom);
    if (isfinite(plot->limit)) {
        (void)fprintf(file, "<path d=\"M%.1f %dV%.1f\" class=\"s2\" stroke-width=\"2\" stroke-dasharray=\"5 4\"/>\n",
                      x_of(&a, plot->limit), TOP, a.bottom);
        is_left = x_of(&a, plot->limit) > LEFT + LABEL_ROOM;
        zr_put_text(file, x_of(&a, plot->limit) + (is_left ? -6 : 6), TOP + 11,
                    is_left ? "class=\"f2\" text-anchor=\"end\"" : "class=\"f2\"", plot->limit_label);
    }
    for (size_t i = 0; i < plot->n_rows; i++)
        put_row(&a, &plot->rows[i], TOP + ROOM + DOT_ROW * ((double)i + 0.5));
    (void)fputs("</svg>\n", file);
}

/* ---- bars -------------------------------------------------------------------------------------------------------- */

static void put_bar(const axis_t *a, const zr_bar_t *bar, size_t n_parts, double y) {
    double from = 0.0;

    zr_put_text(a->file, LEFT - 8, y + 4, "text-anchor=\"end\"", bar->label);
    for (size_t i = 0; i < n_parts; i++) {
        double size = isfinite(bar->parts[i]) && bar->parts[i] > 0.0 ? bar->parts[i] : 0.0;

        if (size > 0.0)
            (void)fprintf(a->file, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"18\" class=\"f%zu\"/>\n",
                          x_of(a, from), y - 9, x_of(a, from + size) - x_of(a, from), (i + 1) % ZR_N_COLOURS);
        from += size;
    }
    if (isfinite(bar->mark))
        (void)fprintf(a->file, "<path d=\"M%.1f %.1fv26\" class=\"mark\" stroke-width=\"2.5\"/>\n", x_of(a, bar->mark),
                      y - 13);
}

void zr_plot_bars(FILE *file, const zr_bars_t *plot) {
    axis_t a = {.file = file, .high = 0.0, .bottom = TOP + 8 + BAR_ROW * (double)plot->n_bars};

    for (size_t i = 0; i < plot->n_bars; i++) {
        double sum = 0.0;

        for (size_t j = 0; j < plot->n_parts; j++)
            sum += isfinite(plot->bars[i].parts[j]) ? plot->bars[i].parts[j] : 0.0;
        widen(&a, sum);
        widen(&a, plot->bars[i].mark);
    }
    round_axis(&a);
    begin(&a, plot->x_label);
    for (size_t i = 0; i < plot->n_bars; i++)
        put_bar(&a, &plot->bars[i], plot->n_parts, TOP + 6 + BAR_ROW * ((double)i + 0.5));
    (void)fputs("</svg>\n", file);
}
