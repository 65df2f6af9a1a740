/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/cli.h - `zf`, the command line: one table of commands, one file per group of them.
 *
 * A command gets the words behind its name. Exit status: 0 done, 1 it failed (the message says what to do), 2 it was
 * called wrongly. Results go to stdout, messages to stderr. Only the public ABI is used: the plugin is opened with
 * zf_loader, as any host opens it. */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "zf_loader.h"

typedef struct zf_cli {
    const char *plugin; /* --plugin FILE, or NULL: as zf_loader finds it */
    zf_loader_t *loader;
} zf_cli_t;

/* One command. more: lines for --help, or NULL; what NULL: it is not shown. */
typedef struct zf_cli_command {
    const char *group, *name, *args, *what, *more;    /* name NULL: the group is the command */
    int (*run)(zf_cli_t *cli, int argc, char **argv); /* NULL: it is written in Python */
} zf_cli_command_t;
const zf_cli_command_t *zf_cli_commands(size_t *out_n);

/* Opens the plugin, unless it is open; 1 after a message. */
int zf_cli_open(zf_cli_t *cli);
/* The plugin's extension table, or NULL after a message. */
const void *zf_cli_extension(zf_cli_t *cli, const char *id);
/* Prints an error of the plugin; returns 1. */
int zf_cli_fail(const zf_error_t *err);
/* Says in what a command was called wrongly; returns 2. */
int zf_cli_misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints text that came from a file: control characters, and what else a terminal would obey, as \\xNN (text.c). */
void zf_cli_print(FILE *to, const char *text);
/* Prints "zf: PATH: what is wrong"; returns 1. */
int zf_cli_complain(const char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Becomes Python, which does the command with these words; 1 after a message (script.c). */
int zf_cli_run_script(zf_cli_t *cli, const zf_cli_command_t *command, int argc, char **argv);

int zf_cli_ask(zf_cli_t *cli, int argc, char **argv);    /* ask.c */
int zf_cli_config(zf_cli_t *cli, int argc, char **argv); /* config.c */
int zf_cli_page(zf_cli_t *cli, int argc, char **argv);   /* page.c */
