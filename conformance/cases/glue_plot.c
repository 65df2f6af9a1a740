/* glue_plot.c - SVG line plots (glue_plot.h). Lines are thinned to about MAX_POINTS, far finer than a screen shows. */
#include "glue_plot.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 960, HEIGHT = 540, LEFT = 76, TOP = 64, RIGHT = 250, BOTTOM = 58, MAX_POINTS = 400, N_COLOURS = 10 };

/* Okabe and Ito's palette (readable with colour blindness), then greys. */
static const char *const colours[N_COLOURS] = {"#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                               "#e69f00", "#56b4e9", "#8b6914", "#777777", "#aa0000"};

typedef struct frame {
    FILE *file;
    double x_max, y_min, y_max, x_tick, y_tick;
} frame_t;

static double x_of(const frame_t *f, double x) { return LEFT + (WIDTH - LEFT - RIGHT) * x / f->x_max; }

static double y_of(const frame_t *f, double y) {
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - f->y_min) / (f->y_max - f->y_min);
}

/* 1, 2 or 5 times a power of ten, so that a range has about n ticks. */
static double nice_tick(double range, double n) {
    double power = pow(10.0, floor(log10(range / n))), share = range / n / power;

    return power * (share <= 1.0 ? 1.0 : share <= 2.0 ? 2.0 : share <= 5.0 ? 5.0 : 10.0);
}

static void put_text(FILE *file, double x, double y, const char *attributes, const char *text) {
    (void)fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes);
    for (; *text != '\0'; text++) {
        if (*text == '&')
            (void)fputs("&amp;", file);
        else if (*text == '<')
            (void)fputs("&lt;", file);
        else
            (void)fputc(*text, file);
    }
    (void)fputs("</text>\n", file);
}

static void find_range(const zg_plot_t *plot, frame_t *f) {
    double lowest = INFINITY, highest = -INFINITY;

    f->x_max = 1.0;
    for (size_t i = 0; i < plot->n_lines; i++) {
        f->x_max = fmax(f->x_max, (double)plot->lines[i].n);
        for (size_t j = 0; j < plot->lines[i].n; j++) {
            lowest = fmin(lowest, plot->lines[i].y[j]);
            highest = fmax(highest, plot->lines[i].y[j]);
        }
    }
    if (!(highest > lowest)) {
        lowest = isfinite(lowest) ? lowest - 0.5 : 0.0;
        highest = lowest + 1.0;
    }
    f->y_tick = nice_tick(highest - lowest, 7.0);
    f->y_min = floor(lowest / f->y_tick) * f->y_tick;
    f->y_max = ceil(highest / f->y_tick) * f->y_tick;
    f->x_tick = nice_tick(f->x_max, 8.0);
}

static void put_grid(const frame_t *f) {
    char text[32];

    for (double y = f->y_min; y <= f->y_max + 0.5 * f->y_tick; y += f->y_tick) {
        (void)fprintf(f->file, "<path d=\"M%d %.1fH%d\" stroke=\"#e4e4e4\"/>\n", LEFT, y_of(f, y), WIDTH - RIGHT);
        (void)snprintf(text, sizeof text, "%.*f", f->y_tick < 0.1 ? 2 : 1, y);
        put_text(f->file, LEFT - 8, y_of(f, y) + 4, "text-anchor=\"end\"", text);
    }
    for (double x = 0; x <= f->x_max; x += f->x_tick) {
        (void)fprintf(f->file, "<path d=\"M%.1f %dv5\" stroke=\"#444\"/>\n", x_of(f, x), HEIGHT - BOTTOM);
        (void)snprintf(text, sizeof text, "%.0f", x);
        put_text(f->file, x_of(f, x), HEIGHT - BOTTOM + 19, "text-anchor=\"middle\"", text);
    }
    (void)fprintf(f->file, "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"#444\"/>\n", LEFT, TOP, HEIGHT - BOTTOM,
                  WIDTH - RIGHT);
}

static void put_labels(const frame_t *f, const zg_plot_t *plot) {
    char turn[96];

    put_text(f->file, LEFT, 26, "font-size=\"17\" font-weight=\"bold\"", plot->title);
    put_text(f->file, LEFT, 46, "fill=\"#444\"", plot->subtitle);
    put_text(f->file, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14, "text-anchor=\"middle\"", plot->x_label);
    (void)snprintf(turn, sizeof turn, "text-anchor=\"middle\" transform=\"rotate(-90 20 %d)\"",
                   (TOP + HEIGHT - BOTTOM) / 2);
    put_text(f->file, 20, (TOP + HEIGHT - BOTTOM) / 2.0, turn, plot->y_label);
}

static void put_line(const frame_t *f, const zg_line_t *line, size_t index) {
    size_t stride = line->n / MAX_POINTS + 1;

    (void)fprintf(f->file, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%s\"%s points=\"",
                  colours[index % N_COLOURS], index == 0 ? "2.4" : "1.6",
                  line->is_dashed ? " stroke-dasharray=\"6 4\"" : "");
    for (size_t i = 0; i < line->n; i += stride)
        (void)fprintf(f->file, "%s%.1f,%.1f", i > 0 ? " " : "", x_of(f, (double)(i + 1)), y_of(f, line->y[i]));
    (void)fputs("\"/>\n", f->file);
}

static void put_legend(const frame_t *f, const zg_plot_t *plot) {
    for (size_t i = 0; i < plot->n_lines; i++) {
        double y = TOP + 12 + 22.0 * (double)i;

        (void)fprintf(f->file, "<path d=\"M%d %.1fh30\" stroke=\"%s\" stroke-width=\"%s\"%s/>\n", WIDTH - RIGHT + 16, y,
                      colours[i % N_COLOURS], i == 0 ? "2.4" : "1.6",
                      plot->lines[i].is_dashed ? " stroke-dasharray=\"6 4\"" : "");
        put_text(f->file, WIDTH - RIGHT + 54, y + 4, "", plot->lines[i].title);
    }
}

int zg_plot_write(const zg_plot_t *plot, const char *path, glue_error_t *err) {
    frame_t f = {.file = fopen(path, "w")};
    int has_failed;

    if (f.file == NULL)
        return glue_fail(err, "%s: cannot write: %s", path, strerror(errno));
    find_range(plot, &f);
    (void)fprintf(f.file,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
                  "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
                  WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT);
    put_grid(&f);
    put_labels(&f, plot);
    for (size_t i = plot->n_lines; i > 0; i--)
        put_line(&f, &plot->lines[i - 1], i - 1);
    put_legend(&f, plot);
    (void)fputs("</svg>\n", f.file);
    has_failed = ferror(f.file) != 0;
    if (fclose(f.file) != 0 || has_failed)
        return glue_fail(err, "%s: cannot write: %s", path, strerror(errno));
    return 0;
}

void zg_smooth(const double *y, size_t n, size_t half, double *out) {
    for (size_t i = 0; i < n; i++) {
        size_t first = i > half ? i - half : 0, last = i + half < n ? i + half : n - 1;
        double sum = 0.0;

        for (size_t j = first; j <= last; j++)
            sum += y[j];
        out[i] = sum / (double)(last - first + 1);
    }
}
