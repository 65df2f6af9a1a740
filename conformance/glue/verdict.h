/* SPDX-License-Identifier: Apache-2.0 */
/* verdict.h - does the plugin train as well as AdamW? A paired non-inferiority test over seeds.
 *
 * Model: the differences d_i = plugin_i - baseline_i of n seeds, in points of 100, are a sample; the one-sided 95 %
 * bounds of their mean are mean -+ t(0.95, n-1) * sd / sqrt(n), t being Student's quantile.
 *   PASS          the lower bound lies above -margin
 *   FAIL          the upper bound lies below -margin
 *   INCONCLUSIVE  else, or fewer than two seeds: more seeds are needed, and the verdict says how many
 * Equal differences (sd = 0, as for a bit-identical plugin) make both bounds the mean. */
#ifndef ZF_CONFORMANCE_GLUE_VERDICT_H
#define ZF_CONFORMANCE_GLUE_VERDICT_H

#include "error.h"

#include <stddef.h>

typedef enum glue_verdict_kind { GLUE_PASS, GLUE_FAIL, GLUE_INCONCLUSIVE } glue_verdict_kind_t;

typedef struct glue_verdict {
    glue_verdict_kind_t kind;
    size_t n_seeds;
    double mean_difference;    /* plugin - baseline, points */
    double standard_deviation; /* of the differences; 0 when n_seeds < 2 */
    double lower, upper;       /* one-sided 95 % bounds; -+ infinity when n_seeds < 2 */
    double margin;
    size_t n_seeds_needed; /* INCONCLUSIVE: seeds that would settle it at this mean and spread; 0 = no number would */
} glue_verdict_t;

/* plugin, baseline: scores in points of 100, same seed at the same index. Fails on n = 0, on a margin that is not
 * positive and on a score that is not finite, naming it. */
int glue_verdict(const double *plugin, const double *baseline, size_t n, double margin, glue_verdict_t *out,
                 glue_error_t *err);

const char *glue_verdict_name(glue_verdict_kind_t kind);

/* The one-line sentence of a report. Returns what snprintf returns. */
int glue_verdict_print(const glue_verdict_t *verdict, char *out_text, size_t out_text_nbytes);

/* Student's t quantile: the x with P(T <= x) = p for n_freedom degrees of freedom, 0.5 <= p < 1. */
double glue_student_quantile(double p, double n_freedom);

#endif
