/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.cu - what is done with the memory that ranks exchange: parts are summed, pieces packed and unpacked; and ranges
 * of a copy to the host. */
#include "wide.cuh"

/* A rank's part that is not finite at one of N neighbours. */
template <int N> DEVICE void find_nonfinite(const zfi_sum_parts_args_t &args, uint64_t i) {
    for (uint32_t r = 0; r < args.n_ranks; r++) {
        const void *part =
            r == args.rank ? args.own : offset_by(args.arrived, elem_nbytes(args.dtype), (int64_t)(r * args.n_elems));
        bool all_finite = true;
        for (int j = 0; j < N; j++)
            all_finite &= i + j >= args.n_looked || is_finite(widen(args.dtype, get_bits(part, args.dtype, i + j)));
        if (!all_finite) {
            *args.found = args.found_as | r;
            return;
        }
    }
}

/* Four neighbours, or one element: of every rank, by rank, divided, rounded. */
template <int N> DEVICE void sum_at(const zfi_sum_parts_args_t &args, uint64_t i) {
    const float divisor = (float)args.divisor;
    float sum[N];
    packed_t out;
#pragma unroll 4
    for (uint32_t r = 0; r < args.n_ranks; r++) {
        const void *part =
            r == args.rank ? args.own : offset_by(args.arrived, elem_nbytes(args.dtype), (int64_t)(r * args.n_elems));
        packed_t x;
        if (N == FOUR)
            x = get_four(part, args.dtype, i);
        else
            x.word[0] = get_bits(part, args.dtype, i);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const float value = widen(args.dtype, bits_of(x, args.dtype, j));
            sum[j] = r == 0 ? value : __fadd_rn(sum[j], value);
        }
    }
    if (i < args.n_looked) {
        bool all_finite = true;
#pragma unroll
        for (int j = 0; j < N; j++)
            all_finite &= is_finite(sum[j]) || i + j >= args.n_looked;
        if (!all_finite && *args.found == 0)
            find_nonfinite<N>(args, i);
    }
    if (args.divisor)
#pragma unroll
        for (int j = 0; j < N; j++)
            sum[j] = __fdiv_rn(sum[j], divisor);
    if (N == FOUR) {
        out = narrow_four(args.dtype, sum);
        put_four(args.out, args.dtype, i, out);
    } else {
        put_bits(args.out, args.dtype, i, narrow(args.dtype, sum[0]));
    }
}

STREAMING_KERNEL(zf_sum_parts, zfi_sum_parts_args_t) {
    RETURN_IF_ENDED;
    const uint64_t first = blockIdx.x * (uint64_t)THREADS + threadIdx.x, step = (uint64_t)gridDim.x * THREADS;
    const bool by_fours = takes_four(args.own, args.dtype) && takes_four(args.arrived, args.dtype) &&
                          takes_four(args.out, args.dtype) && args.n_elems % FOUR == 0;
#pragma unroll 1
    for (uint64_t i = first; by_fours && i < args.n_elems / FOUR; i += step)
        sum_at<FOUR>(args, i * FOUR);
#pragma unroll 1
    for (uint64_t i = first; !by_fours && i < args.n_elems; i += step)
        sum_at<1>(args, i);
}

KERNEL(zf_move, zfi_move_args_t) {
    RETURN_IF_ENDED;
    const uint32_t n = (uint32_t)args.n, n_slices = slices_of(n), nbytes = elem_nbytes(args.dtype);
    for (uint64_t unit = blockIdx.x; unit < (uint64_t)n * n_slices; unit += gridDim.x) {
        uint64_t slice, i = divide(unit, n_slices, &slice);
        const zfi_move_t move = in_global(args.moves)[i];
        const span_t span = warp_slice(move.n_elems, (uint32_t)slice, n_slices);
        if (span.first < span.end)
            copy_warp(offset_by(args.goes_back ? args.from : args.to, nbytes,
                                (int64_t)((args.goes_back ? move.from : move.to) + span.first)),
                      offset_by(args.goes_back ? args.to : args.from, nbytes,
                                (int64_t)((args.goes_back ? move.to : move.from) + span.first)),
                      args.dtype, span.end - span.first);
    }
}

/* A warp has a range. */
KERNEL(zf_copy_ranges, zfi_cuda_ranges_t) {
    RETURN_IF_ENDED;
    for (uint32_t i = blockIdx.x + gridDim.x * (threadIdx.x / 32); i < args.n; i += gridDim.x * (THREADS / 32)) {
        const zfi_range_t range = args.list[i];
        const bool has_words = (((uint64_t)range.to | (uint64_t)range.from | range.nbytes) & 3) == 0;
        copy_warp(range.to, range.from, has_words ? ZFI_F32 : ZFI_BF16, range.nbytes / (has_words ? 4 : 2));
    }
}
