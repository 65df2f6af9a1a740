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

const char *zg_json_first(const char *text, const char *path) {
    const char *p = path != NULL ? zg_json_find(text, path) : skip_space(text);

    if (p == NULL || *p != '[')
        return NULL;
    p = skip_space(p + 1);
    return *p != ']' && *p != '\0' ? p : NULL;
}

const char *zg_json_next(const char *item) {
    const char *p = skip_value(item);

    if (p == NULL || *(p = skip_space(p)) != ',')
        return NULL;
    p = skip_space(p + 1);
    return *p != '\0' ? p : NULL;
}

/* Four hexadecimal digits at p as UTF-8; returns the number of bytes written, 0 where they are none. */
static size_t decode_unicode(const char *p, char out[4]) {
    unsigned long code = 0;

    for (int i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef0123456789ABCDEF", *at = p[i] != '\0' ? strchr(digits, p[i]) : NULL;

        if (at == NULL)
            return 0;
        code = code * 16 + (unsigned long)(at - digits) % 16;
    }
    if (code < 0x80) {
        out[0] = (char)code;
        return code > 0;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    out[0] = (char)(0xE0 | code >> 12);
    out[1] = (char)(0x80 | (code >> 6 & 0x3F));
    out[2] = (char)(0x80 | (code & 0x3F));
    return 3;
}

int zg_json_text(const char *text, const char *path, char *out, size_t out_nbytes) {
    const char *p = path != NULL ? zg_json_find(text, path) : skip_space(text);
    size_t used = 0;

    out[0] = '\0';
    if (p == NULL || *p != '"' || skip_string(p) == NULL)
        return 0;
    for (p++; *p != '"' && used + 4 < out_nbytes; p++) {
        size_t n;

        if (*p != '\\') {
            out[used++] = *p;
            continue;
        }
        p++;
        if (*p == 'u' && (n = decode_unicode(p + 1, out + used)) > 0) {
            used += n;
            p += 4;
        } else if (*p != 'u') {
            out[used++] = *p == 'n' ? '\n' : *p == 't' ? '\t' : *p;
        }
    }
    out[used] = '\0';
    return 1;
}
