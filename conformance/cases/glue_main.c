/* SPDX-License-Identifier: Apache-2.0 */
/* glue_main.c - the area "glue": does training through the plugin reach what plain AdamW reaches? (glue_area.h)
 *
 * Three arms train the reference host from the same weights on the same rows: the host's own AdamW, the plugin in its
 * synchronous mode (ZeRO-Offload's semantics) and the plugin as configured. The last one's paired test over seeds is
 * the verdict; the synchronous arm, or a start that leaves AdamW's path, can only make it worse. */
#define _POSIX_C_SOURCE 200809L
#include "glue_area.h"

#include "glue_options.h"
#include "glue_report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { CONFORMS = 0, DOES_NOT = 1, COULD_NOT_RUN = 2, INCONCLUSIVE = 3 };

typedef struct glue {
    zg_options_t options;
    zg_campaign_t campaign;
    zg_arm_t arms[ZG_N_ARMS];
    zg_probe_t probes[ZG_N_ARMS];
    zg_judgement_t judgements[ZG_N_ARMS];
    char host_path[ZG_MAX_PATH], json_path[ZG_MAX_PATH + 32];
} glue_t;

static int complain(const glue_error_t *err, int status) {
    (void)fflush(stdout);
    (void)fprintf(stderr, "zf-conform glue: %s\n", err->text);
    return status;
}

static double now_seconds(void) {
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The synchronous mode is the user's configuration with three keys on top: nothing is late, so nothing is predicted. */
static void make_arms(glue_t *g) {
    const zg_options_t *o = &g->options;
    size_t n = o->n_seeds != 0 ? o->n_seeds : o->is_full ? 32 : 12;
    size_t n_sync = o->n_sync_seeds != 0 ? o->n_sync_seeds : o->is_full ? 8 : 2;
    zg_arm_t *sync = &g->arms[ZG_SYNCHRONOUS], *zenflow = &g->arms[ZG_ZENFLOW];

    g->arms[ZG_ADAMW] = (zg_arm_t){.name = "adamw", .title = "AdamW", .n_seeds = n};
    *zenflow = (zg_arm_t){.name = "zenflow", .title = "ZenFlow", .is_plugin = 1, .n_seeds = n};
    memcpy(zenflow->sets, o->sets.list, o->sets.n * sizeof *zenflow->sets);
    zenflow->n_sets = o->sets.n;
    *sync = *zenflow;
    sync->name = "synchronous";
    sync->title = "synchronous";
    sync->sets[sync->n_sets++] = "zenflow.update_interval=1";
    sync->sets[sync->n_sets++] = "zenflow.publish_lag=0";
    sync->sets[sync->n_sets++] = "zenflow.predict=off";
    sync->n_seeds = n_sync < n ? n_sync : n;
    g->campaign.arms = g->arms;
    g->campaign.n_arms = ZG_N_ARMS;
}

static int prepare(glue_t *g, glue_error_t *err) {
    if (zg_options_campaign(&g->options, g->host_path, &g->campaign, err) != 0)
        return -1;
    make_arms(g);
    for (size_t arm = ZG_SYNCHRONOUS; arm < ZG_N_ARMS; arm++)
        if (zg_probe(g->options.plugin, g->options.config, g->arms[arm].sets, g->arms[arm].n_sets, &g->probes[arm],
                     err) != 0)
            return -1;
    (void)snprintf(g->json_path, sizeof g->json_path, "%s/glue.json", g->campaign.out_dir);
    return zg_campaign_prepare(&g->campaign, err);
}

static int judge(glue_t *g, const zg_result_t *results, double margin, glue_error_t *err) {
    double warm_up = zg_probe_number(&g->probes[ZG_ZENFLOW], "zenflow.full_warm_up_rounds", 0.0);

    if (zg_judge(&g->campaign, results, ZG_SYNCHRONOUS, margin, ZG_START_STEPS, &g->probes[ZG_SYNCHRONOUS],
                 &g->judgements[ZG_SYNCHRONOUS], err) != 0)
        return -1;
    return zg_judge(&g->campaign, results, ZG_ZENFLOW, margin, (size_t)warm_up, &g->probes[ZG_ZENFLOW],
                    &g->judgements[ZG_ZENFLOW], err);
}

static int find_exit_status(const zg_judgement_t *judgements, int has_learned) {
    for (size_t arm = ZG_SYNCHRONOUS; arm < ZG_N_ARMS; arm++)
        if (judgements[arm].verdict.kind == GLUE_FAIL || !judgements[arm].start.conforms)
            return DOES_NOT;
    return has_learned && judgements[ZG_ZENFLOW].verdict.kind == GLUE_PASS ? CONFORMS : INCONCLUSIVE;
}

static int report(glue_t *g, const zg_result_t *results, double start, glue_error_t *err) {
    double margin = g->options.margin > 0.0 ? g->options.margin : g->campaign.task->margin;
    zg_report_t r = {.campaign = &g->campaign,
                     .results = results,
                     .judgements = g->judgements,
                     .plugin_version = g->probes[ZG_ZENFLOW].version,
                     .shard_stage = zg_probe_number(&g->probes[ZG_ZENFLOW], "shard.stage", NAN),
                     .margin = margin};

    if (judge(g, results, margin, err) != 0)
        return COULD_NOT_RUN;
    r.has_learned = zg_has_learned(&g->campaign, results, &r.first_loss);
    r.exit_status = find_exit_status(g->judgements, r.has_learned);
    r.seconds = now_seconds() - start;
    zg_print_glue(&r);
    if (zg_write_glue_json(&r, g->json_path, err) != 0)
        return COULD_NOT_RUN;
    (void)printf("%s\n", g->json_path);
    return r.exit_status;
}

int zg_glue_main(int argc, char **argv) {
    static glue_t g;
    glue_error_t err = {""};
    zg_result_t *results = NULL;
    double start = now_seconds();
    int status;

    if (zg_options_parse(argc, argv, &g.options, &err) != 0)
        return complain(&err, COULD_NOT_RUN);
    if (g.options.wants_help)
        return zg_options_help(argv[0],
                               "zf-conform glue - accuracy parity with AdamW on a GLUE task, paired over seeds");
    if (prepare(&g, &err) != 0)
        return complain(&err, COULD_NOT_RUN);
    if (g.options.data == NULL)
        (void)fprintf(stderr, "no --data: training on a SYNTHETIC corpus in SST-2's layout\n");
    status = zg_exit_status(zg_campaign_run(&g.campaign, &results, &err));
    if (status != CONFORMS)
        return complain(&err, status);
    status = report(&g, results, start, &err);
    zg_results_free(&g.campaign, results);
    return err.text[0] == '\0' ? status : complain(&err, status);
}
