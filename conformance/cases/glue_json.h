/* glue_json.h - finds values in the JSON that zf-host and the areas write: known members by path, nothing is built or
 * allocated.
 *
 * A path names members from the outside in, joined by dots: "report.metric.value". The text is zero-terminated and
 * expected to be one JSON value; where it is not, nothing is found and nothing is read beyond its end. An item or a
 * member that was found is itself a text to search. */
#ifndef ZF_CONFORMANCE_CASES_GLUE_JSON_H
#define ZF_CONFORMANCE_CASES_GLUE_JSON_H

#include <stddef.h>

/* Points at the first character of the value, or NULL. */
const char *zg_json_find(const char *text, const char *path);

/* The number at path; fallback where there is none. */
double zg_json_number(const char *text, const char *path, double fallback);

/* Copies the first max numbers of the array at path; returns how many the array has (0 where there is none). */
size_t zg_json_numbers(const char *text, const char *path, double *out, size_t max);

/* The string at path (NULL: text itself) without its escapes (\\uXXXX as UTF-8), cut where out is full; "" and 0 where
 * there is none, else 1. */
int zg_json_text(const char *text, const char *path, char *out, size_t out_nbytes);

/* The first item of the array at path (NULL: text itself is the array), and the one after an item; NULL where there is
 * none. */
const char *zg_json_first(const char *text, const char *path);
const char *zg_json_next(const char *item);

#endif
