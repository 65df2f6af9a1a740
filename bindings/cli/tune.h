/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/tune.h - `zf tune`: the user's own trainer, run once per setting of windows; what the plugin counted
 * decides. Parts: tune.c (the command and the choice), tune_files.c (the INI file and the counters of a setting),
 * tune_run.c (the trainer as a process). */
#ifndef ZF_CLI_TUNE_H
#define ZF_CLI_TUNE_H

#include "cli.h"

enum { TUNE_PATH_NBYTES = 4096, TUNE_WHY_NBYTES = 320 };

/* One setting and what became of it. */
typedef struct tune_row {
    unsigned update_interval, publish_lag;
    int has_run; /* the counters below hold; else `why` says why not */
    double n_steps, seconds, stall_s, lateness_sum, lateness_steps; /* of the steps behind warm-up and 8 more */
    char why[TUNE_WHY_NBYTES];
} tune_row_t;

/* ---- tune_files.c ---- */

/* text with update_interval and publish_lag of the row; counters_path: also with [stats] so that the counters go there
 * at the end, NULL: with [stats] as it is. To be freed; NULL: out of memory. */
char *tune_config(const char *text, const tune_row_t *row, const char *counters_path);

/* 0, or -1 after a message. */
int tune_write_file(const char *path, const char *text);

/* The counters that a run of this setting has left at path (several ranks: those of rank 0), judged: sets has_run, or
 * why. */
void tune_read_counters(const char *path, tune_row_t *row);

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
