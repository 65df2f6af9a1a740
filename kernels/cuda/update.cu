/* SPDX-License-Identifier: Apache-2.0 */
/* update.cu - the update of resident matrices: state that lies whole on the device, gradients where they were
 * delivered.
 *
 * Three kernels, as a run-ahead: update counts and scalars of every matrix, the update itself, and what it found, which
 * one thread adds to what the host reads. */
#include "scalars.cuh"

DEVICE bool takes_part(const zfi_update_all_args_t *args, const zfi_data_matrix_t *matrix) {
    return matrix->is_resident && (args->only_shows || (args->scalars->applied && args->step.present[matrix->param]));
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

/* Writes a visible value unless the host did; returns what its digest moves by. */
DEVICE uint64_t show_element(const zfi_data_t *data, const zfi_data_matrix_t *matrix, uint64_t to, uint64_t index, float w) {
    const int dtype = matrix->place.dtype;
    const uint32_t bits = narrow(dtype, w);
    const uint64_t moved = data->digests ? digest_move(load_bits(matrix->place.visible, dtype, to), bits, index) : 0;
    if (data->is_foreign[matrix->param])
        return 0;
    store_bits(matrix->place.visible, dtype, to, bits);
    return moved;
}

/* A moment as it is kept; random: the bits that stochastic rounding adds. */
DEVICE void store_moment(void *array, int moments, uint64_t i, float x, uint32_t random) {
    if (moments == ZFI_MOMENTS_F32)
        ((float *)array)[i] = x;
    else
        ((uint16_t *)array)[i] = (uint16_t)(__float_as_uint(round_moment(x, moments, random)) >> 16);
}

/* Elements of a segment. */
DEVICE void update_all_span(const zfi_update_all_args_t *args, const zfi_data_segment_t *segment, span_t span) {
    const zfi_data_t *data = args->data;
    const zfi_data_matrix_t *matrix = &data->matrices[segment->matrix];
    const int grad_dtype = data->params[matrix->param].grad_dtype;
    const zfi_rule_t rule = data->params[matrix->param].rule;
    const int moments = data->moments, kept = moments == ZFI_MOMENTS_F32 ? ZFI_F32 : ZFI_BF16;
    const void *grad = data->held[matrix->param];
    const zfi_scalars_t *scalars = &data->scalars[segment->matrix];
    uint64_t moved = 0;
    bool is_bad = false;
    for (uint64_t at = span.first + threadIdx.x; at < span.end; at += THREADS) {
        const uint64_t e = segment->matrix_offset + at, in_param = matrix->param_offset + e;
        const uint64_t i = segment->state_base + at;
        uint64_t row, col, to;
        uint32_t random = 0;
        state_t x;
        row = divide(e, matrix->cols, &col);
        to = (uint64_t)place_offset(&matrix->place, row, col);
        x.w = data->all_w[i];
        if (args->only_shows) {
            moved += show_element(data, matrix, to, e, x.w);
            is_bad |= !is_finite(x.w);
            continue;
        }
        x.m = load_float(data->all_m, kept, i);
        x.v = data->all_v ? load_float(data->all_v, kept, i) : 0.0f;
        update(rule, &x, load_float(grad, grad_dtype, in_param), scalars);
        moved += show_element(data, matrix, to, e, x.w);
        data->all_w[i] = x.w;
        if (moments == ZFI_MOMENTS_BF16_STOCHASTIC)
            random = random32(args->key, ((uint64_t)matrix->param << 40) + in_param);
        store_moment(data->all_m, moments, i, x.m, random);
        if (data->all_v)
            store_moment(data->all_v, moments, i, x.v, random >> 16);
        is_bad |= !is_finite(x.w);
    }
    if (is_bad)
        atomicOr(&data->is_bad[segment->matrix], 1u);
    if (data->digests)
        add_to_digest(&data->digests[segment->matrix], moved);
}

STREAMING_KERNEL(zf_update_all, zfi_update_all_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_t *data = args.data;
    const uint32_t n_segments = args.end_segment - args.first_segment, n_slices = slices_of(n_segments);
    for (uint32_t unit = blockIdx.x; unit < n_segments * n_slices; unit += gridDim.x) {
        const zfi_data_segment_t *segment = &data->segments[args.first_segment + unit / n_slices];
        if (!takes_part(&args, &data->matrices[segment->matrix]))
            continue;
        update_all_span(&args, segment, slice_of(segment->n_elems, unit % n_slices, n_slices, THREADS));
    }
}

/* One thread. */
KERNEL(zf_update_all_end, zfi_update_all_args_t) {
    RETURN_IF_ENDED;
    volatile zfi_totals_t *totals = args.data->totals;
    for (uint32_t i = args.first; i < args.end; i++)
        if (args.data->is_bad[i] && totals->nonfinite_param == 0)
            totals->nonfinite_param = (uint64_t)args.data->matrices[i].param + 1;
}
