/* SPDX-License-Identifier: Apache-2.0 */
/* launch_selected.c - the compact state of selected channels: gathering their gradient, their update, rounding. */
#include <string.h>

#include "launch.h"

static zfi_submatrix_t selected_part(const zfi_data_t *data, const zfi_data_matrix_t *matrix) {
    const uint32_t *index = matrix->has_sums ? data->index + matrix->index_base : NULL;
    if (matrix->channels_are_rows)
        return (zfi_submatrix_t){index, NULL, matrix->k, matrix->cols};
    return (zfi_submatrix_t){NULL, index, matrix->rows, matrix->k};
}

/* Selected channels that are rows: of those that are here. */
static void gather_rows(const zfi_data_t *data, const zfi_data_matrix_t *matrix, const void *grad) {
    uint64_t nbytes = matrix->cols * zfi_dtype_nbytes(data->params[matrix->param].grad_dtype);
    for (uint32_t pos = 0; pos < matrix->k; pos++) {
        uint64_t row = data->index[matrix->index_base + pos] - matrix->first_row; /* before it: wraps around */
        if (row < matrix->rows)
            memcpy(data->grad + matrix->grad_base + pos * nbytes, (const unsigned char *)grad + row * nbytes, nbytes);
    }
}

void zfi_gather_selected(const zfi_data_t *data, uint32_t number, const void *grad) {
    const zfi_data_matrix_t *matrix = &data->matrices[number];
    zfi_submatrix_t sub = selected_part(data, matrix);
    if (matrix->channels_are_rows && matrix->has_sums)
        gather_rows(data, matrix, grad);
    else if (matrix->k)
        zfi_gather(data->grad + matrix->grad_base, grad, matrix->cols,
                   zfi_dtype_nbytes(data->params[matrix->param].grad_dtype), &sub);
}

void zfi_cpu_gather(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_gather_args_t *args = raw;
    (void)kernels;
    zfi_gather_selected(args->data, args->matrix, args->grad);
}

/* ---- run-ahead --------------------------------------------------------------------------------------------------- */

/* One set of scalars per selected channel, each with its own update count, which moves. */
static void scalars_per_channel(const zfi_data_t *data, const zfi_data_matrix_t *matrix, const zfi_hyper_t *hyper,
                                float s) {
    zfi_rule_t rule = data->params[matrix->param].rule;
    uint32_t *n = data->n + matrix->index_base;
    for (uint32_t i = 0; i < matrix->k; i++) {
        n[i]++;
        data->scalars[i] = i && n[i] == n[i - 1] ? data->scalars[i - 1] : zfi_rule_scalars(rule, hyper, s, n[i]);
    }
}

static uint64_t update(const zfi_kernels_t *kernels, const zfi_data_t *data, uint32_t number, const zfi_hyper_t *hyper,
                       float s) {
    const zfi_data_matrix_t *matrix = &data->matrices[number];
    const zfi_data_param_t *param = &data->params[matrix->param];
    const uint32_t *n = data->counts_per_channel ? data->n + matrix->index_base : data->n + number;
    const zfi_elements_t elements = {zfi_rounding_base(matrix->param) + matrix->param_offset, matrix->cols,
                                     selected_part(data, matrix)};
    zfi_run_ahead_t job = {.w = data->w + matrix->sel_base,
                           .m = data->m ? data->m + matrix->sel_base : NULL,
                           .v = data->v ? data->v + matrix->sel_base : NULL,
                           .grad = data->grad + matrix->grad_base,
                           .grad_dtype = param->grad_dtype,
                           .sub = elements.sub,
                           .place = matrix->place,
                           .scalars = data->scalars,
                           .cols = data->digests ? matrix->cols : 0};
    if (data->counts_per_channel) {
        scalars_per_channel(data, matrix, hyper, s);
        job.scalars_row_stride = matrix->channels_are_rows ? 1 : 0;
        job.scalars_col_stride = matrix->channels_are_rows ? 0 : 1;
    } else {
        data->scalars[0] = zfi_rule_scalars(param->rule, hyper, s, *n);
    }
    return param->host_rule ? data->host_run_ahead(param->host_rule, &job, &elements, hyper, n)
                            : kernels->run_ahead[param->rule](&job);
}

void zfi_cpu_run_ahead(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_run_ahead_args_t *args = raw;
    const zfi_data_t *data = args->data;
    if (!args->scalars->applied)
        return;
    for (uint32_t i = args->first; i < args->end; i++) {
        uint32_t param = data->matrices[i].param;
        if (!args->step.present[param] || data->is_foreign[param])
            continue;
        if (!data->counts_per_channel)
            data->n[i]++;
        if (!args->counts_only && data->matrices[i].k) {
            uint64_t moved = update(kernels, data, i, &args->step.hyper[data->params[param].group], args->scalars->s);
            if (data->digests)
                data->digests[i] += moved;
        }
    }
}

/* ---- rounding ---------------------------------------------------------------------------------------------------- */

static void round_matrix(const zfi_kernels_t *kernels, const zfi_data_t *data, uint32_t number, uint64_t key) {
    const zfi_data_matrix_t *matrix = &data->matrices[number];
    zfi_round_moments_t job = {
        .m = data->m ? data->m + matrix->sel_base : NULL,
        .v = data->v ? data->v + matrix->sel_base : NULL,
        .sub = selected_part(data, matrix),
        .cols = matrix->cols,
        .state_base = zfi_rounding_base(matrix->param) + matrix->param_offset,
        .moments = data->moments,
        .key = key,
    };
    if (matrix->k && job.m)
        kernels->round_moments(&job);
}

void zfi_cpu_round_moments(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_round_moments_args_t *args = raw;
    for (uint32_t i = args->first; i < args->first + args->n; i++)
        round_matrix(kernels, args->data, args->data->listed_matrices[i], args->key);
}
