/* SPDX-License-Identifier: Apache-2.0 */
/* enter.cu - channels that enter the selection: the device's maps, their compact state, their visible values. */
#include "elements.cuh"

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

/* The index of element (i, j) of the entering channels of a matrix lies in the compact arrays. */
DEVICE uint64_t compact_index(const zfi_data_matrix_t *matrix, const uint32_t *position, uint64_t i, uint64_t j) {
    return matrix->sel_base + (matrix->channels_are_rows ? (uint64_t)in_global(position)[i] * matrix->cols + j
                                                         : i * matrix->k + in_global(position)[j]);
}

DEVICE void take_rect(const zfi_enter_state_args_t *args, const zfi_enter_rect_t *rect) {
    const zfi_data_t *data = args->data;
    const zfi_data_matrix_t *matrix = &data->matrices[rect->matrix];
    const uint32_t *position = args->entering.position + matrix->index_base;
    const float *from = in_global(args->block->values + (uint64_t)rect->at * args->n_arrays);
    const uint64_t a0 = rect->a0, b0 = rect->b0, nb = rect->nb, n = rect->na * nb;
    const zfi_data_matrix_t known = *matrix;
    float *w = in_global(data->w), *m = data->m, *v = data->v;
#pragma unroll 1
    for (uint64_t at = threadIdx.x; at < n; at += THREADS) {
        uint64_t j, i = divide(at, nb, &j);
        const uint64_t to = compact_index(&known, position, a0 + i, b0 + j);
        const float new_w = from[at], new_m = m ? from[n + at] : 0.0f, new_v = v ? from[2 * n + at] : 0.0f;
        w[to] = new_w;
        if (m)
            in_global(m)[to] = new_m;
        if (v)
            in_global(v)[to] = new_v;
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

/* A warp: an entering row, or 32 entering columns down some rows. */
enum { SHOWN_ROWS = 64 };

/* Compact state of a lane's elements, from matrix element number `index` on, goes to where the model reads it. */
DEVICE uint64_t show_spaced(const float *w, int dtype, uint64_t index, bool is_counted, const spaced_t &at) {
    uint64_t moved = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < at.n; i += FOUR) {
        uint32_t shown[FOUR], before[FOUR];
        uint64_t to[FOUR];
#pragma unroll
        for (uint32_t j = 0; j < FOUR && i + j < at.n; j++) {
            const uint64_t e = at.first + (uint64_t)(i + j) * at.by;
            to[j] = (uint64_t)(at.columns ? in_global(at.columns)[e] : at.place + (int64_t)(i + j) * at.place_by);
            shown[j] = narrow(dtype, in_global(w)[e]);
            before[j] = is_counted ? get_bits(at.visible, dtype, to[j]) : 0;
        }
#pragma unroll
        for (uint32_t j = 0; j < FOUR && i + j < at.n; j++) {
            moved += is_counted ? digest_move(before[j], shown[j], index + (i + j) * at.index_by) : 0;
            put_bits(at.visible, dtype, to[j], shown[j]);
        }
    }
    return moved;
}

DEVICE uint64_t show_row(const zfi_data_t *data, const zfi_data_matrix_t *matrix, uint64_t from, uint64_t row) {
    const run_t run = run_of(matrix->place, matrix->cols, row * matrix->cols, 0, matrix->cols, true);
    return show_spaced(data->w + from, matrix->place.dtype, row * matrix->cols + LANE, data->digests != NULL,
                       lanes_of(run, 0, (uint32_t)matrix->cols));
}

DEVICE uint64_t show_patch(const zfi_data_t *data, const zfi_data_matrix_t *matrix, const zfi_entering_t *entering,
                           uint32_t n, uint64_t patch) {
    const uint32_t *position = entering->position + matrix->index_base;
    const uint32_t *channel = in_global(entering->channel + matrix->index_base);
    uint64_t strip, chunk, row;
    if (matrix->channels_are_rows)
        return show_row(data, matrix, compact_index(matrix, position, patch, 0), channel[patch]);
    chunk = divide(patch, ceil_div(n, 32), &strip);
    row = chunk * SHOWN_ROWS;
    strip = strip * 32 + LANE;
    if (strip >= n)
        return 0;
    return show_spaced(data->w + compact_index(matrix, position, row, strip), matrix->place.dtype,
                       row * matrix->cols + channel[strip], data->digests != NULL,
                       column_of(matrix, row, channel[strip], (uint32_t)smaller(SHOWN_ROWS, matrix->rows - row)));
}

DEVICE void show_matrix(const zfi_data_t *data, uint32_t number, const zfi_entering_t *entering, uint32_t slice,
                        uint32_t n_slices) {
    const zfi_data_matrix_t *matrix = in_global(&data->matrices[number]);
    const uint32_t n = in_global(entering->n_enter)[number], n_warps = THREADS / 32;
    const uint64_t n_patches = matrix->channels_are_rows ? n : ceil_div(n, 32) * ceil_div(matrix->rows, SHOWN_ROWS);
    uint64_t moved = 0;
    if (!n || in_global(data->is_foreign)[matrix->param])
        return;
    for (uint64_t patch = slice * n_warps + threadIdx.x / 32; patch < n_patches; patch += n_slices * n_warps)
        moved += show_patch(data, matrix, entering, n, patch);
    if (data->digests)
        add_to_digest(&data->digests[number], moved);
}

KERNEL(zf_show_entered, zfi_enter_maps_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_t *data = args.data;
    const uint32_t n_slices = slices_of(data->n_matrices);
    for (uint32_t unit = blockIdx.x; unit < data->n_matrices * n_slices; unit += gridDim.x)
        show_matrix(data, unit / n_slices, &args.entering, unit % n_slices, n_slices);
}
