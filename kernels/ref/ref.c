/* SPDX-License-Identifier: Apache-2.0 */
/* ref.c - the naive reference of kernels.h: one obvious loop per function, scalar, fmaf and sqrtf from libm.
 *
 * It defines the bits; every table of kernels/cpu is tested for equality with it. Nothing here is fast, and nothing in
 * the plugin calls it. */
#include <math.h>
#include <string.h>

#include "../cpu/grids.h"
#include "../digest.h"
#include "../kernels.h"

static float load(const void *array, zfi_dtype_t dtype, uint64_t i) {
    switch (dtype) {
    case ZFI_BF16:
        return zfi_bf16_to_f32(((const uint16_t *)array)[i]);
    case ZFI_F16:
        return zfi_f16_to_f32(((const uint16_t *)array)[i]);
    default:
        return ((const float *)array)[i];
    }
}

static void store(void *array, zfi_dtype_t dtype, uint64_t i, float x) {
    switch (dtype) {
    case ZFI_BF16:
        ((uint16_t *)array)[i] = zfi_f32_to_bf16(x);
        break;
    case ZFI_F16:
        ((uint16_t *)array)[i] = zfi_f32_to_f16(x);
        break;
    default:
        ((float *)array)[i] = x;
    }
}

/* One element's state, and m/d of its last update. */
typedef struct elem {
    float w, m, v, ratio;
} elem_t;

/* m/d from the new m and v. */
static float ratio_of(const elem_t *e, const zfi_scalars_t *a) {
    return e->m / fmaf(sqrtf(e->v), a->inv_sqrt_bc2, a->eps);
}

static void adam_moments(elem_t *e, float g, const zfi_scalars_t *a) {
    e->m = fmaf(a->b1, e->m, a->one_minus_b1 * g);
    e->v = fmaf(a->b2, e->v, (a->one_minus_b2 * g) * g);
    e->ratio = ratio_of(e, a);
}

static void adamw(elem_t *e, float grad, const zfi_scalars_t *a) {
    adam_moments(e, grad * a->s, a);
    e->w = fmaf(a->neg_step, e->ratio, e->w * a->decay);
}

static void adam(elem_t *e, float grad, const zfi_scalars_t *a) {
    adam_moments(e, fmaf(a->l2, e->w, grad * a->s), a);
    e->w = fmaf(a->neg_step, e->ratio, e->w);
}

static void sgd_frame(elem_t *e, float grad, const zfi_scalars_t *a, int is_nesterov) {
    float g = fmaf(a->l2, e->w, grad * a->s), u = g;
    if (a->b1 != 0.0f) {
        e->m = fmaf(a->b1, e->m, g);
        u = is_nesterov ? fmaf(a->b1, e->m, g) : e->m;
    }
    e->w = fmaf(a->neg_step, u, e->w);
}

static void sgd(elem_t *e, float grad, const zfi_scalars_t *a) { sgd_frame(e, grad, a, 0); }

static void sgd_nesterov(elem_t *e, float grad, const zfi_scalars_t *a) { sgd_frame(e, grad, a, 1); }

static void lion(elem_t *e, float grad, const zfi_scalars_t *a) {
    float g = grad * a->s, c = fmaf(a->b1, e->m, a->one_minus_b1 * g);
    e->w = fmaf(a->neg_step, c > 0.0f ? 1.0f : c < 0.0f ? -1.0f : c, e->w * a->decay);
    e->m = fmaf(a->b2, e->m, a->one_minus_b2 * g);
}

static void (*const rules[ZFI_N_RULES])(elem_t *, float, const zfi_scalars_t *) = {
    [ZFI_RULE_ADAMW] = adamw, [ZFI_RULE_ADAM] = adam, [ZFI_RULE_SGD] = sgd, [ZFI_RULE_SGD_NESTEROV] = sgd_nesterov,
    [ZFI_RULE_LION] = lion,
};

static float load_moment(const void *array, zfi_moments_t moments, uint64_t i) {
    return load(array, moments == ZFI_MOMENTS_F32 ? ZFI_F32 : ZFI_BF16, i);
}

static float round_moment(float x, zfi_moments_t moments, uint32_t random) {
    if (moments == ZFI_MOMENTS_F32)
        return x;
    return zfi_bf16_to_f32(moments == ZFI_MOMENTS_BF16 ? zfi_f32_to_bf16(x) : zfi_f32_to_bf16_stochastic(x, random));
}

static void store_moment(void *array, zfi_moments_t moments, uint64_t i, float x, uint32_t random) {
    store(array, moments == ZFI_MOMENTS_F32 ? ZFI_F32 : ZFI_BF16, i, round_moment(x, moments, random));
}

static elem_t load_elem(const zfi_replay_t *job, int has_v, uint64_t i) {
    zfi_replay_from_t from = job->from ? *job->from : (zfi_replay_from_t){job->w, job->m, job->v};
    return (elem_t){.w = from.w[i],
                    .m = load_moment(from.m, job->moments, i),
                    .v = has_v ? load_moment(from.v, job->moments, i) : 0.0f};
}

static void store_elem(const zfi_replay_t *job, int has_v, uint64_t i, const elem_t *e) {
    uint32_t random = zfi_random32(job->key, job->first_index + i);
    int predicts = has_v && job->has_predict && job->n_slots > 0;
    job->w[i] = e->w;
    store_moment(job->m, job->moments, i, e->m, random);
    if (has_v)
        store_moment(job->v, job->moments, i, e->v, random >> 16);
    if (job->visible)
        store(job->visible, job->visible_dtype, i, predicts ? fmaf(job->predict, e->ratio, e->w) : e->w);
}

static uint64_t first_nonfinite(const zfi_replay_t *job) {
    for (uint64_t i = 0; i < job->n_elems; i++)
        if (!isfinite(job->w[i]))
            return i;
    return UINT64_MAX;
}

static uint64_t replay_elements(zfi_rule_t rule, const zfi_replay_t *job) {
    for (uint64_t i = 0; i < job->n_elems; i++) {
        elem_t e = load_elem(job, zfi_rule_has_v(rule), i);

        for (uint32_t k = 0; k < job->n_slots; k++)
            rules[rule](&e, load(job->grads[k], job->grad_dtype, i), &job->scalars[k]);
        store_elem(job, zfi_rule_has_v(rule), i, &e);
    }
    return first_nonfinite(job);
}

/* A run that begins at element i: widened, updated as one of fp32 moments, kept again. */
static uint64_t replay_run(zfi_rule_t rule, const zfi_replay_t *job, uint64_t i) {
    const int has_v = zfi_rule_has_v(rule);
    const int v_in_runs = has_v && zfi_is_in_runs(job->moments, ZFI_V);
    const zfi_replay_from_t from = job->from ? *job->from : (zfi_replay_from_t){job->w, job->m, job->v};
    float m[ZFI_RUN], v[ZFI_RUN] = {0.0f};
    const zfi_replay_from_t here = {from.w + i, m, v};
    const void *grads[64];
    uint32_t random[2][ZFI_RUN];
    zfi_replay_t one = *job;
    one.w = job->w + i, one.m = m, one.v = has_v ? v : NULL, one.from = &here, one.grads = grads;
    one.moments = ZFI_MOMENTS_F32, one.n_elems = ZFI_RUN;
    one.visible = job->visible ? (char *)job->visible + i * zfi_dtype_nbytes(job->visible_dtype) : NULL;
    for (uint32_t k = 0; k < job->n_slots; k++)
        grads[k] = (const char *)job->grads[k] + i * zfi_dtype_nbytes(job->grad_dtype);
    zfi_run8_get((const zfi_run8_t *)from.m + i / ZFI_RUN, ZFI_M, m);
    if (v_in_runs)
        zfi_run8_get((const zfi_run8_t *)from.v + i / ZFI_RUN, ZFI_V, v);
    for (uint64_t e = 0; e < ZFI_RUN; e++) {
        for (int which = ZFI_M; which <= ZFI_V; which++) {
            const zfi_run_random_t of = zfi_run_random(job->key, job->first_index + i, (zfi_moment_t)which);

            random[which][e] = of.first + (uint32_t)e * of.step;
        }
        if (has_v && !v_in_runs)
            v[e] = load_moment(from.v, job->moments, i + e);
    }
    const uint64_t bad = replay_elements(rule, &one);
    if (job->n_slots) {
        zfi_run8_put((zfi_run8_t *)job->m + i / ZFI_RUN, ZFI_M, m, random[ZFI_M]);
        if (v_in_runs)
            zfi_run8_put((zfi_run8_t *)job->v + i / ZFI_RUN, ZFI_V, v, random[ZFI_V]);
        for (uint64_t e = 0; has_v && !v_in_runs && e < ZFI_RUN; e++)
            store_moment(job->v, ZFI_MOMENTS_BF16_STOCHASTIC, i + e, v[e], random[ZFI_V][e] >> 16);
    }
    return bad == UINT64_MAX ? bad : i + bad;
}

static uint64_t replay_in_runs(zfi_rule_t rule, const zfi_replay_t *job) {
    const int has_v = zfi_rule_has_v(rule);
    uint64_t first = UINT64_MAX;
    for (uint64_t i = 0; i < job->n_elems; i += ZFI_RUN) {
        const uint64_t bad = replay_run(rule, job, i);

        first = bad < first ? bad : first;
    }
    if (job->n_slots == 0 && job->from) {
        memcpy(job->m, job->from->m, zfi_moment_nbytes(job->moments, ZFI_M, job->n_elems));
        if (has_v)
            memcpy(job->v, job->from->v, zfi_moment_nbytes(job->moments, ZFI_V, job->n_elems));
    }
    return first;
}

static void mean_grad(float *out, const void *const *grads, zfi_dtype_t dtype, const float *s, uint32_t n_slots,
                      uint64_t n_elems) {
    for (uint64_t i = 0; i < n_elems; i++) {
        float sum = load(grads[0], dtype, i) * s[0];

        for (uint32_t k = 1; k < n_slots; k++)
            sum += load(grads[k], dtype, i) * s[k];
        out[i] = sum / (float)n_slots;
    }
}

/* ---- sums that decide: the stated order of kernels.h ------------------------------------------------------------- */

/* n_lanes chains begin side by side at element first; each goes on in steps, to before element end. */
typedef struct unit {
    uint64_t first, n_lanes, step, end;
} unit_t;

static double chain(const zfi_stats_t *job, uint64_t first, const unit_t *unit, int is_square, int is_wide) {
    float sum = 0.0f;
    double wide = 0.0;
    for (uint64_t i = first; i < unit->end; i += unit->step) {
        const float x = load(job->grad, job->dtype, i);
        const float term = is_square ? x * x : fabsf(x);

        sum += term;
        wide += is_square ? (double)x * (double)x : fabs((double)x);
    }
    return is_wide ? wide : (double)sum;
}

/* n is a power of two. */
static double tree(double *lane, uint64_t n, int is_wide) {
    for (uint64_t off = n / 2; off > 0; off /= 2)
        for (uint64_t l = 0; l < off; l++)
            lane[l] = is_wide ? lane[l] + lane[l + off] : (double)((float)lane[l] + (float)lane[l + off]);
    return lane[0];
}

static double sum_of_row(const zfi_stats_t *job, const unit_t *unit, int is_square, int is_wide) {
    double lane[ZFI_SUM_LANES] = {0.0};
    for (uint64_t l = 0; l < unit->n_lanes; l++)
        lane[l] = chain(job, unit->first + l, unit, is_square, is_wide);
    return tree(lane, ZFI_SUM_LANES, is_wide);
}

static double squares_of_columns(const zfi_stats_t *job, const unit_t *unit, int is_wide) {
    double lane[ZFI_SUM_COLS] = {0.0};
    for (uint64_t l = 0; l < unit->n_lanes; l++)
        lane[l] = chain(job, unit->first + l, unit, 1, is_wide);
    return tree(lane, ZFI_SUM_COLS, 1);
}

static int is_in_range(double squares) { return isfinite(squares) && squares >= ZFI_SUM_LEAST; }

/* Units of the gradient so far. */
typedef struct units {
    double *squares; /* of each, or NULL: added to the lanes */
    double lane[ZFI_UNIT_LANES];
    uint64_t n;
} units_t;

static void add_squares(units_t *units, double squares) {
    if (units->squares)
        units->squares[units->n] = squares;
    else
        units->lane[units->n % ZFI_UNIT_LANES] += squares;
    units->n++;
}

static void add_row(const zfi_stats_t *job, units_t *units, uint64_t first, uint64_t n, double *magnitude) {
    for (uint64_t i = 0; i < n; i += ZFI_SUM_ELEMS) {
        const uint64_t left = n - i < ZFI_SUM_ELEMS ? n - i : ZFI_SUM_ELEMS;
        const unit_t unit = {first + i, left < ZFI_SUM_LANES ? left : ZFI_SUM_LANES, ZFI_SUM_LANES, first + i + left};
        const int is_wide = !is_in_range(sum_of_row(job, &unit, 1, 0));

        add_squares(units, sum_of_row(job, &unit, 1, is_wide));
        *magnitude += sum_of_row(job, &unit, 0, is_wide);
    }
}

static void add_columns(const zfi_stats_t *job, units_t *units, uint64_t first, const zfi_stats_matrix_t *a) {
    for (uint64_t r = 0; r < a->rows; r += ZFI_SUM_ROWS)
        for (uint64_t c = 0; c < a->cols; c += ZFI_SUM_COLS) {
            const uint64_t below = r + ZFI_SUM_ROWS < a->rows ? r + ZFI_SUM_ROWS : a->rows;
            const uint64_t n = a->cols - c < ZFI_SUM_COLS ? a->cols - c : ZFI_SUM_COLS;
            const unit_t unit = {first + r * a->cols + c, n, a->cols, first + below * a->cols};
            const int is_wide = !is_in_range(squares_of_columns(job, &unit, 0));

            add_squares(units, squares_of_columns(job, &unit, is_wide));
            for (uint64_t l = 0; a->abs_sums && l < n; l++)
                a->abs_sums[c + l] += chain(job, unit.first + l, &unit, 0, is_wide);
        }
}

static void add_matrix(const zfi_stats_t *job, units_t *units, uint64_t first, const zfi_stats_matrix_t *a) {
    const int is_column = a->cols == 1; /* a row, with channels the other way */
    const int by_rows = is_column ? !job->channels_are_rows : job->channels_are_rows;
    const uint64_t rows = is_column ? a->rows > 0 : a->rows, cols = is_column ? a->rows : a->cols;
    double magnitude;
    for (uint64_t l = 0; a->abs_sums && l < (job->channels_are_rows ? a->rows : a->cols); l++)
        a->abs_sums[l] = 0.0;
    if (!zfi_sums_by_rows(a->rows, a->cols, job->channels_are_rows)) {
        add_columns(job, units, first, a);
        return;
    }
    for (uint64_t r = 0; r < rows; r++) {
        magnitude = 0.0;
        add_row(job, units, first + r * cols, cols, &magnitude);
        if (a->abs_sums && by_rows)
            a->abs_sums[r] = magnitude;
    }
    for (uint64_t c = 0; a->abs_sums && !by_rows && rows > 0 && c < cols; c++)
        a->abs_sums[c] = fabs((double)load(job->grad, job->dtype, first + c));
}

static void stats(const zfi_stats_t *job, zfi_stats_result_t *out) {
    uint64_t first = 0; /* of the matrix */
    units_t units = {.squares = job->squares};
    for (uint32_t k = 0; k < job->n_matrices; k++) {
        add_matrix(job, &units, first, &job->matrices[k]);
        first += job->matrices[k].rows * job->matrices[k].cols;
    }
    out->sum_squares = tree(units.lane, ZFI_UNIT_LANES, 1);
    out->n_nonfinite = 0;
    for (uint64_t i = 0; i < first; i++)
        out->n_nonfinite += isfinite(load(job->grad, job->dtype, i)) ? 0 : 1;
}

static uint64_t row_of(const zfi_submatrix_t *sub, uint64_t i) { return sub->row_index ? sub->row_index[i] : i; }

static uint64_t col_of(const zfi_submatrix_t *sub, uint64_t j) { return sub->col_index ? sub->col_index[j] : j; }

/* Element (r, c) of a placed matrix, as an index into visible; modulo 2^64, so that negative strides work. */
static uint64_t place_of(const zfi_place_t *place, uint64_t r, uint64_t c) {
    return r * (uint64_t)place->row_stride + (place->col_offset ? (uint64_t)place->col_offset[c] : c);
}

static void gather(void *out, const void *matrix, uint64_t cols, size_t elem_nbytes, const zfi_submatrix_t *sub) {
    for (uint64_t i = 0; i < sub->n_rows; i++)
        for (uint64_t j = 0; j < sub->n_cols; j++)
            memcpy((char *)out + (i * sub->n_cols + j) * elem_nbytes,
                   (const char *)matrix + (row_of(sub, i) * cols + col_of(sub, j)) * elem_nbytes, elem_nbytes);
}

static void round_moments(const zfi_round_moments_t *job) {
    for (uint64_t i = 0; i < job->sub.n_rows; i++)
        for (uint64_t j = 0; j < job->sub.n_cols; j++) {
            uint64_t e = i * job->sub.n_cols + j;
            uint64_t index = job->state_base + row_of(&job->sub, i) * job->cols + col_of(&job->sub, j);
            uint32_t random = zfi_random32(job->key, index);

            job->m[e] = round_moment(job->m[e], job->moments, random);
            if (job->v)
                job->v[e] = round_moment(job->v[e], job->moments, random >> 16);
        }
}

static uint64_t digest(const void *bits, zfi_dtype_t dtype, uint64_t n, uint64_t index) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum +=
            zfi_digest_element(dtype == ZFI_F32 ? ((const uint32_t *)bits)[i] : ((const uint16_t *)bits)[i], index + i);
    return sum;
}

static const void *element(const zfi_place_t *place, uint64_t at) {
    return (const char *)place->visible + at * zfi_dtype_nbytes(place->dtype);
}

static uint64_t run_ahead(zfi_rule_t rule, const zfi_run_ahead_t *job) {
    uint64_t moved = 0;
    for (uint64_t i = 0; i < job->sub.n_rows; i++)
        for (uint64_t j = 0; j < job->sub.n_cols; j++) {
            uint64_t index = row_of(&job->sub, i) * job->cols + col_of(&job->sub, j), at = i * job->sub.n_cols + j;
            uint64_t place = place_of(&job->place, row_of(&job->sub, i), col_of(&job->sub, j));
            const zfi_scalars_t *a = &job->scalars[i * job->scalars_row_stride + j * job->scalars_col_stride];
            elem_t e = {.w = job->w[at], .m = job->m[at], .v = zfi_rule_has_v(rule) ? job->v[at] : 0.0f};

            moved -= job->cols ? digest(element(&job->place, place), job->place.dtype, 1, index) : 0;
            rules[rule](&e, load(job->grad, job->grad_dtype, at), a);
            job->w[at] = e.w;
            job->m[at] = e.m;
            if (zfi_rule_has_v(rule))
                job->v[at] = e.v;
            store(job->place.visible, job->place.dtype, place, e.w);
            moved += job->cols ? digest(element(&job->place, place), job->place.dtype, 1, index) : 0;
        }
    return moved;
}

static void scatter(const zfi_place_t *place, const zfi_submatrix_t *sub, const float *w) {
    for (uint64_t i = 0; i < sub->n_rows; i++)
        for (uint64_t j = 0; j < sub->n_cols; j++)
            store(place->visible, place->dtype, place_of(place, row_of(sub, i), col_of(sub, j)),
                  w[i * sub->n_cols + j]);
}

static void publish(const zfi_publish_t *job) {
    size_t nbytes = zfi_dtype_nbytes(job->place.dtype);
    for (uint64_t e = 0; e < job->n_elems; e++) {
        uint64_t r = (job->first + e) / job->cols, c = (job->first + e) % job->cols;

        if (!job->selected || !job->selected[job->channels_are_rows ? r : c])
            memcpy((char *)job->place.visible + place_of(&job->place, r, c) * nbytes,
                   (const char *)job->staged + e * nbytes, nbytes);
    }
}

static void accumulate(float *acc, const void *grad, zfi_dtype_t dtype, uint64_t n_elems, int is_first) {
    for (uint64_t i = 0; i < n_elems; i++)
        acc[i] = is_first ? load(grad, dtype, i) : acc[i] + load(grad, dtype, i);
}

static void widen(float *dst, const void *src, zfi_dtype_t dtype, uint64_t n_elems) {
    for (uint64_t i = 0; i < n_elems; i++)
        dst[i] = load(src, dtype, i);
}

static void narrow(void *dst, zfi_dtype_t dtype, const float *src, uint64_t n_elems) {
    for (uint64_t i = 0; i < n_elems; i++)
        store(dst, dtype, i, src[i]);
}

/* The code that tables of instruction sets share is its own here. */
#define zfi_gather gather
#define zfi_publish publish
#define digest_run digest
#define ISA_NAME "ref"
#define ISA_TABLE zfi_kernels_reference
#include "../cpu/table.inc.h"

const zfi_kernels_t *zfi_kernels_ref(void) { return &zfi_kernels_reference; }
