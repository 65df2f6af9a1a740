/* plot.c - line plots and what all plots share (plot.h). Lines are thinned to about MAX_POINTS, finer than a screen. */
#include "plot.h"

#include "text.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum {
    WIDTH = 560,
    HEIGHT = 330,
    FILE_WIDTH = 960,
    FILE_HEIGHT = 540,
    LEFT = 62,
    RIGHT = 14,
    BOTTOM = 50,
    LEGEND = 236,
    MAX_POINTS = 400
};

typedef struct frame {
    FILE *file;
    double left, top, right, bottom; /* of the plotted area, in pixels */
    double x_min, x_max, y_min, y_max, x_tick, y_tick;
} frame_t;

static double x_of(const frame_t *f, double x) {
    return f->left + (f->right - f->left) * (x - f->x_min) / (f->x_max - f->x_min);
}

static double y_of(const frame_t *f, double y) {
    double clipped = fmin(fmax(y, f->y_min), f->y_max);

    return f->bottom - (f->bottom - f->top) * (clipped - f->y_min) / (f->y_max - f->y_min);
}

double zr_nice_tick(double range, double n) {
    double power, share;

    if (!(range > 0.0) || !isfinite(range))
        return 1.0;
    power = pow(10.0, floor(log10(range / n)));
    share = range / n / power;
    return power * (share <= 1.0 ? 1.0 : share <= 2.0 ? 2.0 : share <= 5.0 ? 5.0 : 10.0);
}

void zr_put_text(FILE *file, double x, double y, const char *attributes, const char *text) {
    (void)fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes);
    zr_put_html(file, text);
    (void)fputs("</text>\n", file);
}

void zr_put_tick(FILE *file, double x, double y, const char *anchor, double value, double step) {
    char attributes[64], text[ZR_NUMBER_NBYTES];
    int n_decimals = step >= 1.0 ? 0 : (int)ceil(-log10(step) - 1e-9);

    (void)snprintf(attributes, sizeof attributes, "text-anchor=\"%s\"", anchor);
    zr_put_text(file, x, y, attributes,
                zr_fixed(fabs(value) < 1e-9 * step ? 0.0 : value, n_decimals < 8 ? n_decimals : 8, text));
}

/* ---- colours ----------------------------------------------------------------------------------------------------- */

/* Okabe and Ito's palette, then earth and grey. */
static const char *const colours[ZR_N_COLOURS] = {"#1a1a1a", "#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                  "#b8860b", "#56b4e9", "#8b6914", "#777777", "#aa0000"};

void zr_put_colours(FILE *file) {
    for (int i = 0; i < ZR_N_COLOURS; i++)
        (void)fprintf(file, ".s%d{stroke:%s;stroke:var(--c%d,%s);fill:none}.f%d{fill:%s;fill:var(--c%d,%s)}\n", i,
                      colours[i], i, colours[i], i, colours[i], i, colours[i]);
    (void)fputs("svg text{fill:#222;fill:var(--ink,#222)}svg .quiet{fill:#555;fill:var(--quiet,#555)}\n"
                ".grid{stroke:#e2e2e2;stroke:var(--grid,#e2e2e2);fill:none}.axis{stroke:#555;stroke:var(--quiet,#555);"
                "fill:none}\n"
                ".ground{fill:#fff;fill:var(--page,#fff)}.area{fill:#f3f3f3;fill:var(--area,#f3f3f3)}.mark{stroke:#222;"
                "stroke:var(--ink,#222);fill:none}\n",
                file);
}

void zr_svg_begin(FILE *file, double width, double height) {
    (void)fprintf(file,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" "
                  "font-family=\"sans-serif\" font-size=\"13\">\n<style>\n",
                  width, height, width, height);
    zr_put_colours(file);
    (void)fprintf(file, "</style>\n<rect width=\"%.0f\" height=\"%.0f\" class=\"ground\"/>\n", width, height);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static double x_at(const zr_line_t *line, size_t i) { return line->x != NULL ? line->x[i] : (double)(i + 1); }

static double within(const zr_plot_t *plot, double y) {
    if (plot->y_most != 0.0 && y > plot->y_most)
        return plot->y_most;
    return plot->y_least != 0.0 && y < plot->y_least ? plot->y_least : y;
}

static void find_range(const zr_plot_t *plot, frame_t *f) {
    double lowest = plot->has_zero ? 0.0 : INFINITY, highest = plot->has_zero ? 0.0 : -INFINITY;

    f->x_max = 1.0;
    for (size_t i = 0; i < plot->n_lines; i++)
        for (size_t j = 0; j < plot->lines[i].n; j++) {
            if (!isfinite(plot->lines[i].y[j]))
                continue;
            f->x_max = fmax(f->x_max, x_at(&plot->lines[i], j));
            lowest = fmin(lowest, within(plot, plot->lines[i].y[j]));
            highest = fmax(highest, within(plot, plot->lines[i].y[j]));
        }
    if (!(highest > lowest)) {
        lowest = isfinite(lowest) ? lowest - 0.5 : 0.0;
        highest = lowest + 1.0;
    }
    f->y_tick = zr_nice_tick(highest - lowest, (f->bottom - f->top) / 45.0);
    f->y_min = floor(lowest / f->y_tick + 1e-9) * f->y_tick;
    f->y_max = ceil(highest / f->y_tick - 1e-9) * f->y_tick;
    f->x_tick = zr_nice_tick(f->x_max, (f->right - f->left) / 75.0);
}

static void put_grid(const frame_t *f) {
    int n_rows = (int)lround((f->y_max - f->y_min) / f->y_tick);

    for (int i = 0; i <= n_rows; i++) {
        double y = f->y_min + i * f->y_tick;

        (void)fprintf(f->file, "<path d=\"M%.1f %.1fH%.1f\" class=\"grid\"/>\n", f->left, y_of(f, y), f->right);
        zr_put_tick(f->file, f->left - 7, y_of(f, y) + 4, "end", y, f->y_tick);
    }
    for (double x = 0; x <= f->x_max * (1.0 + 1e-9); x += f->x_tick) {
        (void)fprintf(f->file, "<path d=\"M%.1f %.1fv5\" class=\"axis\"/>\n", x_of(f, x), f->bottom);
        zr_put_tick(f->file, x_of(f, x), f->bottom + 18,
                    x + f->x_tick > f->x_max && x_of(f, x) > f->right - 8 ? "end" : "middle", x, f->x_tick);
    }
    (void)fprintf(f->file, "<path d=\"M%.1f %.1fV%.1fH%.1f\" class=\"axis\"/>\n", f->left, f->top, f->bottom, f->right);
}

static void put_labels(const frame_t *f, const zr_plot_t *plot, double height) {
    double middle = (f->top + f->bottom) / 2.0;
    char turn[96];

    if (plot->title != NULL)
        zr_put_text(f->file, 10, 22, "font-size=\"15\" font-weight=\"bold\"", plot->title);
    if (plot->subtitle != NULL)
        zr_put_text(f->file, 10, 41, "class=\"quiet\"", plot->subtitle);
    zr_put_text(f->file, (f->left + f->right) / 2.0, height - 9, "text-anchor=\"middle\"", plot->x_label);
    (void)snprintf(turn, sizeof turn, "text-anchor=\"middle\" transform=\"rotate(-90 16 %.1f)\"", middle);
    zr_put_text(f->file, 16, middle, turn, plot->y_label);
}

/* A polyline for each run of finite values. */
static void put_line(const frame_t *f, const zr_line_t *line, size_t index) {
    size_t stride = line->n / MAX_POINTS + 1;
    int is_open = 0;

    for (size_t i = 0; i < line->n; i += stride) {
        if (isfinite(line->y[i]) && !is_open)
            (void)fprintf(f->file, "<polyline class=\"s%zu\" stroke-width=\"%s\"%s stroke-linejoin=\"round\" points=\"",
                          index % ZR_N_COLOURS, index == 0 ? "2.4" : "1.7",
                          line->is_dashed ? " stroke-dasharray=\"6 4\"" : "");
        if (isfinite(line->y[i]))
            (void)fprintf(f->file, "%s%.1f,%.1f", is_open ? " " : "", x_of(f, x_at(line, i)), y_of(f, line->y[i]));
        else if (is_open)
            (void)fputs("\"/>\n", f->file);
        is_open = isfinite(line->y[i]) != 0;
    }
    if (is_open)
        (void)fputs("\"/>\n", f->file);
}

static void put_inner_legend(const frame_t *f, const zr_plot_t *plot) {
    for (size_t i = 0; i < plot->n_lines; i++) {
        double y = f->top + 12 + 21.0 * (double)i;

        (void)fprintf(f->file, "<path d=\"M%.1f %.1fh30\" class=\"s%zu\" stroke-width=\"%s\"%s/>\n", f->right + 14, y,
                      i % ZR_N_COLOURS, i == 0 ? "2.4" : "1.7",
                      plot->lines[i].is_dashed ? " stroke-dasharray=\"6 4\"" : "");
        zr_put_text(f->file, f->right + 51, y + 4, "", plot->lines[i].title);
    }
}

void zr_plot_lines(FILE *file, const zr_plot_t *plot) {
    double width = plot->width > 0.0 ? plot->width : WIDTH, height = plot->height > 0.0 ? plot->height : HEIGHT;
    frame_t f = {.file = file,
                 .left = LEFT,
                 .top = plot->subtitle != NULL ? 54
                        : plot->title != NULL  ? 34
                                               : 12,
                 .right = width - (plot->has_legend ? LEGEND : RIGHT),
                 .bottom = height - BOTTOM};

    find_range(plot, &f);
    (void)fprintf(file,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" x=\"%.0f\" y=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
                  "width=\"%.0f\" height=\"%.0f\" font-size=\"13\" role=\"img\" aria-label=\"",
                  plot->x, plot->y, width, height, width, height);
    zr_put_html(file, plot->title != NULL ? plot->title : plot->y_label);
    (void)fputs("\">\n", file);
    put_grid(&f);
    if (plot->has_zero)
        (void)fprintf(file, "<path d=\"M%.1f %.1fH%.1f\" class=\"axis\"/>\n", f.left, y_of(&f, 0.0), f.right);
    put_labels(&f, plot, height);
    for (size_t i = plot->n_lines; i > 0; i--)
        put_line(&f, &plot->lines[i - 1], i - 1);
    if (plot->has_legend)
        put_inner_legend(&f, plot);
    (void)fputs("</svg>\n", file);
}

int zr_plot_write(const zr_plot_t *plot, const char *path, glue_error_t *err) {
    zr_plot_t whole = *plot;
    FILE *file = fopen(path, "w");
    int has_failed;

    if (file == NULL)
        return glue_fail(err, "%s: cannot write: %s", path, strerror(errno));
    whole.width = plot->width > 0.0 ? plot->width : FILE_WIDTH;
    whole.height = plot->height > 0.0 ? plot->height : FILE_HEIGHT;
    whole.has_legend = 1;
    zr_svg_begin(file, whole.width, whole.height);
    zr_plot_lines(file, &whole);
    (void)fputs("</svg>\n", file);
    has_failed = ferror(file) != 0;
    if (fclose(file) != 0 || has_failed)
        return glue_fail(err, "%s: cannot write: %s", path, strerror(errno));
    return 0;
}

void zr_put_legend(FILE *file, const char *const *titles, const int *is_dashed, size_t n) {
    (void)fputs("<ul class=\"legend\">", file);
    for (size_t i = 0; i < n; i++) {
        (void)fprintf(file,
                      "<li><svg xmlns=\"http://www.w3.org/2000/svg\" width=\"26\" height=\"10\" viewBox=\"0 0 26 10\">"
                      "<path d=\"M0 5h26\" class=\"s%zu\" stroke-width=\"3\"%s/></svg> ",
                      i % ZR_N_COLOURS, is_dashed != NULL && is_dashed[i] ? " stroke-dasharray=\"6 4\"" : "");
        zr_put_html(file, titles[i]);
        (void)fputs("</li>", file);
    }
    (void)fputs("</ul>\n", file);
}

void zr_smooth(const double *y, size_t n, size_t half, double *out) {
    for (size_t i = 0; i < n; i++) {
        size_t first = i > half ? i - half : 0, last = i + half < n ? i + half : n - 1;
        double sum = 0.0;

        for (size_t j = first; j <= last; j++)
            sum += y[j];
        out[i] = sum / (double)(last - first + 1);
    }
}
