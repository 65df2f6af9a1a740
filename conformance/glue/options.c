/* options.c - command lines from a table (options.h). */
#include "options.h"

#include "task.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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

static const char *store_number(glue_option_kind_t kind, const char *text, void *place) {
    uint64_t whole;
    double real;

    switch (kind) {
    case GLUE_COUNT:
        if (parse_whole(text, &whole) != 0 || whole == 0 || whole > 1000000000u)
            return "a whole number from 1";
        *(size_t *)place = (size_t)whole;
        return NULL;
    case GLUE_SEED:
        return parse_whole(text, place) == 0 ? NULL : "a whole number";
    case GLUE_REAL:
        return parse_real(text, place) == 0 ? NULL : "a number, 0 or more";
    default:
        if (parse_real(text, &real) != 0 || real == 0.0 || real >= 1e6)
            return "a number above 0, below 10^6";
        if (kind == GLUE_POSITIVE)
            *(double *)place = real;
        else
            *(const char **)place = text;
        return NULL;
    }
}

static const char *store_choice(const glue_option_t *option, const char *text, void *place) {
    int index = index_of(text, option->choices);

    if (index < 0)
        return option->choices;
    if (option->kind == GLUE_CHOICE)
        *(int *)place = index;
    else
        *(const char **)place = text;
    return NULL;
}

/* Reads text into its member. Returns what was needed instead, or NULL. */
static const char *store(const glue_option_t *option, const char *text, void *place) {
    glue_overrides_t *overrides = place;

    switch (option->kind) {
    case GLUE_TEXT:
        *(const char **)place = text;
        return NULL;
    case GLUE_SWITCH:
        *(int *)place = 1;
        return NULL;
    case GLUE_CHOICE:
    case GLUE_CHOICE_TEXT:
        return store_choice(option, text, place);
    case GLUE_TASK:
        *(const glue_task_t **)place = glue_task_find(text);
        return glue_task_find(text) != NULL ? NULL : "the name of a GLUE task, such as sst2";
    case GLUE_OVERRIDE:
        if (overrides->n == GLUE_MAX_OVERRIDES || strchr(text, '=') == NULL)
            return "section.key=value, at most 64 times";
        overrides->list[overrides->n++] = text;
        return NULL;
    default:
        return store_number(option->kind, text, place);
    }
}

static int has_area(const glue_option_t *option, const char *area) {
    return option->areas == NULL || area == NULL || index_of(area, option->areas) >= 0;
}

static const glue_option_t *find(const glue_option_t *table, size_t n, const char *area, const char *argument) {
    for (size_t i = 0; i < n; i++)
        if (strncmp(argument, "--", 2) == 0 && strcmp(table[i].name, argument + 2) == 0 && has_area(&table[i], area))
            return &table[i];
    return NULL;
}

/* "fp32 or bf16" */
static void put_choices(const char *choices, char *out, size_t nbytes) {
    size_t used = 0;

    for (; *choices != '\0' && used + 5 < nbytes; choices++)
        used += (size_t)snprintf(out + used, nbytes - used, *choices == ' ' ? " or " : "%c", *choices);
}

int glue_options_parse(const glue_option_t *table, size_t n, const char *area, int argc, char **argv, void *out,
                       glue_error_t *err) {
    for (int i = 1; i < argc; i++) {
        const glue_option_t *option = find(table, n, area, argv[i]);
        const char *text = NULL, *needed;
        char choices[80] = "";

        if (option == NULL)
            return glue_fail(err, "found \"%.60s\"; an option is needed, --help lists them", argv[i]);
        if (option->kind != GLUE_SWITCH) {
            if (i + 1 == argc)
                return glue_fail(err, "--%s: nothing follows; %s is needed", option->name, option->argument);
            text = argv[++i];
        }
        needed = store(option, text, (char *)out + option->offset);
        if (needed != NULL && needed == option->choices) {
            put_choices(option->choices, choices, sizeof choices);
            needed = choices;
        }
        if (needed != NULL)
            return glue_fail(err, "--%s: found \"%.60s\"; %s is needed", option->name, text, needed);
    }
    return 0;
}

void glue_options_print(FILE *file, const glue_option_t *table, size_t n, const char *area) {
    for (size_t i = 0; i < n; i++)
        if (has_area(&table[i], area))
            (void)fprintf(file, "  --%-13s %-12s %s\n", table[i].name,
                          table[i].argument != NULL ? table[i].argument : "", table[i].help);
}
