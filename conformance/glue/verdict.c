/* SPDX-License-Identifier: Apache-2.0 */
/* verdict.c - the paired non-inferiority test of verdict.h.
 *
 * Student's distribution comes from the regularised incomplete beta function, P(T > x) = I_z(v/2, 1/2) / 2 with
 * z = v/(v+x^2), by its continued fraction (Lentz's method); the quantile by bisection. */
#include "verdict.h"

#include <math.h>
#include <stdio.h>

enum { MAX_SEEDS_NEEDED = 100000 };

/* One factor of the modified Lentz recurrence, kept away from zero. */
static double away_from_zero(double x) { return fabs(x) < 1e-300 ? 1e-300 : x; }

/* The continued fraction of the incomplete beta function (Abramowitz and Stegun 26.5.8). */
static double beta_fraction(double a, double b, double x) {
    double c = 1.0, d = 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1.0));
    double result = d;

    for (int i = 1; i <= 10000; i++) {
        double m = (double)i, even, odd, change;

        even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / away_from_zero(1.0 + even * d);
        c = away_from_zero(1.0 + even / c);
        result *= d * c;
        odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / away_from_zero(1.0 + odd * d);
        c = away_from_zero(1.0 + odd / c);
        change = d * c;
        result *= change;
        if (fabs(change - 1.0) < 1e-15)
            break;
    }
    return result;
}

/* I_x(a, b). The fraction converges fast below the mean; above it the symmetric form is used. */
static double incomplete_beta(double a, double b, double x) {
    double front;

    if (x <= 0.0 || x >= 1.0)
        return x <= 0.0 ? 0.0 : 1.0;
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x));
    if (x < (a + 1.0) / (a + b + 2.0))
        return front * beta_fraction(a, b, x) / a;
    return 1.0 - front * beta_fraction(b, a, 1.0 - x) / b;
}

static double student_upper_tail(double x, double n_freedom) {
    return 0.5 * incomplete_beta(0.5 * n_freedom, 0.5, n_freedom / (n_freedom + x * x));
}

double glue_student_quantile(double p, double n_freedom) {
    double low = 0.0, high = 1.0;

    while (student_upper_tail(high, n_freedom) > 1.0 - p && high < 1e12)
        high *= 2.0;
    for (int i = 0; i < 200 && low < high; i++) {
        double middle = 0.5 * (low + high);

        if (student_upper_tail(middle, n_freedom) > 1.0 - p)
            low = middle;
        else
            high = middle;
    }
    return 0.5 * (low + high);
}

static int check_scores(const double *scores, size_t n, const char *whose, glue_error_t *err) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(scores[i]))
            return glue_fail(err, "verdict: %s score %zu is %g; a finite number is needed", whose, i, scores[i]);
    return 0;
}

static double half_width(double standard_deviation, size_t n) {
    return glue_student_quantile(0.95, (double)n - 1.0) * standard_deviation / sqrt((double)n);
}

/* The smallest n whose interval, at this mean and spread, lies on one side of -margin. The half width falls with n,
 * so doubling and then bisecting finds it. */
static size_t seeds_needed(double distance, double standard_deviation) {
    size_t low = 1, high = 2;

    if (distance <= 0.0)
        return 0;
    while (half_width(standard_deviation, high) >= distance) {
        low = high;
        high *= 2;
        if (high > MAX_SEEDS_NEEDED)
            return 0;
    }
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (half_width(standard_deviation, middle) >= distance)
            low = middle;
        else
            high = middle;
    }
    return high;
}

/* Mean and sample standard deviation of plugin - baseline. */
static void describe_differences(const double *plugin, const double *baseline, size_t n, glue_verdict_t *out) {
    double sum = 0.0, squares = 0.0;

    for (size_t i = 0; i < n; i++)
        sum += plugin[i] - baseline[i];
    out->mean_difference = sum / (double)n;
    for (size_t i = 0; i < n; i++) {
        double deviation = plugin[i] - baseline[i] - out->mean_difference;

        squares += deviation * deviation;
    }
    out->standard_deviation = n > 1 ? sqrt(squares / ((double)n - 1.0)) : 0.0;
}

int glue_verdict(const double *plugin, const double *baseline, size_t n, double margin, glue_verdict_t *out,
                 glue_error_t *err) {
    glue_verdict_t v = {.kind = GLUE_INCONCLUSIVE, .n_seeds = n, .margin = margin};
    double width;

    if (n == 0)
        return glue_fail(err, "verdict: found no seed; at least two are needed");
    if (!(margin > 0.0))
        return glue_fail(err, "verdict: margin %g; a number above 0 is needed", margin);
    if (check_scores(plugin, n, "plugin", err) != 0 || check_scores(baseline, n, "baseline", err) != 0)
        return -1;
    describe_differences(plugin, baseline, n, &v);
    width = n > 1 ? half_width(v.standard_deviation, n) : (double)INFINITY;
    v.lower = v.mean_difference - width;
    v.upper = v.mean_difference + width;
    if (v.lower > -margin)
        v.kind = GLUE_PASS;
    else if (v.upper < -margin)
        v.kind = GLUE_FAIL;
    else
        v.n_seeds_needed = n > 1 ? seeds_needed(fabs(v.mean_difference + margin), v.standard_deviation) : 2;
    *out = v;
    return 0;
}

const char *glue_verdict_name(glue_verdict_kind_t kind) {
    switch (kind) {
    case GLUE_PASS:
        return "PASS";
    case GLUE_FAIL:
        return "FAIL";
    case GLUE_INCONCLUSIVE:
        return "INCONCLUSIVE";
    }
    return "UNKNOWN";
}

int glue_verdict_print(const glue_verdict_t *v, char *out_text, size_t out_text_nbytes) {
    char more[80] = "";

    if (v->kind == GLUE_INCONCLUSIVE && v->n_seeds_needed > 0)
        (void)snprintf(more, sizeof more, "; about %zu seeds would settle it", v->n_seeds_needed);
    else if (v->kind == GLUE_INCONCLUSIVE)
        (void)snprintf(more, sizeof more, "; the mean lies on the margin: more seeds are not known to settle it");
    return snprintf(out_text, out_text_nbytes,
                    "%s: plugin - AdamW = %+.2f points over %zu seeds (one-sided 95 %% bounds %+.2f and %+.2f, margin "
                    "%.2f)%s",
                    glue_verdict_name(v->kind), v->mean_difference, v->n_seeds, v->lower, v->upper, v->margin, more);
}
