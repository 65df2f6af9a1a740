/* glue_json.h - finds values in the JSON that zf-host writes: known members by path, nothing is built or allocated.
 *
 * A path names members from the outside in, joined by dots: "report.metric.value". The text is zero-terminated and
 * trusted to be one JSON value; where it is not, nothing is found. */
#ifndef ZF_CONFORMANCE_CASES_GLUE_JSON_H
#define ZF_CONFORMANCE_CASES_GLUE_JSON_H

#include <stddef.h>

/* Points at the first character of the value, or NULL. */
const char *zg_json_find(const char *text, const char *path);

/* The number at path; fallback where there is none. */
double zg_json_number(const char *text, const char *path, double fallback);

/* Copies the first max numbers of the array at path; returns how many the array has (0 where there is none). */
size_t zg_json_numbers(const char *text, const char *path, double *out, size_t max);

#endif
