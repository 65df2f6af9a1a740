/* ref.c - the naive reference of kernels.h: one obvious loop per function, scalar, fmaf and sqrtf from libm.
 *
 * It defines the bits; every table of kernels/cpu is tested for equality with it. Nothing here is fast, and nothing in
 * the plugin calls it. */
#include <math.h>
#include <string.h>

#include "../kernels.h"

static float load(const void *array, zfi_dtype_t dtype, uint64_t i) {
    return dtype == ZFI_F32 ? ((const float *)array)[i] : zfi_bf16_to_f32(((const uint16_t *)array)[i]);
}

static void store(void *array, zfi_dtype_t dtype, uint64_t i, float x) {
    if (dtype == ZFI_F32)
        ((float *)array)[i] = x;
    else
        ((uint16_t *)array)[i] = zfi_f32_to_bf16(x);
}

/* Whether element i of the array has the bits of round(x). */
static int holds(const void *array, zfi_dtype_t dtype, uint64_t i, float x) {
    if (dtype == ZFI_BF16)
        return ((const uint16_t *)array)[i] == zfi_f32_to_bf16(x);
    return memcmp((const float *)array + i, &x, sizeof x) == 0;
}

static void adamw(float *w, float *m, float *v, float grad, const zfi_scalars_t *a) {
    float g = grad * a->s;
    float d;

    *m = fmaf(a->b1, *m, a->one_minus_b1 * g);
    *v = fmaf(a->b2, *v, (a->one_minus_b2 * g) * g);
    d = fmaf(sqrtf(*v), a->inv_sqrt_bc2, a->eps);
    *w = fmaf(a->neg_step, *m / d, *w * a->decay);
}

static uint64_t replay_adamw(const zfi_replay_t *job) {
    uint64_t first_bad = UINT64_MAX;

    for (uint64_t i = 0; i < job->n_elems; i++) {
        for (uint32_t k = 0; k < job->n_slots; k++)
            adamw(&job->w[i], &job->m[i], &job->v[i], load(job->grads[k], job->grad_dtype, i), &job->scalars[k]);
        if (job->visible)
            store(job->visible, job->visible_dtype, i, job->w[i]);
        if (first_bad == UINT64_MAX && !isfinite(job->w[i]))
            first_bad = i;
    }
    return first_bad;
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

static double square_of(float x) { return (double)x * (double)x; }

static double magnitude_of(float x) { return fabs((double)x); }

/* Elements [first, first + n) summed in blocks, lanes and a binary tree: the stated order of kernels.h. */
static double sum_of(double (*term)(float), const void *grad, zfi_dtype_t dtype, uint64_t first, uint64_t n) {
    double sum = 0.0;

    for (uint64_t block = 0; block < n; block += ZFI_SUM_BLOCK_ELEMS) {
        double lane[ZFI_SUM_LANES] = {0.0};

        for (uint64_t i = block; i < n && i < block + ZFI_SUM_BLOCK_ELEMS; i++)
            lane[i % ZFI_SUM_LANES] += term(load(grad, dtype, first + i));
        for (uint32_t off = ZFI_SUM_LANES / 2; off > 0; off /= 2)
            for (uint32_t l = 0; l < off; l++)
                lane[l] += lane[l + off];
        sum += lane[0];
    }
    return sum;
}

static double sum_of_column(const void *grad, zfi_dtype_t dtype, uint64_t first, uint64_t rows, uint64_t cols) {
    double sum = 0.0;

    for (uint64_t block = 0; block < rows; block += ZFI_SUM_BLOCK_ROWS) {
        double part = 0.0;

        for (uint64_t r = block; r < rows && r < block + ZFI_SUM_BLOCK_ROWS; r++)
            part += magnitude_of(load(grad, dtype, first + r * cols));
        sum += part;
    }
    return sum;
}

static void stats(const zfi_stats_t *job, zfi_stats_result_t *out) {
    uint64_t first = 0; /* of the matrix */

    for (uint32_t k = 0; k < job->n_matrices; k++) {
        const zfi_stats_matrix_t *a = &job->matrices[k];

        if (a->abs_sums && job->channels_are_rows)
            for (uint64_t r = 0; r < a->rows; r++)
                a->abs_sums[r] = sum_of(magnitude_of, job->grad, job->dtype, first + r * a->cols, a->cols);
        else if (a->abs_sums)
            for (uint64_t c = 0; c < a->cols; c++)
                a->abs_sums[c] = sum_of_column(job->grad, job->dtype, first + c, a->rows, a->cols);
        first += a->rows * a->cols;
    }
    out->sum_squares = sum_of(square_of, job->grad, job->dtype, 0, first);
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

static uint64_t run_ahead_adamw(const zfi_run_ahead_t *job) {
    uint64_t n_differ = 0;

    for (uint64_t i = 0; i < job->sub.n_rows; i++)
        for (uint64_t j = 0; j < job->sub.n_cols; j++) {
            uint64_t e = i * job->sub.n_cols + j;
            uint64_t at = place_of(&job->place, row_of(&job->sub, i), col_of(&job->sub, j));
            const zfi_scalars_t *a = &job->scalars[i * job->scalars_row_stride + j * job->scalars_col_stride];

            n_differ += !holds(job->place.visible, job->place.dtype, at, job->w[e]);
            adamw(&job->w[e], &job->m[e], &job->v[e], load(job->grad, job->grad_dtype, e), a);
            store(job->place.visible, job->place.dtype, at, job->w[e]);
        }
    return n_differ;
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

static const zfi_kernels_t ref = {
    .name = "ref",
    .replay = {[ZFI_RULE_ADAMW] = replay_adamw},
    .mean_grad = mean_grad,
    .stats = stats,
    .gather = gather,
    .run_ahead = {[ZFI_RULE_ADAMW] = run_ahead_adamw},
    .scatter = scatter,
    .publish = publish,
    .accumulate = accumulate,
    .widen = widen,
    .narrow = narrow,
};

const zfi_kernels_t *zfi_kernels_ref(void) { return &ref; }
