/* SPDX-License-Identifier: Apache-2.0 */
/* test_layers.c - the vectorised loops against the library's functions in double: GELU, its derivative, softmax. */
#include <check.h>
#include <math.h>

#include "host/layers.h"
#include "suite.h"

enum { N = 20011 }; /* no multiple of any vector's width */

static float x[N], y[N], cdf[N], d[N];

/* -12 .. 12 evenly, then what is far away. */
static void fill(void) {
    for (size_t i = 0; i < N; i++)
        x[i] = -12.0f + 24.0f * (float)i / (float)N;
    x[0] = -1e30f;
    x[1] = -40.0f;
    x[2] = 1e30f;
    x[3] = 0.0f;
    x[4] = -0.0f;
}

START_TEST(test_gelu) {
    fill();
    host_gelu_forward(x, N, y, cdf);
    for (size_t i = 0; i < N; i++)
        d[i] = 1.0f;
    host_gelu_backward(x, cdf, N, d);
    for (size_t i = 0; i < N; i++) {
        double exact = 0.5 * erfc(-(double)x[i] * sqrt(0.5));
        double slope = exact + (double)x[i] * exp(-0.5 * (double)x[i] * (double)x[i]) / sqrt(8.0 * atan(1.0));

        ck_assert_double_eq_tol((double)cdf[i], exact, 2e-7);
        ck_assert_double_eq_tol((double)y[i], (double)x[i] * exact, 3e-7 * fmax(1.0, fabs((double)x[i] * exact)));
        ck_assert_double_eq_tol((double)d[i], slope, 5e-7);
    }
}
END_TEST

START_TEST(test_softmax) {
    enum { N_ROWS = 7, WIDTH = 29 };
    float rows[N_ROWS * WIDTH];

    for (size_t i = 0; i < N_ROWS * WIDTH; i++)
        rows[i] = x[i] = (float)(i % 13) * (float)(i / WIDTH) * 0.7f - 30.0f * (float)(i % WIDTH == 3);
    host_softmax_forward(rows, N_ROWS, WIDTH);
    for (size_t r = 0; r < N_ROWS; r++) {
        double largest = -INFINITY, sum = 0.0;

        for (size_t j = 0; j < WIDTH; j++)
            largest = fmax(largest, (double)x[r * WIDTH + j]);
        for (size_t j = 0; j < WIDTH; j++)
            sum += exp((double)x[r * WIDTH + j] - largest);
        for (size_t j = 0; j < WIDTH; j++) {
            double exact = exp((double)x[r * WIDTH + j] - largest) / sum;

            ck_assert_double_eq_tol((double)rows[r * WIDTH + j], exact, 3e-6 * exact + 1e-30);
        }
    }
}
END_TEST

ZT_MAIN("layers", test_gelu, test_softmax)
