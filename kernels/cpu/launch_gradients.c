/* SPDX-License-Identifier: Apache-2.0 */
/* launch_gradients.c - delivered gradients made contiguous, their statistics, and the scalars of the step. */
#include <math.h>
#include <string.h>

#include "launch.h"

/* ---- collect ----------------------------------------------------------------------------------------------------- */

/* What the gradient is before any sum: the source, or a contiguous copy of it in `grad`. */
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

static void take_statistics(const zfi_kernels_t *kernels, const zfi_gradients_args_t *args,
                            const zfi_gradient_t *gradient) {
    const zfi_data_t *data = args->data;
    const zfi_data_param_t *param = &data->params[gradient->param];
    const size_t elem = zfi_dtype_nbytes(param->grad_dtype);
    const unsigned char *grad = gradient->grad;
    zfi_stats_t job = {grad, param->grad_dtype, param->channels_are_rows, data->stats_matrices, param->n_matrices};
    zfi_stats_result_t result;
    for (uint32_t i = 0; i < param->n_matrices; i++) {
        const zfi_data_matrix_t *matrix = &data->matrices[param->first_matrix + i];
        double *sums = matrix->has_sums ? data->sums[args->turn] + matrix->sum_base : NULL;
        data->stats_matrices[i] = (zfi_stats_matrix_t){matrix->rows, matrix->cols, sums};
    }
    kernels->stats(&job, &result);
    data->sum_squares[gradient->param] = result.sum_squares;
    data->has_nonfinite[gradient->param] = result.n_nonfinite != 0;
    if (data->held)
        data->held[gradient->param] = gradient->grad;
    for (uint32_t i = 0; i < param->n_matrices && args->gathers; i++)
        zfi_gather_selected(kernels, data, param->first_matrix + i,
                            grad + data->matrices[param->first_matrix + i].grad_offset * elem);
}

void zfi_cpu_statistics(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_gradients_args_t *args = raw;
    for (uint32_t i = 0; i < args->n; i++)
        if (args->gradients[i].flags & ZFI_GRADIENT_SHIP)
            take_statistics(kernels, args, &args->gradients[i]);
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
    *args->out_has_foreign = memchr(args->data->is_foreign, 1, args->data->n_params) != NULL;
}
