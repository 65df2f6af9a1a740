/* SPDX-License-Identifier: Apache-2.0 */
/* harness/progress.c - one line on stderr that says how far an area is (contract in progress.h). */
#include "progress.h"

#include <stdio.h>
#include <unistd.h>

#include "clock.h"

void zc_progress_show(zc_progress_t *progress, const char *what) {
    const double now = 1e-9 * (double)zc_now_ns();
    if (!isatty(STDERR_FILENO))
        return;
    if (progress->began == 0)
        progress->began = now;
    (void)fprintf(stderr, "\r\033[K%s: ", progress->area);
    if (progress->n_all > 0)
        (void)fprintf(stderr, "%zu of %zu, ", progress->n_done + 1, progress->n_all);
    (void)fprintf(stderr, "%s ... %.0f s", what, now - progress->began);
    if (progress->n_done > 0 && progress->n_all > progress->n_done)
        (void)fprintf(stderr, ", about %.0f s left",
                      (now - progress->began) / (double)progress->n_done *
                          (double)(progress->n_all - progress->n_done));
    (void)fflush(stderr);
}

void zc_progress_end(zc_progress_t *progress) {
    if (progress->began != 0)
        (void)fputs("\r\033[K", stderr);
}
