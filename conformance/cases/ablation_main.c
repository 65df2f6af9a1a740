/* SPDX-License-Identifier: Apache-2.0 */
/* ablation_main.c - which levels this plugin takes, their runs, and the order of it all (ablation.h). */
#define _POSIX_C_SOURCE 200809L
#include "ablation.h"

#include <stdio.h>
#include <string.h>

enum { CONFORMS = 0, DOES_NOT = 1, COULD_NOT_RUN = 2 };
enum { SEEDS = 3, QUICK_SEEDS = 2, QUICK_STEPS = 300, STEP_US = 6100 };

static int complain(const glue_error_t *err, int status) {
    (void)fflush(stdout);
    (void)fprintf(stderr, "zf-conform ablation: %s\n", err->text);
    return status;
}

/* Whether the plugin's table of keys has "section.key" of "section.key=value". */
static int has_key(const zg_probe_t *probe, const char *set) {
    size_t length = strcspn(set, "=") + 1;

    for (const char *line = probe->values; *line != '\0'; line += strcspn(line, "\n") + 1) {
        if (strncmp(line, set, length) == 0)
            return 1;
        if (line[strcspn(line, "\n")] == '\0')
            break;
    }
    return 0;
}

static void add_sets(const za_ablation_t *a, const za_level_t *level, zg_arm_t *out) {
    memcpy(out->sets, a->options.sets.list, a->options.sets.n * sizeof *out->sets);
    out->n_sets = a->options.sets.n;
    for (size_t i = 0; level != NULL && i < ZA_MAX_OWN_SETS && level->sets[i] != NULL; i++) {
        const char *set = level->sets[i];

        if (set[0] != '?')
            out->sets[out->n_sets++] = set;
        else if (has_key(&a->probes[ZA_DEFAULT], set + 1))
            out->sets[out->n_sets++] = set + 1;
    }
}

/* The arm of the first rate with the same effective configuration, or a new one. */
static size_t find_arm(za_ablation_t *a, const zg_arm_t *arm, const zg_probe_t *probe, const char *title) {
    for (size_t i = ZA_DEFAULT; i < a->n_arms; i++)
        if (probe->values[0] != '\0' && strcmp(a->probes[i].values, probe->values) == 0)
            return i;
    a->probes[a->n_arms] = *probe;
    a->arms[a->n_arms] = *arm;
    a->arms[a->n_arms].title = title;
    return a->n_arms++;
}

static int choose_levels(za_ablation_t *a, glue_error_t *err) {
    static zg_arm_t arm;
    static zg_probe_t probe;
    const zg_options_t *o = &a->options;

    a->arms[ZA_ADAMW] = (zg_arm_t){.title = "AdamW"};
    if (zg_probe(o->plugin, o->config, o->sets.list, o->sets.n, &a->probes[ZA_DEFAULT], err) != 0)
        return -1;
    a->arms[ZA_DEFAULT] = (zg_arm_t){.title = "default", .is_plugin = 1};
    add_sets(a, NULL, &a->arms[ZA_DEFAULT]);
    a->n_arms = 2;
    for (size_t i = 0; i < za_n_levels(); i++) {
        za_choice_t *choice = &a->choices[a->n_choices++];
        glue_error_t refusal = {""};

        choice->level = za_level(i);
        arm = (zg_arm_t){.is_plugin = 1};
        add_sets(a, choice->level, &arm);
        if (zg_probe(o->plugin, o->config, arm.sets, arm.n_sets, &probe, &refusal) != 0)
            (void)snprintf(choice->refusal, sizeof choice->refusal, "%s",
                           refusal.text[0] != '\0' ? refusal.text : "refused");
        else
            choice->arm = find_arm(a, &arm, &probe, choice->level->title);
    }
    return 0;
}

static void make_arms(za_ablation_t *a) {
    for (size_t rate = 1; rate < a->n_rates; rate++)
        memcpy(&a->arms[za_arm(a, rate, 0)], a->arms, a->n_arms * sizeof *a->arms);
    for (size_t rate = 0; rate < a->n_rates; rate++)
        for (size_t arm = 0; arm < a->n_arms; arm++) {
            zg_arm_t *x = &a->arms[za_arm(a, rate, arm)];

            x->name = "ablation"; /* the hash in a kept run's name tells them apart, also when levels are added */
            x->lr = a->rates[rate];
            x->n_seeds = a->n_seeds;
        }
    a->campaign.arms = a->arms;
    a->campaign.n_arms = a->n_rates * a->n_arms;
    a->campaign.goes_on = 1;
}

static int prepare(za_ablation_t *a, glue_error_t *err) {
    zg_options_t *o = &a->options;

    a->n_seeds = o->n_seeds != 0 ? o->n_seeds : o->is_quick ? QUICK_SEEDS : SEEDS;
    a->rates[a->n_rates++] = o->lr != NULL ? o->lr : o->model != NULL ? "1e-4" : "1e-3";
    if (o->lr == NULL && !o->is_quick)
        a->rates[a->n_rates++] = o->model != NULL ? "5e-5" : "5e-4";
    if (o->n_steps == 0 && o->is_quick)
        o->n_steps = QUICK_STEPS;
    if (zg_options_campaign(o, a->host_path, &a->campaign, err) != 0 || choose_levels(a, err) != 0)
        return -1;
    make_arms(a);
    return zg_campaign_prepare(&a->campaign, err);
}

static void say_plan(const za_ablation_t *a) {
    size_t n_runs = a->campaign.n_arms * a->n_seeds;
    double minutes = (double)(n_runs * a->campaign.n_steps) * STEP_US * 1e-6 / (double)a->campaign.n_jobs / 60.0;

    (void)fprintf(
        stderr,
        "%zu configurations x %zu rates x %zu seeds = %zu runs of %zu steps, %zu at the same time; about %.0f "
        "min where two cores are free\n",
        a->n_arms, a->n_rates, a->n_seeds, n_runs, a->campaign.n_steps, a->campaign.n_jobs,
        minutes < 1.0 ? 1.0 : minutes);
    if (a->options.data == NULL)
        (void)fprintf(stderr, "no --data: training on a SYNTHETIC corpus in SST-2's layout\n");
    for (size_t i = 0; i < a->n_choices; i++)
        if (a->choices[i].refusal[0] != '\0')
            (void)fprintf(stderr, "  not run: %s %s: %s\n", a->choices[i].level->factor, a->choices[i].level->title,
                          a->choices[i].refusal);
}

static int count_failed(const za_ablation_t *a, const zg_result_t *results) {
    int n = 0;

    for (size_t arm = 0; arm < a->campaign.n_arms; arm++)
        for (size_t seed = 1; seed <= a->n_seeds; seed++)
            n += zg_result_of(&a->campaign, results, arm, seed)->failure != NULL;
    return n;
}

int za_ablation_main(int argc, char **argv) {
    static za_ablation_t a;
    glue_error_t err = {""};
    zg_result_t *results = NULL;
    int status = CONFORMS;

    if (zg_options_parse(argc, argv, &a.options, &err) != 0)
        return complain(&err, COULD_NOT_RUN);
    if (a.options.wants_help)
        return zg_options_help(
            argv[0], "zf-conform ablation - what each factor is worth, one at a time around the plugin's defaults");
    if (prepare(&a, &err) != 0)
        return complain(&err, COULD_NOT_RUN);
    say_plan(&a);
    if (zg_campaign_run(&a.campaign, &results, &err) != ZG_DONE)
        return complain(&err, COULD_NOT_RUN);
    if (za_report(&a, results, &err) != 0)
        status = complain(&err, COULD_NOT_RUN);
    else if (count_failed(&a, results) > 0)
        status = DOES_NOT;
    zg_results_free(&a.campaign, results);
    return status;
}
