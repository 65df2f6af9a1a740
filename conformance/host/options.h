/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - the command line of zf-host. */
#pragma once

#include "harness/option_table.h"
#include "run.h"

typedef struct host_command {
    host_run_options_t run;
    const char *examples_path;
    const char *shape_option; /* one that the command line has; NULL: none */
    zc_overrides_t overrides; /* run.plugin's */
    const char *out_path;     /* JSON report; NULL = stdout */
    int wants_help, is_quiet;
    int has_bf16_products, has_device;
} host_command_t;

/* argv is borrowed for the life of *out. */
int host_options_parse(int argc, char **argv, host_command_t *out, glue_error_t *err);

/* Prints the help; returns 0. */
int host_options_help(void);
