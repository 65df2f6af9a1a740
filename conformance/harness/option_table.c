/* SPDX-License-Identifier: Apache-2.0 */
/* harness/option_table.c - command lines from a table (option_table.h). */
#include "option_table.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { NEEDED_NBYTES = 160 };

/* Says what was needed; always -1. */
GLUE_PRINTF(2, 3) static int need(char needed[NEEDED_NBYTES], const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(needed, NEEDED_NBYTES, format, args);
    va_end(args);
    return -1;
}

/* Where a word stands in a list separated by spaces, or -1. */
static int index_of(const char *word, const char *list) {
    size_t length = strlen(word);
    for (int i = 0; list != NULL && *list != '\0'; i++) {
        size_t n = strcspn(list, " ");
        if (n == length && strncmp(list, word, n) == 0)
            return i;
        list += n + (list[n] == ' ');
    }
    return -1;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static int parse_whole(const char *text, uint64_t *out) {
    char *end = NULL;
    if (text[0] < '0' || text[0] > '9')
        return -1;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' ? 0 : -1;
}

/* Programs keep the "C" locale, so strtod reads the same everywhere. */
static int parse_real(const char *text, double *out) {
    char *end = NULL;
    if (text[0] == '\0' || strspn(text, "0123456789.eE+-") != strlen(text))
        return -1;
    *out = strtod(text, &end);
    return *end == '\0' && *out >= 0.0 && *out < 1e30 ? 0 : -1;
}

static int store_whole(const zc_option_t *option, const char *text, void *place, char needed[NEEDED_NBYTES]) {
    uint64_t whole;
    if (option->kind == ZC_U64) {
        if (parse_whole(text, &whole) != 0 || whole > INT64_MAX)
            return need(needed, "a whole number below 2^63");
        *(uint64_t *)place = whole;
        return 0;
    }
    if (option->kind == ZC_COUNT) {
        if (parse_whole(text, &whole) != 0 || whole == 0 || whole > 1000000000u)
            return need(needed, "a whole number from 1");
        *(size_t *)place = (size_t)whole;
        return 0;
    }
    if (parse_whole(text, &whole) != 0 || (double)whole < option->least || (double)whole > option->most)
        return need(needed, "a whole number from %.0f to %.0f", option->least, option->most);
    *(uint32_t *)place = (uint32_t)whole;
    return 0;
}

/* "fp32 or bf16" */
static int need_choice(const char *choices, char needed[NEEDED_NBYTES]) {
    size_t used = 0;
    for (; *choices != '\0' && used + 5 < NEEDED_NBYTES; choices++)
        used += (size_t)snprintf(needed + used, NEEDED_NBYTES - used, *choices == ' ' ? " or " : "%c", *choices);
    return -1;
}

static int store_choice(const zc_option_t *option, const char *text, void *place, char needed[NEEDED_NBYTES]) {
    int index = index_of(text, option->choices);
    if (index < 0)
        return need_choice(option->choices, needed);
    if (option->kind == ZC_CHOICE)
        *(int *)place = index;
    else
        *(const char **)place = text;
    return 0;
}

static int store_override(const char *text, zc_overrides_t *overrides, char needed[NEEDED_NBYTES]) {
    if (overrides->n == ZC_MAX_OVERRIDES || strchr(text, '=') == NULL)
        return need(needed, "section.key=value, at most %d times", ZC_MAX_OVERRIDES);
    overrides->list[overrides->n++] = text;
    return 0;
}

/* Reads text into its member; -1 with what was needed instead. */
static int store(const zc_option_t *option, const char *text, void *place, char needed[NEEDED_NBYTES]) {
    switch (option->kind) {
    case ZC_TEXT:
        *(const char **)place = text;
        return 0;
    case ZC_SWITCH:
        *(int *)place = 1;
        return 0;
    case ZC_CHOICE:
    case ZC_CHOICE_TEXT:
        return store_choice(option, text, place, needed);
    case ZC_OVERRIDE:
        return store_override(text, place, needed);
    case ZC_REAL:
        return parse_real(text, place) == 0 ? 0 : need(needed, "a number, 0 or more");
    default:
        return store_whole(option, text, place, needed);
    }
}

/* ---- the line ---------------------------------------------------------------------------------------------------- */

static int is_meant(const zc_option_t *option, const char *word) {
    return strncmp(word, "--", 2) == 0 && strcmp(option->name, word + 2) == 0;
}

static const zc_option_t *find(const zc_option_t *table, size_t n, const char *word) {
    for (size_t i = 0; i < n; i++)
        if (is_meant(&table[i], word))
            return &table[i];
    return NULL;
}

static int takes_value(const zc_option_t *option) { return option->kind != ZC_SWITCH; }

/* Whether the option at argv[at] stands before it already. */
static int is_repeated(const zc_option_t *table, size_t n, char **argv, int at) {
    const zc_option_t *option = find(table, n, argv[at]);
    for (int i = 1; i < at; i++) {
        const zc_option_t *before = find(table, n, argv[i]);
        if (before == option)
            return option->kind != ZC_OVERRIDE;
        i += takes_value(before);
    }
    return 0;
}

int zc_options_parse(const zc_option_t *table, size_t n, int argc, char **argv, void *out, glue_error_t *err) {
    for (int i = 1; i < argc; i++) {
        const zc_option_t *option = find(table, n, argv[i]);
        const char *text = argv[i];
        char needed[NEEDED_NBYTES];
        if (option == NULL)
            return glue_fail(err, "found \"%.60s\"; an option is needed, --help lists them", argv[i]);
        if (is_repeated(table, n, argv, i))
            return glue_fail(err, "--%s: given twice; once is needed", option->name);
        if (takes_value(option)) {
            if (i + 1 == argc)
                return glue_fail(err, "--%s: nothing follows; %s is needed", option->name, option->argument);
            text = argv[++i];
        }
        if (store(option, text, (char *)out + option->offset, needed) != 0)
            return glue_fail(err, "--%s: found \"%.60s\"; %s is needed", option->name, text, needed);
    }
    return 0;
}

int zc_options_help(const char *what, const zc_option_t *table, size_t n, const char *exit_status) {
    (void)puts(what);
    for (size_t i = 0; i < n; i++)
        if (table[i].help != NULL)
            (void)printf("  --%-13s %-12s %s\n", table[i].name, table[i].argument != NULL ? table[i].argument : "",
                         table[i].help);
    (void)printf("exit status: %s\n", exit_status);
    return 0;
}
