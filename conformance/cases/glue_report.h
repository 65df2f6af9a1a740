/* glue_report.h - what "glue" and "curves" print, and the JSON and plots they leave. */
#ifndef ZF_CONFORMANCE_CASES_GLUE_REPORT_H
#define ZF_CONFORMANCE_CASES_GLUE_REPORT_H

#include "glue_judge.h"

#include <stdio.h>

typedef struct zg_report {
    const zg_campaign_t *campaign;
    const zg_result_t *results;
    const zg_judgement_t *judgements; /* [n_arms], of AdamW unused */
    const char *plugin_version;
    double margin;
    int exit_status;
    int has_learned;   /* AdamW itself; without it there is no PASS */
    double first_loss; /* of AdamW, mean of the first steps */
    double seconds;
} zg_report_t;

/* The first lines of every output: task, data (generated or not), model, steps. */
void zg_print_source(FILE *file, const zg_campaign_t *campaign, const zg_result_t *results, const char *plugin_version);

void zg_print_glue(const zg_report_t *report);

/* What the encoder starts from, as part of a sentence. Returns out. */
const char *zg_encoder_name(const zg_campaign_t *campaign, char *out, size_t out_nbytes);

/* Members "task" ... "seeds" of a JSON object: what was run on what. No path but the arms' settings. */
void zg_put_source(FILE *file, const zg_campaign_t *campaign, const zg_result_t *results, const char *plugin_version);
/* A number, or null where it is not finite. */
void zg_put_number(FILE *file, const char *name, double value, const char *end);

int zg_write_glue_json(const zg_report_t *report, const char *path, glue_error_t *err);

/* Members "curve_every" and "curve": the arm's mean training loss over its seeds, smoothed as in plots, at about 200 of
 * the steps. */
void zg_put_curve(FILE *file, const zg_campaign_t *campaign, const zg_result_t *results, size_t arm);
/* The smoothed mean itself. out: [n_steps]. Returns 0, or -1 when memory runs out. */
int zg_smooth_curve(const zg_campaign_t *campaign, const zg_result_t *results, size_t arm, double *out);

/* Mean training loss over each arm's seeds against the step, smoothed. is_dashed: [n_arms] or NULL. */
int zg_write_plot(const zg_campaign_t *campaign, const zg_result_t *results, const int *is_dashed, const char *path,
                  glue_error_t *err);

#endif
