/* glue_json.h - values in the JSON that zf-host and the areas write, by path (jansson).
 *
 * A path names members from the outside in, joined by dots: "report.metric.value"; NULL is the value itself. What is
 * looked for in NULL is not there. */
#ifndef ZF_CONFORMANCE_CASES_GLUE_JSON_H
#define ZF_CONFORMANCE_CASES_GLUE_JSON_H

#include <jansson.h>
#include <stddef.h>

/* A whole file or text; NULL where it cannot be read or is not JSON. Release with json_decref. */
json_t *zg_json_read(const char *path);
json_t *zg_json_parse(const char *text);

/* The value, which belongs to the value around it, or NULL. json_array_foreach takes it as it is. */
const json_t *zg_json_find(const json_t *from, const char *path);

/* The number at path; fallback where there is none. */
double zg_json_number(const json_t *from, const char *path, double fallback);

/* Copies the first max numbers of the array at path; returns how many it has before its end or the first item that is
 * none. */
size_t zg_json_numbers(const json_t *from, const char *path, double *out, size_t max);

/* The string at path, cut where out is full; "" and 0 where there is none, else 1. */
int zg_json_text(const json_t *from, const char *path, char *out, size_t out_nbytes);

#endif
