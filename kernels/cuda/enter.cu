/* SPDX-License-Identifier: Apache-2.0 */
/* enter.cu - channels that enter the selection: the device's maps, their compact state, their visible values. */
#include "common.cuh"

/* ---- maps -------------------------------------------------------------------------------------------------------- */

/* A block of threads per matrix. The mask begins as the other one; channels that leave are cleared before those that
 * enter are set. */
KERNEL(zf_enter_maps, zfi_enter_maps_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_t *data = args.data;
    for (uint32_t i = blockIdx.x; i < data->n_matrices; i += gridDim.x) {
        const zfi_data_matrix_t *matrix = &data->matrices[i];
        if (matrix->is_resident) /* it has no place in masks */
            continue;
        const uint32_t *position = args.entering.position + matrix->index_base;
        const uint32_t *channel = args.entering.channel + matrix->index_base;
        const uint32_t n = args.entering.n_enter[i];
        const uint8_t *before = data->masks[!args.turn] + matrix->channel_base;
        uint8_t *mask = data->masks[args.turn] + matrix->channel_base;
        uint32_t *index = data->index + matrix->index_base;
        for (uint32_t c = threadIdx.x; c < matrix->n_channels; c += THREADS)
            mask[c] = before[c];
        __syncthreads();
        for (uint32_t e = threadIdx.x; e < n; e += THREADS) {
            if (args.replaces)
                mask[index[position[e]]] = 0;
            index[position[e]] = channel[e];
        }
        __syncthreads();
        for (uint32_t e = threadIdx.x; e < n; e += THREADS)
            mask[channel[e]] = 1;
    }
}

/* ---- state ------------------------------------------------------------------------------------------------------- */

/* Where element (i, j) of the entering channels of a matrix lies in the compact arrays. */
DEVICE uint64_t compact_index(const zfi_data_matrix_t *matrix, const uint32_t *position, uint64_t i, uint64_t j) {
    return matrix->sel_base + (matrix->channels_are_rows ? (uint64_t)position[i] * matrix->cols + j
                                                         : i * matrix->k + position[j]);
}

DEVICE void take_rect(const zfi_enter_state_args_t *args, const zfi_enter_rect_t *rect) {
    const zfi_data_t *data = args->data;
    const zfi_data_matrix_t *matrix = &data->matrices[rect->matrix];
    const uint32_t *position = args->entering.position + matrix->index_base;
    const float *from = args->block->values + (uint64_t)rect->at * args->n_arrays;
    const uint64_t n = rect->na * rect->nb;
    for (uint64_t at = threadIdx.x; at < n; at += THREADS) {
        uint64_t j, i = divide(at, rect->nb, &j);
        uint64_t to = compact_index(matrix, position, rect->a0 + i, rect->b0 + j);
        data->w[to] = from[at];
        if (data->m)
            data->m[to] = from[n + at];
        if (data->v)
            data->v[to] = from[2 * n + at];
    }
}

KERNEL(zf_enter_state, zfi_enter_state_args_t) {
    RETURN_IF_ENDED;
    for (uint64_t i = blockIdx.x; i < args.block->n_rects; i += gridDim.x)
        take_rect(&args, &args.block->rects[i]);
}

KERNEL(zf_enter_counts, zfi_enter_maps_args_t) {
    RETURN_IF_ENDED;
    for (uint32_t i = blockIdx.x; i < args.data->n_matrices; i += gridDim.x) {
        const uint64_t base = args.data->matrices[i].index_base;
        for (uint32_t e = threadIdx.x; e < args.entering.n_enter[i]; e += THREADS)
            args.data->n[base + args.entering.position[base + e]] = args.entering.count[base + e];
    }
}

/* ---- visible values ---------------------------------------------------------------------------------------------- */

DEVICE void show_span(const zfi_data_t *data, uint32_t number, const zfi_entering_t *entering, uint64_t n_cols,
                      span_t span) {
    const zfi_data_matrix_t *matrix = &data->matrices[number];
    const uint32_t *position = entering->position + matrix->index_base;
    const uint32_t *channel = entering->channel + matrix->index_base;
    const int dtype = matrix->place.dtype;
    uint64_t moved = 0;
    for (uint64_t e = span.first + threadIdx.x; e < span.end; e += THREADS) {
        uint64_t j, i = divide(e, n_cols, &j);
        uint64_t row = matrix->channels_are_rows ? channel[i] : i, col = matrix->channels_are_rows ? j : channel[j];
        uint64_t at = (uint64_t)place_offset(&matrix->place, row, col), index = row * matrix->cols + col;
        uint32_t bits = narrow(dtype, data->w[compact_index(matrix, position, i, j)]);
        if (data->digests)
            moved += digest_move(load_bits(matrix->place.visible, dtype, at), bits, index);
        store_bits(matrix->place.visible, dtype, at, bits);
    }
    if (data->digests)
        add_to_digest(&data->digests[number], moved);
}

KERNEL(zf_show_entered, zfi_enter_maps_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_t *data = args.data;
    const uint32_t n_slices = slices_of(data->n_matrices);
    for (uint64_t unit = blockIdx.x; unit < (uint64_t)data->n_matrices * n_slices; unit += gridDim.x) {
        uint64_t slice, number = divide(unit, n_slices, &slice);
        const zfi_data_matrix_t *matrix = &data->matrices[number];
        const uint64_t n = args.entering.n_enter[number];
        const uint64_t n_rows = matrix->channels_are_rows ? n : matrix->rows;
        const uint64_t n_cols = matrix->channels_are_rows ? matrix->cols : n;
        if (n && !data->is_foreign[matrix->param])
            show_span(data, (uint32_t)number, &args.entering, n_cols, slice_of(n_rows * n_cols, (uint32_t)slice, n_slices, 32));
    }
}
