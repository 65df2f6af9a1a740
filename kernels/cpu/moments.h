/* SPDX-License-Identifier: Apache-2.0 */
/* moments.h - m and v in memory: fp32, or bf16 rounded to nearest even or stochastically.
 *
 * Stochastic rounding draws from a counter-based hash, so it has no state and is the same for any cut of work (fmix is
 * MurmurHash3's, of 32 bits; SCHEDULE.md has the formula). Of a random number r, m takes r and v takes r >> 16. */
#pragma once

#include "lanes.h"

static ALWAYS_INLINE vu vu_splat(uint32_t x) { return x + (vu){0}; }

static ALWAYS_INLINE vu fmix(vu h) {
    h ^= h >> 16;
    h *= 0x85ebca6bu;
    h ^= h >> 13;
    h *= 0xc2b2ae35u;
    return h ^ h >> 16;
}

/* The random number of every lane; the index in two halves. */
static ALWAYS_INLINE vu random_of(uint64_t key, vu low, vu high) {
    vu h = fmix((low * 0x9e3779b9u) ^ (uint32_t)key);
    return fmix(h ^ (uint32_t)(key >> 32) ^ (high * 0x85ebca6bu));
}

/* Those of indices first ... first + VL - 1. */
static ALWAYS_INLINE vu random_from(uint64_t key, uint64_t first) {
    vu low = vu_splat((uint32_t)first), high = vu_splat((uint32_t)(first >> 32)), lane = {0};
    for (uint32_t l = 0; l < VL; l++)
        lane[l] = l;
    low += lane;
    high -= (vu)(low < lane); /* carry */
    return random_of(key, low, high);
}

/* Every lane's neighbour away from zero where the 16 discarded bits + the lower 16 of random carry, else the one
 * towards zero; in the lower half. A finite value never becomes Inf. Comparisons are signed, on values without sign. */
static ALWAYS_INLINE vu vf_to_bf16_stochastic(vf x, vu random) {
    vu bits = (vu)x, carried = bits + (random & 0xffffu);
    vu is_infinite = (vu)((vi)(carried & 0x7fffffffu) >= 0x7f800000); /* or NaN; the sum of a NaN may wrap */
    vu rounded = (is_infinite & bits) | (~is_infinite & carried);
    return vu_if_nan(x, bits | 0x400000u, rounded) >> 16;
}

static ALWAYS_INLINE vu moment_bits(vf x, zfi_moments_t moments, vu random) {
    return moments == ZFI_MOMENTS_BF16_STOCHASTIC ? vf_to_bf16_stochastic(x, random) : vf_to_bf16(x);
}

/* How moments are widened when loaded. */
static ALWAYS_INLINE zfi_dtype_t moments_dtype(zfi_moments_t moments) {
    return moments == ZFI_MOMENTS_F32 ? ZFI_F32 : ZFI_BF16;
}

/* The value that a store of m or v would leave, widened again. */
static ALWAYS_INLINE vf round_moment(vf x, zfi_moments_t moments, vu random) {
    return (vf)(moment_bits(x, moments, random) << 16);
}

/* random is not read but for stochastic rounding. */
static ALWAYS_INLINE void store_moment(void *array, zfi_moments_t moments, uint64_t i, vf x, vu random) {
    if (moments == ZFI_MOMENTS_F32)
        vf_store((float *)array + i, x);
    else
        vu_store_16((uint16_t *)array + i, moment_bits(x, moments, random));
}

enum { ROUND_STRIP = 512 };

/* Rounds n <= ROUND_STRIP elements of m and v from element e on, whose indices are low[], high[]. */
static void round_strip(const zfi_round_moments_t *job, uint64_t e, uint64_t n, const uint32_t *low,
                        const uint32_t *high) {
    for (uint64_t j = 0; j < n; j += VL) {
        const uint64_t rest = n - j < VL ? n - j : VL;
        vu low_lanes, high_lanes, random;

        memcpy(&low_lanes, low + j, sizeof low_lanes);
        memcpy(&high_lanes, high + j, sizeof high_lanes);
        random = random_of(job->key, low_lanes, high_lanes);
        vf_store_upto(job->m, ZFI_F32, e + j, rest,
                      round_moment(vf_load_upto(job->m, ZFI_F32, e + j, rest), job->moments, random));
        if (job->v)
            vf_store_upto(job->v, ZFI_F32, e + j, rest,
                          round_moment(vf_load_upto(job->v, ZFI_F32, e + j, rest), job->moments, random >> 16));
    }
}

static void round_moments(const zfi_round_moments_t *job) {
    const zfi_submatrix_t *sub = &job->sub;
    uint32_t low[ROUND_STRIP] = {0}, high[ROUND_STRIP] = {0}; /* lanes past the end hash any number */
    if (job->moments == ZFI_MOMENTS_F32)
        return;
    for (uint64_t i = 0; i < sub->n_rows; i++)
        for (uint64_t c = 0; c < sub->n_cols; c += ROUND_STRIP) {
            const uint64_t n = sub->n_cols - c < ROUND_STRIP ? sub->n_cols - c : ROUND_STRIP;
            const uint64_t row = job->state_base + (sub->row_index ? sub->row_index[i] : i) * job->cols;

            for (uint64_t j = 0; j < n; j++) {
                const uint64_t index = row + (sub->col_index ? sub->col_index[c + j] : c + j);

                low[j] = (uint32_t)index;
                high[j] = (uint32_t)(index >> 32);
            }
            round_strip(job, i * sub->n_cols + c, n, low, high);
        }
}
