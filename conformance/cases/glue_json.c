/* glue_json.c - look-up by path (glue_json.h). */
#include "glue_json.h"

#include <stdio.h>
#include <string.h>

json_t *zg_json_read(const char *path) { return json_load_file(path, 0, NULL); }

json_t *zg_json_parse(const char *text) { return json_loads(text, 0, NULL); }

const json_t *zg_json_find(const json_t *from, const char *path) {
    while (from != NULL && path != NULL) {
        size_t length = strcspn(path, ".");
        char name[64];

        (void)snprintf(name, sizeof name, "%.*s", (int)length, path);
        from = json_object_get(from, name);
        path = path[length] != '\0' ? path + length + 1 : NULL;
    }
    return from;
}

double zg_json_number(const json_t *from, const char *path, double fallback) {
    const json_t *value = zg_json_find(from, path);

    return json_is_number(value) ? json_number_value(value) : fallback;
}

size_t zg_json_numbers(const json_t *from, const char *path, double *out, size_t max) {
    const json_t *list = zg_json_find(from, path), *item;
    size_t n;

    json_array_foreach(list, n, item) {
        if (!json_is_number(item))
            break;
        if (n < max)
            out[n] = json_number_value(item);
    }
    return n;
}

int zg_json_text(const json_t *from, const char *path, char *out, size_t out_nbytes) {
    const char *text = json_string_value(zg_json_find(from, path));

    out[0] = '\0';
    if (text == NULL)
        return 0;
    (void)strncat(out, text, out_nbytes - 1);
    return 1;
}
