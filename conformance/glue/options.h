/* options.h - a command line of "--name value" pairs, from a table with one row per option. */
#ifndef ZF_CONFORMANCE_GLUE_OPTIONS_H
#define ZF_CONFORMANCE_GLUE_OPTIONS_H

#include "error.h"

#include <stddef.h>
#include <stdio.h>

typedef enum glue_option_kind {
    GLUE_TEXT,          /* const char * */
    GLUE_SWITCH,        /* int, without a value: 1 */
    GLUE_COUNT,         /* size_t, 1 to 10^9 */
    GLUE_SEED,          /* uint64_t */
    GLUE_REAL,          /* double, 0 or more */
    GLUE_POSITIVE,      /* double, above 0 and below 10^6 */
    GLUE_POSITIVE_TEXT, /* const char *: the text of such a number */
    GLUE_CHOICE,        /* int or enum: which word of choices */
    GLUE_CHOICE_TEXT,   /* const char *: one of choices */
    GLUE_TASK,          /* const glue_task_t * */
    GLUE_OVERRIDE       /* glue_overrides_t: one more, section.key=value */
} glue_option_kind_t;

enum { GLUE_MAX_OVERRIDES = 64 };

typedef struct glue_overrides {
    const char *list[GLUE_MAX_OVERRIDES];
    size_t n;
} glue_overrides_t;

typedef struct glue_option {
    const char *name; /* without "--" */
    glue_option_kind_t kind;
    size_t offset;        /* in what the command line fills */
    const char *argument; /* name of the value in the help text; NULL: none */
    const char *help;
    const char *choices; /* "fp32 bf16" */
    const char *areas;   /* that have it, separated by spaces; NULL = all */
} glue_option_t;

/* A row; .choices = and .areas = may follow. */
#define GLUE_OPTION(name_, kind_, offset_, argument_, help_, ...)                                                      \
    { .name = name_, .kind = kind_, .offset = offset_, .argument = argument_, .help = help_, __VA_ARGS__ }

/* Reads argv[1..] into *out, which holds the defaults; texts are borrowed from argv. area: whose options count, NULL =
 * all. */
int glue_options_parse(const glue_option_t *table, size_t n, const char *area, int argc, char **argv, void *out,
                       glue_error_t *err);

/* One line per option. */
void glue_options_print(FILE *file, const glue_option_t *table, size_t n, const char *area);

#endif
