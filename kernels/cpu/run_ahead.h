/* run_ahead.h - the update of selected channels: compact state, visible values at scattered places.
 *
 * Works in strips of one row by at most STRIP columns that stay in the L1 cache: narrow the old w (what visible should
 * hold), update in place, narrow the new w, then place and compare element by element (places.c). The scalars of a
 * strip are transposed to one array per scalar, so that a channel's own scalars cost a vector load instead of a
 * broadcast; they are filled when the row or the strip changes, whichever they depend on. */
#ifndef ZFI_RUN_AHEAD_H
#define ZFI_RUN_AHEAD_H

#include "adamw.h"

enum { STRIP = 512 };

/* zfi_scalars_t of each column of a strip. */
typedef struct strip_scalars {
    float s[STRIP], b1[STRIP], one_minus_b1[STRIP], b2[STRIP], one_minus_b2[STRIP];
    float inv_sqrt_bc2[STRIP], eps[STRIP], neg_step[STRIP], decay[STRIP];
} strip_scalars_t;

/* Columns [0, n) take a[0], a[stride], ... and the rest of the last vector repeats a[0], harmless in unused lanes. */
static void fill_strip(strip_scalars_t *strip, const zfi_scalars_t *a, uint64_t stride, uint64_t n) {
    for (uint64_t j = 0; j < (n + VL - 1) / VL * VL; j++) {
        const zfi_scalars_t *from = &a[j < n ? j * stride : 0];

        strip->s[j] = from->s;
        strip->b1[j] = from->b1;
        strip->one_minus_b1[j] = from->one_minus_b1;
        strip->b2[j] = from->b2;
        strip->one_minus_b2[j] = from->one_minus_b2;
        strip->inv_sqrt_bc2[j] = from->inv_sqrt_bc2;
        strip->eps[j] = from->eps;
        strip->neg_step[j] = from->neg_step;
        strip->decay[j] = from->decay;
    }
}

static ALWAYS_INLINE lanes_scalars_t load_scalars(const strip_scalars_t *strip, uint64_t j) {
    return (lanes_scalars_t){
        .s = vf_load(strip->s + j),
        .b1 = vf_load(strip->b1 + j),
        .one_minus_b1 = vf_load(strip->one_minus_b1 + j),
        .b2 = vf_load(strip->b2 + j),
        .one_minus_b2 = vf_load(strip->one_minus_b2 + j),
        .inv_sqrt_bc2 = vf_load(strip->inv_sqrt_bc2 + j),
        .eps = vf_load(strip->eps + j),
        .neg_step = vf_load(strip->neg_step + j),
        .decay = vf_load(strip->decay + j),
    };
}

/* Updates n <= STRIP compact elements from element e on. */
static void update_strip(const zfi_run_ahead_t *job, const strip_scalars_t *strip, uint64_t e, uint64_t n) {
    uint64_t j = 0, rest;
    vf w, m, v;

    for (; j + VL <= n; j += VL) {
        lanes_scalars_t a = load_scalars(strip, j);

        w = vf_load(job->w + e + j);
        m = vf_load(job->m + e + j);
        v = vf_load(job->v + e + j);
        adamw(&w, &m, &v, vf_load_as(job->grad, job->grad_dtype, e + j), &a);
        vf_store(job->w + e + j, w);
        vf_store(job->m + e + j, m);
        vf_store(job->v + e + j, v);
    }
    rest = n - j;
    if (rest > 0) {
        lanes_scalars_t a = load_scalars(strip, j);

        w = vf_load_tail(job->w, ZFI_F32, e + j, rest);
        m = vf_load_tail(job->m, ZFI_F32, e + j, rest);
        v = vf_load_tail(job->v, ZFI_F32, e + j, rest);
        adamw(&w, &m, &v, vf_load_tail(job->grad, job->grad_dtype, e + j, rest), &a);
        vf_store_tail(job->w, ZFI_F32, e + j, rest, w);
        vf_store_tail(job->m, ZFI_F32, e + j, rest, m);
        vf_store_tail(job->v, ZFI_F32, e + j, rest, v);
    }
}

static uint64_t run_ahead_strip(const zfi_run_ahead_t *job, const strip_scalars_t *strip, uint64_t i,
                                uint64_t first_col, uint64_t n) {
    const uint64_t e = i * job->sub.n_cols + first_col;
    float before[STRIP], after[STRIP]; /* STRIP elements of either dtype */

    narrow(before, job->place.dtype, job->w + e, n);
    update_strip(job, strip, e, n);
    narrow(after, job->place.dtype, job->w + e, n);
    return zfi_place_row(&job->place, &job->sub, i, first_col, n, after, before);
}

static uint64_t run_ahead_adamw(const zfi_run_ahead_t *job) {
    const int is_per_row = job->scalars_row_stride != 0;
    strip_scalars_t strip;
    uint64_t n_differ = 0;

    for (uint64_t c = 0; c < job->sub.n_cols; c += STRIP) {
        const uint64_t n = job->sub.n_cols - c < STRIP ? job->sub.n_cols - c : STRIP;

        for (uint64_t i = 0; i < job->sub.n_rows; i++) {
            if (i == 0 || is_per_row)
                fill_strip(&strip, &job->scalars[i * job->scalars_row_stride + c * job->scalars_col_stride],
                           job->scalars_col_stride, n);
            n_differ += run_ahead_strip(job, &strip, i, c, n);
        }
    }
    return n_differ;
}

static void scatter(const zfi_place_t *place, const zfi_submatrix_t *sub, const float *w) {
    float bits[STRIP]; /* STRIP elements of either dtype */

    for (uint64_t i = 0; i < sub->n_rows; i++)
        for (uint64_t c = 0; c < sub->n_cols; c += STRIP) {
            const uint64_t n = sub->n_cols - c < STRIP ? sub->n_cols - c : STRIP;

            narrow(bits, place->dtype, w + i * sub->n_cols + c, n);
            (void)zfi_place_row(place, sub, i, c, n, bits, NULL);
        }
}

#endif
