/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/json.c - see state/json.h. */
#include "state/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void zfi_json_append(zfi_json_t *json, json_t *list, json_t *value) {
    if (json_array_append_new(list, value))
        json->is_bad = 1;
}

void zfi_json_set(zfi_json_t *json, json_t *object, const char *name, json_t *value) {
    if (json_object_set_new(object, name, value))
        json->is_bad = 1;
}

/* ---- what a save writes ------------------------------------------------------------------------------------------ */

/* Read forward, without memory. Each function below takes what its name says, and returns 0 where something else is. */
typedef struct cursor {
    const char *at, *end;
    size_t n_significant; /* bytes taken that do not stand between tokens */
    int depth;
} cursor_t;

enum { MOST_DEPTH = 32, MOST_DIGITS = 18 };

static void skip_space(cursor_t *c) {
    while (c->at < c->end && memchr(" \t\r\n", *c->at, 4))
        c->at++;
}

static int take(cursor_t *c, const char *word) {
    size_t n = strlen(word);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0)
        return 0;
    c->at += n;
    c->n_significant += n;
    return 1;
}

/* Of the escapes those that json_dumps() writes: a short one where there is one, four digits for other controls. */
static int take_escape(cursor_t *c) {
    static const char *const all[] = {"\"", "\\", "b", "f", "n", "r", "t"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (take(c, all[i]))
            return 1;
    if (!take(c, "u00") || c->end - c->at < 2 || !memchr("01", *c->at, 2) ||
        !memchr("0123456789ABCDEF", c->at[1], 16) || (*c->at == '0' && memchr("89ACD", c->at[1], 5)))
        return 0;
    c->at += 2;
    c->n_significant += 2;
    return 1;
}

static int take_string(cursor_t *c) {
    if (!take(c, "\""))
        return 0;
    while (!take(c, "\"")) {
        if (c->at == c->end || (unsigned char)*c->at < ' ' || (take(c, "\\") && !take_escape(c)))
            return 0;
        if (c->at < c->end && *c->at != '"' && *c->at != '\\') {
            c->at++;
            c->n_significant++;
        }
    }
    return 1;
}

static int take_integer(cursor_t *c) {
    int is_negative = take(c, "-"), n = 0;
    const char *first = c->at;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
        n++;
    c->n_significant += (size_t)n;
    return n > 0 && n <= MOST_DIGITS && (*first != '0' || (n == 1 && !is_negative));
}

static int take_value(cursor_t *c);

static int take_list(cursor_t *c, const char *end, int is_object) {
    if (++c->depth > MOST_DEPTH)
        return 0;
    skip_space(c);
    for (int is_first = 1; !take(c, end); is_first = 0) {
        if (!is_first && !take(c, ","))
            return 0;
        skip_space(c);
        if (is_object && !take_string(c))
            return 0;
        skip_space(c);
        if ((is_object && !take(c, ":")) || !take_value(c))
            return 0;
    }
    c->depth--;
    return 1;
}

/* A value with the space around it. NOLINTNEXTLINE(misc-no-recursion): at most MOST_DEPTH deep */
static int take_value(cursor_t *c) {
    int is_taken;
    skip_space(c);
    if (take(c, "{"))
        is_taken = take_list(c, "}", 1);
    else if (take(c, "["))
        is_taken = take_list(c, "]", 0);
    else
        is_taken = c->at < c->end && *c->at == '"'
                       ? take_string(c)
                       : take(c, "true") || take(c, "false") || take(c, "null") || take_integer(c);
    skip_space(c);
    return is_taken;
}

static int is_whole(const char *text, size_t nbytes, size_t *out_n_significant, size_t *out_at) {
    cursor_t cursor = {.at = text, .end = text + nbytes};
    int is_taken = take_value(&cursor);
    *out_n_significant = cursor.n_significant;
    *out_at = (size_t)(cursor.at - text);
    return is_taken && *out_at == nbytes;
}

char *zfi_json_print(const zfi_json_t *json, const json_t *value) {
    char *text = value && !json->is_bad ? json_dumps(value, JSON_COMPACT) : NULL;
    size_t n, at;
    if (text && is_whole(text, strlen(text), &n, &at))
        return text;
    free(text);
    return NULL;
}

/* ---- parsing ----------------------------------------------------------------------------------------------------- */

static json_t *refuse(zf_status_t why, const char *what, size_t at, zf_status_t *out_why,
                      char problem[ZFI_JSON_PROBLEM]) {
    *out_why = why;
    snprintf(problem, ZFI_JSON_PROBLEM, what, at);
    return NULL;
}

/* The text is what a save writes, so that only these are left that are not for want of memory. */
static int is_of_text(enum json_error_code code) {
    return code == json_error_duplicate_key || code == json_error_invalid_utf8 || code == json_error_null_byte_in_key ||
           code == json_error_null_character;
}

json_t *zfi_json_parse(const char *text, size_t nbytes, zf_status_t *out_why, char problem[ZFI_JSON_PROBLEM]) {
    static const char none[] = "no memory for what %zu bytes of JSON hold";
    json_error_t error = {0}; /* the library leaves its code as it is where it has no memory for its own start */
    size_t n, at;
    json_t *out;
    if (!is_whole(text, nbytes, &n, &at))
        return refuse(ZF_ERR_CHECKPOINT, "byte %zu is not what a save writes there", at, out_why, problem);
    out = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, &error);
    if (!out && is_of_text(json_error_code(&error))) {
        *out_why = ZF_ERR_CHECKPOINT;
        snprintf(problem, ZFI_JSON_PROBLEM, "%s", error.text);
        return NULL;
    }
    if (out && json_dumpb(out, NULL, 0, JSON_COMPACT) == n)
        return out;
    json_decref(out);
    return refuse(ZF_ERR_MEMORY, none, nbytes, out_why, problem);
}
