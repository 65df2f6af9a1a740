/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/replay_columns.c - mean mode by columns (contract in replay_columns.h; rules in SCHEDULE.md,
 * "Replay").
 *
 * Model: neighbours in memory belong to different channels, so there are no runs to hand to the replay kernel. But what
 * lies `cols` elements apart is one channel, wherever the segment starts. So its elements are read as rows of that
 * length, counted from its first element, with column j for channel (first + j) mod cols, and a last row that may be
 * shorter: two compact sub-matrices with a set of scalars per column, which is what the run-ahead kernel takes. First
 * the selected columns are gathered and updated slot by slot; then all columns are updated by the mean, in place; then
 * the selected ones are put back over what that made of them.
 *
 * Scalars hang on n, which takes few values: they are kept in a table by n. Moments in bf16 are widened first, and
 * rounded at the end.
 * Cost: about three passes over w, m, v instead of one; scalars once per column and segment. */
#include "replay/replay_columns.h"

#include <float.h>
#include <math.h>

#include "instance/callback.h"
#include "instance/moments.h"

enum { KNOWN = 64, ARRAYS = 9, SCALARS_FLOATS = sizeof(zfi_scalars_t) / sizeof(float) };

/* The whole rows, or the last, shorter one. */
typedef struct rect {
    uint64_t at; /* elements from the segment's start */
    uint64_t n_rows, n_cols, n_selected;
    uint64_t compact_at; /* elements of selected columns before it */
} rect_t;

typedef struct columns {
    const zfi_replay_columns_t *job;
    const zfi_matrix_t *matrix;
    zfi_dtype_t grad_dtype;
    rect_t rects[2];
    uint64_t n_cols, n_selected;    /* of the first rectangle; the second has the first few of them */
    float *mean, *w, *m, *v, *grad; /* [segment elements]; all but mean compact, of the selected columns */
    float *all_m, *all_v;           /* [segment elements] of all columns; NULL where the rule has none */
    uint32_t *selected;             /* [segment elements] columns */
    uint32_t *counts;               /* [segment elements] n of this update, per column */
    zfi_scalars_t *scalars;         /* [segment elements] per column */
    struct {
        uint32_t n;
        zfi_scalars_t scalars;
    } known[KNOWN]; /* of one update, by n; n = 0: none */
} columns_t;

uint64_t zfi_replay_columns_scratch(uint64_t n_elems) { return n_elems * (ARRAYS + SCALARS_FLOATS); }

/* ---- columns ----------------------------------------------------------------------------------------------------- */

/* The channel of column j, of its matrix. */
static uint64_t channel_of(const columns_t *columns, uint64_t j) {
    uint64_t cols = columns->matrix->cols, c = columns->job->segment->matrix_offset % cols + j;
    return c < cols ? c : c - cols;
}

static void list_selected(columns_t *columns) {
    const zfi_replay_columns_t *job = columns->job;
    columns->n_selected = 0;
    for (uint32_t j = 0; j < columns->n_cols; j++)
        if (job->close->is_warm_up || job->view->mask[columns->matrix->channel_base + channel_of(columns, j)])
            columns->selected[columns->n_selected++] = j;
}

static void cut(columns_t *columns) {
    uint64_t n = columns->job->segment->n_elems, cols = columns->n_cols, n_rows = n / cols, rest = n % cols,
             n_in_rest = 0;
    while (n_in_rest < columns->n_selected && columns->selected[n_in_rest] < rest)
        n_in_rest++;
    columns->rects[0] = (rect_t){0, n_rows, cols, columns->n_selected, 0};
    columns->rects[1] = (rect_t){n_rows * cols, rest != 0, rest, n_in_rest, n_rows * columns->n_selected};
}

/* The segment's moments as fp32: where they lie, or in scratch. */
static float *open_moments(const columns_t *columns, zfi_moment_t which, void *moments, float *scratch) {
    const zfi_replay_columns_t *job = columns->job;
    zfi_moments_t kind = columns->matrix->moments;
    if (!moments)
        return NULL;
    if (kind == ZFI_MOMENTS_F32)
        return (float *)moments + job->segment->chunk_offset;
    zfi_moments_get(kind, which, moments, job->segment->chunk_offset, job->segment->n_elems, scratch);
    return scratch;
}

/* The index of the segment's first element, as moments are rounded by it. */
static uint64_t first_index(const columns_t *columns) {
    const zfi_matrix_t *matrix = columns->matrix;
    return matrix->rounding_base + matrix->param_offset + columns->job->segment->matrix_offset;
}

static void close_moments(const columns_t *columns) {
    const zfi_replay_columns_t *job = columns->job;
    uint64_t n = job->segment->n_elems, at = job->segment->chunk_offset;
    zfi_round_moments_t rounding = {
        .m = columns->all_m,
        .v = columns->all_v,
        .sub = {NULL, NULL, 1, n},
        .cols = n,
        .state_base = first_index(columns),
        .moments = columns->matrix->moments,
        .key = zfi_rounding_key(job->close->step),
    };
    if (rounding.moments == ZFI_MOMENTS_F32 || !rounding.m)
        return;
    job->view->kernels->round_moments(&rounding);
    zfi_moments_put(rounding.moments, ZFI_M, job->view->kernels, job->target->m, at, n, columns->all_m);
    if (columns->all_v)
        zfi_moments_put(rounding.moments, ZFI_V, job->view->kernels, job->target->v, at, n, columns->all_v);
}

static void start(const zfi_replay_columns_t *job, columns_t *columns) {
    uint64_t n = job->segment->n_elems;
    float *scratch = job->target->scratch;
    columns->job = job;
    columns->matrix = &job->view->matrices[job->segment->matrix];
    columns->grad_dtype = job->view->params[columns->matrix->param].grad_dtype;
    columns->n_cols = columns->matrix->cols < n ? columns->matrix->cols : n;
    columns->mean = scratch;
    columns->w = scratch + n;
    columns->m = job->target->m ? scratch + 2 * n : NULL;
    columns->v = job->target->v ? scratch + 3 * n : NULL;
    columns->grad = scratch + 4 * n;
    columns->selected = (uint32_t *)(void *)(scratch + 5 * n);
    columns->counts = (uint32_t *)(void *)(scratch + 6 * n);
    columns->all_m = open_moments(columns, ZFI_M, job->target->m, scratch + 7 * n);
    columns->all_v = open_moments(columns, ZFI_V, job->target->v, scratch + 8 * n);
    columns->scalars = (zfi_scalars_t *)(void *)(scratch + ARRAYS * n);
    list_selected(columns);
    cut(columns);
}

/* ---- one update of compact state --------------------------------------------------------------------------------- */

static void forget_scalars(columns_t *columns) {
    for (uint32_t i = 0; i < KNOWN; i++)
        columns->known[i].n = 0;
}

/* Update number n of column j. */
static void set_column(columns_t *columns, uint64_t j, const zfi_hyper_t *hyper, float s, uint32_t n) {
    uint32_t i = n % KNOWN;
    if (columns->known[i].n != n) {
        columns->known[i].n = n;
        columns->known[i].scalars = zfi_rule_scalars((zfi_rule_t)columns->job->rule->number, hyper, s, n);
    }
    columns->scalars[j] = columns->known[i].scalars;
    columns->counts[j] = n;
}

/* Column j of a rectangle's sub-matrix with scalars[j]. */
static void update(const columns_t *columns, zfi_run_ahead_t *job, const zfi_hyper_t *hyper, const rect_t *rect,
                   zfi_submatrix_t sub) {
    const zfi_replay_view_t *view = columns->job->view;
    const zfi_elements_t elements = {first_index(columns) + rect->at, columns->n_cols, sub};
    uint64_t n_rows = sub.n_rows, n_cols = sub.n_cols;
    job->sub = (zfi_submatrix_t){NULL, NULL, n_rows, n_cols};
    job->place.row_stride = (int64_t)n_cols;
    job->scalars = columns->scalars;
    job->scalars_col_stride = 1;
    if (!n_rows || !n_cols)
        return;
    if (columns->job->rule->number == ZF_RULE_CALLBACK)
        (void)zfi_callback_run_ahead(columns->job->rule, view->kernels, job, &elements, hyper, columns->counts);
    else
        (void)view->kernels->run_ahead[columns->job->rule->number](job);
}

/* ---- selected columns -------------------------------------------------------------------------------------------- */

static zfi_submatrix_t selected_part(const columns_t *columns, const rect_t *rect) {
    return (zfi_submatrix_t){NULL, columns->selected, rect->n_rows, rect->n_selected};
}

static void take_selected(const columns_t *columns, const rect_t *rect) {
    const zfi_replay_columns_t *job = columns->job;
    zfi_submatrix_t sub = selected_part(columns, rect);
    uint64_t at = job->segment->chunk_offset + rect->at, to = rect->compact_at;
    zfi_gather(columns->w + to, job->target->w + at, columns->n_cols, sizeof(float), &sub);
    if (columns->m)
        zfi_gather(columns->m + to, columns->all_m + rect->at, columns->n_cols, sizeof(float), &sub);
    if (columns->v)
        zfi_gather(columns->v + to, columns->all_v + rect->at, columns->n_cols, sizeof(float), &sub);
}

static void advance_selected(const columns_t *columns, const rect_t *rect, uint32_t k) {
    const zfi_replay_columns_t *job = columns->job;
    zfi_submatrix_t sub = selected_part(columns, rect);
    size_t elem = zfi_dtype_nbytes(columns->grad_dtype);
    zfi_run_ahead_t state = {.w = columns->w + rect->compact_at,
                             .m = columns->m ? columns->m + rect->compact_at : NULL,
                             .v = columns->v ? columns->v + rect->compact_at : NULL};
    state.grad = columns->grad;
    state.grad_dtype = columns->grad_dtype;
    state.place = (zfi_place_t){.visible = columns->mean, .dtype = ZFI_F32}; /* not needed: free at this time */
    zfi_gather(columns->grad, (const unsigned char *)job->grads[k] + rect->at * elem, columns->n_cols, elem, &sub);
    update(columns, &state, &job->hyper[k], rect, sub);
}

static void replay_selected(columns_t *columns) {
    const zfi_replay_columns_t *job = columns->job;
    for (int r = 0; r < 2; r++)
        take_selected(columns, &columns->rects[r]);
    for (uint32_t k = 0; k < job->n_slots; k++) {
        forget_scalars(columns);
        for (uint64_t i = 0; i < columns->n_selected; i++) {
            uint32_t n = job->view->n[zfi_count_at(columns->matrix, channel_of(columns, columns->selected[i]))] + k + 1;
            set_column(columns, i, &job->hyper[k], job->s[k], n);
        }
        for (int r = 0; r < 2; r++)
            advance_selected(columns, &columns->rects[r], k);
    }
}

/* Back to their places, also in the values to publish: a FLUSH publishes all. */
static void put_back(const columns_t *columns, const rect_t *rect) {
    const zfi_replay_columns_t *job = columns->job;
    const zfi_kernels_t *kernels = job->view->kernels;
    zfi_submatrix_t sub = selected_part(columns, rect);
    uint64_t at = job->segment->chunk_offset + rect->at, from = rect->compact_at;
    zfi_place_t place = {.visible = job->target->w + at, .dtype = ZFI_F32, .row_stride = (int64_t)columns->n_cols};
    kernels->scatter(&place, &sub, columns->w + from);
    if (columns->m) {
        place.visible = columns->all_m + rect->at;
        kernels->scatter(&place, &sub, columns->m + from);
    }
    if (columns->v) {
        place.visible = columns->all_v + rect->at;
        kernels->scatter(&place, &sub, columns->v + from);
    }
    if (!job->target->visible)
        return;
    place.dtype = columns->matrix->place.dtype;
    place.visible = job->target->visible + at * zfi_dtype_nbytes(place.dtype);
    kernels->scatter(&place, &sub, columns->w + from);
}

/* ---- all columns ------------------------------------------------------------------------------------------------- */

static void update_rect(const columns_t *columns, const rect_t *rect, const zfi_hyper_t *hyper) {
    const zfi_replay_columns_t *job = columns->job;
    uint64_t at = job->segment->chunk_offset + rect->at;
    zfi_run_ahead_t state = {.w = job->target->w + at,
                             .m = columns->all_m ? columns->all_m + rect->at : NULL,
                             .v = columns->all_v ? columns->all_v + rect->at : NULL};
    state.grad = columns->mean + rect->at;
    state.grad_dtype = ZFI_F32;
    state.place = (zfi_place_t){.visible = columns->grad, .dtype = ZFI_F32}; /* export: nobody reads it */
    if (job->target->visible) {
        state.place.dtype = columns->matrix->place.dtype;
        state.place.visible = job->target->visible + at * zfi_dtype_nbytes(state.place.dtype);
    }
    update(columns, &state, hyper, rect, (zfi_submatrix_t){NULL, NULL, rect->n_rows, rect->n_cols});
}

static void update_by_mean(columns_t *columns) {
    const zfi_replay_columns_t *job = columns->job;
    const zfi_hyper_t *hyper = &job->hyper[job->n_slots - 1];
    job->view->kernels->mean_grad(columns->mean, job->grads, columns->grad_dtype, job->s, job->n_slots,
                                  job->segment->n_elems);
    forget_scalars(columns);
    for (uint64_t j = 0; j < columns->n_cols; j++) {
        uint32_t n = job->view->n[zfi_count_at(columns->matrix, channel_of(columns, j))] + 1;
        set_column(columns, j, hyper, 1.0f, n);
    }
    for (int r = 0; r < 2; r++)
        update_rect(columns, &columns->rects[r], hyper);
}

static uint64_t first_nonfinite(const float *w, uint64_t n) {
    int is_one = 0;
    for (uint64_t e = 0; e < n; e++) /* no way out: compilers make vectors of it */
        is_one |= !(fabsf(w[e]) <= FLT_MAX);
    if (!is_one)
        return UINT64_MAX;
    for (uint64_t e = 0; e < n; e++)
        if (!isfinite(w[e]))
            return e;
    return UINT64_MAX;
}

uint64_t zfi_replay_columns(const zfi_replay_columns_t *job) {
    columns_t columns;
    start(job, &columns);
    if (columns.n_selected)
        replay_selected(&columns);
    if (columns.n_selected < columns.n_cols)
        update_by_mean(&columns);
    for (int r = 0; r < 2 && columns.n_selected; r++)
        put_back(&columns, &columns.rects[r]);
    close_moments(&columns);
    return first_nonfinite(job->target->w + job->segment->chunk_offset, job->segment->n_elems);
}
