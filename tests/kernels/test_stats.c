/* SPDX-License-Identifier: Apache-2.0 */
/* test_stats.c - sums that decide: known values, bit equality of every table over shapes that take every path
 * (one block of rows, many, wide, very wide, several matrices, tails). */
#include <math.h>
#include <stdlib.h>

#include "arrays.h"
#include "suite.h"

enum { MAX_MATRICES = 4 };

/* The stated order shows in the bits: 2^24 in lane 0 of a row's unit, in fp32, swallows a 1 of its own lane and of lane
 * 32, which joins it first, but not lanes 16 and 48 together. */
ZT_TEST(order_by_hand) {
    float grad[65] = {0x1p12f};
    zfi_stats_matrix_t matrix = {.rows = 1, .cols = 65, .abs_sums = NULL};
    zfi_stats_t job = {.grad = grad, .dtype = ZFI_F32, .matrices = &matrix, .n_matrices = 1};
    zfi_stats_result_t result;
    grad[32] = grad[64] = 1.0f;
    GENERIC->stats(&job, &result);
    ck_assert(result.sum_squares == 0x1p24);
    grad[16] = 1.0f; /* a tie again */
    GENERIC->stats(&job, &result);
    ck_assert(result.sum_squares == 0x1p24);
    grad[48] = 1.0f;
    GENERIC->stats(&job, &result);
    ck_assert(result.sum_squares == 0x1p24 + 2.0);
}

/* What fp32 does not hold is neither lost nor infinite: each element alone, and a whole matrix. */
ZT_TEST(all_of_range_counts) {
    static const float values[] = {0x1p-149f, 0x1p-126f, 1e-30f, 1e-25f, 0x1p-59f, 0x1p-58f, 1e18f, 1e19f, 0x1p127f};
    static float grad[40 * 300];
    double sums[300];
    for (size_t k = 0; k < 2 * sizeof values / sizeof values[0]; k++)
        for (int c = 0; c < 2; c++) {
            const double x = (double)values[k / 2], n = k % 2 ? 12000.0 : 1.0;
            zfi_stats_matrix_t matrix = {.rows = 40, .cols = 300, .abs_sums = sums};
            zfi_stats_t job = {grad, ZFI_F32, c, &matrix, 1, NULL};
            zfi_stats_result_t result;
            for (int i = 0; i < 12000; i++)
                grad[i] = k % 2 || i == 7 ? values[k / 2] : 0.0f;
            GENERIC->stats(&job, &result);
            ck_assert(fabs(result.sum_squares / (n * x * x) - 1.0) < 1e-6 && result.n_nonfinite == 0);
            ck_assert(fabs(sums[c ? 0 : 7] / (k % 2 ? (c ? 300 : 40) * x : x) - 1.0) < 1e-6);
        }
}

ZT_TEST(nonfinite_are_counted) {
    static float grad[10000];
    zfi_stats_matrix_t matrix = {.rows = 100, .cols = 100, .abs_sums = NULL};
    zfi_stats_t job = {.grad = grad, .dtype = ZFI_F32, .matrices = &matrix, .n_matrices = 1};
    zfi_stats_result_t result;
    for (int i = 0; i < 10000; i++)
        grad[i] = 3.4e38f; /* finite, also squared in double */
    for (EACH_TABLE(table)) {
        grad[5] = grad[4096] = grad[9999] = 3.4e38f;
        table->stats(&job, &result);
        ck_assert(isfinite(result.sum_squares) && result.n_nonfinite == 0);
        grad[5] = INFINITY;
        grad[4096] = NAN;
        grad[9999] = -INFINITY;
        table->stats(&job, &result);
        ck_assert_uint_eq(result.n_nonfinite, 3);
    }
}

typedef struct shape {
    uint64_t rows, cols;
} shape_t;

static double *new_sums(uint64_t n) {
    double *sums = malloc((size_t)(n + 1) * sizeof *sums);
    ck_assert_ptr_nonnull(sums);
    for (uint64_t i = 0; i < n; i++)
        sums[i] = -1.0; /* must be overwritten */
    return sums;
}

/* The units' own sums, in place of their total, add up to it. */
static void check_units(const zfi_kernels_t *table, const zfi_stats_t *job, const zfi_stats_result_t *whole) {
    zfi_stats_t by_unit = *job;
    zfi_stats_result_t result;
    double lanes[ZFI_UNIT_LANES] = {0.0};
    uint64_t n_units = 0;
    for (uint32_t k = 0; k < job->n_matrices; k++)
        n_units += zfi_sum_units(job->matrices[k].rows, job->matrices[k].cols, job->channels_are_rows);
    by_unit.squares = new_sums(n_units);
    table->stats(&by_unit, &result);
    for (uint64_t u = 0; u < n_units; u++)
        lanes[u % ZFI_UNIT_LANES] += by_unit.squares[u];
    for (uint32_t off = ZFI_UNIT_LANES / 2; off > 0; off /= 2)
        for (uint32_t l = 0; l < off; l++)
            lanes[l] += lanes[l + off];
    ck_assert(!doubles_differ(lanes[0], whole->sum_squares) && result.n_nonfinite == whole->n_nonfinite);
    free(by_unit.squares);
}

/* Runs a table over matrices of the given shapes; is_wanted decides which get channel sums. */
static zfi_stats_result_t run(const zfi_kernels_t *table, const array_t *grad, int channels_are_rows,
                              const shape_t *shapes, uint32_t n_matrices, unsigned is_wanted,
                              double *out_sums[MAX_MATRICES]) {
    zfi_stats_matrix_t matrices[MAX_MATRICES];
    const zfi_stats_t job = {.grad = grad->at,
                             .dtype = grad->dtype,
                             .channels_are_rows = channels_are_rows,
                             .matrices = matrices,
                             .n_matrices = n_matrices};
    zfi_stats_result_t result = {.sum_squares = -1.0, .n_nonfinite = 77};
    for (uint32_t k = 0; k < n_matrices; k++) {
        out_sums[k] = is_wanted >> k & 1 ? new_sums(channels_are_rows ? shapes[k].rows : shapes[k].cols) : NULL;
        matrices[k] = (zfi_stats_matrix_t){.rows = shapes[k].rows, .cols = shapes[k].cols, .abs_sums = out_sums[k]};
    }
    table->stats(&job, &result);
    check_units(table, &job, &result);
    return result;
}

static void check_sums(const double *want, const double *got, uint64_t n, const char *table, const shape_t *shape) {
    for (uint64_t c = 0; want && c < n; c++)
        if (doubles_differ(want[c], got[c]))
            ck_abort_msg("%s: channel %llu of %llu x %llu: %a, generic has %a", table, (unsigned long long)c,
                         (unsigned long long)shape->rows, (unsigned long long)shape->cols, got[c], want[c]);
}

/* Without channel sums other bodies take the squares. */
static void compare_without_sums(const zfi_kernels_t *table, const array_t *grad, int channels_are_rows,
                                 const shape_t *shapes, uint32_t n_matrices, zfi_stats_result_t want) {
    double *none[MAX_MATRICES];
    zfi_stats_result_t got = run(table, grad, channels_are_rows, shapes, n_matrices, 0, none);
    ck_assert_uint_eq(got.n_nonfinite, want.n_nonfinite);
    if (doubles_differ(want.sum_squares, got.sum_squares))
        ck_abort_msg("%s: sum of squares %a without channel sums, generic has %a", table->name, got.sum_squares,
                     want.sum_squares);
}

static void compare(const shape_t *shapes, uint32_t n_matrices, zfi_dtype_t dtype, int channels_are_rows,
                    contents_t contents, unsigned is_wanted) {
    double *want_sums[MAX_MATRICES], *got_sums[MAX_MATRICES];
    uint64_t n_elems = 0;
    zfi_stats_result_t want, got;
    for (uint32_t k = 0; k < n_matrices; k++)
        n_elems += shapes[k].rows * shapes[k].cols;
    array_t grad = array_new(dtype, n_elems, contents);
    want = run(GENERIC, &grad, channels_are_rows, shapes, n_matrices, is_wanted, want_sums);
    for (EACH_TABLE(table)) {
        compare_without_sums(table, &grad, channels_are_rows, shapes, n_matrices, want);
        got = run(table, &grad, channels_are_rows, shapes, n_matrices, is_wanted, got_sums);
        ck_assert_uint_eq(got.n_nonfinite, want.n_nonfinite);
        if (doubles_differ(want.sum_squares, got.sum_squares))
            ck_abort_msg("%s: sum of squares %a, generic has %a", table->name, got.sum_squares, want.sum_squares);
        for (uint32_t k = 0; k < n_matrices; k++) {
            check_sums(want_sums[k], got_sums[k], channels_are_rows ? shapes[k].rows : shapes[k].cols, table->name,
                       &shapes[k]);
            free(got_sums[k]);
        }
    }
    for (uint32_t k = 0; k < n_matrices; k++)
        free(want_sums[k]);
    arrays_free();
}

ZT_TEST(all_lengths) {
    for (uint64_t n = 0; n <= 67; n++)
        for (int c = 0; c < 2 * ZFI_N_DTYPES; c++) {
            const shape_t row = {1, n}, column = {n, 1};
            compare(&row, 1, (zfi_dtype_t)(c / 2), c % 2, ORDINARY, 1);
            compare(&column, 1, (zfi_dtype_t)(c / 2), c % 2, ORDINARY, 1);
        }
}

ZT_TEST(every_path) {
    static const shape_t shapes[] = {
        {0, 5},      {5, 0},     {3, 33},    {64, 64},   {65, 64},    {130, 31},   {200, 100},
        {129, 1000}, {70, 1025}, {64, 4097}, {1, 8191},  {70, 4096},  {130, 4097}, {66, 9001},
        {2, 70001},  {33, 256},  {31, 257},  {40, 2049}, {64, 1},     {3000, 1},   {1, 3000},
        {70, 2047},  {4096, 3},  {1000, 32}, {65, 8192}, {67, 12288}, {300, 1024}, {66, 8224},
    };
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        for (int c = (int)(k % ZT_EVERY); c < 2 * ZFI_N_DTYPES; c += ZT_EVERY)
            compare(&shapes[k], 1, (zfi_dtype_t)(c / 2), c % 2, c / 2 ? SPECIAL : ORDINARY, 1);
}

/* Rows and columns on both sides of what fp32 holds, and some of zeros. */
ZT_TEST(every_range) {
    static const shape_t shapes[] = {{70, 600}, {33, 2100}, {40, 1030}, {1, 2500}, {2500, 1}};
    static const contents_t ranges[] = {EDGE, ANY_BITS};
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        for (int c = 0; c < 4 * ZFI_N_DTYPES; c++)
            for (int repeat = 0; repeat < ZT_FEWER(5); repeat++)
                compare(&shapes[k], 1, (zfi_dtype_t)(c / 4), c % 2, ranges[c / 2 % 2], 1);
}

ZT_TEST(several_matrices) {
    for (int repeat = 0; repeat < 60; repeat++) {
        shape_t shapes[MAX_MATRICES];
        for (int k = 0; k < MAX_MATRICES; k++)
            shapes[k] = (shape_t){random_below(150), random_below(repeat % 3 ? 100 : 600)};
        for (int k = 0; k < MAX_MATRICES; k++) /* those that are read once, among others */
            shapes[k].cols &= random_below(2) ? ~UINT64_C(31) : ~UINT64_C(0);
        compare(shapes, 1 + (uint32_t)random_below(MAX_MATRICES), (zfi_dtype_t)(repeat % ZFI_N_DTYPES), repeat & 1,
                repeat % 5 ? ORDINARY : SPECIAL, (unsigned)random_below(16));
    }
}

ZT_SUITE("stats")
