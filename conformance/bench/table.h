/* SPDX-License-Identifier: Apache-2.0 */
/* table.h - what a section of zf-bench-hooks found: a table to be read, and the same as a member of a JSON file. */
#pragma once

#include <stdio.h>

#include "samples.h"

/* Of text, then of numbers. The name is the JSON key, too. */
typedef struct column {
    const char *name;
    int digits; /* behind the point; -1: text */
} column_t;

typedef struct table {
    const char *name; /* of the section */
    const column_t *columns;
    int n_columns, n_rows;
    FILE *json; /* NULL: none */
} table_t;

/* Prints the title and the heads of the columns; the list ends with a column without a name. */
table_t table_begin(FILE *json, const char *name, const char *title, const column_t *columns);
/* Columns of texts take theirs, columns of numbers theirs, in order. note stands behind the row; NULL: nothing. */
void table_row(table_t *table, const char *const *texts, const double *numbers, const char *note);
/* Ends it, with figures beside the table; the list ends with one without a name. */
typedef struct figure {
    const char *name;
    double value;
} figure_t;
void table_end(const table_t *table, const figure_t *figures);
