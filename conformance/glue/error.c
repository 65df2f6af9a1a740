/* SPDX-License-Identifier: Apache-2.0 */
/* error.c - formats the one-line error messages of error.h. */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

int glue_fail(glue_error_t *err, const char *format, ...) {
    va_list args;
    if (err == NULL)
        return -1;
    va_start(args, format);
    (void)vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    for (char *c = err->text; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    return -1;
}
