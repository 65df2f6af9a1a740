/* SPDX-License-Identifier: Apache-2.0 */
/* table.c - see table.h. */
#include "table.h"

#include <string.h>

/* A column is as wide as its name, and as most of its numbers. */
static int width_of(const column_t *column) {
    const int n = (int)strlen(column->name);
    return n < 8 ? 8 : n;
}

table_t table_begin(FILE *json, const char *name, const char *title, const column_t *columns) {
    table_t table = {.name = name, .columns = columns, .json = json};
    printf("%s: %s\n", name, title);
    for (; columns[table.n_columns].name; table.n_columns++)
        printf("%*s ", width_of(&columns[table.n_columns]), columns[table.n_columns].name);
    printf("\n");
    if (json)
        fprintf(json, "\"%s\": {\"rows\": [", name);
    return table;
}

void table_row(table_t *table, const char *const *texts, const double *numbers, const char *note) {
    if (table->json)
        fprintf(table->json, "%s\n  {", table->n_rows++ ? "," : "");
    for (int i = 0; i < table->n_columns; i++) {
        const column_t *column = &table->columns[i];
        char cell[64];
        if (column->digits < 0)
            snprintf(cell, sizeof cell, "%s", *texts++);
        else
            snprintf(cell, sizeof cell, "%.*f", column->digits, *numbers++);
        printf("%*s ", width_of(column), cell);
        if (table->json)
            fprintf(table->json, column->digits < 0 ? "%s\"%s\": \"%s\"" : "%s\"%s\": %s", i ? ", " : "", column->name,
                    cell);
    }
    printf("%s\n", note ? note : "");
    fflush(stdout);
    if (table->json)
        fprintf(table->json, "}");
}

void table_end(const table_t *table, const figure_t *figures) {
    if (table->json)
        fprintf(table->json, "\n]");
    for (; figures->name; figures++) {
        printf("  %s %.4g\n", figures->name, figures->value);
        if (table->json)
            fprintf(table->json, ", \"%s\": %.6g", figures->name, figures->value);
    }
    if (table->json)
        fprintf(table->json, "}");
}
