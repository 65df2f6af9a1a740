/* SPDX-License-Identifier: Apache-2.0 */
/* harness/option_table.h - a command line of "--name value" pairs, from a table with one row per option: that of
 * zf-host and of every area of zf-conform.
 *
 * Model: a row says where in the caller's struct its value goes, of what kind it is, and what the help says. An option
 * that the table lacks, a value that is missing or out of range, and an option given twice are refused with one line
 * that names the option, what was found and what is needed. */
#pragma once

#include "glue/error.h"

#include <stddef.h>
#include <stdio.h>

typedef enum zc_option_kind {
    ZC_TEXT,        /* const char * */
    ZC_SWITCH,      /* int, without a value: 1 */
    ZC_COUNT,       /* size_t, 1 to 10^9 */
    ZC_U32,         /* uint32_t, .least to .most */
    ZC_U64,         /* uint64_t, below 2^63, so that JSON holds it */
    ZC_REAL,        /* double, 0 or more */
    ZC_CHOICE,      /* int or enum: which word of choices */
    ZC_CHOICE_TEXT, /* const char *: one of choices */
    ZC_OVERRIDE,    /* zc_overrides_t: one more, section.key=value; may be repeated */
} zc_option_kind_t;

enum { ZC_MAX_OVERRIDES = 64 };

typedef struct zc_overrides {
    const char *list[ZC_MAX_OVERRIDES];
    size_t n;
} zc_overrides_t;

typedef struct zc_option {
    const char *name; /* without "--" */
    zc_option_kind_t kind;
    size_t offset;        /* in what the command line fills */
    const char *argument; /* name of the value in the help text; NULL: none */
    const char *help;     /* NULL: the help does not list it (what a program says to its own children) */
    const char *choices;  /* "fp32 bf16" */
    double least, most;   /* of ZC_U32 */
} zc_option_t;

/* A row; .choices =, .least = and .most = may follow. */
#define ZC_OPTION(name_, kind_, offset_, argument_, help_, ...)                                                        \
    { .name = name_, .kind = kind_, .offset = offset_, .argument = argument_, .help = help_, __VA_ARGS__ }

/* Reads argv[1..] into *out, which holds the defaults; texts are borrowed from argv. */
int zc_options_parse(const zc_option_t *table, size_t n, int argc, char **argv, void *out, glue_error_t *err);

/* The help: what the program is, one line per option, what its exit status means. Returns 0, the status to end with. */
int zc_options_help(const char *what, const zc_option_t *table, size_t n, const char *exit_status);
