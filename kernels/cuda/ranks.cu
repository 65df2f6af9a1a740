/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.cu - what is done with the memory that ranks exchange: parts are summed, pieces packed and unpacked. */
#include "common.cuh"

STREAMING_KERNEL(zf_sum_parts, zfi_sum_parts_args_t) {
    RETURN_IF_ENDED;
    const float n_ranks = (float)args.n_ranks;
    for (uint64_t i = blockIdx.x * (uint64_t)THREADS + threadIdx.x; i < args.n_elems;
         i += (uint64_t)gridDim.x * THREADS) {
        float sum = 0.0f;
        for (uint32_t r = 0; r < args.n_ranks; r++) {
            const float x = r == args.rank ? load_float(args.own, args.dtype, i)
                                           : load_float(args.arrived, args.dtype, r * args.n_elems + i);
            sum = r == 0 ? x : __fadd_rn(sum, x);
        }
        if (args.is_average)
            sum = __fdiv_rn(sum, n_ranks);
        store_bits(args.out, args.dtype, i, narrow(args.dtype, sum));
    }
}

KERNEL(zf_move, zfi_move_args_t) {
    RETURN_IF_ENDED;
    const uint32_t n_slices = slices_of((uint32_t)args.n);
    for (uint64_t unit = blockIdx.x; unit < args.n * n_slices; unit += gridDim.x) {
        uint64_t slice, i = divide(unit, n_slices, &slice);
        const zfi_move_t move = args.moves[i];
        const span_t span = slice_of(move.n_elems, (uint32_t)slice, n_slices, THREADS);
        for (uint64_t e = span.first + threadIdx.x; e < span.end; e += THREADS)
            store_bits(move.to, args.dtype, e, load_bits(move.from, args.dtype, e));
    }
}
