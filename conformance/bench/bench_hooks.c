/* SPDX-License-Identifier: Apache-2.0 */
/* bench_hooks.c - zf-bench-hooks: what the plugin costs its host, by the ABI alone (zf_loader).
 *
 * usage: zf-bench-hooks --plugin FILE.so [--json FILE] [--repeat N] [--config TEXT]
 *                       [--only early|grads|plan|replay|step]
 *
 * --config is the INI text of grads, replay and step (HOOKS_CONFIG else), so that two builds whose defaults
 * differ can be made to do the same work (compare.py). One table per section (hooks.h); plan only if named.
 * Limits of the machine are measured in the same run, in turn with what they limit. Every figure is the median over all
 * repetitions, with quartiles beside it; the share of a CPU that others took says how far to trust it. The exit status
 * is 0 whether bars are met or not: a benchmark is not a test. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hooks.h"
#include "samples.h"

typedef struct section {
    const char *name;
    void (*run)(hooks_t *hooks);
    int is_apart; /* long, or for plan.py: only where it is named */
} section_t;

static const section_t sections[] = {{"early", hooks_early, 0},
                                     {"grads", hooks_grads, 0},
                                     {"plan", hooks_plan, 1},
                                     {"replay", hooks_replay, 0},
                                     {"step", hooks_step, 0}};
enum { N_SECTIONS = sizeof sections / sizeof sections[0] };

typedef struct options {
    const char *plugin, *json, *only, *config;
    int n_repeats;
} options_t;

const char *hooks_verdict(hooks_t *hooks, int is_met) {
    hooks->n_bars_failed += !is_met;
    return is_met ? "" : "above";
}

static void usage(void) {
    fprintf(stderr,
            "usage: zf-bench-hooks --plugin FILE.so [--json FILE] [--repeat 1..%d] [--config TEXT] "
            "[--only early|grads|plan|replay|step]\n",
            SAMPLES_MAX);
    exit(2);
}

static int is_section(const char *name) {
    for (int i = 0; i < N_SECTIONS; i++)
        if (strcmp(sections[i].name, name) == 0)
            return 1;
    return 0;
}

static options_t parse(int argc, char **argv) {
    options_t options = {.n_repeats = 15, .config = HOOKS_CONFIG};

    for (int i = 1; i < argc; i += 2) {
        if (i + 1 >= argc)
            usage();
        if (strcmp(argv[i], "--plugin") == 0)
            options.plugin = argv[i + 1];
        else if (strcmp(argv[i], "--json") == 0)
            options.json = argv[i + 1];
        else if (strcmp(argv[i], "--config") == 0)
            options.config = argv[i + 1];
        else if (strcmp(argv[i], "--repeat") == 0 && atoi(argv[i + 1]) > 0 && atoi(argv[i + 1]) <= SAMPLES_MAX)
            options.n_repeats = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--only") == 0 && is_section(argv[i + 1]))
            options.only = argv[i + 1];
        else
            usage();
    }
    if (!options.plugin)
        usage();
    return options;
}

static void run_sections(hooks_t *hooks, const char *only) {
    int n_run = 0;

    for (int i = 0; i < N_SECTIONS; i++) {
        if (only ? strcmp(only, sections[i].name) != 0 : sections[i].is_apart)
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
    const options_t options = parse(argc, argv);
    zf_error_t err = {.struct_size = sizeof err};
    hooks_t hooks = {.config = options.config, .n_repeats = options.n_repeats};
    zf_loader_t *loader = NULL;

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
