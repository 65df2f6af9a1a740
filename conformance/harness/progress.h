/* SPDX-License-Identifier: Apache-2.0 */
/* harness/progress.h - one line on stderr that says how far an area is, where stderr is a terminal; else nothing. */
#pragma once

#include <stddef.h>

typedef struct zc_progress {
    const char *area;
    size_t n_done, n_all; /* n_all 0: unknown */
    double began;         /* seconds; 0: nothing was shown yet */
} zc_progress_t;

/* What comes next, n_done of n_all are behind it: the line is written anew. */
void zc_progress_show(zc_progress_t *progress, const char *what);
/* Takes the line away. Whoever prints calls it first. */
void zc_progress_end(zc_progress_t *progress);
