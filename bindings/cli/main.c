/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/main.c - the table of commands (contract in cli.h). */
#include <stdio.h>
#include <string.h>

#include "cli.h"

static const struct {
    const char *group, *name, *args, *what;
    int (*run)(zf_cli_t *cli, int argc, char **argv);
} commands[] = {
    {"doctor", NULL, "[--json] [--quick] [--need cuda|mpi]",
     "what this machine has for the plugin and what is missing; measures unless --quick", zf_cli_doctor},
    {"plan", NULL, "MODEL [OPTIONS]", "bytes and times of a model, and a configuration for it; plan --help says more",
     zf_cli_plan},
    {"config", NULL, "[FILE [SECTION.KEY=VALUE ...]]",
     "every configuration key with range, default and meaning; with FILE: check it, show what holds and why",
     zf_cli_config},
    {"trace", NULL, "FILE", "where the time of the traced steps went ([trace] file)", zf_cli_trace},
    {"ckpt", "inspect", "DIR", "what a checkpoint holds", zf_cli_ckpt_inspect},
    {"ckpt", "verify", "DIR", "check every byte and value of a checkpoint", zf_cli_ckpt_verify},
    {"ckpt", "consolidate", "DIR FILE", "the weights of a checkpoint as one safetensors file of float32",
     zf_cli_ckpt_consolidate},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static int usage(FILE *to) {
    fprintf(to, "usage: zf [--plugin FILE] COMMAND ...\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        char head[64];
        snprintf(head, sizeof head, "%s%s%s %s", commands[i].group, commands[i].name ? " " : "",
                 commands[i].name ? commands[i].name : "", commands[i].args);
        fprintf(to, "  %-40s %s\n", head, commands[i].what);
    }
    fprintf(to, "the plugin: --plugin FILE, else ZFPLUGIN_PATH, else libzfplugin.so.1\n");
    return to == stdout ? 0 : 2;
}

int zf_cli_fail(const zf_error_t *err) {
    fprintf(stderr, "zf: ");
    zf_cli_print(stderr, err->message); /* it may name what a file holds */
    fprintf(stderr, "\n");
    return 1;
}

const void *zf_cli_extension(zf_cli_t *cli, const char *id) {
    zf_error_t err = {.struct_size = sizeof err};
    const void *table;
    if (!cli->loader && zf_loader_open(cli->plugin, &cli->loader, &err) < 0) {
        zf_cli_fail(&err);
        return NULL;
    }
    table = zf_loader_plugin(cli->loader)->get_extension(id);
    if (!table)
        fprintf(stderr, "zf: %s has no extension %s: use a newer plugin\n", zf_loader_file(cli->loader), id);
    return table;
}

int main(int argc, char **argv) {
    zf_cli_t cli = {0};
    int at = 1, status = -1;
    if (argc > at + 1 && strcmp(argv[at], "--plugin") == 0) {
        cli.plugin = argv[at + 1];
        at += 2;
    }
    if (argc > at && (strcmp(argv[at], "--help") == 0 || strcmp(argv[at], "help") == 0))
        return usage(stdout);
    for (size_t i = 0; i < N_COMMANDS && argc > at && status < 0; i++) {
        int n = commands[i].name ? 2 : 1;
        if (strcmp(argv[at], commands[i].group) != 0 ||
            (commands[i].name && (argc <= at + 1 || strcmp(argv[at + 1], commands[i].name) != 0)))
            continue;
        status = commands[i].run(&cli, argc - at - n, argv + at + n);
    }
    zf_loader_close(cli.loader);
    if (status < 0 || status == 2)
        return usage(stderr);
    if (fflush(stdout) != 0) {
        perror("zf: stdout");
        return 1;
    }
    return status;
}
