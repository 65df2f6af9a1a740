/* SPDX-License-Identifier: Apache-2.0 */
/* runs.h - moments in 8 bits (runs.c) by vectors, and the replay of them: a run is widened in registers, updated as
 * fp32 moments are, and kept again. Its grid follows from the extremes of all of it, so updated values lie in the L1
 * cache until then, those of a few runs: the extremes of one are found while others are updated. */
#pragma once

#include "grids.h"
#include "moments.h"
#include "update.h"

enum { RUN_VECTORS = ZFI_RUN / VL, RUN_STRIP = 4 };

/* a where the mask is set, else b. */
static ALWAYS_INLINE vu vu_select(vu mask, vu a, vu b) { return (mask & a) | (~mask & b); }

static ALWAYS_INLINE vu size_of(vf x) { return (vu)x & 0x7fffffffu; }

/* Values of a run. */
static ALWAYS_INLINE vf m_of_codes(const uint8_t *code, uint32_t before) {
    const vu codes = vu_load_8(code);
    const vu placed = (vu)((vi)(codes << 24) >> 4) & 0x87f00000u; /* the sign, and the cell where it counts */
    return (vf)vu_where(codes, 0x7fu, placed + before);
}

static ALWAYS_INLINE vf v_of_codes(const uint8_t *code, uint32_t shift, uint32_t below) {
    const vu codes = vu_load_8(code);
    return (vf)vu_where(codes, 0xffu, (codes << shift) + below);
}

/* The random numbers of VL neighbours, and what the next VL have more. */
typedef struct randoms {
    vu now;
    uint32_t more;
} randoms_t;

static ALWAYS_INLINE randoms_t randoms_of(const zfi_replay_t *job, uint64_t at, zfi_moment_t which) {
    const zfi_run_random_t random = zfi_run_random(job->key, job->first_index + at, which);
    vu lane = {0};
    for (uint32_t l = 0; l < VL; l++)
        lane[l] = l;
    return (randoms_t){lane * random.step + random.first, VL * random.step};
}

/* The smallest but 0, which there is: less one, 0 is the largest number. */
static ONE_COPY uint32_t least_but_zero(const float *values) {
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < ZFI_RUN; i += VL) {
        const vu size = size_of(vf_load(values + i)) - 1u;
        for (uint32_t l = 0; l < VL; l++)
            least = size[l] < least ? size[l] : least;
    }
    return least + 1;
}

/* The general case of a run of v: with zeros, or numbers below the grid. */
static ONE_COPY void keep_any_v(zfi_run8_t *run, const zfi_grid_t *grid, const float *v, randoms_t random) {
    vu codes[4];
    for (uint32_t i = 0; i < RUN_VECTORS; i++, random.now += random.more) {
        const vu bits = size_of(vf_load(v + i * VL)), part = grid->is_edge ? (vu){0} : random.now >> (32 - grid->shift);
        const vu cell = (vu_most(bits, vu_splat(grid->least)) + part) >> grid->shift;

        codes[i % 4] = (cell - grid->before) & 0xffu & (vu)(bits != 0);
        if (i % 4 == 3)
            vu_store_8(run->code + (i - 3) * VL, codes);
    }
}

static ALWAYS_INLINE void keep_v(zfi_run8_t *run, const float *v, zfi_grid_range_t range, randoms_t random) {
    const int has_zeros = range.least == 0;
    if (has_zeros && range.most)
        range.least = least_but_zero(v);
    const zfi_grid_t grid = zfi_grid_of_v(range);
    const uint32_t shift = grid.shift;
    run->grid = grid.kept;
    if (__builtin_expect(has_zeros || grid.has_floor || grid.is_edge, 0)) {
        keep_any_v(run, &grid, v, random);
        return;
    }
    UNROLL
    for (uint32_t i = 0; i < RUN_VECTORS; i += 4) {
        vu codes[4];
        UNROLL
        for (uint32_t k = 0; k < 4; k++, random.now += random.more)
            codes[k] = ((size_of(vf_load(v + (i + k) * VL)) + (random.now >> (32 - shift))) >> shift) - grid.before;
        vu_store_8(run->code + i * VL, codes);
    }
}

/* The general case of a run of m: with numbers below the grid. */
static ONE_COPY void keep_any_m(zfi_run8_t *run, const zfi_grid_t *grid, const float *m, randoms_t random) {
    vu codes[4];
    for (uint32_t i = 0; i < RUN_VECTORS; i++, random.now += random.more) {
        const vu x = (vu)vf_load(m + i * VL), bits = x & 0x7fffffffu, part = grid->is_edge ? (vu){0} : random.now >> 12;
        const vu cell = ((bits + part) >> ZFI_GRID_COARSEST) - grid->before;
        const vf share = __builtin_convertvector((vi)part, vf) * grid->least_share;
        const vu low = (vu)((vf)bits > share) & 1u;
        const vu code = vu_select((vu)((vi)bits < (vi)vu_splat(grid->least)), low, cell) & 0xffu;

        codes[i % 4] = code | (x >> 24 & 0x80u);
        if (i % 4 == 3)
            vu_store_8(run->code + (i - 3) * VL, codes);
    }
}

/* The sign takes no part in the sum: what is added does not reach it. */
static ALWAYS_INLINE void keep_m(zfi_run8_t *run, const float *m, zfi_grid_range_t range, randoms_t random) {
    const zfi_grid_t grid = zfi_grid_of_m(range.most);
    const uint32_t before = grid.before << ZFI_GRID_COARSEST;
    run->grid = grid.kept;
    if (__builtin_expect(range.least < grid.least || grid.is_edge, 0)) {
        keep_any_m(run, &grid, m, random);
        return;
    }
    UNROLL
    for (uint32_t i = 0; i < RUN_VECTORS; i += 4) {
        vu codes[4];
        UNROLL
        for (uint32_t k = 0; k < 4; k++, random.now += random.more) {
            const vu sum = (vu)vf_load(m + (i + k) * VL) + (random.now >> 12) - before;

            codes[k] = (sum >> 24 & 0x80u) | (sum >> ZFI_GRID_COARSEST & 0x7fu);
        }
        vu_store_8(run->code + i * VL, codes);
    }
}

/* The extremes of a run's values, by lanes. */
typedef struct lanes_range {
    vu most, least;
} lanes_range_t;

static const uint32_t no_number = 0x7fffffffu;

static ALWAYS_INLINE void widen_range(lanes_range_t *range, vf x) {
    range->most = vu_most(range->most, size_of(x));
    range->least = vu_least(range->least, size_of(x));
}

/* Lanes are folded two by two, of two vectors at once. */
static ALWAYS_INLINE vu most_of_both(vu a, vu b) {
    return vu_most((vu)vf_zip_lower((vf)a, (vf)b), (vu)vf_zip_upper((vf)a, (vf)b));
}

/* The extremes of m and of v; the smallest is the largest of what is missing to no_number. */
static ALWAYS_INLINE void ranges_of(const lanes_range_t *m, const lanes_range_t *v, zfi_grid_range_t out[2]) {
    vu all = most_of_both(most_of_both(m->most, v->most), most_of_both(m->least ^ no_number, v->least ^ no_number));
    for (int n = VL; n > 4; n /= 2)
        all = most_of_both(all, all);
    out[ZFI_M] = (zfi_grid_range_t){all[0], all[VL / 4] ^ no_number};
    out[ZFI_V] = (zfi_grid_range_t){all[VL / 2], all[VL / 4 * 3] ^ no_number};
}

/* A strip of runs between their update and their codes. */
typedef struct strip {
    float m[RUN_STRIP][ZFI_RUN], v[RUN_STRIP][ZFI_RUN];
    lanes_range_t of_m[RUN_STRIP], of_v[RUN_STRIP];
    zfi_grid_range_t range[RUN_STRIP][2];
} strip_t;
