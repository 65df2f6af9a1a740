/* SPDX-License-Identifier: Apache-2.0 */
/* abi_main.c - zf-conform abi: proofs 3, 5 and 7 of the ABI, against any .so. */
#define _GNU_SOURCE /* realpath */
#include "abi_probes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi_table.h"
#include "harness/blobs.h"
#include "harness/option_table.h"

#ifndef ZFC_MOCKS_DIR
#define ZFC_MOCKS_DIR NULL
#endif

typedef struct options {
    const char *plugin, *mocks, *only, *profile;
    int is_print_layout, is_help;
} options_t;

#define AT(member) offsetof(options_t, member)

static const zc_option_t table[] = {
    ZC_OPTION("plugin", ZC_TEXT, AT(plugin), "FILE",
              "every proof of the ABI against this library (default: ZFPLUGIN_PATH)"),
    ZC_OPTION("mocks", ZC_TEXT, AT(mocks), "DIR", "directory of same_names.so"),
    ZC_OPTION("print-layout", ZC_SWITCH, AT(is_print_layout), NULL,
              "instead, the layout of the headers, as abi/layout/v0.16.txt holds it"),
    ZC_OPTION("profile", ZC_CHOICE_TEXT, AT(profile), "NAME",
              "full (default), or core: what right calls rely on, of any vendor's plugin, in float32",
              .choices = "full core"),
    ZC_OPTION("only", ZC_TEXT, AT(only), "NAME",
              "these probes alone: elf, entry, slots, cases, training, hosts, matrices, books, extent, order, "
              "storage, "
              "drawn, written, told, keys, "
              "waits, growth, calls, isolation, manners, life"),
    ZC_OPTION("help", ZC_SWITCH, AT(is_help), NULL, "this text"),
};

enum { N_OPTIONS = sizeof table / sizeof table[0] };

static int print_help(void) {
    return zc_options_help(
        "zf-conform abi - the contract of the tables: symbols, bad calls, isolation; against any .so", table, N_OPTIONS,
        "0 conforms, 1 does not, 2 could not run, 77 skipped");
}

/* ---- the proofs -------------------------------------------------------------------------------------------------- */

typedef struct part {
    const char *name;
    const abi_row_t *rows;
    void (*probes)(abi_probe_t *); /* where there are no rows */
    int is_core;
} part_t;

static const part_t parts[] = {{"entry", abi_entry_rows, NULL, 1},
                               {"slots", NULL, abi_slot_probes, 0},
                               {"cases", NULL, abi_case_probes, 0},
                               {"training", abi_training_rows, NULL, 1},
                               {"hosts", abi_host_rows, NULL, 0},
                               {"matrices", abi_matrix_rows, NULL, 0},
                               {"books", abi_books_rows, NULL, 0},
                               {"extent", abi_extent_rows, NULL, 0},
                               {"isolation", abi_isolation_rows, NULL, 1},
                               {"order", abi_order_rows, NULL, 0},
                               {"storage", abi_storage_rows, NULL, 0},
                               {"drawn", abi_drawn_rows, NULL, 0},
                               {"written", abi_written_rows, NULL, 0},
                               {"told", abi_told_rows, NULL, 0},
                               {"keys", abi_keys_rows, NULL, 0},
                               {"waits", abi_waits_rows, NULL, 0},
                               {"growth", abi_growth_rows, NULL, 1},
                               {"calls", abi_calls_rows, NULL, 0},
                               {"manners", abi_manners_rows, NULL, 1},
                               {"life", abi_life_rows, NULL, 0}};
enum { N_PARTS = sizeof parts / sizeof parts[0] };

static void run_part(abi_probe_t *probe, const part_t *part) {
    for (const abi_row_t *row = part->rows; row && row->name; row++)
        abi_row_run(probe, row);
    if (part->probes)
        part->probes(probe);
}

/* These probes alone. 0, or -1: there are none of this name, or the file is no library (said in why). */
static int check_part(abi_probe_t *probe, const char *part, const char **why) {
    if (strcmp(part, "elf") == 0)
        return abi_elf_check(probe, why);
    for (size_t i = 0; i < N_PARTS; i++)
        if (strcmp(part, parts[i].name) == 0)
            return run_part(probe, &parts[i]), 0;
    *why = "--only: there are no such probes";
    return -1;
}

/* All proofs. 0, or -1 when the file is no library. */
static int check_plugin(abi_probe_t *probe, const char **why) {
    zc_progress_show(&probe->progress, "file");
    if (abi_elf_check(probe, why) != 0)
        return -1;
    for (size_t i = 0; i < N_PARTS; i++) {
        if (!probe->is_core || parts[i].is_core)
            run_part(probe, &parts[i]);
        if (abi_report_verdict(&probe->report, ABI_RULE_TABLE) == ABI_FAIL) { /* what lacks slots cannot be called */
            abi_skip(probe, ABI_RULE_VALID, "the table is not complete");
            return 0;
        }
    }
    return 0;
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

static int check_all(const options_t *o) {
    const char *why, *tmp = getenv("TMPDIR");
    char *path = o->plugin ? realpath(o->plugin, NULL) : NULL, scratch[4096];
    abi_probe_t *probe = abi_probe_new();
    if (!path) {
        fprintf(stderr, "zf-conform abi: %s%s\n", o->plugin ? "no such file: " : "which library? --plugin FILE.so",
                o->plugin ? o->plugin : "");
        return 2;
    }
    snprintf(scratch, sizeof scratch, "%s/zf-conform-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(scratch))
        return fprintf(stderr, "zf-conform abi: %s cannot be made: %s\n", scratch, strerror(errno)), 2;
    probe->scratch = scratch;
    probe->plugin = path;
    probe->mocks = o->mocks;
    probe->is_core = o->profile && strcmp(o->profile, "core") == 0;
    probe->progress.area = "abi";
    int rc = o->only ? check_part(probe, o->only, &why) : check_plugin(probe, &why);
    zc_progress_end(&probe->progress);
    blobs_remove(scratch);
    if (rc != 0)
        return fprintf(stderr, "zf-conform abi: %s: %s\n", path, why), 2;
    free(path);
    abi_report_print(&probe->report, stdout);
    return abi_report_exit_status(&probe->report);
}

int zfc_abi_main(int argc, char **argv) {
    options_t o = {.mocks = ZFC_MOCKS_DIR, .plugin = getenv("ZFPLUGIN_PATH")};
    glue_error_t err;
    if (zc_options_parse(table, N_OPTIONS, argc, argv, &o, &err) != 0)
        return fprintf(stderr, "zf-conform abi: %s\n", err.text), 2;
    if (o.is_help)
        return print_help();
    if (o.is_print_layout)
        return abi_table_print(stdout), 0;
    return check_all(&o);
}
