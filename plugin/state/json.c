/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/json.c - see state/json.h. */
#include "state/json.h"

#include <stdio.h>

void zfi_json_append(zfi_json_t *json, json_t *list, json_t *value) {
    if (json_array_append_new(list, value))
        json->is_bad = 1;
}

void zfi_json_set(zfi_json_t *json, json_t *object, const char *name, json_t *value) {
    if (json_object_set_new(object, name, value))
        json->is_bad = 1;
}

static int is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* Bytes of the text without what stands between tokens. */
static size_t n_significant(const char *text, size_t nbytes) {
    size_t n = 0;
    int is_string = 0;
    for (size_t i = 0; i < nbytes; i++) {
        if (!is_string && is_space(text[i]))
            continue;
        n++;
        if (text[i] == '"')
            is_string = !is_string;
        if (is_string && text[i] == '\\' && i + 1 < nbytes) {
            n++;
            i++;
        }
    }
    return n;
}

json_t *zfi_json_parse(const char *text, size_t nbytes, char problem[ZFI_JSON_PROBLEM]) {
    json_error_t error;
    json_t *out = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, &error);
    size_t need = n_significant(text, nbytes), have;
    if (!out) {
        snprintf(problem, ZFI_JSON_PROBLEM, "%s", error.text);
        return NULL;
    }
    have = json_dumpb(out, NULL, 0, JSON_COMPACT);
    if (have == need)
        return out;
    snprintf(problem, ZFI_JSON_PROBLEM,
             "%zu of %zu bytes were understood: memory ran out, or it was not written by a save", have, need);
    json_decref(out);
    return NULL;
}
