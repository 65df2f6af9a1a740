/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/callback.c - the host's own update rule (contract in callback.h).
 *
 * Cost: one call per 1024 elements and update, and one pass over each gradient more than the kernels need. In mean mode
 * selected columns differ in n, so run-ahead may have to call element by element. */
#include "instance/callback.h"

#include <math.h>

#include "base/error.h"

/* A piece of state on its way through the updates. */
typedef struct piece {
    uint64_t n_elems;
    float *w, *m, *v;      /* m, v NULL where the rule has none */
    uint64_t first_index;  /* of element 0, with zfi_rounding_base of its parameter */
    const uint64_t *index; /* the elements' numbers in the parameter; NULL: they follow each other */
} piece_t;

static void fail(const zfi_group_rule_t *rule, int32_t code) {
    zf_error_t error = {.struct_size = sizeof error};
    zfi_error_scoped(&error, ZF_ERR_RULE, ZF_SCOPE_INSTANCE, code, "rule",
                     "group %u: the host's update rule \"%s\" returned %d", rule->group, rule->name, code);
    zfi_poison(rule->engine, &error);
}

static void call(const zfi_group_rule_t *rule, const piece_t *piece, const float *g, const zfi_hyper_t *hyper,
                 uint64_t n) {
    zf_rule_update_t update = {.struct_size = sizeof update,
                               .group = rule->group,
                               .param = zfi_index_param(piece->first_index),
                               .n = n,
                               .n_elems = piece->n_elems,
                               .first = zfi_index_element(piece->first_index),
                               .index = piece->index,
                               .w = piece->w,
                               .m = rule->n_moments > 0 ? piece->m : NULL,
                               .v = rule->n_moments > 1 ? piece->v : NULL,
                               .g = g,
                               .lr = hyper->lr,
                               .beta1 = hyper->beta1,
                               .beta2 = hyper->beta2,
                               .eps = hyper->eps,
                               .weight_decay = hyper->weight_decay};
    int32_t code = rule->callback.update(rule->callback.ctx, &update);
    if (code)
        fail(rule, code);
}

/* out = widened gradient * s. */
static void scale(const zfi_kernels_t *kernels, float *out, const void *grad, zfi_dtype_t dtype, uint64_t first,
                  float s, uint64_t n) {
    kernels->widen(out, (const unsigned char *)grad + first * zfi_dtype_nbytes(dtype), dtype, n);
    for (uint64_t i = 0; i < n; i++)
        out[i] *= s;
}

/* ---- replay ------------------------------------------------------------------------------------------------------ */

/* Moments [first, first + n) as fp32: where they lie, or in scratch. */
static float *open_moments(const zfi_replay_t *job, void *moments, uint64_t first, uint64_t n, float *scratch) {
    if (!moments)
        return NULL;
    if (job->moments == ZFI_MOMENTS_F32)
        return (float *)moments + first;
    for (uint64_t i = 0; i < n; i++)
        scratch[i] = zfi_bf16_to_f32(((const uint16_t *)moments)[first + i]);
    return scratch;
}

/* Rounds what was widened and puts it back. */
static void close_moments(const zfi_kernels_t *kernels, const zfi_replay_t *job, const piece_t *piece, uint64_t first) {
    zfi_round_moments_t rounding = {.m = piece->m,
                                    .v = piece->v,
                                    .sub = {NULL, NULL, 1, piece->n_elems},
                                    .cols = piece->n_elems,
                                    .state_base = job->first_index + first,
                                    .moments = job->moments,
                                    .key = job->key};
    if (!piece->m || job->moments == ZFI_MOMENTS_F32)
        return;
    kernels->round_moments(&rounding);
    kernels->narrow((uint16_t *)job->m + first, ZFI_BF16, piece->m, piece->n_elems);
    if (piece->v)
        kernels->narrow((uint16_t *)job->v + first, ZFI_BF16, piece->v, piece->n_elems);
}

static void replay_piece(const zfi_group_rule_t *rule, const zfi_kernels_t *kernels, const zfi_replay_t *job,
                         const zfi_callback_window_t *window, uint64_t first, uint64_t n) {
    float g[ZFI_CALLBACK_ELEMS], m[ZFI_CALLBACK_ELEMS], v[ZFI_CALLBACK_ELEMS];
    piece_t piece = {.n_elems = n,
                     .w = job->w + first,
                     .m = open_moments(job, job->m, first, n, m),
                     .v = open_moments(job, job->v, first, n, v),
                     .first_index = job->first_index + first};
    for (uint32_t k = 0; k < job->n_slots; k++) {
        scale(kernels, g, job->grads[k], job->grad_dtype, first, job->scalars[k].s, n);
        call(rule, &piece, g, &window->hyper[k], (uint64_t)window->n_before + k + 1);
    }
    close_moments(kernels, job, &piece, first);
    if (job->visible)
        kernels->narrow((unsigned char *)job->visible + first * zfi_dtype_nbytes(job->visible_dtype),
                        job->visible_dtype, piece.w, n);
}

uint64_t zfi_callback_replay(const zfi_group_rule_t *rule, const zfi_kernels_t *kernels, const zfi_replay_t *job,
                             const zfi_callback_window_t *window) {
    uint64_t n;
    for (uint64_t first = 0; first < job->n_elems; first += n) {
        n = job->n_elems - first < ZFI_CALLBACK_ELEMS ? job->n_elems - first : ZFI_CALLBACK_ELEMS;
        replay_piece(rule, kernels, job, window, first, n);
    }
    for (uint64_t i = 0; i < job->n_elems; i++)
        if (!isfinite(job->w[i]))
            return i;
    return UINT64_MAX;
}

/* ---- run-ahead --------------------------------------------------------------------------------------------------- */

static uint64_t digest_of(const zfi_kernels_t *kernels, const zfi_run_ahead_t *job) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < job->sub.n_rows && job->cols; i++)
        for (uint64_t j = 0; j < job->sub.n_cols; j++) {
            uint64_t r = job->sub.row_index ? job->sub.row_index[i] : i;
            uint64_t c = job->sub.col_index ? job->sub.col_index[j] : j;
            sum += kernels->digest(zfi_place_at(&job->place, r, c), job->place.dtype, 1, r * job->cols + c);
        }
    return sum;
}

/* The indexes of n compact elements from `first` on; returns whether they follow each other. */
static int list_elements(const zfi_elements_t *elements, uint64_t first, uint64_t n, uint64_t *out) {
    const zfi_submatrix_t *sub = &elements->sub;
    int is_run = 1;
    for (uint64_t e = 0; e < n; e++) {
        uint64_t i = (first + e) / sub->n_cols, j = (first + e) % sub->n_cols;
        uint64_t row = sub->row_index ? sub->row_index[i] : i, col = sub->col_index ? sub->col_index[j] : j;
        out[e] = zfi_index_element(elements->first_index + row * elements->cols + col);
        is_run &= out[e] == out[0] + e;
    }
    return is_run;
}

static uint32_t count_at(const zfi_run_ahead_t *job, const uint32_t *n, uint64_t e) {
    return n[e / job->sub.n_cols * job->scalars_row_stride + e % job->sub.n_cols * job->scalars_col_stride];
}

uint64_t zfi_callback_run_ahead(const zfi_group_rule_t *rule, const zfi_kernels_t *kernels, const zfi_run_ahead_t *job,
                                const zfi_elements_t *elements, const zfi_hyper_t *hyper, const uint32_t *n) {
    uint64_t n_elems = job->sub.n_rows * job->sub.n_cols, end, before = digest_of(kernels, job);
    float g[ZFI_CALLBACK_ELEMS];
    uint64_t index[ZFI_CALLBACK_ELEMS];
    for (uint64_t first = 0; first < n_elems; first = end) {
        uint32_t count = count_at(job, n, first);
        piece_t piece = {.w = job->w + first, .m = job->m ? job->m + first : NULL, .v = job->v ? job->v + first : NULL};
        for (end = first + 1; end < n_elems && end - first < ZFI_CALLBACK_ELEMS && count_at(job, n, end) == count;)
            end++;
        piece.n_elems = end - first;
        piece.index = list_elements(elements, first, piece.n_elems, index) ? NULL : index;
        piece.first_index = zfi_rounding_base(zfi_index_param(elements->first_index)) + index[0];
        scale(kernels, g, job->grad, job->grad_dtype, first, job->scalars->s, piece.n_elems);
        call(rule, &piece, g, hyper, count);
    }
    kernels->scatter(&job->place, &job->sub, job->w);
    return digest_of(kernels, job) - before;
}

uint64_t zfi_callback_on_device(const void *ctx, const zfi_run_ahead_t *job, const zfi_elements_t *elements,
                                const zfi_hyper_t *hyper, const uint32_t *n) {
    const zfi_group_rule_t *rule = ctx;
    return zfi_callback_run_ahead(rule, rule->engine->kernels, job, elements, hyper, n);
}

uint64_t zfi_callback_update(const void *ctx, const zfi_replay_t *job, const zfi_hyper_t *hyper, uint32_t n) {
    const zfi_group_rule_t *rule = ctx;
    zfi_callback_window_t window = {.n_before = n - 1, .hyper = hyper};
    return zfi_callback_replay(rule, rule->engine->kernels, job, &window);
}
