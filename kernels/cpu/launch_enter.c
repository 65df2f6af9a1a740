/* SPDX-License-Identifier: Apache-2.0 */
/* launch_enter.c - channels that enter the selection: the device's maps, their compact state, their visible values. */
#include <string.h>

#include "digest.h"
#include "launch.h"

/* ---- maps -------------------------------------------------------------------------------------------------------- */

static void enter_maps(const zfi_data_t *data, const zfi_data_matrix_t *matrix, const zfi_entering_t *entering,
                       uint32_t n, int replaces, uint32_t turn) {
    const uint32_t *position = entering->position + matrix->index_base;
    const uint32_t *channel = entering->channel + matrix->index_base;
    uint8_t *mask = data->masks[turn] + matrix->channel_base;
    uint32_t *index = data->index + matrix->index_base;
    if (matrix->is_resident) /* it has no place in masks */
        return;
    memcpy(mask, data->masks[!turn] + matrix->channel_base, matrix->n_channels);
    for (uint32_t e = 0; e < n; e++) {
        if (replaces)
            mask[index[position[e]]] = 0;
        index[position[e]] = channel[e];
    }
    for (uint32_t e = 0; e < n; e++)
        mask[channel[e]] = 1;
}

void zfi_cpu_enter_maps(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_enter_maps_args_t *args = raw;
    (void)kernels;
    for (uint32_t i = 0; i < args->data->n_matrices; i++)
        enter_maps(args->data, &args->data->matrices[i], &args->entering, args->entering.n_enter[i], args->replaces,
                   args->turn);
}

/* ---- state ------------------------------------------------------------------------------------------------------- */

/* The index of element (i, j) of the entering channels of a matrix lies in the compact arrays. */
static uint64_t compact_index(const zfi_data_matrix_t *matrix, const uint32_t *position, uint64_t i, uint64_t j) {
    return matrix->sel_base +
           (matrix->channels_are_rows ? position[i] * matrix->cols + j : i * matrix->k + position[j]);
}

static void take_rect(const zfi_data_t *data, const zfi_entering_t *entering, const zfi_enter_rect_t *rect,
                      const float *from) {
    const zfi_data_matrix_t *matrix = &data->matrices[rect->matrix];
    const uint32_t *position = entering->position + matrix->index_base;
    uint64_t n = rect->na * rect->nb, at = 0;
    for (uint64_t i = rect->a0; i < rect->a0 + rect->na; i++)
        for (uint64_t j = rect->b0; j < rect->b0 + rect->nb; j++, at++) {
            uint64_t to = compact_index(matrix, position, i, j);
            data->w[to] = from[at];
            if (data->m)
                data->m[to] = from[n + at];
            if (data->v)
                data->v[to] = from[2 * n + at];
        }
}

void zfi_cpu_enter_state(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_enter_state_args_t *args = raw;
    (void)kernels;
    for (uint64_t i = 0; i < args->block->n_rects; i++) {
        const zfi_enter_rect_t *rect = &args->block->rects[i];
        take_rect(args->data, &args->entering, rect, args->block->values + (uint64_t)rect->at * args->n_arrays);
    }
}

void zfi_cpu_enter_counts(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_enter_maps_args_t *args = raw;
    const zfi_entering_t *entering = &args->entering;
    (void)kernels;
    for (uint32_t i = 0; i < args->data->n_matrices; i++) {
        uint64_t base = args->data->matrices[i].index_base;
        for (uint32_t e = 0; e < entering->n_enter[i]; e++)
            args->data->n[base + entering->position[base + e]] = entering->count[base + e];
    }
}

/* ---- visible values ---------------------------------------------------------------------------------------------- */

static uint64_t digest_at(const zfi_data_matrix_t *matrix, uint64_t row, uint64_t col) {
    return digest_run(zfi_place_at(&matrix->place, row, col), matrix->place.dtype, 1, row * matrix->cols + col);
}

/* Returns what the digest has moved by. */
static uint64_t show(const zfi_data_t *data, const zfi_data_matrix_t *matrix, const zfi_entering_t *entering,
                     uint32_t n) {
    const uint32_t *position = entering->position + matrix->index_base;
    const uint32_t *channel = entering->channel + matrix->index_base;
    int by_rows = matrix->channels_are_rows;
    uint64_t rows = by_rows ? n : matrix->rows, cols = by_rows ? matrix->cols : n, moved = 0;
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < cols; j++) {
            uint64_t row = by_rows ? channel[i] : i, col = by_rows ? j : channel[j];
            moved -= digest_at(matrix, row, col);
            zfi_place_write(&matrix->place, row, col, data->w[compact_index(matrix, position, i, j)]);
            moved += digest_at(matrix, row, col);
        }
    return moved;
}

void zfi_cpu_show_entered(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_enter_maps_args_t *args = raw;
    const zfi_data_t *data = args->data;
    (void)kernels;
    for (uint32_t i = 0; i < data->n_matrices; i++) {
        if (data->is_foreign[data->matrices[i].param])
            continue;
        uint64_t moved = show(data, &data->matrices[i], &args->entering, args->entering.n_enter[i]);
        if (data->digests)
            data->digests[i] += moved;
    }
}
