/* glue_plot.h - line plots as SVG, written directly: axes with units, ticks, a legend; no dependency, no script. */
#ifndef ZF_CONFORMANCE_CASES_GLUE_PLOT_H
#define ZF_CONFORMANCE_CASES_GLUE_PLOT_H

#include "glue/error.h"

#include <stddef.h>

typedef struct zg_line {
    const char *title;
    const double *y; /* [n] at x = 1..n */
    size_t n;
    int is_dashed;
} zg_line_t;

typedef struct zg_plot {
    const char *title, *subtitle, *x_label, *y_label;
    const zg_line_t *lines; /* at most 10; the first is drawn on top */
    size_t n_lines;
} zg_plot_t;

/* Replaces the file at path. */
int zg_plot_write(const zg_plot_t *plot, const char *path, glue_error_t *err);

/* Centred running mean over 2 * half + 1 values (fewer at the ends). out: [n], not y. */
void zg_smooth(const double *y, size_t n, size_t half, double *out);

#endif
