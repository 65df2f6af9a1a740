/* SPDX-License-Identifier: Apache-2.0 */
/* stats_once.h - squares and channel sums of a matrix with one reading and one conversion of each element, for stats.h.
 *
 * A row of whole groups of ZFI_SUM_LANES elements, the first of which falls on a group of the linear order, is both: a
 * group's elements have the same lanes in the sum of squares as in the channel sums. Channel sums of columns move along
 * in memory (of the output, or of scratch), those of rows are a second set of lanes. In columns wider than the scratch
 * each row's part of a strip must be one block of the linear order, so that strips need not come in that order. */
#ifndef ZFI_STATS_ONCE_H
#define ZFI_STATS_ONCE_H

#include "stats.h"

/* PART vectors of squares and as many of magnitudes stay in registers. */
enum { PART = 4, MAX_STRIPS = 16 };

static ALWAYS_INLINE void load_part(vd part[PART], const double *from) {
    UNROLL
    for (uint32_t j = 0; j < PART; j++)
        memcpy(&part[j], from + j * VD, sizeof part[j]);
}

static ALWAYS_INLINE void store_part(double *to, const vd part[PART]) {
    UNROLL
    for (uint32_t j = 0; j < PART; j++)
        memcpy(to + j * VD, &part[j], sizeof part[j]);
}

/* VL magnitudes from element i on, as doubles. */
static ALWAYS_INLINE void load_magnitudes(const void *grad, zfi_dtype_t dtype, uint64_t i, vd *lower, vd *upper) {
    if (dtype == ZFI_F32) {
        *lower = vd_magnitude(vd_load((const float *)grad + i));
        *upper = vd_magnitude(vd_load((const float *)grad + i + VD));
    } else {
        const vf x = (vf)((vu)vf_load_as(grad, dtype, i) & 0x7fffffffu);

        *lower = vd_lower(x);
        *upper = vd_upper(x);
    }
}

/* Adds n elements from element i on, in whole groups: squares to lanes; magnitudes to lanes of sums, or, where they
 * move, each group to the next ZFI_SUM_LANES sums. */
static ALWAYS_INLINE void add_groups(double *lanes, double *sums, int is_moving, const void *grad, zfi_dtype_t dtype,
                                     uint64_t i, uint64_t n) {
    for (uint32_t first = 0; first < ZFI_SUM_LANES; first += PART * VD) {
        vd squares[PART], part[PART];

        load_part(squares, lanes + first);
        load_part(part, sums + first);
        for (uint64_t at = 0; at < n; at += ZFI_SUM_LANES) {
            if (first == 0)
                for (uint64_t line = 0; line < ZFI_SUM_LANES * zfi_dtype_nbytes(dtype); line += LINE_NBYTES)
                    prefetch(grad, (i + at) * zfi_dtype_nbytes(dtype) + PREFETCH_NBYTES + line);
            if (is_moving)
                load_part(part, sums + at + first);
            UNROLL
            for (uint32_t j = 0; j < PART; j += 2) {
                vd lower, upper;

                load_magnitudes(grad, dtype, i + at + first + j * VD, &lower, &upper);
                squares[j] = vd_add_square(squares[j], lower);
                squares[j + 1] = vd_add_square(squares[j + 1], upper);
                part[j] += lower;
                part[j + 1] += upper;
            }
            if (is_moving)
                store_part(sums + at + first, part);
        }
        store_part(lanes + first, squares);
        if (!is_moving)
            store_part(sums + first, part);
    }
}

static void add_to_columns(double *lanes, double *sums, const void *grad, zfi_dtype_t dtype, uint64_t i, uint64_t n) {
    if (dtype == ZFI_BF16)
        add_groups(lanes, sums, 1, grad, ZFI_BF16, i, n);
    else if (dtype == ZFI_F16)
        add_groups(lanes, sums, 1, grad, ZFI_F16, i, n);
    else
        add_groups(lanes, sums, 1, grad, ZFI_F32, i, n);
}

static void add_to_row(double *lanes, double *sums, const void *grad, zfi_dtype_t dtype, uint64_t i, uint64_t n) {
    if (dtype == ZFI_BF16)
        add_groups(lanes, sums, 0, grad, ZFI_BF16, i, n);
    else if (dtype == ZFI_F16)
        add_groups(lanes, sums, 0, grad, ZFI_F16, i, n);
    else
        add_groups(lanes, sums, 0, grad, ZFI_F32, i, n);
}

/* Elements from index i on that are in the same block. */
static uint64_t left_in_block(uint64_t i) { return ZFI_SUM_BLOCK_ELEMS - i % ZFI_SUM_BLOCK_ELEMS; }

static void sum_rows_once(squares_walk_t *walk, const zfi_stats_matrix_t *a) {
    for (uint64_t r = 0; r < a->rows; r++) {
        double lanes[ZFI_SUM_LANES] = {0.0}, sum = 0.0;

        for (uint64_t c = 0, n; c < a->cols; c += n) {
            n = smaller(smaller(left_in_block(c), a->cols - c), left_in_block(walk->done));
            add_to_row(walk->lanes, lanes, walk->grad, walk->dtype, walk->done, n);
            advance_lanes(walk, n);
            if ((c + n) % ZFI_SUM_BLOCK_ELEMS == 0 || c + n == a->cols) {
                sum += join_lanes(lanes);
                memset(lanes, 0, sizeof lanes);
            }
        }
        a->abs_sums[r] = sum;
    }
}

/* Up to 64 rows of a matrix from the walk's place on; sums [cols] begin with zero. */
static void sum_narrow_rows(squares_walk_t *walk, double *sums, uint64_t n_rows, uint64_t cols) {
    for (uint64_t r = 0; r < n_rows; r++)
        for (uint64_t c = 0, n; c < cols; c += n) {
            n = smaller(cols - c, left_in_block(walk->done));
            add_to_columns(walk->lanes, sums + c, walk->grad, walk->dtype, walk->done, n);
            advance_lanes(walk, n);
        }
}

/* The same where every row is whole blocks, strip by strip; adds to the output. */
static void sum_wide_rows(squares_walk_t *walk, double *out, uint64_t n_rows, uint64_t cols) {
    const uint64_t n_strips = cols / ZFI_SUM_BLOCK_ELEMS, first = walk->done;
    double squares[ZFI_SUM_BLOCK_ROWS][MAX_STRIPS], sums[ZFI_SUM_BLOCK_ELEMS];

    for (uint64_t s = 0; s < n_strips; s++) {
        memset(sums, 0, sizeof sums);
        for (uint64_t r = 0; r < n_rows; r++) {
            double lanes[ZFI_SUM_LANES] = {0.0};

            add_to_columns(lanes, sums, walk->grad, walk->dtype, first + r * cols + s * ZFI_SUM_BLOCK_ELEMS,
                           ZFI_SUM_BLOCK_ELEMS);
            squares[r][s] = join_lanes(lanes);
        }
        for (uint64_t c = 0; c < ZFI_SUM_BLOCK_ELEMS; c++)
            out[s * ZFI_SUM_BLOCK_ELEMS + c] += sums[c];
    }
    for (uint64_t k = 0; k < n_rows * n_strips; k++) {
        walk->done += ZFI_SUM_BLOCK_ELEMS;
        enter_block(walk, squares[k / n_strips][k % n_strips], walk->done - ZFI_SUM_BLOCK_ELEMS);
    }
}

static void sum_columns_once(squares_walk_t *walk, const zfi_stats_matrix_t *a) {
    double scratch[SCRATCH_COLS];

    memset(a->abs_sums, 0, a->cols * sizeof *a->abs_sums);
    for (uint64_t r = 0; r < a->rows; r += ZFI_SUM_BLOCK_ROWS) {
        const uint64_t n_rows = smaller(ZFI_SUM_BLOCK_ROWS, a->rows - r);

        if (a->rows <= ZFI_SUM_BLOCK_ROWS) {
            sum_narrow_rows(walk, a->abs_sums, n_rows, a->cols);
        } else if (a->cols > SCRATCH_COLS) {
            sum_wide_rows(walk, a->abs_sums, n_rows, a->cols);
        } else {
            memset(scratch, 0, a->cols * sizeof *scratch);
            sum_narrow_rows(walk, scratch, n_rows, a->cols);
            for (uint64_t c = 0; c < a->cols; c++)
                a->abs_sums[c] += scratch[c];
        }
    }
}

/* Whether the matrix at linear index base could be done so, and was. */
static int sum_once(squares_walk_t *walk, const zfi_stats_matrix_t *a, uint64_t base, int channels_are_rows) {
    const int is_strips = a->cols % ZFI_SUM_BLOCK_ELEMS == 0 && base % ZFI_SUM_BLOCK_ELEMS == 0 &&
                          a->cols / ZFI_SUM_BLOCK_ELEMS <= MAX_STRIPS;

    if (a->cols % ZFI_SUM_LANES || base % ZFI_SUM_LANES || walk->done != base)
        return 0;
    if (!channels_are_rows && a->rows > ZFI_SUM_BLOCK_ROWS && a->cols > SCRATCH_COLS && !is_strips)
        return 0;
    if (channels_are_rows)
        sum_rows_once(walk, a);
    else
        sum_columns_once(walk, a);
    return 1;
}

#endif
