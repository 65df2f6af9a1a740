/* SPDX-License-Identifier: Apache-2.0 */
/* stats_columns.h - units that are parts of columns, for stats.h.
 *
 * A band of ZFI_SUM_ROWS rows is taken strip by strip. A strip's chains, two floats per column, move along in scratch
 * in L1; several rows at once, so that they are loaded and stored once for all of these rows. Each row is a stream of
 * its own: near the end of a strip's part of a row, what is asked for is where the next rows begin. Where a strip takes
 * whole rows they are one stream, which the hardware's prefetchers follow: one row at a time, and nothing is asked
 * for. */
#pragma once

#include "lanes.h"

enum { ROWS_AT_ONCE = 4, STRIP_COLS = 2048 };

/* The chains of a strip's columns; those beyond its last, up to a whole unit, are zeros. Each body is compiled knowing
 * whether it takes magnitudes. */
typedef struct chains {
    float *squares, *magnitudes; /* magnitudes: NULL where no channel's sum is asked for */
} chains_t;

static ALWAYS_INLINE pair_t load_chains(const float *from) { return (pair_t){vf_load(from), vf_load(from + VL)}; }

static ALWAYS_INLINE void store_chains(float *to, pair_t x) {
    vf_store(to, x.a);
    vf_store(to + VL, x.b);
}

/* Adds columns [c, end), whole pairs, of n_rows rows; of several it asks for what lies `ahead` elements on. */
static ALWAYS_INLINE void add_pairs(chains_t chains, const void *grad, zfi_dtype_t dtype, const piece_t *rows,
                                    uint32_t n_rows, uint64_t c, uint64_t end, uint64_t ahead) {
    const size_t nbytes = zfi_dtype_nbytes(dtype);
    for (; c < end; c += PAIR) {
        pair_t squares = load_chains(chains.squares + c), magnitudes = {{0.0f}, {0.0f}};

        if (chains.magnitudes)
            magnitudes = load_chains(chains.magnitudes + c);
        UNROLL
        for (uint32_t r = 0; r < n_rows; r++) {
            const uint64_t i = rows->first + r * rows->stride + c;

            for (uint64_t line = 0; n_rows > 1 && line < PAIR * nbytes; line += LINE_NBYTES)
                prefetch(grad, (i + ahead) * nbytes + line);
            add_pair(&squares, chains.magnitudes ? &magnitudes : NULL, load_pair(grad, dtype, i));
        }
        store_chains(chains.squares + c, squares);
        if (chains.magnitudes)
            store_chains(chains.magnitudes + c, magnitudes);
    }
}

/* Adds n_rows rows of a strip; `next` is the element where the rows after them begin. */
static ALWAYS_INLINE void add_rows(chains_t chains, const void *grad, zfi_dtype_t dtype, const piece_t *rows,
                                   uint32_t n_rows, uint64_t next) {
    const size_t nbytes = zfi_dtype_nbytes(dtype);
    const uint64_t whole = rows->n_cols - rows->n_cols % PAIR, ahead = PREFETCH_NBYTES / nbytes;
    const uint64_t turn = whole > ahead ? (whole - ahead) / PAIR * PAIR : 0;
    add_pairs(chains, grad, dtype, rows, n_rows, 0, turn, ahead);
    add_pairs(chains, grad, dtype, rows, n_rows, turn, whole, next - rows->first - turn);
    for (uint32_t r = 0; r < n_rows && whole < rows->n_cols; r++) {
        float tail[PAIR] = {0.0f};
        const piece_t row = {0, 0, 1, PAIR};
        const chains_t last = {chains.squares + whole, chains.magnitudes ? chains.magnitudes + whole : NULL};

        memcpy(tail, (const char *)grad + (rows->first + r * rows->stride + whole) * nbytes,
               (rows->n_cols - whole) * nbytes);
        add_pairs(last, tail, dtype, &row, 1, 0, PAIR, 0);
    }
}

/* The sum of a unit's chains of squares, in double. */
static ALWAYS_INLINE double join_columns(const float *squares, zfi_dtype_t dtype) {
    double lane[ZFI_SUM_COLS / 2], last[PAIR];
    for (uint32_t l = 0; l < ZFI_SUM_COLS / 2; l += VL) {
        const vf x = vf_load(squares + l), y = vf_load(squares + l + ZFI_SUM_COLS / 2);
        const vd lower = vd_lower(x) + vd_lower(y), upper = vd_upper(x) + vd_upper(y);

        memcpy(lane + l, &lower, sizeof lower);
        memcpy(lane + l + VD, &upper, sizeof upper);
    }
    for (uint32_t off = ZFI_SUM_COLS / 4; off >= PAIR; off /= 2)
        for (uint32_t l = 0; l < off; l++)
            lane[l] += lane[l + off];
    for (uint32_t l = 0; l < PAIR; l++)
        last[l] = lane[place_in_pair(dtype, l)];
    return join_doubles(last, PAIR);
}

/* Adds n columns' chains of magnitudes. */
static ALWAYS_INLINE void add_magnitudes(double *sums, const float *magnitudes, zfi_dtype_t dtype, uint64_t n) {
    uint64_t c = 0;
    for (; c + PAIR <= n; c += PAIR) {
        pair_t x = load_chains(magnitudes + c);
        vd sum[4];

        if (dtype == ZFI_BF16)
            x = (pair_t){vf_zip_lower(x.a, x.b), vf_zip_upper(x.a, x.b)};
        memcpy(sum, sums + c, sizeof sum);
        sum[0] += vd_lower(x.a);
        sum[1] += vd_upper(x.a);
        sum[2] += vd_lower(x.b);
        sum[3] += vd_upper(x.b);
        memcpy(sums + c, sum, sizeof sum);
    }
    for (uint64_t l = c; l < n; l++)
        sums[l] += (double)magnitudes[c + place_in_pair(dtype, (uint32_t)(l - c))];
}

/* A strip's columns [c, c + ZFI_SUM_COLS) are a unit; sums are of its first column on, or NULL. */
static ALWAYS_INLINE void close_unit(walk_t *walk, chains_t chains, zfi_dtype_t dtype, uint64_t c, const piece_t *unit,
                                     double *sums) {
    double squares = join_columns(chains.squares + c, dtype), wide[ZFI_SUM_COLS];
    if (!is_in_range(squares)) {
        squares = sum_wide(walk, unit, wide, ZFI_SUM_COLS);
        for (uint64_t l = 0; sums && l < unit->n_cols; l++)
            sums[l] += wide[l];
    } else if (chains.magnitudes) {
        add_magnitudes(sums, chains.magnitudes + c, dtype, unit->n_cols);
    }
    enter_unit(walk, squares);
}

/* `next`: where what is read after the piece begins. `sums`: of its first column on; read where has_sums. */
static ALWAYS_INLINE void sum_strip(walk_t *walk, zfi_dtype_t dtype, const piece_t *piece, uint64_t next, int has_sums,
                                    double *sums) {
    float squares[STRIP_COLS] = {0.0f}, magnitudes[STRIP_COLS];
    const chains_t chains = {squares, has_sums ? magnitudes : NULL};
    piece_t rows = *piece;
    uint64_t left = piece->n_rows;
    if (has_sums)
        memset(magnitudes, 0, sizeof magnitudes);
    for (; left >= ROWS_AT_ONCE && piece->n_cols < piece->stride; left -= ROWS_AT_ONCE) {
        const uint64_t after = rows.first + ROWS_AT_ONCE * rows.stride;

        add_rows(chains, walk->grad, dtype, &rows, ROWS_AT_ONCE, left > ROWS_AT_ONCE ? after : next);
        rows.first = after;
    }
    for (; left > 0; left--, rows.first += rows.stride)
        add_rows(chains, walk->grad, dtype, &rows, 1, left > 1 ? rows.first + rows.stride : next);
    for (uint64_t c = 0; c < piece->n_cols; c += ZFI_SUM_COLS) {
        const piece_t unit = {piece->first + c, piece->stride, piece->n_rows, smaller(ZFI_SUM_COLS, piece->n_cols - c)};

        close_unit(walk, chains, dtype, c, &unit, has_sums ? sums + c : NULL);
    }
}

static ALWAYS_INLINE void sum_columns_as(walk_t *walk, zfi_dtype_t dtype, const zfi_stats_matrix_t *a, uint64_t base,
                                         int has_sums) {
    for (uint64_t r = 0; r < a->rows; r += ZFI_SUM_ROWS)
        for (uint64_t c = 0; c < a->cols; c += STRIP_COLS) {
            const uint64_t n_rows = smaller(ZFI_SUM_ROWS, a->rows - r), n_cols = smaller(STRIP_COLS, a->cols - c);
            const piece_t piece = {base + r * a->cols + c, a->cols, n_rows, n_cols};
            const uint64_t next = c + n_cols < a->cols ? piece.first + n_cols : base + (r + n_rows) * a->cols;

            sum_strip(walk, dtype, &piece, next, has_sums, has_sums ? a->abs_sums + c : NULL);
        }
}

static ALWAYS_INLINE void sum_columns_with(walk_t *walk, zfi_dtype_t dtype, const zfi_stats_matrix_t *a,
                                           uint64_t base) {
    if (a->abs_sums)
        sum_columns_as(walk, dtype, a, base, 1);
    else
        sum_columns_as(walk, dtype, a, base, 0);
}

static void sum_columns(walk_t *walk, const zfi_stats_matrix_t *a, uint64_t base) {
    for (uint64_t c = 0; a->abs_sums && c < a->cols; c++)
        a->abs_sums[c] = 0.0;
    if (walk->dtype == ZFI_BF16)
        sum_columns_with(walk, ZFI_BF16, a, base);
    else if (walk->dtype == ZFI_F16)
        sum_columns_with(walk, ZFI_F16, a, base);
    else
        sum_columns_with(walk, ZFI_F32, a, base);
}
