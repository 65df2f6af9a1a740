/* replay.h - the replay kernel: n_slots AdamW updates of every element in one pass over w, m, v.
 *
 * Model: a tile of N_INFLIGHT vectors stays in registers while the slot loop runs over it; scalars are broadcast from
 * memory. What one slot costs a vector is one square root and one division (the divider is the limit inside the cache);
 * they hang off the chains through m and v, so consecutive slots and vectors overlap. A tile covers whole cache lines
 * of every stream, so each line is asked for once, by software, PREFETCH_NBYTES ahead: with 4 to 20 streams the
 * hardware's prefetchers lose track, and the long body hides later loads from the out-of-order window.
 *
 * Cost: 12 bytes in and 12 out, plus a gradient per slot in and the visible value out, per element. */
#ifndef ZFI_REPLAY_H
#define ZFI_REPLAY_H

#include "adamw.h"

enum { TILE = N_INFLIGHT * VL, LINE_NBYTES = 64 };

/* Non-finite lanes of w turn into NaN in the sum and stay; finite ones add zero. */
static ALWAYS_INLINE vf note_nonfinite(vf noted, vf w) { return vf_fma(w, vf_splat(0.0f), noted); }

static uint64_t first_nonfinite(const float *w, uint64_t n_elems) {
    for (uint64_t i = 0; i < n_elems; i++)
        if (!isfinite(w[i]))
            return i;
    return UINT64_MAX;
}

/* The last n < VL elements, from element i on. Returns w for note_nonfinite, its unused lanes zero. */
static __attribute__((noinline)) vf replay_tail(const zfi_replay_t *job, uint64_t i, uint64_t n) {
    vf w = vf_load_tail(job->w, ZFI_F32, i, n);
    vf m = vf_load_tail(job->m, ZFI_F32, i, n);
    vf v = vf_load_tail(job->v, ZFI_F32, i, n);

    for (uint32_t k = 0; k < job->n_slots; k++) {
        lanes_scalars_t a = splat_scalars(&job->scalars[k]);

        adamw(&w, &m, &v, vf_load_tail(job->grads[k], job->grad_dtype, i, n), &a);
    }
    vf_store_tail(job->w, ZFI_F32, i, n, w);
    vf_store_tail(job->m, ZFI_F32, i, n, m);
    vf_store_tail(job->v, ZFI_F32, i, n, v);
    if (job->visible)
        vf_store_tail(job->visible, job->visible_dtype, i, n, w);
    return vf_load_tail(job->w, ZFI_F32, i, n);
}

/* Asks for a tile's lines of one stream, PREFETCH_NBYTES ahead of element i. */
static ALWAYS_INLINE void prefetch_tile(const void *stream, uint64_t i, size_t elem_nbytes) {
    for (size_t at = 0; at < TILE * elem_nbytes; at += LINE_NBYTES)
        prefetch(stream, i * elem_nbytes + PREFETCH_NBYTES + at);
}

/* n_slots and dtype repeat members of the job as constants, so that the slot loop unrolls. */
static ALWAYS_INLINE uint64_t replay_tiles(const zfi_replay_t *job, uint32_t n_slots, zfi_dtype_t dtype) {
    float *const w_at = job->w, *const m_at = job->m, *const v_at = job->v;
    const void *const *grads = job->grads;
    const zfi_scalars_t *scalars = job->scalars;
    void *const visible = job->visible;
    const zfi_dtype_t visible_dtype = job->visible_dtype;
    const uint64_t n_elems = job->n_elems;
    vf noted = vf_splat(0.0f);
    uint64_t i = 0;

    for (; i + TILE <= n_elems; i += TILE) {
        vf w[N_INFLIGHT], m[N_INFLIGHT], v[N_INFLIGHT];

        prefetch_tile(w_at, i, 4);
        prefetch_tile(m_at, i, 4);
        prefetch_tile(v_at, i, 4);
        UNROLL
        for (int u = 0; u < N_INFLIGHT; u++) {
            w[u] = vf_load(w_at + i + u * VL);
            m[u] = vf_load(m_at + i + u * VL);
            v[u] = vf_load(v_at + i + u * VL);
        }
#pragma GCC unroll 8
        for (uint32_t k = 0; k < n_slots; k++) {
            const lanes_scalars_t a = splat_scalars(&scalars[k]);

            prefetch_tile(grads[k], i, zfi_dtype_nbytes(dtype));
            UNROLL
            for (int u = 0; u < N_INFLIGHT; u++)
                adamw(&w[u], &m[u], &v[u], vf_load_as(grads[k], dtype, i + (uint64_t)(u * VL)), &a);
        }
        UNROLL
        for (int u = 0; u < N_INFLIGHT; u++) {
            vf_store(w_at + i + u * VL, w[u]);
            vf_store(m_at + i + u * VL, m[u]);
            vf_store(v_at + i + u * VL, v[u]);
            noted = note_nonfinite(noted, w[u]);
            if (visible)
                vf_store_as(visible, visible_dtype, i + (uint64_t)(u * VL), w[u]);
        }
    }
    for (; i < n_elems; i += VL)
        noted = note_nonfinite(noted, replay_tail(job, i, n_elems - i < VL ? n_elems - i : VL));
    for (int l = 0; l < VL; l++)
        if (noted[l] != 0.0f)
            return first_nonfinite(w_at, n_elems);
    return UINT64_MAX;
}

/* Windows of the usual lengths get their own unrolled body. */
static ALWAYS_INLINE uint64_t replay_slots(const zfi_replay_t *job, zfi_dtype_t dtype) {
    switch (job->n_slots) {
    case 1:
        return replay_tiles(job, 1, dtype);
    case 2:
        return replay_tiles(job, 2, dtype);
    case 4:
        return replay_tiles(job, 4, dtype);
    case 8:
        return replay_tiles(job, 8, dtype);
    default:
        return replay_tiles(job, job->n_slots, dtype);
    }
}

static uint64_t replay_adamw(const zfi_replay_t *job) {
    return job->grad_dtype == ZFI_BF16 ? replay_slots(job, ZFI_BF16) : replay_slots(job, ZFI_F32);
}

#endif
