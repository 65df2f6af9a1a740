/* SPDX-License-Identifier: Apache-2.0 */
/* test_glue_verdict.c - metrics against hand-worked values, Student quantiles against published tables, and the three
 * verdicts. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "glue/metric.h"
#include "glue/verdict.h"
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

START_TEST(test_student_quantiles) {
    static const struct {
        double p, n_freedom, t;
    } table[] = {{0.95, 1, 6.313752},  {0.95, 2, 2.919986},  {0.95, 3, 2.353363},  {0.95, 4, 2.131847},
                 {0.95, 7, 1.894579},  {0.95, 9, 1.833113},  {0.95, 30, 1.697261}, {0.95, 120, 1.657651},
                 {0.975, 5, 2.570582}, {0.99, 10, 2.763769}, {0.95, 1e6, 1.644855}};

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        ck_assert_double_eq_tol(glue_student_quantile(table[i].p, table[i].n_freedom), table[i].t, 2e-6);
    ck_assert_double_eq_tol(glue_student_quantile(0.5, 3), 0.0, 1e-9);
}
END_TEST

static glue_verdict_t judge(const double *plugin, const double *baseline, size_t n) {
    glue_error_t err = {""};
    glue_verdict_t v;

    ck_assert_msg(glue_verdict(plugin, baseline, n, 1.0, &v, &err) == 0, "%s", err.text);
    return v;
}

START_TEST(test_bounds) {
    static const double plugin[] = {80.0, 81.0, 82.5, 80.5}, baseline[] = {80.5, 81.0, 82.0, 80.0};
    glue_verdict_t v = judge(plugin, baseline, 4); /* differences -0.5, 0, 0.5, 0.5 */

    ck_assert_double_eq_tol(v.mean_difference, 0.125, 1e-12);
    ck_assert_double_eq_tol(v.standard_deviation, 0.478714, 1e-6);
    ck_assert_double_eq_tol(v.lower, 0.125 - 2.353363 * 0.478714 / 2.0, 1e-5);
    ck_assert_double_eq_tol(v.upper, 0.125 + 2.353363 * 0.478714 / 2.0, 1e-5);
    ck_assert_int_eq(v.kind, GLUE_PASS);
}
END_TEST

START_TEST(test_fail) {
    static const double plugin[] = {70.0, 71.0, 69.5}, baseline[] = {80.5, 81.0, 80.0};

    ck_assert_int_eq(judge(plugin, baseline, 3).kind, GLUE_FAIL);
}
END_TEST

START_TEST(test_worse_within_margin_passes) {
    static const double plugin[] = {80.0, 81.0, 82.0, 83.0}, baseline[] = {80.5, 81.6, 82.4, 83.5};

    ck_assert_int_eq(judge(plugin, baseline, 4).kind, GLUE_PASS);
}
END_TEST

START_TEST(test_inconclusive) {
    static const double plugin[] = {80.0, 83.0, 79.0}, baseline[] = {80.5, 80.0, 82.0};
    glue_verdict_t v = judge(plugin, baseline, 3); /* mean -1/6, sd 3.01 */
    char text[256];
    double distance = 1.0 + v.mean_difference, n = (double)v.n_seeds_needed;

    ck_assert_int_eq(v.kind, GLUE_INCONCLUSIVE);
    ck_assert_uint_gt(v.n_seeds_needed, 3);
    ck_assert_double_lt(glue_student_quantile(0.95, n - 1) * v.standard_deviation / sqrt(n), distance);
    ck_assert_double_ge(glue_student_quantile(0.95, n - 2) * v.standard_deviation / sqrt(n - 1), distance);
    (void)glue_verdict_print(&v, text, sizeof text);
    ck_assert_ptr_nonnull(strstr(text, "INCONCLUSIVE"));
    ck_assert_ptr_nonnull(strstr(text, "seeds would settle it"));
}
END_TEST

START_TEST(test_one_seed_settles_nothing) {
    static const double plugin[] = {90.0}, baseline[] = {10.0};
    glue_verdict_t v = judge(plugin, baseline, 1);

    ck_assert_int_eq(v.kind, GLUE_INCONCLUSIVE);
    ck_assert_uint_eq(v.n_seeds_needed, 2);
}
END_TEST

START_TEST(test_equal_runs) {
    static const double scores[] = {80.0, 81.0}, lower[] = {78.0, 79.0}, at_margin[] = {79.0, 80.0};

    ck_assert_int_eq(judge(scores, scores, 2).kind, GLUE_PASS);
    ck_assert_int_eq(judge(lower, scores, 2).kind, GLUE_FAIL);
    ck_assert_int_eq(judge(at_margin, scores, 2).kind, GLUE_INCONCLUSIVE); /* neither above nor below */
    ck_assert_uint_eq(judge(at_margin, scores, 2).n_seeds_needed, 0);
}
END_TEST

START_TEST(test_refusals) {
    static const double good[] = {80.0, 81.0};
    double bad[] = {80.0, NAN};
    glue_error_t err = {""};
    glue_verdict_t v;

    ck_assert_int_eq(glue_verdict(good, good, 0, 1.0, &v, &err), -1);
    ck_assert_int_eq(glue_verdict(good, good, 2, 0.0, &v, &err), -1);
    ck_assert_int_eq(glue_verdict(bad, good, 2, 1.0, &v, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "plugin score 1"));
}
END_TEST

ZT_MAIN("glue verdict", test_classification_metrics, test_correlations, test_student_quantiles, test_bounds, test_fail,
        test_worse_within_margin_passes, test_inconclusive, test_one_seed_settles_nothing, test_equal_runs,
        test_refusals)
