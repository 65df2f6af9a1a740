/* SPDX-License-Identifier: Apache-2.0 */
/* replay.h - the replay kernel: n_slots updates of every element in one pass over w, m, v.
 *
 * Model: a tile of N_INFLIGHT vectors stays in registers while the slot loop runs over it; scalars are broadcast from
 * memory. What one slot of AdamW costs a vector is one square root and one division (the divider is the limit inside
 * the cache); they hang off the chains through m and v, so consecutive slots and vectors overlap. A tile covers whole
 * cache lines of every stream, so each line is asked for once, by software, PREFETCH_NBYTES ahead: with 4 to 20 streams
 * the hardware's prefetchers lose track, and the long body hides later loads from the out-of-order window. One slot of
 * AdamW, the usual step, is left to them: four streams and a short body are faster so by a tenth.
 *
 * One template, compiled for what costs time when it is decided in the loop: every rule for every gradient type with
 * fp32 moments; AdamW also unrolled for the usual numbers of slots, and with bf16 moments for bf16 gradients. Other
 * jobs with bf16 moments decide per tile. So does every job whether it predicts: one branch where the visible values
 * are stored.
 *
 * Cost: 12 bytes in and 12 out, plus a gradient per slot in and the visible value out, per element. */
#pragma once

#include "moments.h"
#include "runs.h"

enum { TILE = N_INFLIGHT * VL, LINE_NBYTES = 64 };

/* Repeats members of the job, as constants where a body is made for one value. */
typedef struct body {
    zfi_rule_t rule;
    uint32_t n_slots;
    zfi_dtype_t dtype;
    zfi_moments_t moments;
    int has_predict;
    int is_unrolled; /* the slot loop */
} body_t;

/* The body for any job of a rule. */
static ALWAYS_INLINE body_t any_body(zfi_rule_t rule, const zfi_replay_t *job) {
    return (body_t){.rule = rule,
                    .n_slots = job->n_slots,
                    .dtype = job->grad_dtype,
                    .moments = job->moments,
                    .has_predict = job->has_predict && zfi_rule_has_v(rule)};
}

/* Non-finite lanes of w turn into NaN in the sum and stay; finite ones add zero. */
static ALWAYS_INLINE vf note_nonfinite(vf noted, vf w) { return vf_fma(w, vf_splat(0.0f), noted); }

static uint64_t first_nonfinite(const float *w, uint64_t n_elems) {
    for (uint64_t i = 0; i < n_elems; i++)
        if (!isfinite(w[i]))
            return i;
    return UINT64_MAX;
}

static ALWAYS_INLINE vf visible_of(const body_t *body, const lanes_state_t *x, float predict) {
    if (body->has_predict && body->n_slots > 0)
        return vf_fma(vf_splat(predict), x->ratio, x->w);
    return x->w;
}

static ALWAYS_INLINE zfi_replay_from_t replay_from(const zfi_replay_t *job) {
    return job->from ? *job->from : (zfi_replay_from_t){job->w, job->m, job->v};
}

/* The last n < VL elements, from element i on. Returns w for note_nonfinite, its unused lanes zero. */
static ONE_COPY vf replay_tail(const zfi_replay_t *job, body_t body, uint64_t i, uint64_t n) {
    const zfi_dtype_t state_dtype = moments_dtype(job->moments);
    const size_t state_nbytes = zfi_dtype_nbytes(state_dtype);
    const vu random = random_from(job->key, job->first_index + i);
    const zfi_replay_from_t from = replay_from(job);
    lanes_state_t x = {.w = vf_load_tail(from.w, ZFI_F32, i, n), .m = vf_load_tail(from.m, state_dtype, i, n)};
    float m[VL], v[VL]; /* VL elements of either type */
    if (zfi_rule_has_v(body.rule))
        x.v = vf_load_tail(from.v, state_dtype, i, n);
    for (uint32_t k = 0; k < job->n_slots; k++) {
        lanes_scalars_t a = splat_scalars(&job->scalars[k]);

        update(body.rule, &x, vf_load_tail(job->grads[k], job->grad_dtype, i, n), &a);
    }
    vf_store_tail(job->w, ZFI_F32, i, n, x.w);
    store_moment(m, job->moments, 0, x.m, random);
    memcpy((char *)job->m + i * state_nbytes, m, n * state_nbytes);
    if (zfi_rule_has_v(body.rule)) {
        store_moment(v, job->moments, 0, x.v, random >> 16);
        memcpy((char *)job->v + i * state_nbytes, v, n * state_nbytes);
    }
    if (job->visible)
        vf_store_tail(job->visible, job->visible_dtype, i, n, visible_of(&body, &x, job->predict));
    return vf_load_tail(job->w, ZFI_F32, i, n);
}

/* Asks for a tile's lines of one stream, PREFETCH_NBYTES ahead of element i. */
static ALWAYS_INLINE void prefetch_tile(const body_t *body, const void *stream, uint64_t i, size_t elem_nbytes) {
    if (body->is_unrolled && body->n_slots == 1)
        return;
    for (size_t at = 0; at < TILE * elem_nbytes; at += LINE_NBYTES)
        prefetch(stream, i * elem_nbytes + PREFETCH_NBYTES + at);
}

/* Slot k of the tile at element i. */
static ALWAYS_INLINE void replay_slot(const zfi_replay_t *job, body_t body, uint32_t k, uint64_t i,
                                      lanes_state_t x[N_INFLIGHT]) {
    const lanes_scalars_t a = splat_scalars(&job->scalars[k]);
    const void *grad = job->grads[k];
    prefetch_tile(&body, grad, i, zfi_dtype_nbytes(body.dtype));
    UNROLL
    for (int u = 0; u < N_INFLIGHT; u++)
        update(body.rule, &x[u], vf_load_as(grad, body.dtype, i + (uint64_t)(u * VL)), &a);
}

static ALWAYS_INLINE uint64_t replay_tiles(const zfi_replay_t *job, body_t body) {
    float *const w_at = job->w;
    void *const m_at = job->m, *const v_at = job->v;
    const zfi_replay_from_t from = replay_from(job);
    const zfi_replay_t here = {.grads = job->grads, .scalars = job->scalars}; /* stores to w, m, v cannot change it */
    void *const visible = job->visible;
    const zfi_dtype_t visible_dtype = job->visible_dtype;
    const uint64_t n_elems = job->n_elems;
    const size_t moments_nbytes = zfi_dtype_nbytes(moments_dtype(body.moments));
    const zfi_dtype_t state_dtype = moments_dtype(body.moments);
    vf noted = vf_splat(0.0f);
    uint64_t i = 0;
    for (; i + TILE <= n_elems; i += TILE) {
        lanes_state_t x[N_INFLIGHT];

        prefetch_tile(&body, from.w, i, 4);
        prefetch_tile(&body, from.m, i, moments_nbytes);
        if (zfi_rule_has_v(body.rule))
            prefetch_tile(&body, from.v, i, moments_nbytes);
        UNROLL
        for (int u = 0; u < N_INFLIGHT; u++) {
            x[u].w = vf_load(from.w + i + u * VL);
            x[u].ratio = vf_splat(0.0f);
            x[u].m = vf_load_as(from.m, state_dtype, i + (uint64_t)(u * VL));
            if (zfi_rule_has_v(body.rule))
                x[u].v = vf_load_as(from.v, state_dtype, i + (uint64_t)(u * VL));
        }
        if (body.is_unrolled) {
#pragma GCC unroll 8
            for (uint32_t k = 0; k < body.n_slots; k++)
                replay_slot(&here, body, k, i, x);
        } else {
#pragma GCC unroll 1
            for (uint32_t k = 0; k < body.n_slots; k++)
                replay_slot(&here, body, k, i, x);
        }
        UNROLL
        for (int u = 0; u < N_INFLIGHT; u++) {
            const uint64_t at = i + (uint64_t)(u * VL);
            vu random = {0};

            if (body.moments == ZFI_MOMENTS_BF16_STOCHASTIC)
                random = random_from(job->key, job->first_index + at);
            vf_store(w_at + at, x[u].w);
            store_moment(m_at, body.moments, at, x[u].m, random);
            if (zfi_rule_has_v(body.rule))
                store_moment(v_at, body.moments, at, x[u].v, random >> 16);
            noted = note_nonfinite(noted, x[u].w);
            if (visible)
                vf_store_as(visible, visible_dtype, at, visible_of(&body, &x[u], job->predict));
        }
    }
    for (; i < n_elems; i += VL)
        noted = note_nonfinite(noted, replay_tail(job, body, i, n_elems - i < VL ? n_elems - i : VL));
    for (int l = 0; l < VL; l++)
        if (noted[l] != 0.0f)
            return first_nonfinite(w_at, n_elems);
    return UINT64_MAX;
}

/* Windows of the usual lengths get their own unrolled body. */
static ALWAYS_INLINE uint64_t replay_slots(const zfi_replay_t *job, body_t body) {
    body.is_unrolled = 1;
    switch (job->n_slots) {
    case 1:
        body.n_slots = 1;
        return replay_tiles(job, body);
    case 2:
        body.n_slots = 2;
        return replay_tiles(job, body);
    case 4:
        body.n_slots = 4;
        return replay_tiles(job, body);
    case 8:
        body.n_slots = 8;
        return replay_tiles(job, body);
    default:
        return replay_tiles(job, body);
    }
}

/* For gradients of one type. */
static ALWAYS_INLINE uint64_t replay_as(zfi_rule_t rule, const zfi_replay_t *job, zfi_dtype_t dtype) {
    body_t body = any_body(rule, job);
    body.dtype = dtype;
    body.moments = ZFI_MOMENTS_F32;
    return HAS_UNROLLED_SLOTS && rule == ZFI_RULE_ADAMW && dtype != ZFI_F16 ? replay_slots(job, body)
                                                                            : replay_tiles(job, body);
}

/* AdamW with bf16 moments, for gradients of one type. */
static ALWAYS_INLINE uint64_t replay_rounding(const zfi_replay_t *job, zfi_moments_t moments, zfi_dtype_t dtype) {
    body_t body = any_body(ZFI_RULE_ADAMW, job);
    body.dtype = dtype;
    body.moments = moments;
    return replay_tiles(job, body);
}

/* Moments that are kept element by element. */
static ALWAYS_INLINE uint64_t replay_elements(zfi_rule_t rule, const zfi_replay_t *job) {
    if (rule == ZFI_RULE_ADAMW && job->grad_dtype == ZFI_BF16) {
        if (job->moments == ZFI_MOMENTS_BF16)
            return replay_rounding(job, ZFI_MOMENTS_BF16, ZFI_BF16);
        if (job->moments == ZFI_MOMENTS_BF16_STOCHASTIC)
            return replay_rounding(job, ZFI_MOMENTS_BF16_STOCHASTIC, ZFI_BF16);
    }
    if (job->moments != ZFI_MOMENTS_F32)
        return replay_tiles(job, any_body(rule, job));
    switch (job->grad_dtype) {
    case ZFI_BF16:
        return replay_as(rule, job, ZFI_BF16);
    case ZFI_F16:
        return replay_as(rule, job, ZFI_F16);
    default:
        return replay_as(rule, job, ZFI_F32);
    }
}

/* ---- moments in runs --------------------------------------------------------------------------------------------- */

/* How an element's gradient of slot k is taken; one slot's scalars stay in registers. */
static ALWAYS_INLINE void replay_run_slots(const zfi_replay_t *job, body_t body, const lanes_scalars_t *first,
                                           uint64_t at, lanes_state_t x[N_INFLIGHT]) {
    if (body.n_slots == 1) {
        UNROLL
        for (uint32_t u = 0; u < N_INFLIGHT; u++)
            update(body.rule, &x[u], vf_load_as(job->grads[0], body.dtype, at + u * VL), first);
        return;
    }
    for (uint32_t k = 0; k < body.n_slots; k++)
        replay_slot(job, body, k, at, x);
}

/* Run number r, the k-th of a strip: w and what is visible are written, moments in runs go on to keep_run. */
static ALWAYS_INLINE void update_run(const zfi_replay_t *job, body_t body, const lanes_scalars_t *first, uint64_t r,
                                     uint32_t k, vf *noted, strip_t *strip) {
    const zfi_replay_from_t from = replay_from(job);
    const zfi_run8_t *m = (const zfi_run8_t *)from.m + r, *v = (const zfi_run8_t *)from.v + r;
    const int has_v = zfi_rule_has_v(body.rule), v_in_runs = has_v && body.moments == ZFI_MOMENTS_INT8;
    const uint32_t before = m->grid << ZFI_GRID_COARSEST, shift = v_in_runs ? zfi_grid_shift(v->grid) : 0;
    const uint32_t below = v_in_runs ? zfi_grid_least(v->grid) - (1u << shift) : 0;
    float *const w_at = job->w;
    void *const visible = job->visible;
    randoms_t random = {{0}, 0};
    lanes_range_t of_m = {{0}, vu_splat(no_number)}, of_v = of_m;
    if (has_v && !v_in_runs)
        random = randoms_of(job, r * ZFI_RUN, ZFI_V);
    UNROLL
    for (uint32_t i = 0; i < ZFI_RUN; i += TILE) {
        const uint64_t at = r * ZFI_RUN + i;
        lanes_state_t x[N_INFLIGHT];

        UNROLL
        for (uint32_t u = 0; u < N_INFLIGHT; u++) {
            x[u].w = vf_load(from.w + at + u * VL);
            x[u].ratio = vf_splat(0.0f);
            x[u].m = m_of_codes(m->code + i + u * VL, before);
            if (v_in_runs)
                x[u].v = v_of_codes(v->code + i + u * VL, shift, below);
            else if (has_v)
                x[u].v = vf_load_as(from.v, ZFI_BF16, at + u * VL);
        }
        replay_run_slots(job, body, first, at, x);
        UNROLL
        for (uint32_t u = 0; u < N_INFLIGHT; u++) {
            vf_store(w_at + at + u * VL, x[u].w);
            vf_store(strip->m[k] + i + u * VL, x[u].m);
            widen_range(&of_m, x[u].m);
            if (v_in_runs) {
                vf_store(strip->v[k] + i + u * VL, x[u].v);
                widen_range(&of_v, x[u].v);
            } else if (has_v && body.n_slots) {
                store_moment(job->v, ZFI_MOMENTS_BF16_STOCHASTIC, at + u * VL, x[u].v, random.now >> 16);
                random.now += random.more;
            }
            *noted = note_nonfinite(*noted, x[u].w);
            if (visible)
                vf_store_as(visible, job->visible_dtype, at + u * VL, visible_of(&body, &x[u], job->predict));
        }
    }
    strip->of_m[k] = of_m;
    strip->of_v[k] = of_v;
}

/* The codes of n runs from number r on. */
static ALWAYS_INLINE void keep_strip(const zfi_replay_t *job, body_t body, uint64_t r, uint32_t n, strip_t *strip) {
    for (uint32_t k = 0; k < n; k++)
        ranges_of(&strip->of_m[k], &strip->of_v[k], strip->range[k]);
    for (uint32_t k = 0; k < n; k++)
        keep_m((zfi_run8_t *)job->m + r + k, strip->m[k], strip->range[k][ZFI_M],
               randoms_of(job, (r + k) * ZFI_RUN, ZFI_M));
    for (uint32_t k = 0; zfi_rule_has_v(body.rule) && body.moments == ZFI_MOMENTS_INT8 && k < n; k++)
        keep_v((zfi_run8_t *)job->v + r + k, strip->v[k], strip->range[k][ZFI_V],
               randoms_of(job, (r + k) * ZFI_RUN, ZFI_V));
}

/* No update: what is kept stays. */
static void copy_moments(const zfi_replay_t *job, int has_v) {
    if (!job->from)
        return;
    memcpy(job->m, job->from->m, zfi_moment_nbytes(job->moments, ZFI_M, job->n_elems));
    if (has_v)
        memcpy(job->v, job->from->v, zfi_moment_nbytes(job->moments, ZFI_V, job->n_elems));
}

static ALWAYS_INLINE uint64_t replay_runs(const zfi_replay_t *job, body_t body) {
    const uint64_t n_runs = job->n_elems / ZFI_RUN;
    const lanes_scalars_t first = splat_scalars(body.n_slots ? &job->scalars[0] : &(zfi_scalars_t){0});
    strip_t strip;
    vf noted = vf_splat(0.0f);
    for (uint64_t r = 0; r < n_runs; r += RUN_STRIP) {
        const uint32_t n = n_runs - r < RUN_STRIP ? (uint32_t)(n_runs - r) : RUN_STRIP;
        for (uint32_t k = 0; k < n; k++)
            update_run(job, body, &first, r + k, k, &noted, &strip);
        if (body.n_slots)
            keep_strip(job, body, r, n, &strip);
    }
    if (!body.n_slots)
        copy_moments(job, zfi_rule_has_v(body.rule));
    for (int l = 0; l < VL; l++)
        if (noted[l] != 0.0f)
            return first_nonfinite(job->w, job->n_elems);
    return UINT64_MAX;
}

/* AdamW's step has a body for each type of gradients and moments. */
static ALWAYS_INLINE uint64_t replay_runs_of(const zfi_replay_t *job, zfi_moments_t moments, zfi_dtype_t dtype) {
    body_t body = any_body(ZFI_RULE_ADAMW, job);
    body.n_slots = 1;
    body.dtype = dtype;
    body.moments = moments;
    return replay_runs(job, body);
}

static ALWAYS_INLINE uint64_t replay_in_runs(zfi_rule_t rule, const zfi_replay_t *job) {
    if (rule != ZFI_RULE_ADAMW || job->n_slots != 1 || job->grad_dtype == ZFI_F16)
        return replay_runs(job, any_body(rule, job));
    if (job->moments == ZFI_MOMENTS_INT8)
        return job->grad_dtype == ZFI_BF16 ? replay_runs_of(job, ZFI_MOMENTS_INT8, ZFI_BF16)
                                           : replay_runs_of(job, ZFI_MOMENTS_INT8, ZFI_F32);
    return job->grad_dtype == ZFI_BF16 ? replay_runs_of(job, ZFI_MOMENTS_INT8_BF16, ZFI_BF16)
                                       : replay_runs_of(job, ZFI_MOMENTS_INT8_BF16, ZFI_F32);
}
