/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/elements.cuh - the update of elements side by side, as the update of all channels and that of the
 * selected ones share it.
 *
 * A line is a stretch of elements in the state, with the gradient beside it and visible values somewhere. It is updated
 * by fours, neighbours in all arrays, with one loop for each rule; or spaced: equal steps in every array. */
#pragma once

#include "scalars.cuh"
#include "wide.cuh"

/* Pointers are to a line's first element. Nothing here is read from memory again. */
typedef struct line {
    float *w;
    void *m, *v; /* v NULL: the rule has none */
    const void *grad;
    zfi_scalars_t scalars;
    uint64_t random_base, key; /* of rounding */
    uint32_t first;            /* index in the matrix, for digests */
    int rule, grad_dtype, dtype;
    bool shows, is_counted, is_random;
} line_t;

/* The findings of a thread. */
typedef struct found {
    uint64_t moved; /* counts where the line is counted */
    bool is_bad;
} found_t;

/* Bits of a moment as it is kept. */
DEVICE uint32_t kept_bits(int kept, float x, bool is_random, uint32_t random) {
    if (kept == ZFI_F32)
        return __float_as_uint(x);
    return __float_as_uint(round_moment(x, is_random ? ZFI_MOMENTS_BF16_STOCHASTIC : ZFI_MOMENTS_BF16, random)) >> 16;
}

/* Bits of an element before and after: in memory they are as its arrays have them. */
typedef struct bits {
    uint32_t w, m, v, grad, visible;
} bits_t;

/* index: counted from the line's first element, in the matrix. */
DEVICE void update_bits(int rule, int kept, const line_t &line, bits_t *x, uint32_t index, found_t *found) {
    state_t state = {__uint_as_float(x->w), widen(kept, x->m), has_v(rule) ? widen(kept, x->v) : 0.0f};
    uint32_t random = 0, shown;
    update(rule, &state, widen(line.grad_dtype, x->grad), &line.scalars);
    if (kept != ZFI_F32 && line.is_random)
        random = random32(line.key, line.random_base + index);
    shown = narrow(line.dtype, state.w);
    found->moved += digest_move(x->visible, shown, line.first + index);
    found->is_bad |= !is_finite(state.w);
    x->w = __float_as_uint(state.w);
    x->m = kept_bits(kept, state.m, line.is_random, random);
    x->v = has_v(rule) ? kept_bits(kept, state.v, line.is_random, random >> 16) : 0;
    x->visible = shown;
}

/* ---- by fours ---------------------------------------------------------------------------------------------------- */

DEVICE bool line_takes_four(const line_t &line, int kept) {
    return takes_four(line.w, ZFI_F32) && takes_four(line.m, kept) && takes_four(line.v, kept) &&
           takes_four(line.grad, line.grad_dtype);
}

/* Four neighbours from element `at` of the line on; they stand `at` elements from `visible`. */
template <int RULE, int KEPT> DEVICE void update_four(const line_t &line, void *visible, uint32_t at, found_t *found) {
    const packed_t w = get_four(line.w, ZFI_F32, at), m = get_four(line.m, KEPT, at);
    const packed_t v = has_v(RULE) ? get_four(line.v, KEPT, at) : m, g = get_four(line.grad, line.grad_dtype, at);
    const packed_t before = line.is_counted ? get_four(visible, line.dtype, at) : w;
    uint32_t new_w[FOUR], new_m[FOUR], new_v[FOUR], shown[FOUR];
#pragma unroll
    for (int j = 0; j < FOUR; j++) {
        bits_t x = {w.word[j], bits_of(m, KEPT, j), bits_of(v, KEPT, j), bits_of(g, line.grad_dtype, j),
                    bits_of(before, line.dtype, j)};
        update_bits(RULE, KEPT, line, &x, at + j, found);
        new_w[j] = x.w, new_m[j] = x.m, new_v[j] = x.v, shown[j] = x.visible;
    }
    put_four(line.w, ZFI_F32, at, pack(ZFI_F32, new_w));
    put_four(line.m, KEPT, at, pack(KEPT, new_m));
    if (has_v(RULE))
        put_four(line.v, KEPT, at, pack(KEPT, new_v));
    if (line.shows)
        put_four(visible, line.dtype, at, pack(line.dtype, shown));
}

template <int RULE, int KEPT>
DEVICE void update_fours(const line_t &line, void *visible, uint32_t first, uint32_t end, found_t *found) {
#pragma unroll 1
    for (uint32_t at = first + LANE * FOUR; at < end; at += TURN)
        update_four<RULE, KEPT>(line, visible, at, found);
}

/* A warp: elements [first, end) of the line, multiples of four. */
template <int KEPT>
DEVICE void update_by_fours(const line_t &line, void *visible, uint32_t first, uint32_t end, found_t *found) {
    switch (line.rule) {
    case ZFI_RULE_ADAMW:
        return update_fours<ZFI_RULE_ADAMW, KEPT>(line, visible, first, end, found);
    case ZFI_RULE_ADAM:
        return update_fours<ZFI_RULE_ADAM, KEPT>(line, visible, first, end, found);
    case ZFI_RULE_SGD:
        return update_fours<ZFI_RULE_SGD, KEPT>(line, visible, first, end, found);
    case ZFI_RULE_SGD_NESTEROV:
        return update_fours<ZFI_RULE_SGD_NESTEROV, KEPT>(line, visible, first, end, found);
    default:
        return update_fours<ZFI_RULE_LION, KEPT>(line, visible, first, end, found);
    }
}

/* ---- spaced ------------------------------------------------------------------------------------------------------ */

/* The places of n elements of one thread. Element i: number e = first + i * by of the line; number index + i * index_by
 * of the matrix, from the line's first one; and its visible value number columns[e], or place + i * place_by, from
 * `visible`. */
typedef struct spaced {
    void *visible;
    const int64_t *columns;
    int64_t place, place_by;
    uint32_t first, by, index, index_by, n;
} spaced_t;

/* Lanes side by side from element `first` on, in a run that ends before `end`. */
DEVICE spaced_t lanes_of(const run_t &run, uint32_t first, uint32_t end) {
    const uint32_t at = first + LANE;
    spaced_t lanes = {run.visible, run.columns, at, 32, at, 32, at, 32, at < end ? (end - at + 31) / 32 : 0};
    return lanes;
}

/* A lane's selected column from row `row` on; elements are counted from there. */
DEVICE spaced_t column_of(const zfi_data_matrix_t *matrix, uint64_t row, uint64_t col, uint32_t n_rows) {
    const zfi_place_t *place = &matrix->place;
    void *visible = offset_by(place->visible, elem_nbytes(place->dtype), place_offset(place, row, col));
    spaced_t rows = {visible, NULL, 0, place->row_stride, 0, matrix->k, 0, (uint32_t)matrix->cols, n_rows};
    return rows;
}

/* Elements [i, i + N) of those there are: all loads, then all stores. Past the end the last one is loaded again. */
template <int N>
DEVICE void update_some(int rule, int kept, const line_t &line, const spaced_t &at, uint32_t i, found_t *found) {
    bits_t x[N];
    uint64_t e[N];
    int64_t to[N];
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        const uint32_t number = i + j < at.n ? i + j : at.n - 1;
        e[j] = at.first + (uint64_t)number * at.by;
        to[j] = at.columns ? in_global(at.columns)[e[j]] : at.place + (int64_t)number * at.place_by;
        x[j].w = get_bits(line.w, ZFI_F32, e[j]);
        x[j].m = get_bits(line.m, kept, e[j]);
        x[j].v = has_v(rule) ? get_bits(line.v, kept, e[j]) : 0;
        x[j].grad = get_bits(line.grad, line.grad_dtype, e[j]);
        x[j].visible = line.is_counted ? get_bits(at.visible, line.dtype, (uint64_t)to[j]) : 0;
    }
#pragma unroll
    for (uint32_t j = 0; j < N; j++)
        if (i + j < at.n)
            update_bits(rule, kept, line, &x[j], at.index + (i + j) * at.index_by, found);
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        if (i + j >= at.n)
            break;
        put_bits(line.w, ZFI_F32, e[j], x[j].w);
        put_bits(line.m, kept, e[j], x[j].m);
        if (has_v(rule))
            put_bits(line.v, kept, e[j], x[j].v);
        if (line.shows)
            put_bits(at.visible, line.dtype, (uint64_t)to[j], x[j].visible);
    }
}

template <int N> DEVICE void update_spaced(int rule, int kept, const line_t &line, const spaced_t &at, found_t *found) {
#pragma unroll 1
    for (uint32_t i = 0; i < at.n; i += N)
        update_some<N>(rule, kept, line, at, i, found);
}
