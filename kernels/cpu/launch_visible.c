/* SPDX-License-Identifier: Apache-2.0 */
/* launch_visible.c - what the model reads: published values merged into it, and plain reads and writes of it. */
#include <string.h>

#include "launch.h"

/* ---- merge ------------------------------------------------------------------------------------------------------- */

/* Elements that are not merged count before and after alike. */
static void merge_segment(const zfi_kernels_t *kernels, const zfi_merge_args_t *args, const zfi_data_segment_t *segment,
                          const unsigned char *piece) {
    const zfi_data_t *data = args->data;
    const zfi_data_matrix_t *matrix = &data->matrices[segment->matrix];
    zfi_publish_t job = {
        .staged = piece + segment->piece_offset * zfi_dtype_nbytes(matrix->place.dtype),
        .first = segment->matrix_offset,
        .n_elems = segment->n_elems,
        .cols = matrix->cols,
        .channels_are_rows = matrix->channels_are_rows,
        .selected = args->takes_all ? NULL : data->masks[args->turn] + matrix->channel_base,
        .place = matrix->place,
    };
    if (!args->takes_all && !args->all_open && matrix->k == matrix->n_channels)
        return; /* every channel is selected */
    if (data->is_foreign[matrix->param])
        return;
    if (!data->digests || !zfi_has_digest(matrix)) {
        zfi_publish(&job);
        return;
    }
    uint64_t before = zfi_visible_digest(kernels, matrix, job.first, job.n_elems);
    zfi_publish(&job);
    __atomic_fetch_add(&data->digests[segment->matrix],
                       zfi_visible_digest(kernels, matrix, job.first, job.n_elems) - before, __ATOMIC_RELAXED);
}

void zfi_cpu_merge(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_merge_args_t *args = raw;
    const zfi_data_t *data = args->data;
    for (uint32_t i = 0; i < args->n; i++) {
        const zfi_data_piece_t *piece = &data->pieces[data->listed_pieces[args->first + i]];
        uint64_t number = args->first_number + i;
        const unsigned char *staged = args->staged + number % args->n_places * args->place_nbytes;
        uint32_t first = piece->first_segment, end = piece->first_segment + piece->n_segments;
        first = first > args->first_segment ? first : args->first_segment;
        end = end < args->end_segment ? end : args->end_segment;
        for (uint32_t s = first; s < end; s++)
            if (number >= data->merge_from[data->segments[s].matrix])
                merge_segment(kernels, args, &data->segments[s], staged);
    }
}

/* ---- plain reads and writes -------------------------------------------------------------------------------------- */

/* Calls of memcpy for one row's part; contiguous columns move at once. */
static void move_part(const zfi_place_t *place, uint64_t row, uint64_t col, uint64_t n, unsigned char *bits,
                      int is_write) {
    size_t elem = zfi_dtype_nbytes(place->dtype);
    uint64_t step = place->col_offset ? 1 : n;
    for (uint64_t i = 0; i < n; i += step) {
        void *at = zfi_place_at(place, row, col + i);
        if (is_write)
            memcpy(at, bits + i * elem, step * elem);
        else
            memcpy(bits + i * elem, at, step * elem);
    }
}

/* Entry i, and where it lies in `bits`; n = 0: it does not travel. */
static zfi_placed_t find_piece(const zfi_place_args_t *args, uint32_t i) {
    zfi_placed_t piece = args->table ? args->table[(uint64_t)i * args->step] : args->one;
    if (!args->table)
        return piece;
    if (piece.part == args->skipped || !zfi_has_cohort(&args->cohorts, piece.cohort))
        piece.n = 0;
    piece.at = piece.part * args->part_elems + zfi_placed_at(args, &piece);
    return piece;
}

static uint32_t n_pieces(const zfi_place_args_t *args) { return args->table ? args->n : 1; }

static void move(const zfi_data_matrix_t *matrix, const zfi_placed_t *piece, unsigned char *bits, int is_write) {
    uint64_t first = piece->first, left = piece->n;
    while (left) {
        uint64_t row = first / matrix->cols, col = first % matrix->cols;
        uint64_t n = matrix->cols - col < left ? matrix->cols - col : left;
        move_part(&matrix->place, row, col, n, bits, is_write);
        bits += n * zfi_dtype_nbytes(matrix->place.dtype);
        first += n;
        left -= n;
    }
}

static unsigned char *bits_of(const zfi_place_args_t *args, const zfi_placed_t *piece) {
    return (unsigned char *)args->bits + piece->at * zfi_dtype_nbytes(args->data->matrices[piece->matrix].place.dtype);
}

void zfi_cpu_read_place(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_place_args_t *args = raw;
    (void)kernels;
    for (uint32_t i = 0; i < n_pieces(args); i++) {
        zfi_placed_t piece = find_piece(args, i);
        move(&args->data->matrices[piece.matrix], &piece, bits_of(args, &piece), 0);
    }
}

/* Writes the channels that are not selected. */
static void write_deferred(const zfi_place_args_t *args, const zfi_placed_t *piece) {
    const zfi_data_matrix_t *matrix = &args->data->matrices[piece->matrix];
    zfi_publish_t job = {
        .staged = bits_of(args, piece),
        .first = piece->first,
        .n_elems = piece->n,
        .cols = matrix->cols,
        .channels_are_rows = matrix->channels_are_rows,
        .selected = args->data->masks[args->turn] + matrix->channel_base,
        .place = matrix->place,
    };
    zfi_publish(&job);
}

static void write_piece(const zfi_kernels_t *kernels, const zfi_place_args_t *args, const zfi_placed_t *piece) {
    const zfi_data_t *data = args->data;
    const zfi_data_matrix_t *matrix = &data->matrices[piece->matrix];
    if (!piece->n || data->is_foreign[matrix->param])
        return;
    if (args->keeps_selected && matrix->k == matrix->n_channels)
        return; /* every channel is selected */
    const int counts = data->digests && zfi_has_digest(matrix);
    uint64_t before = counts ? zfi_visible_digest(kernels, matrix, piece->first, piece->n) : 0;
    if (args->keeps_selected)
        write_deferred(args, piece);
    else
        move(matrix, piece, bits_of(args, piece), 1);
    if (counts)
        data->digests[piece->matrix] += zfi_visible_digest(kernels, matrix, piece->first, piece->n) - before;
}

void zfi_cpu_write_place(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_place_args_t *args = raw;
    for (uint32_t i = 0; i < n_pieces(args); i++) {
        zfi_placed_t piece = find_piece(args, i);
        write_piece(kernels, args, &piece);
    }
}
