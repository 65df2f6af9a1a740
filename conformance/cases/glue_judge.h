/* SPDX-License-Identifier: Apache-2.0 */
/* glue_judge.h - from finished runs to figures and verdicts. Pure: no output, no files.
 *
 * Three questions are asked of each plugin arm:
 *   metric      the paired non-inferiority test of glue/verdict.h over the seeds;
 *   start       while the plugin claims AdamW's own semantics - the synchronous mode always, any mode in its warm-up -
 *               its training loss must follow AdamW's, up to rounding: a wrong update rule shows here at once, although
 *               a long training may forgive it. Checked over START_STEPS steps, or the warm-up if that is shorter;
 *   last quarter  mean training loss of the last quarter of the steps, relative to AdamW's; reported, not judged here.
 */
#ifndef ZF_CONFORMANCE_CASES_GLUE_JUDGE_H
#define ZF_CONFORMANCE_CASES_GLUE_JUDGE_H

#include "glue/verdict.h"
#include "glue_probe.h"
#include "glue_run.h"

enum { ZG_ADAMW, ZG_SYNCHRONOUS, ZG_ZENFLOW, ZG_N_ARMS }; /* arms of the area "glue" */
enum { ZG_START_STEPS = 20 };
#define ZG_START_TOLERANCE 1e-5 /* relative difference of one step's loss */

typedef struct zg_start {
    size_t n_steps;            /* compared; 0 = not known how many may be */
    double largest_difference; /* relative, over all seeds and steps */
    size_t seed, step;         /* where */
    int is_equal;              /* every digit of every compared step */
    size_t n_equal_steps;      /* steps from the first on whose losses are equal to every digit, for all seeds */
    int conforms;
} zg_start_t;

typedef struct zg_link {         /* bytes per optimizer step, mean over the seeds */
    double down, publish, enter; /* counted by the plugin */
    double down_formula, publish_formula;
    double warm_up; /* of publish: what closes beyond one per window and cohort moved, mostly the warm-up's */
    double interval;
} zg_link_t;

typedef struct zg_memory { /* host bytes per parameter, mean over the seeds */
    double formula, planned, mapped;
    double device;
    double outside; /* peak RSS beyond AdamW's run + the 12 bytes of that run's own w, m, v - device */
} zg_memory_t;

typedef struct zg_judgement {
    glue_verdict_t verdict;
    zg_start_t start;
    double last_quarter, last_quarter_adamw, last_quarter_ratio; /* over the arm's seeds */
    double stall_us, step_us, step_us_adamw;
    zg_link_t link;
    zg_memory_t memory;
} zg_judgement_t;

/* Whether AdamW itself has learned something: its last quarter's training loss lies clearly below the loss of its first
 * steps. Where it does not, equal scores say nothing and no verdict is possible. */
#define ZG_LEARNED_SHARE 0.85
int zg_has_learned(const zg_campaign_t *campaign, const zg_result_t *results, double *out_first_loss);

/* n_start: steps that follow AdamW by contract (the warm-up; all of a synchronous run). */
int zg_judge(const zg_campaign_t *campaign, const zg_result_t *results, size_t arm, double margin, size_t n_start,
             const zg_probe_t *probe, zg_judgement_t *out, glue_error_t *err);

#endif
