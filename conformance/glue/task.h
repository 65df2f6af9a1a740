/* SPDX-License-Identifier: Apache-2.0 */
/* task.h - the nine GLUE tasks as one table: where the official files keep text and label, and how each is scored. */
#ifndef ZF_CONFORMANCE_GLUE_TASK_H
#define ZF_CONFORMANCE_GLUE_TASK_H

#include "metric.h"

#include <stddef.h>

enum { GLUE_MAX_LABELS = 3 };

/* Label column of files whose label stands last, at a place that differs between train and dev. */
enum { GLUE_LAST_COLUMN = -1, GLUE_NO_COLUMN = -2 };

typedef struct glue_task {
    const char *name;            /* as on the command line: "sst2" */
    const char *folder;          /* as in the official download: "SST-2" */
    const char *dev_file;        /* "dev.tsv" but for MNLI */
    const char *second_dev_file; /* MNLI's mismatched set; else NULL */
    int has_header;
    int has_broken_rows;                 /* QQP: lines that lack columns are skipped and counted, not refused */
    int min_columns;                     /* a file's first line fixes the number, which may be larger */
    int text_a, text_b;                  /* 0-based columns; text_b may be GLUE_NO_COLUMN */
    int label;                           /* 0-based column or GLUE_LAST_COLUMN */
    int n_labels;                        /* classes; 0 = a real number (regression) */
    const char *labels[GLUE_MAX_LABELS]; /* text of class 0, 1, 2 in the file */
    double min_score, max_score;         /* regression: allowed range */
    glue_metric_kind_t metric;           /* the one that the verdict uses */
    glue_metric_kind_t second_metric;    /* reported beside it: GLUE scores the task by both; or GLUE_NO_METRIC */
    double margin;                       /* non-inferiority margin of the verdict, in points of 100 */
    size_t fine_tune_steps;              /* of 32 rows, from a pretrained encoder: a few epochs, at most 3000 */
    size_t max_tokens;                   /* longer texts are cut */
} glue_task_t;

/* The row called name, or NULL. */
const glue_task_t *glue_task_find(const char *name);

/* For a table of options: place is a const glue_task_t **. Returns NULL, or what was needed instead of text. */
const char *glue_task_parse(const char *text, void *place);

/* All rows; out_n receives their number. */
const glue_task_t *glue_task_table(int *out_n);

#endif
