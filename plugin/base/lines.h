/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/lines.h - a file of lines that grows at its end and that one instance at a time writes.
 *
 * A line is whole, or a part without an end: what a killed process or a full disk left of it. The next line begins
 * behind a line feed of its own then, so that no reader takes the two for one. Nothing is synced: what was written
 * outlives the process, not the machine. A lock says who writes; a forked child that lives on does not keep it. */
#pragma once

#include <stddef.h>

typedef struct zfi_lines {
    int fd;
    int is_torn; /* it ends in the middle of a line */
} zfi_lines_t;

/* [control] Opens the regular file, or creates it. The system's error, or 0; EWOULDBLOCK: another instance writes it.
 */
int zfi_lines_open(const char *path, zfi_lines_t *out);
/* [control] NULL is legal. */
void zfi_lines_close(zfi_lines_t *lines);

/* [hook] Adds one line; the text ends with its line feed. The system's error, or 0. No allocation. */
int zfi_lines_add(zfi_lines_t *lines, const char *text, size_t nbytes);
