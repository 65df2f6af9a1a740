/* SPDX-License-Identifier: Apache-2.0 */
/* harness/json_file.c - files of one line per member (json_file.h). */
#define _POSIX_C_SOURCE 200809L
#include "json_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *zj_real(double value) { return isfinite(value) ? json_real(value) : json_null(); }

json_t *zj_reals(const double *values, size_t n, int n_digits) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        char digits[40];
        (void)snprintf(digits, sizeof digits, "%.*g", n_digits, values[i]);
        (void)json_array_append_new(list, zj_real(strtod(digits, NULL)));
    }
    return list;
}

json_t *zj_string(const char *text) {
    json_t *whole = json_string(text);
    char *copy = whole == NULL ? strdup(text) : NULL;
    for (char *c = copy; c != NULL && *c != '\0'; c++)
        if ((unsigned char)*c >= 0x80)
            *c = '?';
    if (copy != NULL)
        whole = json_string(copy);
    free(copy);
    return whole;
}

json_t *zj_strings(const char *const *texts, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(list, zj_string(texts[i]));
    return list;
}

static int put_value(const json_t *value, FILE *file) {
    return json_dumpf(value, file, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
}

/* One line per item where the items are objects, else one line. */
static int put_member(const json_t *value, FILE *file) {
    const json_t *item;
    size_t i;
    int st = 0;
    if (!json_is_object(json_array_get(value, 0)))
        return put_value(value, file);
    json_array_foreach(value, i, item) {
        (void)fputs(i == 0 ? "[\n  " : ",\n  ", file);
        st |= put_value(item, file);
    }
    (void)fputs("\n ]", file);
    return st;
}

int zj_put(json_t *object, FILE *file) {
    const char *separator = "{\n ", *key;
    json_t *value;
    int st = json_is_object(object) ? 0 : -1;

    json_object_foreach(object, key, value) {
        (void)fprintf(file, "%s\"%s\": ", separator, key);
        st |= put_member(value, file);
        separator = ",\n ";
    }
    (void)fputs("\n}\n", file);
    json_decref(object);
    return st != 0 || ferror(file) != 0 ? -1 : 0;
}

int zj_write(json_t *object, const char *path, glue_error_t *err) {
    FILE *file;
    int st;
    if (object == NULL)
        return glue_fail(err, "%s: the results cannot be put into JSON: out of memory, or a text is no UTF-8", path);
    file = fopen(path, "w");
    if (file == NULL) {
        json_decref(object);
        return glue_fail(err, "%s: cannot write: %s", path, strerror(errno));
    }
    st = zj_put(object, file);
    if (fclose(file) != 0 || st != 0)
        return glue_fail(err, "%s: cannot write: %s", path, strerror(errno));
    return 0;
}
