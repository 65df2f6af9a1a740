/* SPDX-License-Identifier: Apache-2.0 */
/* glue_jobs.h - child processes, a few at a time, and the progress that a user sees meanwhile. */
#ifndef ZF_CONFORMANCE_CASES_GLUE_JOBS_H
#define ZF_CONFORMANCE_CASES_GLUE_JOBS_H

#include "glue/error.h"

#include <stddef.h>

enum { ZG_MAX_ARGUMENTS = 200 };

typedef struct zg_job {
    const char *arguments[ZG_MAX_ARGUMENTS]; /* of the program, NULL at the end */
    char *log_path;                          /* its standard error and output */
    /* Filled when it has ended. */
    int exit_status; /* or 128 + signal */
    double peak_rss_nbytes;
} zg_job_t;

typedef struct zg_jobs {
    zg_job_t *list;
    size_t n, n_at_once;
    size_t n_kept; /* runs that need no job: the bar starts there */
    /* Called when a job has ended; returns -1 to stop (running ones are ended). out_line: one line of what it was. */
    int (*on_end)(void *ctx, size_t job, char *out_line, size_t out_line_nbytes, glue_error_t *err);
    void *ctx;
} zg_jobs_t;

/* Runs all jobs. OPENBLAS_NUM_THREADS=1 for each. Returns 0, or -1 with *err. */
int zg_jobs_run(zg_jobs_t *jobs, glue_error_t *err);

#endif
