/* glue_json.c - a walk over JSON text that skips what is not asked for (glue_json.h). */
#include "glue_json.h"

#include <stdlib.h>
#include <string.h>

static const char *skip_space(const char *p) { return p + strspn(p, " \t\r\n"); }

/* p at the opening quote; returns behind the closing one, NULL where there is none. */
static const char *skip_string(const char *p) {
    for (p++; *p != '"'; p++) {
        if (*p == '\\')
            p++;
        if (*p == '\0')
            return NULL;
    }
    return p + 1;
}

/* Returns behind the value that starts at p, NULL where the text ends before. */
static const char *skip_value(const char *p) {
    int depth = 0;

    for (;;) {
        if (*p == '\0')
            return NULL;
        if (*p == '"') {
            p = skip_string(p);
            if (p == NULL)
                return NULL;
        } else if (*p == '{' || *p == '[') {
            depth++;
            p++;
        } else if (*p == '}' || *p == ']') {
            depth--;
            p++;
        } else {
            p++;
        }
        if (depth < 0 || (depth == 0 && strchr(",}]", *skip_space(p)) != NULL))
            return p;
    }
}

/* The value of a member of the object at p, or NULL. */
static const char *find_member(const char *p, const char *name, size_t length) {
    p = skip_space(p);
    if (*p != '{')
        return NULL;
    p = skip_space(p + 1);
    while (*p == '"') {
        const char *key = p + 1, *end = skip_string(p), *value;

        if (end == NULL)
            return NULL;
        value = skip_space(end);
        if (*value != ':')
            return NULL;
        value = skip_space(value + 1);
        if ((size_t)(end - 1 - key) == length && strncmp(key, name, length) == 0)
            return value;
        p = skip_value(value);
        if (p == NULL)
            return NULL;
        p = skip_space(p);
        p = skip_space(*p == ',' ? p + 1 : p);
    }
    return NULL;
}

const char *zg_json_find(const char *text, const char *path) {
    while (text != NULL) {
        size_t length = strcspn(path, ".");

        text = find_member(text, path, length);
        if (path[length] == '\0')
            return text;
        path += length + 1;
    }
    return NULL;
}

double zg_json_number(const char *text, const char *path, double fallback) {
    const char *value = zg_json_find(text, path);
    char *end = NULL;
    double number;

    if (value == NULL)
        return fallback;
    number = strtod(value, &end);
    return end != value ? number : fallback;
}

size_t zg_json_numbers(const char *text, const char *path, double *out, size_t max) {
    const char *p = zg_json_find(text, path);
    size_t n = 0;

    if (p == NULL || *p != '[')
        return 0;
    for (p = skip_space(p + 1); *p != ']'; n++) {
        char *end = NULL;
        double number = strtod(p, &end);

        if (end == p)
            return n;
        if (n < max)
            out[n] = number;
        p = skip_space(end);
        p = skip_space(*p == ',' ? p + 1 : p);
    }
    return n;
}
