/* SPDX-License-Identifier: Apache-2.0 */
/* launch_gradients.c - delivered gradients made contiguous, their statistics, and the scalars of the step. */
#include <math.h>
#include <string.h>

#include "launch.h"

/* ---- collect ----------------------------------------------------------------------------------------------------- */

/* The gradient before any sum: the source, or a contiguous copy of it in `grad`. */
static const void *source_of(const zfi_gradient_t *gradient, uint64_t n_elems, size_t elem) {
    if (gradient->flags & ZFI_GRADIENT_STRIDED) {
        zfi_pack(gradient->grad, gradient->source, elem, gradient->ndim, gradient->shape, gradient->strides);
        return gradient->grad;
    }
    if (gradient->flags & ZFI_GRADIENT_KEEP) {
        memcpy(gradient->grad, gradient->source, n_elems * elem);
        return gradient->grad;
    }
    return gradient->source;
}

static void collect(const zfi_kernels_t *kernels, const zfi_data_param_t *param, const zfi_gradient_t *gradient) {
    const void *source = source_of(gradient, param->n_elems, zfi_dtype_nbytes(param->grad_dtype));
    if (gradient->flags & ZFI_GRADIENT_SUM)
        kernels->accumulate(gradient->sum, source, param->grad_dtype, param->n_elems,
                            (gradient->flags & ZFI_GRADIENT_SUM_FIRST) != 0);
    if ((gradient->flags & (ZFI_GRADIENT_SUM | ZFI_GRADIENT_FROM_SUM)) &&
        (gradient->flags & (ZFI_GRADIENT_SHIP | ZFI_GRADIENT_ROUND)))
        kernels->narrow(gradient->grad, param->grad_dtype, gradient->sum, param->n_elems);
}

void zfi_cpu_collect(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_gradients_args_t *args = raw;
    for (uint32_t i = 0; i < args->n; i++)
        collect(kernels, &args->data->params[args->gradients[i].param], &args->gradients[i]);
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

/* The statistics of a launch, cut into matrices. */
typedef struct sums {
    const zfi_kernels_t *kernels;
    const zfi_gradients_args_t *args;
    uint32_t n;                       /* gradients whose statistics are taken, ... */
    const zfi_gradient_t **gradients; /* [n] ... which they are, ... */
    uint32_t *first;                  /* [n + 1] ... and the first of their matrices, counted through */
    uint32_t n_parts;                 /* in which all these matrices are shared */
} sums_t;

static void sum_matrix(const sums_t *sums, uint32_t number) {
    const zfi_data_t *data = sums->args->data;
    uint32_t at = zfi_last_at_most(sums->first, sums->n, number);
    const zfi_gradient_t *gradient = sums->gradients[at];
    const zfi_data_param_t *param = &data->params[gradient->param];
    const zfi_data_matrix_t *matrix = &data->matrices[param->first_matrix + number - sums->first[at]];
    double *channels = matrix->has_sums ? data->sums[sums->args->turn] + matrix->sum_base : NULL;
    zfi_stats_matrix_t one = {matrix->rows, matrix->cols, channels};
    zfi_stats_t job = {.grad =
                           (unsigned char *)gradient->grad + matrix->grad_offset * zfi_dtype_nbytes(param->grad_dtype),
                       .dtype = param->grad_dtype,
                       .channels_are_rows = param->channels_are_rows,
                       .matrices = &one,
                       .n_matrices = 1,
                       .squares = data->unit_squares + matrix->unit_base};
    zfi_stats_result_t result;
    sums->kernels->stats(&job, &result);
    if (result.n_nonfinite)
        __atomic_store_n(&data->has_nonfinite[gradient->param], 1, __ATOMIC_RELAXED);
}

/* Sums of some neighbours, which another thread may take at the same time as those beside them. */
static void sum_part(void *raw, uint32_t part) {
    const sums_t *sums = raw;
    uint32_t n = sums->first[sums->n], end = zfi_part_begin(n, sums->n_parts, part + 1);
    for (uint32_t i = zfi_part_begin(n, sums->n_parts, part); i < end; i++)
        sum_matrix(sums, i);
}

/* The sum of the units of a parameter's gradient, in the order that kernels.h states. */
static double join_units(const double *squares, uint64_t n) {
    double lanes[ZFI_UNIT_LANES] = {0.0};
    for (uint64_t u = 0; u < n; u++)
        lanes[u % ZFI_UNIT_LANES] += squares[u];
    for (uint32_t off = ZFI_UNIT_LANES / 2; off > 0; off /= 2)
        for (uint32_t l = 0; l < off; l++)
            lanes[l] += lanes[l + off];
    return lanes[0];
}

static void finish_statistics(const sums_t *sums, const zfi_gradient_t *gradient) {
    const zfi_gradients_args_t *args = sums->args;
    const zfi_data_t *data = args->data;
    const zfi_data_param_t *param = &data->params[gradient->param];
    const unsigned char *grad = gradient->grad;
    const zfi_data_matrix_t *matrices = data->matrices + param->first_matrix;
    data->sum_squares[gradient->param] = join_units(data->unit_squares + matrices->unit_base, param->n_units);
    if (data->held)
        data->held[gradient->param] = gradient->grad;
    for (uint32_t i = 0; i < param->n_matrices && args->gathers; i++)
        zfi_gather_selected(data, param->first_matrix + i,
                            grad + matrices[i].grad_offset * zfi_dtype_nbytes(param->grad_dtype));
}

/* Takes out what a later gradient of the same launch replaces. */
static uint32_t without(const zfi_gradient_t **gradients, uint32_t n, uint32_t param) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (gradients[i]->param != param)
            gradients[kept++] = gradients[i];
    return kept;
}

void zfi_cpu_statistics(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_gradients_args_t *args = raw;
    const zfi_data_t *data = args->data;
    const zfi_gradient_t *gradients[ZFI_LAUNCH_GRADIENTS];
    uint32_t first[ZFI_LAUNCH_GRADIENTS + 1] = {0};
    uint64_t n_elems = 0;
    sums_t sums = {kernels, args, 0, gradients, first, 0};
    for (uint32_t i = 0; i < args->n; i++) {
        const zfi_gradient_t *gradient = &args->gradients[i];
        if (gradient->flags & ZFI_GRADIENT_AGAIN)
            sums.n = without(gradients, sums.n, gradient->param);
        if (gradient->flags & ZFI_GRADIENT_SHIP)
            gradients[sums.n++] = gradient;
    }
    for (uint32_t i = 0; i < sums.n; i++) {
        const zfi_data_param_t *param = &data->params[gradients[i]->param];
        data->has_nonfinite[gradients[i]->param] = 0;
        first[i + 1] = first[i] + param->n_matrices;
        n_elems += param->n_elems;
    }
    sums.n_parts = zfi_n_parts(first[sums.n], n_elems);
    zfi_share(data, sums.n_parts, n_elems, sum_part, &sums);
    for (uint32_t i = 0; i < sums.n; i++)
        finish_statistics(&sums, gradients[i]);
}

/* ---- scalars ----------------------------------------------------------------------------------------------------- */

void zfi_cpu_norm_part(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_norm_part_args_t *args = raw;
    const zfi_data_t *data = args->data;
    zfi_norm_part_t out = {0.0, ZFI_NO_PARAM};
    (void)kernels;
    for (uint32_t i = 0; i < data->n_params; i++) {
        if (!args->step.present[i])
            continue;
        if (data->has_nonfinite[i] && out.nonfinite_param == ZFI_NO_PARAM)
            out.nonfinite_param = i;
        if (data->params[i].counts_in_norm)
            out.sum_squares += data->sum_squares[i];
    }
    *args->out = out;
}

void zfi_cpu_scalars(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_scalars_args_t *args = raw;
    zfi_step_scalars_t out = {.clip_factor = 1.0, .nonfinite_param = ZFI_NO_PARAM};
    double sum = 0.0;
    (void)kernels;
    for (uint32_t i = 0; i < args->n_parts; i++) {
        int64_t bad = args->parts[i].nonfinite_param;
        sum += args->parts[i].sum_squares;
        if (bad != ZFI_NO_PARAM && (out.nonfinite_param == ZFI_NO_PARAM || bad < out.nonfinite_param))
            out.nonfinite_param = bad;
    }
    out.norm = args->host_norm ? *args->host_norm : args->unscale * sqrt(sum);
    if (args->clip_norm > 0) {
        double factor = args->clip_norm / (out.norm + 1e-6);
        out.clip_factor = factor < 1.0 ? factor : 1.0;
    }
    out.s_exact = args->unscale * out.clip_factor;
    out.s = (float)out.s_exact;
    out.applied = out.nonfinite_param == ZFI_NO_PARAM && isfinite(out.norm) && out.norm >= 0 && isfinite(out.s);
    *args->out = out;
}

void zfi_cpu_report(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_report_args_t *args = raw;
    zfi_totals_t *totals = args->data->totals;
    uint64_t *total = args->scalars->applied ? &totals->n_applied : &totals->n_skipped;
    (void)kernels;
    __atomic_store_n(total, *total + 1, __ATOMIC_RELAXED); /* the device is the only writer */
    *args->out = *args->scalars;
}
