/* SPDX-License-Identifier: Apache-2.0 */
/* stats.h - sum of squares, non-finite count and channel sums of |g| in one reading of the gradient; kernels.h states
 * the order.
 *
 * An element is loaded once and its square and magnitude are added at the same place: to its column's two chains, which
 * move along in scratch (stats_columns.h), or to its lanes of a row's unit, which stay in registers (stats_rows.h).
 * Vectors come in pairs. Of bf16 a pair is one load: its even elements and its odd ones, which is all that widening
 * takes. Lanes keep that arrangement until they are joined.
 *
 * Units that fp32 does not hold are rare, and taken again in double, element by element. A finite float's square is
 * finite in double, so a unit holds a non-finite element if and only if that sum is not finite: elements are counted
 * only there. */
#pragma once

#include "lanes.h"

enum { PAIR = 2 * VL };

typedef struct pair {
    vf a, b;
} pair_t;

/* PAIR elements from element i on: a has the even and b the odd ones (bf16), or the first and the last VL. */
static ALWAYS_INLINE pair_t load_pair(const void *grad, zfi_dtype_t dtype, uint64_t i) {
    vu x;
    if (dtype != ZFI_BF16)
        return (pair_t){vf_load_as(grad, dtype, i), vf_load_as(grad, dtype, i + VL)};
    memcpy(&x, (const uint16_t *)grad + i, sizeof x);
    return (pair_t){(vf)(x << 16), (vf)(x & 0xffff0000u)};
}

/* The place of element l of a pair among its lanes. */
static ALWAYS_INLINE uint32_t place_in_pair(zfi_dtype_t dtype, uint32_t l) {
    return dtype == ZFI_BF16 ? (l & 1) * VL + l / 2 : l;
}

static ALWAYS_INLINE vf vf_magnitude(vf x) { return (vf)((vu)x & 0x7fffffffu); }

/* magnitudes: NULL where none are taken. */
static ALWAYS_INLINE void add_pair(pair_t *squares, pair_t *magnitudes, pair_t x) {
    const vf square_a = x.a * x.a, square_b = x.b * x.b;
    squares->a += square_a;
    squares->b += square_b;
    if (!magnitudes)
        return;
    magnitudes->a += vf_magnitude(x.a);
    magnitudes->b += vf_magnitude(x.b);
}

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ---- units ------------------------------------------------------------------------------------------------------- */

/* A gradient, and what has come of its units so far. */
typedef struct walk {
    const void *grad;
    zfi_dtype_t dtype;
    double *squares; /* of each unit, or NULL: added to lanes */
    double lanes[ZFI_UNIT_LANES];
    uint64_t n_units, n_nonfinite;
} walk_t;

/* n_rows by n_cols elements, the first at element first, rows stride elements apart. */
typedef struct piece {
    uint64_t first, stride, n_rows, n_cols;
} piece_t;

/* The sum of n lanes, a power of two, in the stated order; overwrites them. */
static double join_doubles(double *lane, uint32_t n) {
    for (uint32_t off = n / 2; off > 0; off /= 2)
        for (uint32_t l = 0; l < off; l++)
            lane[l] += lane[l + off];
    return lane[0];
}

static ALWAYS_INLINE void enter_unit(walk_t *walk, double squares) {
    if (walk->squares)
        walk->squares[walk->n_units] = squares;
    else
        walk->lanes[walk->n_units % ZFI_UNIT_LANES] += squares;
    walk->n_units++;
}

static ALWAYS_INLINE int is_in_range(double squares) { return squares >= ZFI_SUM_LEAST && squares <= 0x1p1000; }

/* Zeros of either sign alone. */
static int is_zero(const walk_t *walk, const piece_t *piece) {
    const size_t nbytes = zfi_dtype_nbytes(walk->dtype), n = piece->n_cols * nbytes;
    const uint32_t rest = walk->dtype == ZFI_F32 ? 0x7fffffffu : 0x7fff7fffu;
    uint32_t found = 0;
    for (uint64_t r = 0; r < piece->n_rows && !found; r++) {
        const char *row = (const char *)walk->grad + (piece->first + r * piece->stride) * nbytes;
        size_t at = 0;
        vu any = {0}, last = {0};

        for (; at + sizeof any <= n; at += sizeof any) {
            memcpy(&last, row + at, sizeof last);
            any |= last;
        }
        last = (vu){0};
        memcpy(&last, row + at, n - at);
        any |= last;
        for (uint32_t l = 0; l < VL; l++)
            found |= any[l] & rest;
    }
    return !found;
}

/* The sums of a unit in double: of squares, and of lane l's magnitudes to magnitudes[l]; column c is of lane c mod
 * n_lanes. */
static ONE_COPY double sum_wide(walk_t *walk, const piece_t *piece, double *magnitudes, uint32_t n_lanes) {
    double squares[ZFI_SUM_COLS] = {0.0};
    double sum;
    memset(magnitudes, 0, n_lanes * sizeof *magnitudes);
    if (is_zero(walk, piece))
        return 0.0;
    for (uint64_t r = 0; r < piece->n_rows; r++)
        for (uint64_t c = 0; c < piece->n_cols; c++) {
            const double x = (double)load_one(walk->grad, walk->dtype, piece->first + r * piece->stride + c);

            squares[c % n_lanes] += x * x;
            magnitudes[c % n_lanes] += fabs(x);
        }
    sum = join_doubles(squares, n_lanes);
    for (uint64_t k = 0; k < piece->n_rows * piece->n_cols && !isfinite(sum); k++)
        if (!isfinite(load_one(walk->grad, walk->dtype,
                               piece->first + k / piece->n_cols * piece->stride + k % piece->n_cols)))
            walk->n_nonfinite++;
    return sum;
}

#include "stats_columns.h"
#include "stats_rows.h"

/* ---- the gradient ------------------------------------------------------------------------------------------------ */

/* A matrix of one column is a row, with channels the other way. */
static void sum_matrix(walk_t *walk, const zfi_stats_matrix_t *a, uint64_t base, int channels_are_rows) {
    const int is_column = a->cols == 1, by_rows = is_column ? !channels_are_rows : channels_are_rows;
    const uint64_t rows = is_column ? a->rows > 0 : a->rows, cols = is_column ? a->rows : a->cols;
    if (!zfi_sums_by_rows(a->rows, a->cols, channels_are_rows)) {
        sum_columns(walk, a, base);
        return;
    }
    if (is_column && a->abs_sums && !channels_are_rows)
        a->abs_sums[0] = 0.0;
    for (uint64_t r = 0; r < rows; r++) {
        const double magnitude = sum_row(walk, base + r * cols, cols, a->abs_sums && by_rows);

        if (a->abs_sums && by_rows)
            a->abs_sums[r] = magnitude;
    }
    for (uint64_t c = 0; a->abs_sums && !by_rows && rows > 0 && c < cols; c++)
        a->abs_sums[c] = fabs((double)load_one(walk->grad, walk->dtype, base + c));
}

static void stats(const zfi_stats_t *job, zfi_stats_result_t *out) {
    walk_t walk = {.grad = job->grad, .dtype = job->dtype, .squares = job->squares};
    uint64_t base = 0;
    for (uint32_t k = 0; k < job->n_matrices; k++) {
        sum_matrix(&walk, &job->matrices[k], base, job->channels_are_rows);
        base += job->matrices[k].rows * job->matrices[k].cols;
    }
    out->sum_squares = join_doubles(walk.lanes, ZFI_UNIT_LANES);
    out->n_nonfinite = walk.n_nonfinite;
}
