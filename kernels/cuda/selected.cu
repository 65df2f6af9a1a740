/* SPDX-License-Identifier: Apache-2.0 */
/* selected.cu - the compact state of selected channels: their update with its visible values, rounding.
 *
 * A run-ahead is two kernels: update counts and scalars of every matrix, then the update itself. A warp takes a part of
 * a selected row, or 32 selected columns down some rows: then each lane keeps its column, whose place it looks up once.
 */
#include "elements.cuh"

DEVICE bool is_updated(const zfi_run_ahead_args_t *args, const zfi_data_matrix_t *matrix) {
    return args->scalars->applied && in_global(args->step.present)[matrix->param] &&
           !in_global(args->data->is_foreign)[matrix->param];
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

enum { PART_ELEMS = 2048, STRIP_ROWS = 64, COLUMN_ROWS = 4 };

/* A warp's part of the compact arrays of a matrix. */
typedef struct patch {
    uint64_t i, j; /* its first row and column there */
    uint32_t n_rows, n_cols;
} patch_t;

/* Whether warps take columns. Where all channels are selected, in order, they take rows. */
DEVICE bool takes_columns(const zfi_data_matrix_t *matrix) { return matrix->has_sums && !matrix->channels_are_rows; }

DEVICE uint64_t patches_of(const zfi_data_matrix_t *matrix) {
    if (takes_columns(matrix))
        return ceil_div(matrix->rows, STRIP_ROWS) * ceil_div(matrix->k, 32);
    return rows_selected(matrix) * ceil_div(matrix->cols, PART_ELEMS);
}

/* Neighbours in a row have neighbouring numbers. */
DEVICE patch_t patch_of(const zfi_data_matrix_t *matrix, uint64_t number) {
    const bool by_columns = takes_columns(matrix);
    const uint64_t rows = rows_selected(matrix), cols = cols_selected(matrix);
    const uint32_t high = by_columns ? STRIP_ROWS : 1, wide = by_columns ? 32 : PART_ELEMS;
    uint64_t strip, chunk = divide(number, ceil_div(cols, wide), &strip);
    patch_t patch;
    patch.i = chunk * high;
    patch.j = strip * wide;
    patch.n_rows = (uint32_t)smaller(high, rows - patch.i);
    patch.n_cols = (uint32_t)smaller(wide, cols - patch.j);
    return patch;
}

/* The line from element (i, j) of the compact arrays on, which is element (row, col) of the matrix. */
DEVICE line_t line_at(const zfi_data_t *data, uint32_t number, uint64_t i, uint64_t j, uint64_t row, uint64_t col) {
    const zfi_data_matrix_t *matrix = in_global(&data->matrices[number]);
    const zfi_data_param_t *param = in_global(&data->params[matrix->param]);
    const uint64_t in_matrix = i * cols_selected(matrix) + j, at = matrix->sel_base + in_matrix;
    const uint64_t counted =
        data->counts_per_channel ? matrix->index_base + (matrix->channels_are_rows ? i : j) : number;
    line_t line;
    line.rule = param->rule;
    line.grad_dtype = param->grad_dtype;
    line.dtype = matrix->place.dtype;
    line.w = data->w + at;
    line.m = data->m + at;
    line.v = has_v(param->rule) ? data->v + at : NULL;
    line.grad = offset_by(data->grad + matrix->grad_base, elem_nbytes(line.grad_dtype), (int64_t)in_matrix);
    line.first = (uint32_t)(row * matrix->cols + col);
    line.random_base = line.key = 0;
    line.scalars = in_global(data->scalars)[counted];
    line.shows = true;
    line.is_counted = data->digests != NULL;
    line.is_random = false;
    return line;
}

/* Part of a row. */
DEVICE void update_row(const zfi_data_t *data, uint32_t number, const patch_t &patch, found_t *found) {
    const zfi_data_matrix_t *matrix = in_global(&data->matrices[number]);
    const uint32_t *index = index_of(data, matrix);
    const uint64_t row = index && matrix->channels_are_rows ? in_global(index)[patch.i] : patch.i;
    const uint64_t base = row * matrix->cols + patch.j;
    const line_t line = line_at(data, number, patch.i, patch.j, row, patch.j);
    const run_t run = run_of(matrix->place, matrix->cols, base, 0, patch.n_cols, true);
    const bool by_fours = line_takes_four(line, ZFI_F32) && !run.columns && takes_four(run.visible, line.dtype);
    const uint32_t middle = by_fours ? patch.n_cols - patch.n_cols % FOUR : 0;
    update_spaced<1>(line.rule, ZFI_F32, line, lanes_of(run, middle, patch.n_cols), found);
    update_by_fours<ZFI_F32>(line, run.visible, 0, middle, found);
}

/* A lane's column, four rows at once. */
DEVICE void update_column(const zfi_data_t *data, uint32_t number, const patch_t &patch, found_t *found) {
    const zfi_data_matrix_t *matrix = in_global(&data->matrices[number]);
    const uint64_t j = patch.j + LANE, col = in_global(data->index + matrix->index_base)[j];
    const line_t line = line_at(data, number, patch.i, j, patch.i, col);
    const spaced_t rows = column_of(matrix, patch.i, col, patch.n_rows);
    switch (line.rule) {
    case ZFI_RULE_ADAMW:
        return update_spaced<COLUMN_ROWS>(ZFI_RULE_ADAMW, ZFI_F32, line, rows, found);
    case ZFI_RULE_ADAM:
        return update_spaced<COLUMN_ROWS>(ZFI_RULE_ADAM, ZFI_F32, line, rows, found);
    case ZFI_RULE_SGD:
        return update_spaced<COLUMN_ROWS>(ZFI_RULE_SGD, ZFI_F32, line, rows, found);
    case ZFI_RULE_SGD_NESTEROV:
        return update_spaced<COLUMN_ROWS>(ZFI_RULE_SGD_NESTEROV, ZFI_F32, line, rows, found);
    default:
        return update_spaced<COLUMN_ROWS>(ZFI_RULE_LION, ZFI_F32, line, rows, found);
    }
}

/* This warp's patches of a slice. */
DEVICE void update_slice(const zfi_data_t *data, uint32_t number, uint32_t slice, uint32_t n_slices) {
    const uint32_t n_warps = THREADS / 32;
    found_t found = {0, false};
    for (uint64_t at = slice * n_warps + threadIdx.x / 32; at < patches_of(in_global(&data->matrices[number]));
         at += n_slices * n_warps) {
        const zfi_data_matrix_t *matrix = in_global(&data->matrices[number]);
        const patch_t patch = patch_of(matrix, at);
        if (!takes_columns(matrix))
            update_row(data, number, patch, &found);
        else if (LANE < patch.n_cols)
            update_column(data, number, patch, &found);
    }
    if (data->digests)
        add_to_digest(&data->digests[number], found.moved);
}

KERNEL_OF(2, zf_run_ahead, zfi_run_ahead_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_t *data = args.data;
    const uint32_t n = args.end - args.first;
    for (uint32_t unit = blockIdx.x; unit < n * slices_of(n); unit += gridDim.x) {
        const uint32_t n_slices = slices_of(n), number = args.first + unit / n_slices;
        const zfi_data_matrix_t *matrix = in_global(&data->matrices[number]);
        if (matrix->k && is_updated(&args, matrix))
            update_slice(data, number, unit % n_slices, n_slices);
    }
}

/* ---- rounding ---------------------------------------------------------------------------------------------------- */

/* Moments of a lane's n elements, `by` apart in the compact arrays and index_by in the matrix. */
DEVICE void round_some(const zfi_data_t *data, uint64_t key, uint64_t at, uint64_t by, uint64_t index,
                       uint64_t index_by, uint32_t n) {
    float *m = in_global(data->m) + at, *v = data->v ? in_global(data->v) + at : NULL;
    const int moments = data->moments;
#pragma unroll 1
    for (uint32_t i = 0; i < n; i += FOUR) {
        float old_m[FOUR], old_v[FOUR];
#pragma unroll
        for (uint32_t j = 0; j < FOUR; j++) {
            old_m[j] = i + j < n ? in_global(m)[(i + j) * by] : 0.0f;
            old_v[j] = v && i + j < n ? in_global(v)[(i + j) * by] : 0.0f;
        }
#pragma unroll
        for (uint32_t j = 0; j < FOUR && i + j < n; j++) {
            const uint32_t random = random32(key, index + (i + j) * index_by);
            in_global(m)[(i + j) * by] = round_moment(old_m[j], moments, random);
            if (v)
                in_global(v)[(i + j) * by] = round_moment(old_v[j], moments, random >> 16);
        }
    }
}

DEVICE void round_patch(const zfi_data_t *data, const zfi_data_matrix_t *matrix, uint64_t key, const patch_t &patch) {
    const uint32_t *index = index_of(data, matrix);
    const uint64_t base = ((uint64_t)matrix->param << 40) + matrix->param_offset; /* zfi_rounding_base */
    const uint64_t j = patch.j + LANE, at = matrix->sel_base + patch.i * cols_selected(matrix) + j;
    if (LANE >= patch.n_cols)
        return;
    if (takes_columns(matrix)) {
        const uint64_t col = in_global(index)[j];
        round_some(data, key, at, matrix->k, base + patch.i * matrix->cols + col, matrix->cols, patch.n_rows);
    } else {
        const uint64_t row = index && matrix->channels_are_rows ? in_global(index)[patch.i] : patch.i;
        round_some(data, key, at, 32, base + row * matrix->cols + j, 32, (patch.n_cols - LANE + 31) / 32);
    }
}

KERNEL(zf_round_moments, zfi_round_moments_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_t *data = args.data;
    const uint32_t n_slices = slices_of(args.n);
    if (data->moments == ZFI_MOMENTS_F32 || !data->m)
        return;
    for (uint32_t unit = blockIdx.x; unit < args.n * n_slices; unit += gridDim.x) {
        const uint32_t slice = unit % n_slices, n_warps = THREADS / 32;
        const zfi_data_matrix_t *matrix =
            in_global(&data->matrices[in_global(data->listed_matrices)[args.first + unit / n_slices]]);
        for (uint64_t at = slice * n_warps + threadIdx.x / 32; matrix->k && at < patches_of(matrix);
             at += n_slices * n_warps)
            round_patch(data, matrix, args.key, patch_of(matrix, at));
    }
}
