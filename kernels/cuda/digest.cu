/* SPDX-License-Identifier: Apache-2.0 */
/* digest.cu - what the host wrote unannounced: digests of visible values, compared and taken again.
 *
 * A check is two kernels: every block adds up what it finds (integers: no order), then one block compares. */
#include "wide.cuh"

/* Elements [first, end) of a run by 16 bytes, two at once. */
template <int NBYTES> DEVICE uint64_t find_wide(const void *visible, uint64_t first, uint64_t end) {
    enum { N = sixteen<NBYTES>::N, AT_ONCE = 2 };
    uint64_t sum = 0;
#pragma unroll 1
    for (uint64_t at = first + LANE * N; at < end; at += 32 * N * AT_ONCE) {
        sixteen<NBYTES> x[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            x[u].get(visible, u == 0 || at + 32 * N * u < end ? at + 32 * N * u : at);
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (at + 32 * N * u >= end)
                break;
#pragma unroll
            for (int j = 0; j < N; j++)
                sum += digest_element(x[u].at(j), (uint32_t)at + 32 * N * u + j);
        }
    }
    return sum;
}

/* Elements of a run from `first` on: those that stand alone, then 16 bytes at once. */
DEVICE uint64_t find_run(const zfi_data_matrix_t *matrix, const run_t &run, uint64_t first) {
    const int dtype = matrix->place.dtype;
    const uint32_t nbytes = elem_nbytes(dtype);
    uint64_t middle = first, sum = 0;
    if (!run.columns && is_aligned(offset_by(run.visible, nbytes, (int64_t)first), 16))
        middle = run.end - (run.end - first) % (16 / nbytes);
#pragma unroll 1
    for (uint64_t at = middle + LANE; at < run.end; at += 32)
        sum += digest_element(get_bits(run.visible, dtype, place_in(run, at)), at);
    return sum + (nbytes == 4 ? find_wide<4>(run.visible, first, middle) : find_wide<2>(run.visible, first, middle));
}

/* A warp's elements. */
DEVICE uint64_t find_digest(const zfi_data_matrix_t *matrix, span_t span) {
    uint64_t sum = 0;
    while (span.first < span.end) {
        const run_t run = run_of(matrix->place, matrix->cols, 0, span.first, span.end, false);
        sum += find_run(matrix, run, span.first);
        span.first = run.end;
    }
    return sum;
}

STREAMING_KERNEL(zf_check, zfi_check_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_t *data = args.data;
    const uint32_t n_slices = slices_of(args.n);
    for (uint32_t unit = blockIdx.x; unit < args.n * n_slices; unit += gridDim.x) {
        const uint32_t number = in_global(data->listed_matrices)[args.first + unit / n_slices];
        const zfi_data_matrix_t *matrix = in_global(&data->matrices[number]);
        add_to_digest(&data->found[number],
                      find_digest(matrix, warp_slice(matrix->rows * matrix->cols, unit % n_slices, n_slices)));
    }
}

/* One thread. The host reads the totals and `overwritten`; it clears the flags while everything rests. */
DEVICE void note_overwritten(const zfi_check_args_t *args) {
    const zfi_data_t *data = args->data;
    volatile zfi_totals_t *totals = data->totals;
    for (uint32_t i = args->first; i < args->first + args->n; i++) {
        const uint32_t number = data->listed_matrices[i];
        const zfi_data_matrix_t *matrix = &data->matrices[number];
        if (data->found[number] == data->digests[number] || data->is_foreign[matrix->param])
            continue;
        totals->n_overwritten = totals->n_overwritten + matrix->rows * matrix->cols;
        data->is_foreign[matrix->param] = 1;
        *(volatile uint8_t *)&data->overwritten[matrix->param] = 1;
        __threadfence_system();
        totals->n_params_overwritten = totals->n_params_overwritten + 1;
    }
}

/* One block. */
KERNEL(zf_check_end, zfi_check_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_t *data = args.data;
    int differs = 0;
    for (uint32_t i = args.first + threadIdx.x; i < args.first + args.n && !args.seals; i += THREADS) {
        const uint32_t number = data->listed_matrices[i];
        differs |= data->found[number] != data->digests[number];
    }
    if (__syncthreads_or(differs) && threadIdx.x == 0)
        note_overwritten(&args);
    __syncthreads();
    for (uint32_t i = args.first + threadIdx.x; i < args.first + args.n; i += THREADS) {
        const uint32_t number = data->listed_matrices[i];
        if (args.seals)
            data->digests[number] = data->found[number];
        data->found[number] = 0;
    }
}
