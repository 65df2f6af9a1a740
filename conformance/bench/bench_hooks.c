/* SPDX-License-Identifier: Apache-2.0 */
/* bench_hooks.c - zf-bench-hooks: what the plugin costs its host, by the ABI alone (zf_loader).
 *
 * --config is the INI text of grads, replay and step (HOOKS_CONFIG else), so that two builds whose defaults
 * differ can be made to do the same work (compare.py). One table per section (hooks.h).
 * Limits of the machine are measured in the same run, in turn with what they limit. Every figure is the median over all
 * repetitions, with quartiles beside it; the share of a CPU that others took says how far to trust it. The exit status
 * is 0 whether bars are met or not: a benchmark is not a test. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/option_table.h"
#include "hooks.h"
#include "samples.h"

typedef struct section {
    const char *name;
    void (*run)(hooks_t *hooks);
} section_t;

static const section_t sections[] = {
    {"early", hooks_early}, {"grads", hooks_grads}, {"replay", hooks_replay}, {"step", hooks_step}};
enum { N_SECTIONS = sizeof sections / sizeof sections[0] };

typedef struct options {
    const char *plugin, *json, *only, *config;
    uint32_t n_repeats;
    int wants_help;
} options_t;

#define AT(member) offsetof(options_t, member)
static const zc_option_t table[] = {
    ZC_OPTION("plugin", ZC_TEXT, AT(plugin), "FILE.so", "the library (default: as zf_loader finds it)"),
    ZC_OPTION("json", ZC_TEXT, AT(json), "FILE", "the tables, for programs"),
    ZC_OPTION("repeat", ZC_U32, AT(n_repeats), "N", "repetitions, default 15", .least = 1, .most = SAMPLES_MAX),
    ZC_OPTION("config", ZC_TEXT, AT(config), "TEXT", "INI text of grads, replay and step"),
    ZC_OPTION("only", ZC_CHOICE_TEXT, AT(only), "NAME", "this section alone", .choices = "early grads replay step"),
    ZC_OPTION("help", ZC_SWITCH, AT(wants_help), NULL, "this text"),
};
enum { N_OPTIONS = sizeof table / sizeof table[0] };

const char *hooks_verdict(hooks_t *hooks, int is_met) {
    hooks->n_bars_failed += !is_met;
    return is_met ? "" : "above";
}

static void run_sections(hooks_t *hooks, const char *only) {
    int n_run = 0;
    for (int i = 0; i < N_SECTIONS; i++) {
        if (only && strcmp(only, sections[i].name) != 0)
            continue;
        if (n_run > 0)
            printf("\n");
        if (hooks->json)
            fprintf(hooks->json, "%s\n", n_run > 0 ? "," : "");
        sections[i].run(hooks);
        fflush(stdout);
        n_run++;
    }
}

int main(int argc, char **argv) {
    options_t options = {.n_repeats = 15, .config = HOOKS_CONFIG};
    glue_error_t why;
    zf_error_t err = {.struct_size = sizeof err};
    hooks_t hooks = {.json = NULL};
    zf_loader_t *loader = NULL;
    if (zc_options_parse(table, N_OPTIONS, argc, argv, &options, &why) != 0)
        return fprintf(stderr, "zf-bench-hooks: %s\n", why.text), 2;
    if (options.wants_help)
        return zc_options_help("zf-bench-hooks - what the plugin costs its host", table, N_OPTIONS,
                               "0 measured, 2 could not run");
    hooks.config = options.config;
    hooks.n_repeats = (int)options.n_repeats;
    if (zf_loader_open(options.plugin, &loader, &err) < 0) {
        fprintf(stderr, "zf-bench-hooks: %s\n", err.message);
        return 2;
    }
    hooks.loader = loader;
    if (options.json && !(hooks.json = fopen(options.json, "w"))) {
        fprintf(stderr, "zf-bench-hooks: cannot write %s\n", options.json);
        return 2;
    }
    if (hooks.json)
        fprintf(hooks.json, "{\"bench\": \"hooks\",");
    run_sections(&hooks, options.only);
    printf("\nbars not met: %d\n", hooks.n_bars_failed);
    if (hooks.json) {
        fprintf(hooks.json, ",\n\"bars_not_met\": %d}\n", hooks.n_bars_failed);
        fclose(hooks.json);
    }
    zf_loader_close(loader);
    return 0;
}
