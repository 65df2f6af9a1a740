/* page.h - one self-contained HTML page of the results of all areas: no script, no external resource.
 *
 * Model: every area leaves a JSON file; the page is made of those files alone, so that it can be made again later, on
 * another machine, from results that were kept. Text from the files is escaped, whatever it holds; figures that a file
 * lacks are shown as "-". The page is well-formed XML as well as HTML. Sections are functions from JSON to HTML, listed
 * in page.c; an area that left no file is named as not run. */
#ifndef ZF_CONFORMANCE_REPORT_PAGE_H
#define ZF_CONFORMANCE_REPORT_PAGE_H

#include "glue/error.h"

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

enum { ZR_SUMMARY_NBYTES = 400 };

/* What is known of an area; an area may have several files (curves: one per learning rate). */
typedef struct zr_result {
    const char *area;
    const json_t *json;  /* NULL: it left none */
    int exit_status;     /* of the run; -1 = taken from the JSON file */
    double seconds;      /* of the run; NAN = not known */
    const char *message; /* why there is no JSON, or NULL */
} zr_result_t;

/* The areas in the order of the page; NULL behind the last. */
const char *zr_area_name(size_t i);

/* Replaces the file at path. */
int zr_page_write(const zr_result_t *results, size_t n, const char *path, glue_error_t *err);
void zr_page_put(FILE *file, const zr_result_t *results, size_t n);

/* ---- sections ---------------------------------------------------------------------------------------------------- */

void zr_put_checks(FILE *file, const json_t *json);
void zr_put_glue(FILE *file, const json_t *json);
void zr_put_curves(FILE *file, const json_t *json);
void zr_put_ablation(FILE *file, const json_t *json);
void zr_put_perf(FILE *file, const json_t *json);
void zr_put_timeline(FILE *file, const json_t *json); /* the object "timeline" of perf */

/* The line of the table of verdicts. */
void zr_say_checks(const json_t *json, char out[ZR_SUMMARY_NBYTES]);
void zr_say_glue(const json_t *json, char out[ZR_SUMMARY_NBYTES]);
void zr_say_curves(const json_t *json, char out[ZR_SUMMARY_NBYTES]);
void zr_say_ablation(const json_t *json, char out[ZR_SUMMARY_NBYTES]);
void zr_say_perf(const json_t *json, char out[ZR_SUMMARY_NBYTES]);

/* ---- parts that sections share ----------------------------------------------------------------------------------- */

/* A figure with its caption: figure_begin, one plot, a legend if there is one, figure_end. */
void zr_figure_begin(FILE *file, const char *title, const char *note);
void zr_figure_end(FILE *file);
/* A table that scrolls by itself where the screen is narrow. A head that begins with ">" is that of numbers. */
void zr_table_begin(FILE *file, const char *const *heads, size_t n);
void zr_table_end(FILE *file);
void zr_cell_text(FILE *file, const char *text);
void zr_cell_number(FILE *file, double value, int n_decimals);
/* "PASS", "FAIL" or another word, coloured and readable without colour. */
void zr_put_verdict(FILE *file, const char *word);

/* What trained on what: task, data, model, steps, rate. */
void zr_put_source(FILE *file, const json_t *json);

#endif
