/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/page.c - zf page man|configuration|counters: the manual page of the command, from the table of commands
 * and their --help; and the pages of all keys and counters (docs/configuration.md, docs/counters.md), from the plugin's
 * tables. None of them says anything that its table does not. */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "zf/ext/config.h"
#include "zf/ext/stats.h"

/* Text of a manual page: what its formatter would take for its own is escaped. */
static void put(const char *text) {
    int is_line_start = 1;
    for (const char *at = text; *at; at++) {
        if (is_line_start && (*at == '.' || *at == '\''))
            printf("\\&");
        if (*at == '\\')
            printf("\\e");
        else if (*at == '-')
            printf("\\-");
        else
            putchar(*at);
        is_line_start = *at == '\n';
    }
}

static void put_command(const zf_cli_command_t *command) {
    printf(".TP\n.B zf ");
    put(command->group);
    printf("%s", command->name ? " " : "");
    put(command->name ? command->name : "");
    printf(" ");
    put(command->args);
    printf("\n");
    put(command->what);
    printf("\n");
    if (!command->more)
        return;
    printf(".nf\n");
    put(command->more);
    printf(".fi\n");
}

static int print_man(void) {
    size_t n;
    const zf_cli_command_t *commands = zf_cli_commands(&n);
    printf(".TH ZF 1\n.SH NAME\nzf \\- the command line of libzfplugin\n.SH SYNOPSIS\n.B zf\n[\\-\\-plugin FILE] "
           "COMMAND ...\n.SH COMMANDS\n");
    for (size_t i = 0; i < n; i++)
        if (commands[i].what)
            put_command(&commands[i]);
    printf(".SH ENVIRONMENT\n.TP\n.B ZFPLUGIN_PATH\nthe plugin, where \\-\\-plugin does not name it; else "
           "libzfplugin.so.0 is looked up as any library\n"
           ".SH EXIT STATUS\n0: done. 1: it failed; the message says what to do. 2: it was called wrongly.\n"
           ".SH SEE ALSO\n.BR zf_create (3),\n.BR zf_step (3)\nand the pages that they name: the contracts of all "
           "hooks, from zf/plugin.h and zf/ext/.\nREADME.md of libzfplugin.\n");
    return 0;
}

/* A cell of a table: a bar would end it. */
static void put_cell(const char *text) {
    for (const char *at = text; *at; at++)
        printf("%s%c", *at == '|' ? "\\" : "", *at);
}

static void put_key(const zf_config_key_t *key) {
    printf("| `%s` | ", key->key);
    put_cell(key->default_value);
    printf(" | ");
    put_cell(key->range);
    printf(" | ");
    put_cell(key->doc);
    printf(" |\n");
}

static int print_configuration(zf_cli_t *cli) {
    const zf_config_ext_t *config = zf_cli_extension(cli, ZF_EXT_CONFIG);
    const char *section = "";
    if (!config)
        return 1;
    printf("# Configuration\n\nAn INI file, or `section.key=value` where a program takes overrides. `zf config FILE` "
           "checks a file and shows what holds.\n\nWritten by `zf page configuration` from the plugin's own table; the "
           "test `docs` compares.\n");
    for (uint32_t i = 0; i < config->n_keys(); i++) {
        zf_error_t err = {.struct_size = sizeof err};
        zf_config_key_t key = {.struct_size = sizeof key};
        if (config->key(i, &key, &err) < 0)
            return zf_cli_fail(&err);
        if (strcmp(section, key.section) != 0)
            printf("\n## [%s]\n\n| key | default | values | what |\n|---|---|---|---|\n", key.section);
        section = key.section;
        put_key(&key);
    }
    return 0;
}

static int print_counters(zf_cli_t *cli) {
    const zf_stats_ext_t *stats = zf_cli_extension(cli, ZF_EXT_STATS);
    if (!stats)
        return 1;
    printf("# Counters\n\nWhat `zf.stats/1` counts (`zf/ext/stats.h`). A sum rises from `create` on, a level is what "
           "holds now.\n\nWritten by `zf page counters` from the plugin's own table; the test `docs` compares.\n\n"
           "| name | unit | kind | what |\n|---|---|---|---|\n");
    for (uint32_t i = 0; i < stats->n_counters(); i++) {
        zf_error_t err = {.struct_size = sizeof err};
        zf_counter_t counter = {.struct_size = sizeof counter};
        if (stats->counter(NULL, i, &counter, &err) < 0)
            return zf_cli_fail(&err);
        printf("| `%s` | %s | %s | ", counter.name, counter.unit, counter.kind == ZF_COUNTER_SUM ? "sum" : "level");
        put_cell(counter.doc);
        printf(" |\n");
    }
    return 0;
}

int zf_cli_page(zf_cli_t *cli, int argc, char **argv) {
    if (argc == 1 && strcmp(argv[0], "configuration") == 0)
        return print_configuration(cli);
    if (argc == 1 && strcmp(argv[0], "counters") == 0)
        return print_counters(cli);
    if (argc == 1 && strcmp(argv[0], "man") == 0)
        return print_man();
    return zf_cli_misuse("page: need man, configuration or counters");
}
