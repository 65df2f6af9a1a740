/* SPDX-License-Identifier: Apache-2.0 */
/* runs.h - moments in 8 bits (runs.c) by vectors: a strip of runs is widened, updated as fp32 moments are, and kept
 * again. */
#pragma once

#include "grids.h"
#include "moments.h"

enum { RUN_STRIP = 8 * ZFI_RUN, RUN_SLOTS = 64, RUN_AHEAD = 4 };

/* a where the mask is set, else b. */
static ALWAYS_INLINE vu vu_select(vu mask, vu a, vu b) { return (mask & a) | (~mask & b); }

/* Of numbers below 2^31. */
static ALWAYS_INLINE vu vu_larger(vu a, vu b) { return vu_select((vu)((vi)a > (vi)b), a, b); }
static ALWAYS_INLINE vu vu_smaller(vu a, vu b) { return vu_select((vu)((vi)a < (vi)b), a, b); }

static ALWAYS_INLINE void run_get_m(const zfi_run8_t *run, float *out) {
    const uint32_t before = run->grid << ZFI_GRID_COARSEST;
    UNROLL
    for (uint32_t i = 0; i < ZFI_RUN; i += VL) {
        const vu code = vu_load_8(run->code + i);
        const vu placed = (vu)((vi)(code << 24) >> 4) & 0x87f00000u; /* the sign, and the cell where it counts */

        vf_store(out + i, (vf)((placed + before) & (vu)((code & 0x7fu) != 0)));
    }
}

static ALWAYS_INLINE void run_get_v(const zfi_run8_t *run, float *out) {
    const uint32_t shift = zfi_grid_shift(run->grid), least = zfi_grid_least(run->grid);
    UNROLL
    for (uint32_t i = 0; i < ZFI_RUN; i += VL) {
        const vu code = vu_load_8(run->code + i);

        vf_store(out + i, (vf)((((code - 1u) << shift) + least) & (vu)(code != 0)));
    }
}

static ALWAYS_INLINE zfi_grid_range_t range_of_lanes(vu most, vu least) {
    zfi_grid_range_t range = {0, UINT32_MAX};
    for (int l = 0; l < VL; l++) {
        range.most = most[l] > range.most ? most[l] : range.most;
        range.least = least[l] < range.least ? least[l] : range.least;
    }
    return range;
}

static ALWAYS_INLINE vu size_of(const float *value) { return (vu)vf_load(value) & 0x7fffffffu; }

/* least: of all, 0 too. */
static ALWAYS_INLINE zfi_grid_range_t range_of(const float *values) {
    vu most = {0}, least = vu_splat(0x7fffffffu);
    UNROLL
    for (uint32_t i = 0; i < ZFI_RUN; i += VL) {
        most = vu_larger(most, size_of(values + i));
        least = vu_smaller(least, size_of(values + i));
    }
    return range_of_lanes(most, least);
}

/* The smallest but 0, which there is: less one, 0 is the largest number. */
static ONE_COPY uint32_t least_but_zero(const float *values) {
    vu least = vu_splat(0x7fffffffu);
    for (uint32_t i = 0; i < ZFI_RUN; i += VL)
        least = vu_smaller(least, (size_of(values + i) - 1u) & 0x7fffffffu);
    return range_of_lanes(least, least).least + 1;
}

/* The random numbers of a run's elements. */
typedef struct randoms {
    vu of[ZFI_RUN / VL];
} randoms_t;

/* The general case of a run of v: with zeros, or numbers below the grid. */
static ONE_COPY void run_put_any_v(zfi_run8_t *run, const zfi_grid_t *grid, const float *v, const randoms_t *random) {
    const uint32_t shift = grid->shift;
    for (uint32_t i = 0; i < ZFI_RUN; i += VL) {
        const vu bits = size_of(v + i), part = grid->is_edge ? (vu){0} : random->of[i / VL] >> (32 - shift);
        const vu cell = (vu_larger(bits, vu_splat(grid->least)) + part) >> shift;

        vu_store_8(run->code + i, (cell - grid->before) & 0xffu & (vu)(bits != 0));
    }
}

static ALWAYS_INLINE void run_put_v(zfi_run8_t *run, const float *v, const randoms_t *random) {
    zfi_grid_range_t range = range_of(v);
    const int has_zeros = range.least == 0;
    if (has_zeros && range.most)
        range.least = least_but_zero(v);
    const zfi_grid_t grid = zfi_grid_of_v(range);
    const uint32_t shift = grid.shift;
    run->grid = grid.kept;
    if (has_zeros || grid.has_floor || grid.is_edge) {
        run_put_any_v(run, &grid, v, random);
        return;
    }
    UNROLL
    for (uint32_t i = 0; i < ZFI_RUN; i += VL)
        vu_store_8(run->code + i, ((size_of(v + i) + (random->of[i / VL] >> (32 - shift))) >> shift) - grid.before);
}

/* The general case of a run of m: with numbers below the grid. */
static ONE_COPY void run_put_any_m(zfi_run8_t *run, const zfi_grid_t *grid, const float *m, const randoms_t *random) {
    for (uint32_t i = 0; i < ZFI_RUN; i += VL) {
        const vu bits = size_of(m + i), part = grid->is_edge ? (vu){0} : random->of[i / VL] & 0xfffffu;
        const vu cell = ((bits + part) >> ZFI_GRID_COARSEST) - grid->before;
        const vf share = __builtin_convertvector((vi)part, vf) * grid->least_share;
        const vu low = (vu)((vf)bits > share) & 1u;
        const vu code = vu_select((vu)((vi)bits < (vi)vu_splat(grid->least)), low, cell) & 0xffu;

        vu_store_8(run->code + i, code | ((vu)vf_load(m + i) >> 24 & 0x80u));
    }
}

static ALWAYS_INLINE void run_put_m(zfi_run8_t *run, const float *m, const randoms_t *random) {
    const zfi_grid_range_t range = range_of(m);
    const zfi_grid_t grid = zfi_grid_of_m(range.most);
    run->grid = grid.kept;
    if (range.least < grid.least || grid.is_edge) {
        run_put_any_m(run, &grid, m, random);
        return;
    }
    UNROLL
    for (uint32_t i = 0; i < ZFI_RUN; i += VL) {
        const vu x = (vu)vf_load(m + i), part = random->of[i / VL] & 0xfffffu;

        vu_store_8(run->code + i,
                   ((((x & 0x7fffffffu) + part) >> ZFI_GRID_COARSEST) - grid.before) | (x >> 24 & 0x80u));
    }
}

/* A run may hold an index whose lower half is 0. */
static ALWAYS_INLINE randoms_t randoms_of(uint64_t key, uint64_t first) {
    const uint32_t high = (uint32_t)(first >> 32), low_key = (uint32_t)key;
    const uint32_t high_key = (uint32_t)(key >> 32) ^ high * 0x85ebca6bu;
    randoms_t out;
    vu low = vu_splat((uint32_t)first), lane = {0};
    if ((uint32_t)first > UINT32_MAX - ZFI_RUN) {
        for (uint32_t i = 0; i < ZFI_RUN; i += VL)
            out.of[i / VL] = random_from(key, first + i);
        return out;
    }
    for (uint32_t l = 0; l < VL; l++)
        lane[l] = l;
    low = (low + lane) * 0x9e3779b9u;
    UNROLL
    for (uint32_t i = 0; i < ZFI_RUN; i += VL, low += VL * 0x9e3779b9u)
        out.of[i / VL] = fmix(fmix(low ^ low_key) ^ high_key);
    return out;
}

/* A strip of moments, as fp32. */
typedef struct strip {
    float m[RUN_STRIP], v[RUN_STRIP];
} strip_t;

static ALWAYS_INLINE void widen_strip(const zfi_replay_from_t *from, zfi_moments_t moments, int has_v, uint64_t first,
                                      uint64_t n, strip_t *out) {
    const zfi_run8_t *m = (const zfi_run8_t *)from->m + first / ZFI_RUN;
    const zfi_run8_t *v = (const zfi_run8_t *)from->v + first / ZFI_RUN;
    for (uint64_t i = 0; i < n; i += ZFI_RUN, m++, v++) {
        prefetch(m, RUN_AHEAD * sizeof *m);
        prefetch(m, RUN_AHEAD * sizeof *m + 64);
        run_get_m(m, out->m + i);
        if (has_v && moments == ZFI_MOMENTS_INT8) {
            prefetch(v, RUN_AHEAD * sizeof *v);
            prefetch(v, RUN_AHEAD * sizeof *v + 64);
            run_get_v(v, out->v + i);
        }
    }
    for (uint64_t i = 0; i < n && has_v && moments != ZFI_MOMENTS_INT8; i += VL)
        vf_store(out->v + i, vf_load_as(from->v, ZFI_BF16, first + i));
}

/* Keeps the run at element i of a strip, which is element `at` of the job. */
static ALWAYS_INLINE void keep_run(const zfi_replay_t *job, int has_v, uint64_t at, const float *m, const float *v) {
    zfi_run8_t *m_run = (zfi_run8_t *)job->m + at / ZFI_RUN, *v_run = (zfi_run8_t *)job->v + at / ZFI_RUN;
    const int v_in_runs = has_v && job->moments == ZFI_MOMENTS_INT8;
    const randoms_t random = randoms_of(job->key, job->first_index + at);
    run_put_m(m_run, m, &random);
    if (v_in_runs)
        run_put_v(v_run, v, &random);
    for (uint32_t i = 0; i < ZFI_RUN && has_v && !v_in_runs; i += VL)
        store_moment(job->v, ZFI_MOMENTS_BF16_STOCHASTIC, at + i, vf_load(v + i), random.of[i / VL] >> 16);
}

/* The update of fp32 moments, of any rule. */
typedef uint64_t (*replay_fn)(const zfi_replay_t *job);

/* No update: what is kept stays. */
static void copy_moments(const zfi_replay_t *job, int has_v) {
    if (!job->from)
        return;
    memcpy(job->m, job->from->m, zfi_moment_nbytes(job->moments, ZFI_M, job->n_elems));
    if (has_v)
        memcpy(job->v, job->from->v, zfi_moment_nbytes(job->moments, ZFI_V, job->n_elems));
}

static ALWAYS_INLINE uint64_t replay_in_runs(const zfi_replay_t *job, int has_v, replay_fn update_strip) {
    const zfi_replay_from_t from = job->from ? *job->from : (zfi_replay_from_t){job->w, job->m, job->v};
    const void *grads[RUN_SLOTS];
    strip_t strip;
    uint64_t bad = UINT64_MAX;
    zfi_replay_t part = *job;
    part.moments = ZFI_MOMENTS_F32;
    part.grads = grads;
    part.m = strip.m;
    part.v = has_v ? strip.v : NULL;
    for (uint64_t i = 0; i < job->n_elems; i += part.n_elems) {
        const zfi_replay_from_t here = {from.w + i, strip.m, strip.v};
        uint64_t found;

        part.n_elems = job->n_elems - i < RUN_STRIP ? job->n_elems - i : RUN_STRIP;
        widen_strip(&from, job->moments, has_v, i, part.n_elems, &strip);
        for (uint32_t k = 0; k < job->n_slots; k++)
            grads[k] = (const char *)job->grads[k] + i * zfi_dtype_nbytes(job->grad_dtype);
        part.w = job->w + i;
        part.from = job->from ? &here : NULL;
        part.visible = job->visible ? (char *)job->visible + i * zfi_dtype_nbytes(job->visible_dtype) : NULL;
        found = update_strip(&part);
        bad = bad == UINT64_MAX && found != UINT64_MAX ? i + found : bad;
        for (uint64_t r = 0; r < part.n_elems && job->n_slots; r += ZFI_RUN)
            keep_run(job, has_v, i + r, strip.m + r, strip.v + r);
    }
    if (!job->n_slots)
        copy_moments(job, has_v);
    return bad;
}
