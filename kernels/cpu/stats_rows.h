/* SPDX-License-Identifier: Apache-2.0 */
/* stats_rows.h - units that are parts of rows, for stats.h: lanes stay in registers. A row is one stream: the
 * hardware's prefetchers follow it, and asking for its lines as well takes a third longer (Zen 5). */
#pragma once

#include "lanes.h"

/* Pairs of lanes that are taken at once, as many of squares as of magnitudes; and in all. */
enum { PAIRS_AT_ONCE = 2, N_PAIRS = ZFI_SUM_LANES / PAIR };

typedef struct row_lanes {
    pair_t squares[N_PAIRS], magnitudes[N_PAIRS];
} row_lanes_t;

static ALWAYS_INLINE void add_unit(row_lanes_t *lanes, const void *grad, zfi_dtype_t dtype, uint64_t i, uint64_t n,
                                   int has_sums) {
    const size_t nbytes = zfi_dtype_nbytes(dtype);
    float tail[ZFI_SUM_LANES] = {0.0f};
    const uint64_t whole = n - n % ZFI_SUM_LANES;
    memcpy(tail, (const char *)grad + (i + whole) * nbytes, (n - whole) * nbytes);
    for (uint32_t p = 0; p < N_PAIRS; p += PAIRS_AT_ONCE) {
        pair_t squares[PAIRS_AT_ONCE] = {{{0.0f}, {0.0f}}}, magnitudes[PAIRS_AT_ONCE] = {{{0.0f}, {0.0f}}};

        for (uint64_t at = 0; at < whole; at += ZFI_SUM_LANES) {
            UNROLL
            for (uint32_t j = 0; j < PAIRS_AT_ONCE; j++)
                add_pair(&squares[j], has_sums ? &magnitudes[j] : NULL,
                         load_pair(grad, dtype, i + at + (p + j) * PAIR));
        }
        UNROLL
        for (uint32_t j = 0; j < PAIRS_AT_ONCE; j++) {
            if (whole < n)
                add_pair(&squares[j], has_sums ? &magnitudes[j] : NULL, load_pair(tail, dtype, (p + j) * PAIR));
            lanes->squares[p + j] = squares[j];
            lanes->magnitudes[p + j] = magnitudes[j];
        }
    }
}

static ALWAYS_INLINE float join_vector(vf x) {
    float lane[VL];
    memcpy(lane, &x, sizeof x);
    UNROLL
    for (uint32_t off = VL / 2; off > 0; off /= 2)
        UNROLL
    for (uint32_t l = 0; l < off; l++)
        lane[l] += lane[l + off];
    return lane[0];
}

/* The sum of ZFI_SUM_LANES lanes in the stated order. */
static ALWAYS_INLINE float join_pairs(pair_t lanes[N_PAIRS], zfi_dtype_t dtype) {
    UNROLL
    for (uint32_t off = N_PAIRS / 2; off > 0; off /= 2)
        UNROLL
    for (uint32_t p = 0; p < off; p++) {
        lanes[p].a += lanes[p + off].a;
        lanes[p].b += lanes[p + off].b;
    }
    return dtype == ZFI_BF16 ? join_vector(lanes[0].a) + join_vector(lanes[0].b) : join_vector(lanes[0].a + lanes[0].b);
}

/* A row of n elements from element i on; returns its sum of magnitudes, or 0 where none is asked for. */
static ALWAYS_INLINE double sum_row_as(walk_t *walk, zfi_dtype_t dtype, uint64_t i, uint64_t n, int has_sums) {
    double sum = 0.0;
    for (uint64_t at = 0; at < n; at += ZFI_SUM_ELEMS) {
        const piece_t unit = {i + at, 0, 1, smaller(ZFI_SUM_ELEMS, n - at)};
        row_lanes_t lanes;
        double squares, magnitude = 0.0, wide[ZFI_SUM_LANES];

        add_unit(&lanes, walk->grad, dtype, unit.first, unit.n_cols, has_sums);
        squares = (double)join_pairs(lanes.squares, dtype);
        if (has_sums)
            magnitude = (double)join_pairs(lanes.magnitudes, dtype);
        if (!is_in_range(squares)) {
            squares = sum_wide(walk, &unit, wide, ZFI_SUM_LANES);
            magnitude = join_doubles(wide, ZFI_SUM_LANES);
        }
        enter_unit(walk, squares);
        sum += magnitude;
    }
    return sum;
}

static ALWAYS_INLINE double sum_row_with(walk_t *walk, zfi_dtype_t dtype, uint64_t i, uint64_t n, int has_sums) {
    return has_sums ? sum_row_as(walk, dtype, i, n, 1) : sum_row_as(walk, dtype, i, n, 0);
}

static double sum_row(walk_t *walk, uint64_t i, uint64_t n, int has_sums) {
    if (walk->dtype == ZFI_BF16)
        return sum_row_with(walk, ZFI_BF16, i, n, has_sums);
    return walk->dtype == ZFI_F16 ? sum_row_with(walk, ZFI_F16, i, n, has_sums)
                                  : sum_row_with(walk, ZFI_F32, i, n, has_sums);
}
