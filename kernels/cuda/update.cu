/* SPDX-License-Identifier: Apache-2.0 */
/* update.cu - the update of resident matrices: state that lies whole on the device, gradients where they were
 * delivered.
 *
 * Three kernels, as a run-ahead: update counts and scalars of every matrix, the update itself, and what it found, which
 * one warp adds to what the host reads. Each rule has a loop of its own for moments of four bytes and of two. */
#include "elements.cuh"

DEVICE bool takes_part(const zfi_update_all_args_t *args, const zfi_data_matrix_t *matrix) {
    return matrix->is_resident &&
           (args->only_shows || (args->scalars->applied && in_global(args->step.present)[matrix->param]));
}

KERNEL(zf_update_all_begin, zfi_update_all_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_t *data = args.data;
    for (uint32_t i = args.first + blockIdx.x * THREADS + threadIdx.x; i < args.end; i += gridDim.x * THREADS) {
        const zfi_data_matrix_t *matrix = &data->matrices[i];
        data->is_bad[i] = 0;
        if (!args.only_shows && takes_part(&args, matrix)) {
            const uint32_t n = ++data->all_n[i];
            const zfi_data_param_t *param = &data->params[matrix->param];
            data->scalars[i] = rule_scalars(param->rule, &args.step.hyper[param->group], args.scalars->s, n);
        }
    }
}

/* ---- elements of a segment --------------------------------------------------------------------------------------- */

/* Nobody shows or counts what the host wrote. */
DEVICE line_t line_of(const zfi_update_all_args_t *args, const zfi_data_segment_t *segment) {
    const zfi_data_t *data = args->data;
    const zfi_data_matrix_t *matrix = in_global(&data->matrices[segment->matrix]);
    const zfi_data_param_t *param = in_global(&data->params[matrix->param]);
    const uint32_t kept_nbytes = data->moments == ZFI_MOMENTS_F32 ? 4 : 2;
    const uint64_t in_param = matrix->param_offset + segment->matrix_offset;
    const int64_t at = (int64_t)segment->state_base;
    line_t line;
    line.rule = param->rule;
    line.grad_dtype = param->grad_dtype;
    line.dtype = matrix->place.dtype;
    line.w = data->all_w + at;
    line.m = offset_by(data->all_m, kept_nbytes, at);
    line.v = has_v(param->rule) ? offset_by(data->all_v, kept_nbytes, at) : NULL;
    line.grad = args->only_shows ? NULL
                                 : offset_by(in_global(data->held)[matrix->param], elem_nbytes(line.grad_dtype),
                                             (int64_t)(matrix->grad_offset + segment->matrix_offset));
    line.first = (uint32_t)segment->matrix_offset;
    line.random_base = ((uint64_t)matrix->param << 40) + in_param;
    line.key = args->key;
    line.scalars = in_global(data->scalars)[segment->matrix];
    line.shows = !in_global(data->is_foreign)[matrix->param];
    line.is_counted = data->digests && line.shows;
    line.is_random = data->moments == ZFI_MOMENTS_BF16_STOCHASTIC;
    return line;
}

DEVICE run_t run_in(const zfi_update_all_args_t *args, const zfi_data_segment_t *segment, uint32_t at, uint32_t most) {
    const zfi_data_matrix_t *matrix = in_global(&args->data->matrices[segment->matrix]);
    return run_of(matrix->place, matrix->cols, segment->matrix_offset, at, most, false);
}

DEVICE bool is_by_fours(const zfi_update_all_args_t *args, const zfi_data_segment_t *segment, const line_t &line,
                        int kept) {
    const zfi_data_matrix_t *matrix = in_global(&args->data->matrices[segment->matrix]);
    return line_takes_four(line, kept) && place_takes_four(matrix->place, matrix->cols, segment->matrix_offset);
}

template <int KEPT>
DEVICE void update_span(const zfi_update_all_args_t *args, const zfi_data_segment_t *segment, const line_t &line,
                        uint32_t first, uint32_t end, found_t *found) {
    const uint32_t middle = is_by_fours(args, segment, line, KEPT) ? end - (end - first) % FOUR : first;
    for (uint32_t at = middle; at < end;) {
        const run_t run = run_in(args, segment, at, end);
        update_spaced<1>(line.rule, KEPT, line, lanes_of(run, at, (uint32_t)run.end), found);
        at = (uint32_t)run.end;
    }
    while (first < middle) {
        const run_t run = run_in(args, segment, first, middle);
        update_by_fours<KEPT>(line, run.visible, first, (uint32_t)run.end, found);
        first = (uint32_t)run.end;
    }
}

/* Visible values again of what they are rounded from. */
DEVICE void show_span(const zfi_update_all_args_t *args, const zfi_data_segment_t *segment, const line_t &line,
                      uint32_t first, uint32_t end, found_t *found) {
    while (first < end) {
        const run_t run = run_in(args, segment, first, end);
#pragma unroll 1
        for (uint32_t at = first + LANE; at < (uint32_t)run.end; at += 32) {
            const uint64_t to = place_in(run, at);
            const float w = __uint_as_float(get_bits(line.w, ZFI_F32, at));
            const uint32_t bits = narrow(line.dtype, w);
            if (line.is_counted)
                found->moved += digest_move(get_bits(run.visible, line.dtype, to), bits, line.first + at);
            if (line.shows)
                put_bits(run.visible, line.dtype, to, bits);
            found->is_bad |= !is_finite(w);
        }
        first = (uint32_t)run.end;
    }
}

/* A warp's span of a segment. */
DEVICE void update_all_span(const zfi_update_all_args_t *args, const zfi_data_segment_t *segment, span_t span) {
    const line_t line = line_of(args, segment);
    const uint32_t first = (uint32_t)span.first, end = (uint32_t)span.end;
    found_t found = {0, false};
    if (first >= end)
        return;
    if (args->only_shows)
        show_span(args, segment, line, first, end, &found);
    else if (args->data->moments == ZFI_MOMENTS_F32)
        update_span<ZFI_F32>(args, segment, line, first, end, &found);
    else
        update_span<ZFI_BF16>(args, segment, line, first, end, &found);
    if (found.is_bad)
        atomicOr(in_global(&args->data->is_bad[segment->matrix]), 1u);
    if (line.is_counted)
        add_to_digest(&args->data->digests[segment->matrix], found.moved);
}

STREAMING_KERNEL(zf_update_all, zfi_update_all_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_t *data = args.data;
    const uint32_t n_segments = args.end_segment - args.first_segment;
    for (uint32_t unit = blockIdx.x; unit < n_segments * slices_of(n_segments); unit += gridDim.x) {
        const uint32_t n_slices = slices_of(n_segments);
        const zfi_data_segment_t *segment = in_global(&data->segments[args.first_segment + unit / n_slices]);
        if (!takes_part(&args, in_global(&data->matrices[segment->matrix])))
            continue;
        update_all_span(&args, segment, warp_slice(segment->n_elems, unit % n_slices, n_slices));
    }
}

/* One warp: the lowest matrix that went bad. */
KERNEL(zf_update_all_end, zfi_update_all_args_t) {
    RETURN_IF_ENDED;
    volatile zfi_totals_t *totals = args.data->totals;
    for (uint32_t first = args.first; first < args.end; first += 32) {
        const uint32_t i = first + threadIdx.x;
        const uint32_t bad = __ballot_sync(0xffffffffu, i < args.end && args.data->is_bad[i]);
        if (bad && threadIdx.x == 0 && totals->nonfinite_param == 0)
            totals->nonfinite_param = (uint64_t)args.data->matrices[first + lowest_of(bad)].param + 1;
        if (bad)
            return;
    }
}
