/* SPDX-License-Identifier: Apache-2.0 */
/* visible.cu - what the model reads: published values merged into it, and plain reads and writes of it. */
#include "wide.cuh"

/* ---- into places ------------------------------------------------------------------------------------------------- */

/* Elements that come from contiguous memory: number i of `from` is number base + i of the matrix. */
typedef struct written {
    const zfi_data_matrix_t *matrix;
    const void *from;
    uint64_t base;
    const uint8_t *mask; /* channels that are left alone; NULL: none */
    bool is_counted;
} written_t;

/* Elements [first, end) of a run by 16 bytes, two at once; returns what the digest moves by. */
template <int NBYTES>
DEVICE uint64_t write_wide(const void *from, void *to, uint32_t index, uint64_t first, uint64_t end, bool is_counted) {
    enum { N = sixteen<NBYTES>::N, AT_ONCE = 2 };
    uint64_t moved = 0;
#pragma unroll 1
    for (uint64_t at = first + LANE * N; at < end; at += 32 * N * AT_ONCE) {
        sixteen<NBYTES> x[AT_ONCE], before[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const uint64_t i = u == 0 || at + 32 * N * u < end ? at + 32 * N * u : at;
            x[u].get(from, i);
            before[u] = x[u];
            if (is_counted)
                before[u].get(to, i);
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const uint64_t i = at + 32 * N * u;
            if (i >= end)
                break;
#pragma unroll
            for (int j = 0; j < N; j++)
                moved += digest_move(before[u].at(j), x[u].at(j), index + (uint32_t)i + j);
            x[u].put(to, i);
        }
    }
    return moved;
}

/* The same by elements, four at once, but for those that the mask of the run's columns has. */
DEVICE uint64_t write_singly(const written_t &w, const run_t &run, const uint8_t *mask, int dtype, uint64_t first,
                             uint64_t end) {
    uint64_t moved = 0;
#pragma unroll 1
    for (uint64_t at = first + LANE; at < end; at += TURN) {
        uint32_t x[FOUR], before[FOUR];
        uint64_t to[FOUR];
        bool is_open[FOUR];
#pragma unroll
        for (int j = 0; j < FOUR; j++) {
            const uint64_t i = j == 0 || at + 32 * j < end ? at + 32 * j : at;
            to[j] = place_in(run, i);
            is_open[j] = !mask || !in_global(mask)[i];
            x[j] = get_bits(w.from, dtype, i);
            before[j] = w.is_counted ? get_bits(run.visible, dtype, to[j]) : x[j];
        }
#pragma unroll
        for (int j = 0; j < FOUR; j++) {
            if (at + 32 * j >= end)
                break;
            if (!is_open[j])
                continue;
            moved += digest_move(before[j], x[j], (uint32_t)(w.base + at) + 32 * j);
            put_bits(run.visible, dtype, to[j], x[j]);
        }
    }
    return moved;
}

/* Elements [first, end) of a run. */
DEVICE uint64_t write_run(const written_t &w, const run_t &run, const uint8_t *mask, uint64_t first, uint64_t end) {
    const int dtype = w.matrix->place.dtype;
    const uint32_t nbytes = elem_nbytes(dtype);
    const void *visible = offset_by(run.visible, nbytes, (int64_t)first);
    uint64_t middle = first, moved = 0;
    if (!mask && !run.columns && is_aligned(visible, 16) && is_aligned(offset_by(w.from, nbytes, (int64_t)first), 16))
        middle = end - (end - first) % (16 / nbytes);
    if (middle < end)
        moved = write_singly(w, run, mask, dtype, middle, end);
    if (nbytes == 4)
        return moved + write_wide<4>(w.from, run.visible, (uint32_t)w.base, first, middle, w.is_counted);
    return moved + write_wide<2>(w.from, run.visible, (uint32_t)w.base, first, middle, w.is_counted);
}

/* A warp's elements [first, end). Digests change by what it returns. */
DEVICE uint64_t write_span(const written_t &w, uint64_t first, uint64_t end) {
    const zfi_data_matrix_t *matrix = in_global(w.matrix);
    uint64_t moved = 0;
    while (first < end) {
        const run_t run = run_of(matrix->place, matrix->cols, w.base, first, end, w.mask != NULL);
        const bool by_columns = w.mask && !matrix->channels_are_rows;
        if (!w.mask || by_columns || !in_global(w.mask)[run.row])
            moved += write_run(w, run, by_columns ? w.mask + run.to_col : NULL, first, run.end);
        first = run.end;
    }
    return moved;
}

/* ---- merge ------------------------------------------------------------------------------------------------------- */

/* Elements of one segment, from and to counted in the piece. */
DEVICE void merge_segment(const zfi_merge_args_t *args, const zfi_data_segment_t *segment, const unsigned char *staged,
                          span_t span) {
    const zfi_data_matrix_t *matrix = in_global(&args->data->matrices[segment->matrix]);
    written_t written;
    uint64_t moved;
    if (!args->takes_all && !args->all_open && matrix->k == matrix->n_channels)
        return; /* every channel is selected */
    if (span.first >= span.end || in_global(args->data->is_foreign)[matrix->param])
        return;
    written.matrix = matrix;
    written.from = staged;
    written.base = segment->matrix_offset - segment->piece_offset;
    written.mask = args->takes_all ? NULL : args->data->masks[args->turn] + matrix->channel_base;
    written.is_counted = args->data->digests != NULL;
    moved = write_span(written, span.first, span.end);
    if (written.is_counted)
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
    const zfi_data_segment_t *segments = in_global(args->data->segments + piece->first_segment);
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
        if (number >= in_global(args->data->merge_from)[segments[i].matrix])
            merge_segment(args, &segments[i], staged, part);
    }
}

KERNEL_OF(2, zf_merge, zfi_merge_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_t *data = args.data;
    const uint32_t n_slices = slices_of(args.n);
    for (uint32_t unit = blockIdx.x; unit < args.n * n_slices; unit += gridDim.x) {
        const uint32_t i = unit / n_slices;
        const zfi_data_piece_t *piece = in_global(&data->pieces[in_global(data->listed_pieces)[args.first + i]]);
        merge_span(&args, piece, args.first_number + i, warp_slice(piece->n_elems, unit % n_slices, n_slices));
    }
}

/* ---- plain reads and writes -------------------------------------------------------------------------------------- */

/* Elements of a run from `first` on, to contiguous memory. */
DEVICE void copy_run(void *to, const run_t &run, int dtype, uint64_t first) {
    const uint32_t nbytes = elem_nbytes(dtype);
    if (!run.columns) {
        copy_warp(offset_by(to, nbytes, (int64_t)first), offset_by(run.visible, nbytes, (int64_t)first), dtype,
                  run.end - first);
        return;
    }
#pragma unroll 1
    for (uint64_t at = first + LANE; at < run.end; at += 32)
        put_bits(to, dtype, at, get_bits(run.visible, dtype, place_in(run, at)));
}

/* Both words have a name: an index would need the arguments in local memory. */
DEVICE bool has_cohort(const zfi_cohorts_t &cohorts, uint32_t c) {
    return (c < 64 ? cohorts.bits[0] : cohorts.bits[1]) >> c % 64 & 1;
}

/* Entry i, and where it lies in `bits`; n = 0: it does not travel. All lanes of a warp ask for the same one. */
DEVICE zfi_placed_t find_piece(const zfi_place_args_t &args, uint64_t i) {
    zfi_placed_t piece = args.one;
    uint64_t before = 0;
    if (!args.table)
        return piece;
    piece = in_global(args.table)[i * args.step];
    if (piece.part == args.skipped || !has_cohort(args.cohorts, piece.cohort))
        piece.n = 0;
    for (uint32_t c = LANE; c < piece.cohort; c += 32)
        if (has_cohort(args.cohorts, c))
            before += in_global(args.of_cohort)[(uint64_t)c * args.n_parts + piece.part];
    piece.at += piece.part * args.part_elems + sum_of_warp(before);
    return piece;
}

DEVICE void *bits_of(const zfi_place_args_t &args, const zfi_placed_t &piece, int dtype) {
    return offset_by(args.bits, elem_nbytes(dtype), (int64_t)piece.at);
}

KERNEL(zf_read_place, zfi_place_args_t) {
    RETURN_IF_ENDED;
    const uint32_t n = args.table ? args.n : 1, n_slices = slices_of(n);
    for (uint64_t unit = blockIdx.x; unit < (uint64_t)n * n_slices; unit += gridDim.x) {
        uint64_t slice;
        const zfi_placed_t piece = find_piece(args, divide(unit, n_slices, &slice));
        const zfi_data_matrix_t *matrix = in_global(&args.data->matrices[piece.matrix]);
        span_t span = warp_slice(piece.n, (uint32_t)slice, n_slices);
        while (span.first < span.end) {
            const run_t run = run_of(matrix->place, matrix->cols, piece.first, span.first, span.end, false);
            copy_run(bits_of(args, piece, matrix->place.dtype), run, matrix->place.dtype, span.first);
            span.first = run.end;
        }
    }
}

DEVICE void write_piece(const zfi_place_args_t &args, const zfi_placed_t &piece, span_t span) {
    const zfi_data_matrix_t *matrix = in_global(&args.data->matrices[piece.matrix]);
    written_t written;
    uint64_t moved;
    if (span.first >= span.end || in_global(args.data->is_foreign)[matrix->param])
        return;
    if (args.keeps_selected && matrix->k == matrix->n_channels)
        return; /* every channel is selected */
    written.matrix = matrix;
    written.from = bits_of(args, piece, matrix->place.dtype);
    written.base = piece.first;
    written.mask = args.keeps_selected ? args.data->masks[args.turn] + matrix->channel_base : NULL;
    written.is_counted = args.data->digests != NULL;
    moved = write_span(written, span.first, span.end);
    if (written.is_counted)
        add_to_digest(&args.data->digests[piece.matrix], moved);
}

KERNEL(zf_write_place, zfi_place_args_t) {
    RETURN_IF_ENDED;
    const uint32_t n = args.table ? args.n : 1, n_slices = slices_of(n);
    for (uint64_t unit = blockIdx.x; unit < (uint64_t)n * n_slices; unit += gridDim.x) {
        uint64_t slice;
        const zfi_placed_t piece = find_piece(args, divide(unit, n_slices, &slice));
        write_piece(args, piece, warp_slice(piece.n, (uint32_t)slice, n_slices));
    }
}
