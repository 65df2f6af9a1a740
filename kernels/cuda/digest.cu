/* SPDX-License-Identifier: Apache-2.0 */
/* digest.cu - what the host wrote unannounced: digests of visible values, compared and taken anew.
 *
 * Two kernels: every block adds up what it finds (integers: no order), then one block compares. */
#include "common.cuh"

DEVICE uint64_t find_digest(const zfi_data_matrix_t *matrix, span_t span) {
    const int dtype = matrix->place.dtype;
    uint64_t sum = 0;
    for (uint64_t index = span.first + threadIdx.x; index < span.end; index += THREADS) {
        uint64_t col, row = divide(index, matrix->cols, &col);
        sum += digest_element(
            load_bits(matrix->place.visible, dtype, (uint64_t)place_offset(&matrix->place, row, col)), index);
    }
    return sum;
}

STREAMING_KERNEL(zf_check, zfi_check_args_t) {
    RETURN_IF_ENDED;
    const zfi_data_t *data = args.data;
    const uint32_t n_slices = slices_of(args.n);
    for (uint64_t unit = blockIdx.x; unit < (uint64_t)args.n * n_slices; unit += gridDim.x) {
        uint64_t slice, i = divide(unit, n_slices, &slice);
        const uint32_t number = data->listed_matrices[args.first + i];
        const zfi_data_matrix_t *matrix = &data->matrices[number];
        add_to_digest(&data->found[number],
                      find_digest(matrix, slice_of(matrix->rows * matrix->cols, (uint32_t)slice, n_slices, THREADS)));
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
