/* SPDX-License-Identifier: Apache-2.0 */
/* stats.h - sum of squares, non-finite count and channel sums of |g| in one reading of the gradient.
 *
 * The sum of squares runs linearly in blocks of 4096 elements, column sums run down 64 rows: two orders over the same
 * data. Where rows are whole groups of 32 elements both sums are taken element by element (stats_once.h). Elsewhere: a
 * look is a piece of at most LOOK_ELEMS elements: the squares advance over it from memory, then the columns
 * read it again from the L1 or L2 cache, with their sums in registers down all rows of the look. Partial sums of a
 * block of 64 rows wait in the output (one block) or on the stack (matrices of more rows and at most SCRATCH_COLS
 * columns). Wider ones with more than 64 rows take a look of 64 rows, larger than LOOK_ELEMS: their second reading
 * comes from L2 or L3.
 *
 * The square of a float is exact in double and a block of finite squares cannot overflow, so a block holds a non-finite
 * element if and only if its sum is not finite: elements are counted only there. */
#ifndef ZFI_STATS_H
#define ZFI_STATS_H

#include "lanes.h"

enum { LOOK_ELEMS = 65536, SCRATCH_COLS = 4096, N_SUMS = ZFI_SUM_LANES / VD };

typedef enum term { TERM_SQUARE, TERM_MAGNITUDE } term_t;

static ALWAYS_INLINE vd vd_magnitude(vd x) { return (vd)((vdu)x & 0x7fffffffffffffffu); }

static ALWAYS_INLINE void load_sums(vd sums[N_SUMS], const double *from) {
    UNROLL
    for (uint32_t j = 0; j < N_SUMS; j++)
        memcpy(&sums[j], from + j * VD, sizeof sums[j]);
}

static ALWAYS_INLINE void store_sums(double *to, const vd sums[N_SUMS]) {
    UNROLL
    for (uint32_t j = 0; j < N_SUMS; j++)
        memcpy(to + j * VD, &sums[j], sizeof sums[j]);
}

static ALWAYS_INLINE vd vd_add_term(vd sum, vd x, term_t term) {
    return term == TERM_SQUARE ? vd_add_square(sum, x) : sum + vd_magnitude(x);
}

/* Adds the terms of ZFI_SUM_LANES elements from element i on. */
static ALWAYS_INLINE void add_terms(vd sums[N_SUMS], term_t term, const void *grad, zfi_dtype_t dtype, uint64_t i) {
    UNROLL
    for (uint32_t j = 0; j < N_SUMS; j += 2) {
        const vf x = vf_load_as(grad, dtype, i + j * VD);

        sums[j] = vd_add_term(sums[j], vd_lower(x), term);
        sums[j + 1] = vd_add_term(sums[j + 1], vd_upper(x), term);
    }
}

/* The sum of a block's lanes, in the stated order; overwrites them. */
static double join_lanes(double lane[ZFI_SUM_LANES]) {
    for (uint32_t off = ZFI_SUM_LANES / 2; off > 0; off /= 2)
        for (uint32_t l = 0; l < off; l++)
            lane[l] += lane[l + off];
    return lane[0];
}

/* One block of n <= ZFI_SUM_BLOCK_ELEMS elements from element i on, in the stated order. */
static ALWAYS_INLINE double sum_block(term_t term, const void *grad, zfi_dtype_t dtype, uint64_t i, uint64_t n) {
    const size_t nbytes = zfi_dtype_nbytes(dtype);
    vd sums[N_SUMS] = {{0.0}};
    double lane[ZFI_SUM_LANES];
    uint64_t at = 0;

    for (; at + ZFI_SUM_LANES <= n; at += ZFI_SUM_LANES)
        add_terms(sums, term, grad, dtype, i + at);
    if (at < n) {
        float padded[ZFI_SUM_LANES] = {0.0f}; /* zeros add nothing to a sum that is not negative */

        memcpy(padded, (const char *)grad + (i + at) * nbytes, (n - at) * nbytes);
        add_terms(sums, term, padded, dtype, 0);
    }
    store_sums(lane, sums);
    return join_lanes(lane);
}

static double sum_squares_block(const void *grad, zfi_dtype_t dtype, uint64_t i, uint64_t n) {
    if (dtype == ZFI_F16)
        return sum_block(TERM_SQUARE, grad, ZFI_F16, i, n);
    return dtype == ZFI_BF16 ? sum_block(TERM_SQUARE, grad, ZFI_BF16, i, n)
                             : sum_block(TERM_SQUARE, grad, ZFI_F32, i, n);
}

static double sum_magnitudes_block(const void *grad, zfi_dtype_t dtype, uint64_t i, uint64_t n) {
    if (dtype == ZFI_F16)
        return sum_block(TERM_MAGNITUDE, grad, ZFI_F16, i, n);
    return dtype == ZFI_BF16 ? sum_block(TERM_MAGNITUDE, grad, ZFI_BF16, i, n)
                             : sum_block(TERM_MAGNITUDE, grad, ZFI_F32, i, n);
}

static uint64_t count_nonfinite(const void *grad, zfi_dtype_t dtype, uint64_t i, uint64_t n) {
    uint64_t count = 0;

    for (uint64_t at = i; at < i + n; at++)
        count += isfinite(load_one(grad, dtype, at)) ? 0 : 1;
    return count;
}

/* The linear walk: everything before element done is in result, or in lanes, which are zero where no block is open. */
typedef struct squares_walk {
    const void *grad;
    zfi_dtype_t dtype;
    uint64_t n_elems, done;
    double lanes[ZFI_SUM_LANES];
    zfi_stats_result_t result;
} squares_walk_t;

/* The sum of a block that begins at element first and ends where the walk is. */
static void enter_block(squares_walk_t *walk, double sum, uint64_t first) {
    if (!isfinite(sum))
        walk->result.n_nonfinite += count_nonfinite(walk->grad, walk->dtype, first, walk->done - first);
    walk->result.sum_squares += sum;
}

/* n elements were added to the lanes; none of them is of another block than the first. */
static void advance_lanes(squares_walk_t *walk, uint64_t n) {
    const uint64_t first = walk->done - walk->done % ZFI_SUM_BLOCK_ELEMS;

    walk->done += n;
    if (walk->done != walk->n_elems && walk->done != first + ZFI_SUM_BLOCK_ELEMS)
        return;
    enter_block(walk, join_lanes(walk->lanes), first);
    memset(walk->lanes, 0, sizeof walk->lanes);
}

/* Advances to the end of the open block. */
static void close_block(squares_walk_t *walk) {
    while (walk->done % ZFI_SUM_BLOCK_ELEMS && walk->done < walk->n_elems) {
        const double x = (double)load_one(walk->grad, walk->dtype, walk->done);

        walk->lanes[walk->done % ZFI_SUM_LANES] += x * x;
        advance_lanes(walk, 1);
    }
}

/* Advances by whole blocks until at least end. */
static void walk_squares_to(squares_walk_t *walk, uint64_t end) {
    if (walk->done < end)
        close_block(walk);
    while (walk->done < end) {
        uint64_t left = walk->n_elems - walk->done;
        uint64_t n = left < ZFI_SUM_BLOCK_ELEMS ? left : ZFI_SUM_BLOCK_ELEMS;
        double sum = sum_squares_block(walk->grad, walk->dtype, walk->done, n);

        walk->done += n;
        enter_block(walk, sum, walk->done - n);
    }
}

/* A piece of a matrix: n_rows by n_cols elements, the first at linear index first, rows stride elements apart. */
typedef struct look {
    uint64_t first, stride, n_rows, n_cols;
} look_t;

static ALWAYS_INLINE void add_columns_as(double *sums, int is_first, const void *grad, zfi_dtype_t dtype, look_t look) {
    uint64_t c = 0;

    for (; c + ZFI_SUM_LANES <= look.n_cols; c += ZFI_SUM_LANES) {
        vd part[N_SUMS] = {{0.0}};

        if (!is_first)
            load_sums(part, sums + c);
        for (uint64_t r = 0; r < look.n_rows; r++)
            add_terms(part, TERM_MAGNITUDE, grad, dtype, look.first + r * look.stride + c);
        store_sums(sums + c, part);
    }
    for (; c < look.n_cols; c++) {
        double part = is_first ? 0.0 : sums[c];

        for (uint64_t r = 0; r < look.n_rows; r++)
            part += fabs((double)load_one(grad, dtype, look.first + r * look.stride + c));
        sums[c] = part;
    }
}

/* Adds |g| of each column of a look, rows rising, to sums (from zero where is_first). */
static void add_columns(double *sums, int is_first, const void *grad, zfi_dtype_t dtype, look_t look) {
    if (dtype == ZFI_BF16)
        add_columns_as(sums, is_first, grad, ZFI_BF16, look);
    else if (dtype == ZFI_F16)
        add_columns_as(sums, is_first, grad, ZFI_F16, look);
    else
        add_columns_as(sums, is_first, grad, ZFI_F32, look);
}

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* One block of at most 64 rows from row r0 on; base = linear index of the matrix. */
static void sum_columns_block(squares_walk_t *walk, const zfi_stats_matrix_t *a, uint64_t base, uint64_t r0) {
    const uint64_t r_end = smaller(a->rows, r0 + ZFI_SUM_BLOCK_ROWS);
    const int is_only_block = a->rows <= ZFI_SUM_BLOCK_ROWS;
    const int is_wide = !is_only_block && a->cols > SCRATCH_COLS;
    uint64_t look_rows =
        is_wide || a->cols * ZFI_SUM_BLOCK_ROWS <= LOOK_ELEMS ? ZFI_SUM_BLOCK_ROWS : LOOK_ELEMS / a->cols;
    uint64_t look_cols = is_wide ? SCRATCH_COLS : LOOK_ELEMS;
    double scratch[SCRATCH_COLS];

    look_rows = look_rows > 0 ? look_rows : 1;
    for (uint64_t r = r0; r < r_end; r += look_rows)
        for (uint64_t c = 0; c < a->cols; c += look_cols) {
            look_t look = {.first = base + r * a->cols + c, .stride = a->cols};
            double *part = is_only_block ? a->abs_sums + c : scratch;

            look.n_rows = smaller(look_rows, r_end - r);
            look.n_cols = smaller(look_cols, a->cols - c);
            walk_squares_to(walk, look.first + (look.n_rows - 1) * look.stride + look.n_cols);
            add_columns(part, r == r0, walk->grad, walk->dtype, look);
            if (!is_only_block && r + look.n_rows == r_end)
                for (uint64_t j = 0; j < look.n_cols; j++)
                    a->abs_sums[c + j] += part[j];
        }
}

static void sum_columns(squares_walk_t *walk, const zfi_stats_matrix_t *a, uint64_t base) {
    for (uint64_t c = 0; c < a->cols; c++)
        a->abs_sums[c] = 0.0;
    for (uint64_t r0 = 0; r0 < a->rows; r0 += ZFI_SUM_BLOCK_ROWS)
        sum_columns_block(walk, a, base, r0);
}

static void sum_rows(squares_walk_t *walk, const zfi_stats_matrix_t *a, uint64_t base) {
    for (uint64_t r = 0; r < a->rows; r++) {
        double sum = 0.0;

        for (uint64_t c = 0; c < a->cols; c += ZFI_SUM_BLOCK_ELEMS) {
            uint64_t n = smaller(ZFI_SUM_BLOCK_ELEMS, a->cols - c), first = base + r * a->cols + c;

            walk_squares_to(walk, first + n);
            sum += sum_magnitudes_block(walk->grad, walk->dtype, first, n);
        }
        a->abs_sums[r] = sum;
    }
}

#include "stats_once.h"

static void sum_channels(squares_walk_t *walk, const zfi_stats_matrix_t *a, uint64_t base, int channels_are_rows) {
    if (sum_once(walk, a, base, channels_are_rows))
        return;
    if (channels_are_rows)
        sum_rows(walk, a, base);
    else
        sum_columns(walk, a, base);
}

static void stats(const zfi_stats_t *job, zfi_stats_result_t *out) {
    squares_walk_t walk = {.grad = job->grad, .dtype = job->dtype};
    uint64_t base = 0;

    for (uint32_t k = 0; k < job->n_matrices; k++)
        walk.n_elems += job->matrices[k].rows * job->matrices[k].cols;
    for (uint32_t k = 0; k < job->n_matrices; k++) {
        const zfi_stats_matrix_t *a = &job->matrices[k];

        if (a->abs_sums)
            sum_channels(&walk, a, base, job->channels_are_rows);
        base += a->rows * a->cols;
    }
    walk_squares_to(&walk, base);
    *out = walk.result;
}

#endif
