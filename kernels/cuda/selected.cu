/* SPDX-License-Identifier: Apache-2.0 */
/* selected.cu - the compact state of selected channels: their update with its visible values, rounding.
 *
 * A run-ahead is two kernels: update counts and scalars of every matrix, then the update itself. */
#include "scalars.cuh"

DEVICE bool is_updated(const zfi_run_ahead_args_t *args, const zfi_data_matrix_t *matrix) {
    return args->scalars->applied && args->step.present[matrix->param] && !args->data->is_foreign[matrix->param];
}

/* ---- counts and scalars ------------------------------------------------------------------------------------------ */

DEVICE void begin_matrix(const zfi_run_ahead_args_t *args, uint32_t number) {
    const zfi_data_t *data = args->data;
    const zfi_data_matrix_t *matrix = &data->matrices[number];
    const zfi_data_param_t *param = &data->params[matrix->param];
    const zfi_hyper_t *hyper = &args->step.hyper[param->group];
    if (!is_updated(args, matrix))
        return;
    if (!data->counts_per_channel) {
        if (threadIdx.x == 0) {
            uint32_t n = ++data->n[number];
            data->scalars[number] = rule_scalars(param->rule, hyper, args->scalars->s, n);
        }
    } else if (!args->counts_only) {
        for (uint32_t i = threadIdx.x; i < matrix->k; i += THREADS) {
            uint32_t n = ++data->n[matrix->index_base + i];
            data->scalars[matrix->index_base + i] = rule_scalars(param->rule, hyper, args->scalars->s, n);
        }
    }
}

KERNEL(zf_run_ahead_begin, zfi_run_ahead_args_t) {
    RETURN_IF_ENDED;
    for (uint32_t i = args.first + blockIdx.x; i < args.end; i += gridDim.x)
        begin_matrix(&args, i);
}

/* ---- the update -------------------------------------------------------------------------------------------------- */

/* Elements of the compact arrays. */
DEVICE void update_span(const zfi_data_t *data, const zfi_data_matrix_t *matrix, uint32_t number, span_t span) {
    const uint32_t *index = index_of(data, matrix);
    const int dtype = matrix->place.dtype, grad_dtype = data->params[matrix->param].grad_dtype;
    const zfi_rule_t rule = data->params[matrix->param].rule;
    const uint64_t n_cols = cols_selected(matrix);
    const zfi_scalars_t *scalars = data->scalars + (data->counts_per_channel ? matrix->index_base : number);
    float *w = data->w + matrix->sel_base, *m = data->m + matrix->sel_base;
    float *v = data->v ? data->v + matrix->sel_base : NULL;
    uint64_t moved = 0;
    for (uint64_t e = span.first + threadIdx.x; e < span.end; e += THREADS) {
        uint64_t i, j, row, col;
        state_t x;
        uint32_t after;
        int64_t at;
        i = divide(e, n_cols, &j);
        find_element(matrix, index, i, j, &row, &col);
        x.w = w[e];
        x.m = m[e];
        x.v = v ? v[e] : 0.0f;
        update(rule, &x, load_float(data->grad + matrix->grad_base, grad_dtype, e),
               &scalars[data->counts_per_channel ? (matrix->channels_are_rows ? i : j) : 0]);
        after = narrow(dtype, x.w);
        w[e] = x.w;
        m[e] = x.m;
        if (v)
            v[e] = x.v;
        at = place_offset(&matrix->place, row, col);
        if (data->digests)
            moved += digest_move(load_bits(matrix->place.visible, dtype, (uint64_t)at), after, row * matrix->cols + col);
        store_bits(matrix->place.visible, dtype, (uint64_t)at, after);
    }
    if (data->digests)
        add_to_digest(&data->digests[number], moved);
}

KERNEL(zf_run_ahead, zfi_run_ahead_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_t *data = args.data;
    const uint32_t n_slices = slices_of(args.end - args.first);
    for (uint64_t unit = blockIdx.x; unit < (uint64_t)(args.end - args.first) * n_slices; unit += gridDim.x) {
        uint64_t slice;
        uint32_t number = args.first + (uint32_t)divide(unit, n_slices, &slice);
        const zfi_data_matrix_t *matrix = &data->matrices[number];
        if (!matrix->k || !is_updated(&args, matrix))
            continue;
        update_span(data, matrix, number,
                    slice_of(rows_selected(matrix) * cols_selected(matrix), (uint32_t)slice, n_slices, THREADS));
    }
}

/* ---- rounding ---------------------------------------------------------------------------------------------------- */

DEVICE void round_span(const zfi_data_t *data, const zfi_data_matrix_t *matrix, uint64_t key, span_t span) {
    const uint32_t *index = index_of(data, matrix);
    const uint64_t base = ((uint64_t)matrix->param << 40) + matrix->param_offset; /* zfi_rounding_base */
    const uint64_t n_cols = cols_selected(matrix);
    float *m = data->m + matrix->sel_base, *v = data->v ? data->v + matrix->sel_base : NULL;
    for (uint64_t e = span.first + threadIdx.x; e < span.end; e += THREADS) {
        uint64_t i, j, row, col;
        uint32_t random;
        i = divide(e, n_cols, &j);
        find_element(matrix, index, i, j, &row, &col);
        random = random32(key, base + row * matrix->cols + col);
        m[e] = round_moment(m[e], data->moments, random);
        if (v)
            v[e] = round_moment(v[e], data->moments, random >> 16);
    }
}

KERNEL(zf_round_moments, zfi_round_moments_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_t *data = args.data;
    const uint32_t n_slices = slices_of(args.n);
    if (data->moments == ZFI_MOMENTS_F32 || !data->m)
        return;
    for (uint64_t unit = blockIdx.x; unit < (uint64_t)args.n * n_slices; unit += gridDim.x) {
        uint64_t slice, i = divide(unit, n_slices, &slice);
        const zfi_data_matrix_t *matrix = &data->matrices[data->listed_matrices[args.first + i]];
        if (matrix->k)
            round_span(data, matrix, args.key,
                       slice_of(rows_selected(matrix) * cols_selected(matrix), (uint32_t)slice, n_slices, THREADS));
    }
}
