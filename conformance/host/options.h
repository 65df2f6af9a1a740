/* options.h - the command line of zf-host. */
#ifndef ZF_CONFORMANCE_HOST_OPTIONS_H
#define ZF_CONFORMANCE_HOST_OPTIONS_H

#include "glue/options.h"
#include "run.h"

typedef struct host_command {
    host_run_options_t run;
    glue_overrides_t overrides; /* run.plugin's */
    const char *out_path;       /* JSON report; NULL = stdout */
    int wants_help, is_quiet;
    size_t n_threads; /* of matrix products */
    int has_bf16_products;
} host_command_t;

/* argv is borrowed for the life of *out. */
int host_options_parse(int argc, char **argv, host_command_t *out, glue_error_t *err);

void host_options_print_help(FILE *file);

#endif
