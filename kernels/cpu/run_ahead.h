/* SPDX-License-Identifier: Apache-2.0 */
/* run_ahead.h - the update of selected channels: compact state, visible values at scattered places.
 *
 * Works in strips of one row by at most STRIP columns that stay in the L1 cache: update in place, narrow the
 * new w, then place element by element and count what the digest moves by (places.c). The scalars of a
 * strip are transposed to one array per scalar, so that a channel's own scalars cost a vector load instead of a
 * broadcast; they are filled when the row or the strip changes, whichever they depend on. */
#pragma once

#include "digest.h"
#include "update.h"

enum { STRIP = 512 };

/* zfi_scalars_t of each column of a strip. */
typedef struct strip_scalars {
    float s[STRIP], b1[STRIP], one_minus_b1[STRIP], b2[STRIP], one_minus_b2[STRIP];
    float inv_sqrt_bc2[STRIP], eps[STRIP], neg_step[STRIP], decay[STRIP], l2[STRIP];
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
        strip->l2[j] = from->l2;
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
        .l2 = vf_load(strip->l2 + j),
    };
}

/* Updates n <= STRIP compact elements from element e on. */
static ALWAYS_INLINE void update_strip(zfi_rule_t rule, const zfi_run_ahead_t *job, const strip_scalars_t *strip,
                                       uint64_t e, uint64_t n) {
    for (uint64_t j = 0; j < n; j += VL) {
        const lanes_scalars_t a = load_scalars(strip, j);
        const uint64_t at = e + j, rest = n - j < VL ? n - j : VL;
        lanes_state_t x = {.w = vf_load_upto(job->w, ZFI_F32, at, rest), .m = vf_load_upto(job->m, ZFI_F32, at, rest)};

        if (zfi_rule_has_v(rule))
            x.v = vf_load_upto(job->v, ZFI_F32, at, rest);
        update(rule, &x, vf_load_upto(job->grad, job->grad_dtype, at, rest), &a);
        vf_store_upto(job->w, ZFI_F32, at, rest, x.w);
        vf_store_upto(job->m, ZFI_F32, at, rest, x.m);
        if (zfi_rule_has_v(rule))
            vf_store_upto(job->v, ZFI_F32, at, rest, x.v);
    }
}

static ALWAYS_INLINE uint64_t run_ahead_strip(zfi_rule_t rule, const zfi_run_ahead_t *job, const strip_scalars_t *strip,
                                              uint64_t i, uint64_t first_col, uint64_t n) {
    const uint64_t e = i * job->sub.n_cols + first_col;
    float after[STRIP]; /* STRIP elements of either dtype */
    update_strip(rule, job, strip, e, n);
    narrow(after, job->place.dtype, job->w + e, n);
    return zfi_place_row(&job->place, &job->sub, i, first_col, n, after, job->cols);
}

/* Narrow rows with one set of scalars: a strip is as many whole rows as fit, so that a column vector, or one channel of
 * a matrix, does not cost a strip per element. */
static ALWAYS_INLINE uint64_t run_ahead_narrow(zfi_rule_t rule, const zfi_run_ahead_t *job) {
    const uint64_t n_cols = job->sub.n_cols, most = STRIP / n_cols;
    const size_t nbytes = zfi_dtype_nbytes(job->place.dtype);
    strip_scalars_t strip;
    uint64_t moved = 0;
    fill_strip(&strip, job->scalars, 0, most * n_cols);
    for (uint64_t i = 0; i < job->sub.n_rows; i += most) {
        const uint64_t n_rows = job->sub.n_rows - i < most ? job->sub.n_rows - i : most;
        const uint64_t e = i * n_cols, n = n_rows * n_cols;
        float after[STRIP]; /* STRIP elements of either dtype */

        update_strip(rule, job, &strip, e, n);
        narrow(after, job->place.dtype, job->w + e, n);
        for (uint64_t r = 0; r < n_rows; r++)
            moved +=
                zfi_place_row(&job->place, &job->sub, i + r, 0, n_cols, (char *)after + r * n_cols * nbytes, job->cols);
    }
    return moved;
}

/* Whether the visible elements lie like the compact ones, so that all of them are one row: vectors, above all. */
static ALWAYS_INLINE int is_one_row(const zfi_run_ahead_t *job) {
    return !job->sub.row_index && !job->sub.col_index && !job->place.col_offset &&
           job->place.row_stride == (int64_t)job->sub.n_cols;
}

static ALWAYS_INLINE uint64_t run_ahead_wide(zfi_rule_t rule, const zfi_run_ahead_t *job) {
    const int is_per_row = job->scalars_row_stride != 0;
    strip_scalars_t strip;
    uint64_t moved = 0;
    for (uint64_t c = 0; c < job->sub.n_cols; c += STRIP) {
        const uint64_t n = job->sub.n_cols - c < STRIP ? job->sub.n_cols - c : STRIP;

        for (uint64_t i = 0; i < job->sub.n_rows; i++) {
            if (is_per_row || (i == 0 && (c == 0 || job->scalars_col_stride))) /* one set of scalars: once */
                fill_strip(&strip, &job->scalars[i * job->scalars_row_stride + c * job->scalars_col_stride],
                           job->scalars_col_stride, n);
            moved += run_ahead_strip(rule, job, &strip, i, c, n);
        }
    }
    return moved;
}

static ALWAYS_INLINE uint64_t run_ahead(zfi_rule_t rule, const zfi_run_ahead_t *given) {
    zfi_run_ahead_t job = *given;
    if (job.scalars_row_stride || job.scalars_col_stride || job.sub.n_cols == 0 || job.sub.n_cols > STRIP / 2)
        return run_ahead_wide(rule, &job);
    if (!is_one_row(&job))
        return run_ahead_narrow(rule, &job);
    job.sub.n_cols *= job.sub.n_rows;
    job.sub.n_rows = 1;
    return run_ahead_wide(rule, &job);
}

static void scatter(const zfi_place_t *place, const zfi_submatrix_t *sub, const float *w) {
    float bits[STRIP]; /* STRIP elements of either dtype */
    for (uint64_t i = 0; i < sub->n_rows; i++)
        for (uint64_t c = 0; c < sub->n_cols; c += STRIP) {
            const uint64_t n = sub->n_cols - c < STRIP ? sub->n_cols - c : STRIP;

            narrow(bits, place->dtype, w + i * sub->n_cols + c, n);
            (void)zfi_place_row(place, sub, i, c, n, bits, 0);
        }
}
