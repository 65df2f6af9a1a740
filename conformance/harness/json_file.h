/* SPDX-License-Identifier: Apache-2.0 */
/* harness/json_file.h - the JSON files that zf-host writes, by jansson. Values are made with jansson's own functions,
 * but for those below, which take what jansson refuses: numbers that are not finite, and bytes that are no UTF-8. */
#pragma once

#include "glue/error.h"

#include <jansson.h>
#include <stddef.h>

/* A number; null where it is not finite. */
json_t *zj_real(double value);

/* An array of n numbers, each rounded to so many significant digits. */
json_t *zj_reals(const double *values, size_t n, int n_digits);

/* A string; where text is no UTF-8, "?" stands for every byte beyond ASCII. */
json_t *zj_string(const char *text);

/* An array of n strings. */
json_t *zj_strings(const char *const *texts, size_t n);

/* Replaces the file at path by the object, with one line per member and one per object of an array; numbers have nine
 * digits. Takes the object over; NULL, what jansson could not make, is refused. */
int zj_write(json_t *object, const char *path, glue_error_t *err);

/* The same to an open file. Returns 0, or -1 where it cannot be written. */
int zj_put(json_t *object, FILE *file);
