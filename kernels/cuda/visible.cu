/* SPDX-License-Identifier: Apache-2.0 */
/* visible.cu - what the model reads: published values merged into it, and plain reads and writes of it. */
#include "common.cuh"

/* ---- merge ------------------------------------------------------------------------------------------------------- */

/* Elements of one segment, from and to counted in the piece. */
DEVICE void merge_segment(const zfi_merge_args_t *args, const zfi_data_segment_t *segment, const unsigned char *staged,
                          span_t span) {
    const zfi_data_matrix_t *matrix = &args->data->matrices[segment->matrix];
    const uint8_t *mask = args->takes_all ? NULL : args->data->masks[args->turn] + matrix->channel_base;
    const int dtype = matrix->place.dtype;
    const bool is_counted = args->data->digests != NULL;
    uint64_t moved = 0;
    if (!args->takes_all && !args->all_open && matrix->k == matrix->n_channels)
        return; /* every channel is selected */
    if (args->data->is_foreign[matrix->param])
        return;
#pragma unroll 1
    for (uint64_t at = span.first + threadIdx.x; at < span.end; at += THREADS) {
        uint64_t index = segment->matrix_offset + (at - segment->piece_offset), to, col;
        uint64_t row = divide(index, matrix->cols, &col);
        uint32_t bits;
        if (mask && mask[matrix->channels_are_rows ? row : col])
            continue;
        to = (uint64_t)place_offset(&matrix->place, row, col);
        bits = load_bits(staged, dtype, at);
        if (is_counted)
            moved += digest_move(load_bits(matrix->place.visible, dtype, to), bits, index);
        store_bits(matrix->place.visible, dtype, to, bits);
    }
    if (is_counted)
        add_to_digest(&args->data->digests[segment->matrix], moved);
}

/* The last segment that begins at or before an element of the piece. */
DEVICE uint32_t find_segment(const zfi_data_segment_t *segments, uint32_t n, uint64_t at) {
    uint32_t first = 0;
    while (n > 1) {
        uint32_t half = n / 2;
        if (segments[first + half].piece_offset <= at)
            first += half;
        n -= half;
    }
    return first;
}

DEVICE void merge_span(const zfi_merge_args_t *args, const zfi_data_piece_t *piece, uint64_t number, span_t span) {
    const zfi_data_segment_t *segments = args->data->segments + piece->first_segment;
    const unsigned char *staged = args->staged + number % args->n_places * args->place_nbytes;
    if (span.first >= span.end)
        return;
    for (uint32_t i = find_segment(segments, piece->n_segments, span.first); i < piece->n_segments; i++) {
        const uint32_t listed = piece->first_segment + i;
        span_t part;
        if (segments[i].piece_offset >= span.end)
            return;
        if (listed < args->first_segment || listed >= args->end_segment)
            continue;
        part.first = larger(span.first, segments[i].piece_offset);
        part.end = smaller(span.end, segments[i].piece_offset + segments[i].n_elems);
        if (number >= args->data->merge_from[segments[i].matrix])
            merge_segment(args, &segments[i], staged, part);
    }
}

STREAMING_KERNEL(zf_merge, zfi_merge_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_t *data = args.data;
    const uint32_t n_slices = slices_of(args.n);
    for (uint32_t unit = blockIdx.x; unit < args.n * n_slices; unit += gridDim.x) {
        const uint32_t i = unit / n_slices;
        const zfi_data_piece_t *piece = &data->pieces[data->listed_pieces[args.first + i]];
        merge_span(&args, piece, args.first_number + i, slice_of(piece->n_elems, unit % n_slices, n_slices, THREADS));
    }
}

/* ---- plain reads and writes -------------------------------------------------------------------------------------- */

KERNEL(zf_read_place, zfi_place_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_matrix_t *matrix = &args.data->matrices[args.matrix];
    const int dtype = matrix->place.dtype;
    for (uint64_t e = blockIdx.x * (uint64_t)THREADS + threadIdx.x; e < args.n; e += (uint64_t)gridDim.x * THREADS) {
        uint64_t col, row = divide(args.first + e, matrix->cols, &col);
        store_bits(args.bits, dtype, e,
                   load_bits(matrix->place.visible, dtype, (uint64_t)place_offset(&matrix->place, row, col)));
    }
}

KERNEL(zf_write_place, zfi_place_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_matrix_t *matrix = &args.data->matrices[args.matrix];
    const int dtype = matrix->place.dtype;
    const bool is_counted = args.data->digests != NULL;
    const uint8_t *mask = args.keeps_selected ? args.data->masks[args.turn] + matrix->channel_base : NULL;
    const uint64_t step = (uint64_t)gridDim.x * THREADS; /* elements, and so many rows and columns */
    uint64_t moved = 0, e = blockIdx.x * (uint64_t)THREADS + threadIdx.x;
    uint64_t col, row = divide(args.first + e, matrix->cols, &col);
    uint64_t more_cols, more_rows = divide(step, matrix->cols, &more_cols);
    if (args.data->is_foreign[matrix->param])
        return;
    if (mask && matrix->k == matrix->n_channels)
        return; /* every channel is selected */
    for (; e < args.n; e += step) {
        if (!mask || !mask[matrix->channels_are_rows ? row : col]) {
            uint64_t to = (uint64_t)place_offset(&matrix->place, row, col);
            uint32_t bits = load_bits(args.bits, dtype, e);
            if (is_counted)
                moved += digest_move(load_bits(matrix->place.visible, dtype, to), bits, args.first + e);
            store_bits(matrix->place.visible, dtype, to, bits);
        }
        row += more_rows;
        col += more_cols;
        if (col >= matrix->cols) {
            col -= matrix->cols;
            row++;
        }
    }
    if (is_counted)
        add_to_digest(&args.data->digests[args.matrix], moved);
}
