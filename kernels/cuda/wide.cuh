/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/wide.cuh - four elements of a thread at once, and the way through a matrix without a division.
 *
 * Four. A thread loads all that it needs of four elements before it stores anything of them, so that a warp has that
 * much under way. They are neighbours where every array that takes part allows one access of 8 or 16 bytes, else 32
 * apart, which a warp reads in whole sectors as well.
 *
 * Values, not tables. What a loop needs of the tables is copied into registers before it: a store may alias any table,
 * so the compiler would read it again for every element. */
#pragma once

#include "common.cuh"

enum { FOUR = 4 };

/* nbytes is a power of two. */
DEVICE bool is_aligned(const void *at, uint32_t nbytes) { return ((uint64_t)at & (nbytes - 1)) == 0; }
DEVICE void *offset_by(const void *array, uint32_t nbytes, int64_t n) { return (char *)array + n * (int64_t)nbytes; }

/* ---- one element ------------------------------------------------------------------------------------------------- */

DEVICE uint32_t get_bits(const void *array, int dtype, uint64_t i) {
    return dtype == ZFI_F32 ? in_global((const uint32_t *)array)[i] : in_global((const uint16_t *)array)[i];
}
DEVICE void put_bits(void *array, int dtype, uint64_t i, uint32_t bits) {
    if (dtype == ZFI_F32)
        in_global((uint32_t *)array)[i] = bits;
    else
        in_global((uint16_t *)array)[i] = (uint16_t)bits;
}

/* ---- four neighbours --------------------------------------------------------------------------------------------- */

/* As they lie in memory: 16 bytes, or 8 in the first two words. */
typedef struct packed {
    uint32_t word[FOUR];
} packed_t;

/* Whether four elements from `at` on are one access. */
DEVICE bool takes_four(const void *at, int dtype) { return is_aligned(at, FOUR * elem_nbytes(dtype)); }

/* Elements [i, i + 4), i a multiple of 4. */
DEVICE packed_t get_four(const void *array, int dtype, uint64_t i) {
    packed_t x;
    if (dtype == ZFI_F32) {
        const uint4 all = in_global((const uint4 *)array)[i / FOUR];
        x.word[0] = all.x, x.word[1] = all.y, x.word[2] = all.z, x.word[3] = all.w;
    } else {
        const uint2 all = in_global((const uint2 *)array)[i / FOUR];
        x.word[0] = all.x, x.word[1] = all.y, x.word[2] = x.word[3] = 0;
    }
    return x;
}
DEVICE void put_four(void *array, int dtype, uint64_t i, const packed_t &x) {
    if (dtype == ZFI_F32)
        in_global((uint4 *)array)[i / FOUR] = make_uint4(x.word[0], x.word[1], x.word[2], x.word[3]);
    else
        in_global((uint2 *)array)[i / FOUR] = make_uint2(x.word[0], x.word[1]);
}

/* Bits of element j, a constant. */
DEVICE uint32_t bits_of(const packed_t &x, int dtype, int j) {
    const uint32_t pair = x.word[j / 2];
    return dtype == ZFI_F32 ? x.word[j] : j % 2 ? pair >> 16 : pair & 0xffffu;
}
DEVICE packed_t pack(int dtype, const uint32_t bits[FOUR]) {
    packed_t x;
    if (dtype == ZFI_F32)
        x.word[0] = bits[0], x.word[1] = bits[1], x.word[2] = bits[2], x.word[3] = bits[3];
    else
        x.word[0] = bits[0] | bits[1] << 16, x.word[1] = bits[2] | bits[3] << 16, x.word[2] = x.word[3] = 0;
    return x;
}
DEVICE packed_t narrow_four(int dtype, const float x[FOUR]) {
    uint32_t bits[FOUR];
#pragma unroll
    for (int j = 0; j < FOUR; j++)
        bits[j] = narrow(dtype, x[j]);
    return pack(dtype, bits);
}

/* ---- the way through a matrix ------------------------------------------------------------------------------------ */

/* Elements of a stretch that lie in one row of their place, or in one run with all rows: element i of the stretch is
 * number i from `visible` on, or number columns[i]. */
typedef struct run {
    void *visible;
    const int64_t *columns;
    uint64_t row, end; /* elements from the first one asked for up to `end` */
    int64_t to_col;    /* what makes a column of i */
} run_t;

/* A stretch begins with element `base` of a matrix. Its run from element `at` on, with at most those before `most`;
 * one_row: also where all rows are one run. */
DEVICE run_t run_of(const zfi_place_t &place, uint64_t cols, uint64_t base, uint64_t at, uint64_t most, bool one_row) {
    const uint32_t nbytes = elem_nbytes(place.dtype);
    uint64_t col;
    run_t run = {offset_by(place.visible, nbytes, (int64_t)base), NULL, 0, most, 0};
    if (!one_row && !place.col_offset && place.row_stride == (int64_t)cols)
        return run;
    run.row = divide(base + at, cols, &col);
    run.end = smaller(most, at + (cols - col));
    run.to_col = (int64_t)col - (int64_t)at;
    run.visible =
        offset_by(place.visible, nbytes, (int64_t)run.row * place.row_stride + (place.col_offset ? 0 : run.to_col));
    run.columns = place.col_offset ? place.col_offset + run.to_col : NULL;
    return run;
}
DEVICE uint64_t place_in(const run_t &run, uint64_t i) { return run.columns ? (uint64_t)in_global(run.columns)[i] : i; }

/* Whether runs of the stretch from element `base` on can be taken by fours. */
DEVICE bool place_takes_four(const zfi_place_t &place, uint64_t cols, uint64_t base) {
    if (place.col_offset)
        return false;
    if (place.row_stride == (int64_t)cols)
        return takes_four(offset_by(place.visible, elem_nbytes(place.dtype), (int64_t)base), place.dtype);
    return cols % FOUR == 0 && place.row_stride % FOUR == 0 && base % FOUR == 0 &&
           takes_four(place.visible, place.dtype);
}

/* ---- 16 bytes ---------------------------------------------------------------------------------------------------- */

/* Elements of 2 or 4 bytes side by side in 16, where nothing is computed but digests. */
template <int NBYTES> struct sixteen {
    enum { N = 16 / NBYTES };
    uint4 all;
    __device__ __forceinline__ void get(const void *array, uint64_t i) {
        all = *in_global((const uint4 *)((const char *)array + i * NBYTES));
    }
    __device__ __forceinline__ void put(void *array, uint64_t i) const {
        *in_global((uint4 *)((char *)array + i * NBYTES)) = all;
    }
    __device__ __forceinline__ uint32_t at(int j) const { /* j is a constant */
        const int k = NBYTES == 4 ? j : j / 2;
        const uint32_t word = k == 0 ? all.x : k == 1 ? all.y : k == 2 ? all.z : all.w;
        return NBYTES == 4 ? word : j % 2 ? word >> 16 : word & 0xffffu;
    }
};

/* ---- work of a warp ---------------------------------------------------------------------------------------------- */

/* Warps take their slices alone: rows end where they end, and short ones keep few lanes waiting. */
#define LANE (threadIdx.x % 32)
enum { TURN = 32 * FOUR }; /* elements of a warp at once */

/* This warp's part of slice `slice` of n elements; it begins at a multiple of TURN. */
DEVICE span_t warp_slice(uint64_t n, uint32_t slice, uint32_t n_slices) {
    const uint32_t n_warps = THREADS / 32;
    return slice_of(n, slice * n_warps + threadIdx.x / 32, n_slices * n_warps, TURN);
}

/* n elements, by one warp: four accesses at once, of 16 bytes where both arrays allow it. */
DEVICE void copy_warp(void *to, const void *from, int dtype, uint64_t n) {
    const uint32_t nbytes = elem_nbytes(dtype);
    const uint64_t n_wide = is_aligned(to, 16) && is_aligned(from, 16) ? n * nbytes / 16 : 0;
#pragma unroll 1
    for (uint64_t at = LANE; at < n_wide; at += TURN) {
        uint4 x[FOUR];
#pragma unroll
        for (int j = 0; j < FOUR; j++)
            x[j] = in_global((const uint4 *)from)[j == 0 || at + 32 * j < n_wide ? at + 32 * j : at];
#pragma unroll
        for (int j = 0; j < FOUR; j++)
            if (at + 32 * j < n_wide)
                in_global((uint4 *)to)[at + 32 * j] = x[j];
    }
#pragma unroll 1
    for (uint64_t at = n_wide * (16 / nbytes) + LANE; at < n; at += TURN) {
        uint32_t x[FOUR];
#pragma unroll
        for (int j = 0; j < FOUR; j++)
            x[j] = get_bits(from, dtype, j == 0 || at + 32 * j < n ? at + 32 * j : at);
#pragma unroll
        for (int j = 0; j < FOUR; j++)
            if (at + 32 * j < n)
                put_bits(to, dtype, at + 32 * j, x[j]);
    }
}
