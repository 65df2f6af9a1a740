/* SPDX-License-Identifier: Apache-2.0 */
/* error.h - one-line error messages of the conformance programs.
 *
 * A function that can fail for a reason the user can repair takes a glue_error_t and fills it with ONE line: where
 * (file:line when there is a file), what was found, what is needed. It returns -1; 0 is success. The first detector
 * writes the text, callers pass it on unchanged. */
#pragma once

#if defined(__GNUC__)
#define GLUE_PRINTF(format_index, first_index) __attribute__((format(printf, format_index, first_index)))
#else
#define GLUE_PRINTF(format_index, first_index)
#endif

typedef struct glue_error {
    char text[512];
} glue_error_t;

/* Writes the message (cut at the end when too long; control characters are shown as '?'). err may be NULL.
 * Always returns -1, so that "return glue_fail(err, ...)" reads as what it does. */
int glue_fail(glue_error_t *err, const char *format, ...) GLUE_PRINTF(2, 3);
