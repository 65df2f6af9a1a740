/* plot.h - SVG written directly: axes with units, ticks, legends; no dependency, no script.
 *
 * A plot is one <svg> element, for a page (its colours come from the page's style sheet, so that they follow light and
 * dark; the legend is HTML beside it) or for a file of its own (zr_svg_begin puts the colours in, on white). Colours
 * are classes: s0..s9 strokes, f0..f9 fills, in Okabe and Ito's palette, which is readable with colour blindness. */
#ifndef ZF_CONFORMANCE_REPORT_PLOT_H
#define ZF_CONFORMANCE_REPORT_PLOT_H

#include "glue/error.h"

#include <stddef.h>
#include <stdio.h>

enum { ZR_N_COLOURS = 10 };

typedef struct zr_line {
    const char *title;
    const double *y; /* [n]; values that are not finite are left out */
    const double *x; /* [n], rising; NULL: 1..n */
    size_t n;
    int is_dashed;
} zr_line_t;

typedef struct zr_plot {
    const char *title, *subtitle, *x_label, *y_label; /* title and subtitle may be NULL */
    const zr_line_t *lines;                           /* the first is drawn on top */
    size_t n_lines;
    double width, height; /* of the whole; 0 = 560 x 330 */
    double y_most;        /* values above are cut off; 0 = none */
    double y_least;       /* ... and below; 0 = none */
    int has_legend;       /* inside, at the right: for files */
    int has_zero;         /* a line at y = 0, which is in range */
    double x, y;          /* place inside an outer <svg> */
} zr_plot_t;

void zr_plot_lines(FILE *file, const zr_plot_t *plot);

/* One row of marks along a horizontal axis. */
typedef struct zr_row {
    const char *label;
    const double *values; /* [n] one dot each */
    size_t n;
    double mean, low,
        high; /* a bar from low to high (NAN: none, INFINITY: open) and a diamond at the mean (NAN: none) */
    unsigned colour;
} zr_row_t;

typedef struct zr_dots {
    const char *x_label;
    const zr_row_t *rows;
    size_t n_rows;
    double limit; /* a dashed line with its label; NAN = none */
    const char *limit_label;
    int has_zero;
} zr_dots_t;

void zr_plot_dots(FILE *file, const zr_dots_t *plot);

enum { ZR_MAX_PARTS = 5 };

/* One stacked horizontal bar. */
typedef struct zr_bar {
    const char *label;
    double parts[ZR_MAX_PARTS];
    double mark; /* a tick across the bar (the formula); NAN = none */
} zr_bar_t;

typedef struct zr_bars {
    const char *x_label;
    const zr_bar_t *bars;
    size_t n_bars, n_parts;
} zr_bars_t;

void zr_plot_bars(FILE *file, const zr_bars_t *plot);

/* A list of swatches and titles as HTML; is_dashed may be NULL. */
void zr_put_legend(FILE *file, const char *const *titles, const int *is_dashed, size_t n);

/* The colour classes: each a custom property (--c0 ... --c9, --ink ...) that a page may set, else the light value. */
void zr_put_colours(FILE *file);
/* A file of its own: opens with an XML head, colours and a white ground; close with </svg>. */
void zr_svg_begin(FILE *file, double width, double height);
/* One line plot as a file with its legend; replaces the file at path. */
int zr_plot_write(const zr_plot_t *plot, const char *path, glue_error_t *err);

/* An axis step of 1, 2 or 5 times a power of ten, so that a range has about n ticks. */
double zr_nice_tick(double range, double n);
/* A tick's label with as many decimals as its step needs. */
void zr_put_tick(FILE *file, double x, double y, const char *anchor, double value, double step);
void zr_put_text(FILE *file, double x, double y, const char *attributes, const char *text);

/* Centred running mean over 2 * half + 1 values (fewer at the ends). out: [n], not y. */
void zr_smooth(const double *y, size_t n, size_t half, double *out);

#endif
