/* SPDX-License-Identifier: Apache-2.0 */
/* metric.h - the metrics of GLUE, each in its usual unit (accuracy and F1 in 0..1, the others in -1..1).
 *
 * Where a metric is undefined (one class only, no variance) it is 0, as the GLUE scorers have it. All functions are
 * pure and allocate nothing but Spearman, which needs room for ranks. */
#ifndef ZF_CONFORMANCE_GLUE_METRIC_H
#define ZF_CONFORMANCE_GLUE_METRIC_H

#include <stddef.h>
#include <stdint.h>

/* predicted, expected: n class numbers. */
double glue_accuracy(const int32_t *predicted, const int32_t *expected, size_t n);
double glue_matthews(const int32_t *predicted, const int32_t *expected, size_t n);
double glue_f1(const int32_t *predicted, const int32_t *expected, size_t n);

/* x, y: n real numbers. Spearman gives equal values their mean rank; -2 means out of memory. */
double glue_pearson(const double *x, const double *y, size_t n);
double glue_spearman(const double *x, const double *y, size_t n);

#endif
