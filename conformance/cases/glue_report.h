/* SPDX-License-Identifier: Apache-2.0 */
/* glue_report.h - what "glue" and "curves" print, and the JSON they leave. */
#ifndef ZF_CONFORMANCE_CASES_GLUE_REPORT_H
#define ZF_CONFORMANCE_CASES_GLUE_REPORT_H

#include "glue_judge.h"

#include <jansson.h>
#include <stdio.h>

typedef struct zg_report {
    const zg_campaign_t *campaign;
    const zg_result_t *results;
    const zg_judgement_t *judgements; /* [n_arms], of AdamW unused */
    const char *plugin_version;
    double shard_stage; /* of the arm ZenFlow, where it ran on several ranks; NAN: not known */
    double margin;
    int exit_status;
    int has_learned;   /* AdamW itself; without it there is no PASS */
    double first_loss; /* of AdamW, mean of the first steps */
    double seconds;
} zg_report_t;

/* The first lines of every output: task, data (generated or not), model, steps. */
/* The device that was trained on, as zf-host named it in its first run; "" is the processor. Returns text. */
const char *zg_device_name(const zg_campaign_t *campaign, const zg_result_t *results, char *text, size_t nbytes);

void zg_print_source(FILE *file, const zg_campaign_t *campaign, const zg_result_t *results, const char *plugin_version);

void zg_print_glue(const zg_report_t *report);

/* What the encoder starts from, as part of a sentence. Returns out. */
const char *zg_encoder_name(const zg_campaign_t *campaign, char *out, size_t out_nbytes);

/* The JSON document of an area with its first members: "area", "exit_status" and what was run on what. No path but the
 * arms' settings. */
json_t *zg_source_json(const char *area, int exit_status, const zg_campaign_t *campaign, const zg_result_t *results,
                       const char *plugin_version);

int zg_write_glue_json(const zg_report_t *report, const char *path, glue_error_t *err);

/* Adds the members "curve_every" and "curve": the arm's mean training loss over its seeds, smoothed over a fortieth of
 * the steps, at about 200 of them. Where memory runs out it adds nothing. */
void zg_add_curve(json_t *object, const zg_campaign_t *campaign, const zg_result_t *results, size_t arm);

#endif
