/* SPDX-License-Identifier: Apache-2.0 */
/* glue_options.h - the command line of "glue", "curves" and "ablation". */
#ifndef ZF_CONFORMANCE_CASES_GLUE_OPTIONS_H
#define ZF_CONFORMANCE_CASES_GLUE_OPTIONS_H

#include "glue_run.h"
#include "option_table.h"

typedef struct zg_options {
    const char *plugin, *config, *host, *data, *model, *out, *readme, *mpi;
    const glue_task_t *task;
    zc_overrides_t sets;
    size_t n_seeds, n_sync_seeds, n_steps, batch, n_jobs, n_ranks;     /* 0 = the area's default */
    const char *lr, *dtype, *products, *max_tokens, *warmup, *dropout; /* NULL = the default */
    const char *device, *blas;                                         /* of zf-host; NULL = the default */
    double margin;                                                     /* points; 0 = the task's */
    int is_full, is_quick, wants_help;
} zg_options_t;

/* argv[0] is the area's name. argv is borrowed for the life of *out. plugin: --plugin, else
 * ZFPLUGIN_PATH. */
int zg_options_parse(int argc, char **argv, zg_options_t *out, glue_error_t *err);
/* Prints the help, "zf-conform AREA - what it is" and its options; returns 0. */
int zg_options_help(const char *area, const char *what);

/* A campaign with everything that the options say; arms and defaults of 0 are the caller's. host_path, of ZG_MAX_PATH
 * bytes, lives as long as the campaign. */
int zg_options_campaign(const zg_options_t *options, char *host_path, zg_campaign_t *out, glue_error_t *err);

#endif
