/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/cli.h - `zf`, the command line: one table of commands, one file per group of them.
 *
 * A command gets the words behind its name. Exit status: 0 done, 1 it failed (the message says what to do), 2 it was
 * called wrongly. Results go to stdout, messages to stderr. Only the public ABI is used: the plugin is opened with
 * zf_loader, as any host opens it. */
#ifndef ZF_CLI_H
#define ZF_CLI_H

#include <jansson.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include "zf_loader.h"

typedef struct zf_cli {
    const char *plugin; /* --plugin FILE, or NULL: as zf_loader finds it */
    zf_loader_t *loader;
} zf_cli_t;

/* One command. more: lines for --help, or NULL; what NULL: it is not shown. */
typedef struct zf_cli_command {
    const char *group, *name, *args, *what, *more; /* name NULL: the group is the command */
    int (*run)(zf_cli_t *cli, int argc, char **argv);
} zf_cli_command_t;
const zf_cli_command_t *zf_cli_commands(size_t *out_n);

/* The plugin's extension table, or NULL after a message. */
const void *zf_cli_extension(zf_cli_t *cli, const char *id);
/* Prints an error of the plugin; returns 1. */
int zf_cli_fail(const zf_error_t *err);
/* Says in what a command was called wrongly; returns 2. */
int zf_cli_misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints text that came from a file: control characters, and what else a terminal would obey, as \\xNN (text.c). */
void zf_cli_print(FILE *to, const char *text);
/* The index of a checkpoint, unchecked but for being JSON; NULL after a message (index.c). A file that is no plain file
 * is refused, and nothing waits for one. */
json_t *zf_cli_read_index(const char *dir);
/* The same, where no checkpoint may be there because a save was killed between two renames: the plugin puts it back. */
json_t *zf_cli_open_index(zf_cli_t *cli, const char *dir);

/* Prints "zf: PATH: what is wrong"; returns 1 (file.c). */
int zf_cli_complain(const char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Opens a regular file, waiting for nothing; -1 after a message. */
int zf_cli_open_file(const char *path, uint64_t *out_nbytes);
/* The next nbytes of a file with a NUL behind them, to be freed; NULL: errno says why. */
char *zf_cli_read_fd(int fd, size_t nbytes);
/* All of a file, the same way; NULL after a message. */
char *zf_cli_read_file(const char *path, uint64_t most_nbytes, size_t *out_nbytes);

/* A file that is written beside its path, under a random name that is created exclusively, and takes the path's place
 * when it is whole, on the disk (replace.c). A path where something else than a regular file lies is refused. */
typedef struct zf_cli_replace {
    FILE *to;
    const char *path; /* the caller's; lives until the end */
    char *name;
} zf_cli_replace_t;
/* 0, or 1 after a message: then there is no end. */
int zf_cli_replace_begin(const char *path, zf_cli_replace_t *out);
/* 0: it lies at the path. 1: not, after a message where it could not be written, and nothing is left; is_whole 0: the
 * caller has said why. */
int zf_cli_replace_end(zf_cli_replace_t *file, int is_whole);

int zf_cli_audit(zf_cli_t *cli, int argc, char **argv);            /* script.c, audit.py */
int zf_cli_config(zf_cli_t *cli, int argc, char **argv);           /* config.c */
int zf_cli_doctor(zf_cli_t *cli, int argc, char **argv);           /* doctor.c */
int zf_cli_plan(zf_cli_t *cli, int argc, char **argv);             /* script.c, plan.py */
int zf_cli_plan_bytes(zf_cli_t *cli, int argc, char **argv);       /* plan_bytes.c */
int zf_cli_tune(zf_cli_t *cli, int argc, char **argv);             /* script.c, tune.py */
int zf_cli_page(zf_cli_t *cli, int argc, char **argv);             /* page.c */
int zf_cli_ckpt_inspect(zf_cli_t *cli, int argc, char **argv);     /* ckpt.c */
int zf_cli_ckpt_verify(zf_cli_t *cli, int argc, char **argv);      /* ckpt.c */
int zf_cli_ckpt_consolidate(zf_cli_t *cli, int argc, char **argv); /* consolidate.c */

#endif
