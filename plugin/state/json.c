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

/* ---- parsing ----------------------------------------------------------------------------------------------------- */

/* Bytes of a JSON text that do not stand between its tokens. */
static size_t n_significant(const char *text, size_t nbytes) {
    size_t n = 0;
    int is_in_string = 0;
    for (size_t i = 0; i < nbytes; i++) {
        if (!is_in_string && memchr(" \t\r\n", text[i], 4))
            continue;
        n++;
        if (text[i] == '"') {
            is_in_string = !is_in_string;
        } else if (is_in_string && text[i] == '\\') {
            n++;
            i++;
        }
    }
    return n;
}

static json_t *parse(const char *text, size_t nbytes, json_error_t *error) {
    json_t *out = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, error);
    if (!out || json_dumpb(out, NULL, 0, JSON_COMPACT) == n_significant(text, nbytes))
        return out;
    json_decref(out);
    snprintf(error->text, sizeof error->text, "it is not written as a save writes it");
    return NULL;
}

json_t *zfi_json_parse(const char *text, size_t nbytes, zf_status_t *out_why, char problem[ZFI_JSON_PROBLEM]) {
    json_error_t error = {0}, error_again = {0}; /* stay so where the library has no memory for its own start */
    json_t *out = parse(text, nbytes, &error), *again;
    if (out)
        return out;
    again = parse(text, nbytes, &error_again);
    *out_why = again || !*error.text || json_error_code(&error) == json_error_out_of_memory ||
                       error.position != error_again.position || strcmp(error.text, error_again.text) != 0
                   ? ZF_ERR_MEMORY
                   : ZF_ERR_CHECKPOINT;
    json_decref(again);
    if (*out_why == ZF_ERR_MEMORY)
        snprintf(problem, ZFI_JSON_PROBLEM, "no memory for what %zu bytes of JSON hold", nbytes);
    else
        snprintf(problem, ZFI_JSON_PROBLEM, "byte %d: %s", error.position, error.text);
    return NULL;
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

char *zfi_json_print(const zfi_json_t *json, const json_t *value) {
    char problem[ZFI_JSON_PROBLEM], *text = value && !json->is_bad ? json_dumps(value, JSON_COMPACT) : NULL;
    zf_status_t st;
    json_t *again = text ? zfi_json_parse(text, strlen(text), &st, problem) : NULL;
    int is_equal = json_equal(again, value);
    json_decref(again);
    if (is_equal)
        return text;
    free(text);
    return NULL;
}
