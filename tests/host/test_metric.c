/* SPDX-License-Identifier: Apache-2.0 */
/* test_metric.c - metrics against hand-worked values. */
#include <check.h>
#include <math.h>

#include "glue/metric.h"
#include "suite.h"

START_TEST(test_classification_metrics) {
    static const int32_t found[] = {1, 1, 0, 0, 1, 0, 1, 0}, expected[] = {1, 0, 0, 1, 1, 0, 1, 0};
    static const int32_t ones[] = {1, 1, 1, 1, 1, 1, 1, 1};

    /* tp 3, fp 1, tn 3, fn 1 */
    ck_assert_double_eq(glue_accuracy(found, expected, 8), 0.75);
    ck_assert_double_eq_tol(glue_matthews(found, expected, 8), 8.0 / 16.0, 1e-15);
    ck_assert_double_eq(glue_f1(found, expected, 8), 0.75);
    ck_assert_double_eq(glue_matthews(expected, expected, 8), 1.0);
    ck_assert_double_eq(glue_matthews(ones, expected, 8), 0.0);
    ck_assert_double_eq(glue_accuracy(found, expected, 0), 0.0);
}
END_TEST

START_TEST(test_correlations) {
    static const double x[] = {1, 2, 3, 4, 5}, y[] = {2, 1, 4, 3, 5}, flat[] = {3, 3, 3, 3, 3};
    static const double tied_x[] = {1, 2, 2, 3}, tied_y[] = {1, 2, 3, 4}, cubed[] = {1, 8, 27, 64, 125};

    ck_assert_double_eq_tol(glue_pearson(x, y, 5), 0.8, 1e-15);
    ck_assert_double_eq_tol(glue_spearman(x, y, 5), 0.8, 1e-15);
    ck_assert_double_eq_tol(glue_spearman(x, cubed, 5), 1.0, 1e-15);
    ck_assert_double_lt(glue_pearson(x, cubed, 5), 0.97);
    ck_assert_double_eq_tol(glue_spearman(tied_x, tied_y, 4), 4.5 / sqrt(4.5 * 5.0), 1e-15);
    ck_assert_double_eq(glue_pearson(x, flat, 5), 0.0);
}
END_TEST

ZT_MAIN("metric", test_classification_metrics, test_correlations)
