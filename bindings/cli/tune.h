/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/tune.h - `zf tune`: the user's own trainer, run once per setting of windows; what the plugin counted
 * decides. Parts: tune.c (the command and the choice), tune_files.c (the INI file and the trace of a setting),
 * tune_run.c (the trainer as a process). */
#ifndef ZF_CLI_TUNE_H
#define ZF_CLI_TUNE_H

#include "cli.h"
#include "range.h"

enum { TUNE_PATH_NBYTES = 4096, TUNE_WHY_NBYTES = 320, TUNE_MOST_ROUNDS = 9 };

/* One setting and what became of it. */
typedef struct tune_row {
    unsigned update_interval, publish_lag;
    int n_runs; /* so many of the figures below hold; 0 after one that failed: `why` says why */
    double n_steps, step_s[TUNE_MOST_ROUNDS], stall_share[TUNE_MOST_ROUNDS]; /* behind warm-up and 8 steps more */
    double lateness[TUNE_MOST_ROUNDS];                                       /* loss per step; NAN: not measured */
    zf_cli_range_t of_step, of_stall, of_lateness, of_distance; /* of its runs; distance: of lateness from 0 */
    char why[TUNE_WHY_NBYTES];
} tune_row_t;

/* ---- tune_files.c ---- */

/* text with update_interval and publish_lag of the row; trace_path: also with [trace] so that the file says there what
 * the steps behind warm-up took, NULL: with [trace] as it is. warm_up: steps of it where the text does not say. To be
 * freed; NULL: out of memory. */
char *tune_config(const char *text, const tune_row_t *row, const char *trace_path, unsigned long warm_up);

/* Whether the text sets update_interval and publish_lag to these numbers. */
int tune_is_config(const char *text, const tune_row_t *row);

/* 0, or -1 after a message. */
int tune_write_file(const char *path, const char *text);

/* What a run of this setting counted, in the trace that it left at path (several ranks: that of rank 0), judged: one
 * run more, or none and why. */
void tune_read_trace(const char *path, tune_row_t *row);

/* ---- tune_run.c ---- */

typedef enum tune_end { TUNE_OVER, TUNE_LATE, TUNE_INTERRUPTED, TUNE_NOT_STARTED } tune_end_t;

typedef struct tune_process {
    const char *command;     /* for sh -c */
    const char *config_path; /* ZF_TUNE_CONFIG of its environment */
    const char *log_path;    /* where its output goes */
    const char *what;        /* shown as progress */
    double timeout_s;
} tune_process_t;

/* From here on SIGINT, SIGTERM and SIGHUP end a run. */
void tune_catch_signals(void);

/* Runs the command in a process group of its own and waits for it, at most timeout_s; no process of the group is left.
 * out_status: of waitpid, where it is over; errno where it did not start. */
tune_end_t tune_run(const tune_process_t *process, int *out_status);

#endif
