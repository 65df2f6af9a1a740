/* SPDX-License-Identifier: Apache-2.0 */
/* metric.c - the metrics of GLUE (metric.h), straight from their definitions, in double. */
#include "metric.h"

#include <math.h>
#include <stdlib.h>

double glue_accuracy(const int32_t *predicted, const int32_t *expected, size_t n) {
    size_t n_right = 0;

    for (size_t i = 0; i < n; i++)
        n_right += predicted[i] == expected[i];
    return n == 0 ? 0.0 : (double)n_right / (double)n;
}

/* Two-class counts: true and false positives and negatives; class 1 is the positive one. */
typedef struct confusion {
    double tp, fp, tn, fn;
} confusion_t;

static confusion_t count_confusion(const int32_t *predicted, const int32_t *expected, size_t n) {
    confusion_t c = {0.0, 0.0, 0.0, 0.0};

    for (size_t i = 0; i < n; i++) {
        if (predicted[i] == 1)
            *(expected[i] == 1 ? &c.tp : &c.fp) += 1.0;
        else
            *(expected[i] == 1 ? &c.fn : &c.tn) += 1.0;
    }
    return c;
}

double glue_matthews(const int32_t *predicted, const int32_t *expected, size_t n) {
    confusion_t c = count_confusion(predicted, expected, n);
    double product = (c.tp + c.fp) * (c.tp + c.fn) * (c.tn + c.fp) * (c.tn + c.fn);

    return product > 0.0 ? (c.tp * c.tn - c.fp * c.fn) / sqrt(product) : 0.0;
}

double glue_f1(const int32_t *predicted, const int32_t *expected, size_t n) {
    confusion_t c = count_confusion(predicted, expected, n);
    double total = 2.0 * c.tp + c.fp + c.fn;

    return total > 0.0 ? 2.0 * c.tp / total : 0.0;
}

static double mean_of(const double *x, size_t n) {
    double sum = 0.0;

    for (size_t i = 0; i < n; i++)
        sum += x[i];
    return sum / (double)n;
}

double glue_pearson(const double *x, const double *y, size_t n) {
    double sxx = 0.0, syy = 0.0, sxy = 0.0;
    double mean_x, mean_y;

    if (n < 2)
        return 0.0;
    mean_x = mean_of(x, n);
    mean_y = mean_of(y, n);
    for (size_t i = 0; i < n; i++) {
        sxx += (x[i] - mean_x) * (x[i] - mean_x);
        syy += (y[i] - mean_y) * (y[i] - mean_y);
        sxy += (x[i] - mean_x) * (y[i] - mean_y);
    }
    return sxx > 0.0 && syy > 0.0 ? sxy / (sqrt(sxx) * sqrt(syy)) : 0.0;
}

typedef struct ranked {
    double value;
    size_t index;
} ranked_t;

static int compare_ranked(const void *a, const void *b) {
    const ranked_t *left = a, *right = b;

    return (left->value > right->value) - (left->value < right->value);
}

/* out_ranks[i] = rank of x[i] from 1; equal values share the mean of their places. */
static int rank_values(const double *x, size_t n, double *out_ranks) {
    ranked_t *sorted = malloc(n * sizeof *sorted);
    size_t first = 0, end;

    if (sorted == NULL)
        return -1;
    for (size_t i = 0; i < n; i++)
        sorted[i] = (ranked_t){.value = x[i], .index = i};
    qsort(sorted, n, sizeof *sorted, compare_ranked);
    for (; first < n; first = end) {
        for (end = first + 1; end < n && sorted[end].value <= sorted[first].value; end++)
            ;
        for (size_t i = first; i < end; i++)
            out_ranks[sorted[i].index] = 0.5 * (double)(first + 1 + end);
    }
    free(sorted);
    return 0;
}

double glue_spearman(const double *x, const double *y, size_t n) {
    double *ranks = NULL;
    double result = -2.0;

    if (n < 2)
        return 0.0;
    ranks = malloc(2 * n * sizeof *ranks);
    if (ranks == NULL)
        return -2.0;
    if (rank_values(x, n, ranks) == 0 && rank_values(y, n, ranks + n) == 0)
        result = glue_pearson(ranks, ranks + n, n);
    free(ranks);
    return result;
}
