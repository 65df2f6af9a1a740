/* SPDX-License-Identifier: Apache-2.0 */
/* sums.cu - dense sums of g*s and (g*s)^2, kept on the device in place of single gradients. */
#include "common.cuh"

/* ---- add --------------------------------------------------------------------------------------------------------- */

DEVICE void add_span(const zfi_add_sums_args_t *args, const zfi_data_piece_t *piece, const zfi_data_segment_t *segment,
                     span_t span) {
    const zfi_data_t *data = args->data;
    const zfi_data_matrix_t *matrix = &data->matrices[segment->matrix];
    const void *grad = data->held[matrix->param];
    const uint64_t from = matrix->param_offset + segment->matrix_offset - segment->piece_offset;
    const bool is_first = !data->has_dense[segment->matrix];
    float *sum1 = data->sum1 + piece->dense_base, *sum2 = data->sum2 + piece->dense_base;
    for (uint64_t at = span.first + threadIdx.x; at < span.end; at += THREADS) {
        float p = __fmul_rn(load_float(grad, piece->grad_dtype, from + at), args->scalars->s);
        sum1[at] = is_first ? p : __fadd_rn(sum1[at], p);
        sum2[at] = is_first ? __fmul_rn(p, p) : __fmaf_rn(p, p, sum2[at]);
    }
}

STREAMING_KERNEL(zf_add_sums, zfi_add_sums_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_t *data = args.data;
    const uint32_t n_slices = slices_of(data->n_pieces);
    if (!args.scalars->applied)
        return;
    for (uint32_t unit = blockIdx.x; unit < data->n_pieces * n_slices; unit += gridDim.x) {
        const zfi_data_piece_t *piece = &data->pieces[unit / n_slices];
        const span_t span = slice_of(piece->n_elems, unit % n_slices, n_slices, THREADS);
        for (uint32_t i = piece->first_segment; i < piece->first_segment + piece->n_segments; i++) {
            const zfi_data_segment_t *segment = &data->segments[i];
            span_t part;
            part.first = larger(span.first, segment->piece_offset);
            part.end = smaller(span.end, segment->piece_offset + segment->n_elems);
            if (part.first < part.end && args.step.present[data->matrices[segment->matrix].param])
                add_span(&args, piece, segment, part);
        }
    }
}

/* Which matrices have sums now: after all of them were added. */
KERNEL(zf_add_sums_end, zfi_add_sums_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_t *data = args.data;
    if (!args.scalars->applied)
        return;
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < data->n_matrices; i += gridDim.x * THREADS)
        if (args.step.present[data->matrices[i].param])
            data->has_dense[i] = 1;
}

/* ---- round ------------------------------------------------------------------------------------------------------- */

/* bfloat16 values fill the first half of the range: a block of threads reads a stretch whole before it writes. */
DEVICE void round_in_place(float *sum, uint32_t n_elems) {
    for (uint32_t first = 0; first < n_elems; first += 4 * THREADS) {
        float x[4];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            uint32_t i = first + j * THREADS + threadIdx.x;
            x[j] = i < n_elems ? sum[i] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            uint32_t i = first + j * THREADS + threadIdx.x;
            if (i < n_elems)
                ((uint16_t *)sum)[i] = (uint16_t)f32_to_bf16(x[j]);
        }
        __syncthreads();
    }
}

KERNEL(zf_round_sums, zfi_round_sums_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_t *data = args.data;
    for (uint32_t unit = blockIdx.x; unit < 2 * args.n; unit += gridDim.x) {
        const zfi_data_piece_t *piece = &data->pieces[data->listed_pieces[args.first + unit / 2]];
        if (piece->grad_dtype != ZFI_F32)
            round_in_place((unit % 2 ? data->sum2 : data->sum1) + piece->dense_base, piece->n_elems);
        for (uint32_t s = threadIdx.x; s < piece->n_segments && unit % 2 == 0; s += THREADS)
            data->has_dense[data->segments[piece->first_segment + s].matrix] = 0;
    }
}
