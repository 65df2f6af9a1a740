/* SPDX-License-Identifier: Apache-2.0 */
/* launch_sums.c - dense sums of g*s and (g*s)^2, kept on the device in place of single gradients.
 *
 * Nothing is ever zeroed: the first gradient of a sum starts it. Rounding works in place: bfloat16 values fill the
 * first half of a piece's range, block by block, so that what is written never reaches what is still to be read. */
#include <string.h>

#include "launch.h"

enum { BLOCK_ELEMS = 512 };

static void add_piece(const zfi_kernels_t *kernels, const zfi_add_sums_args_t *args, const zfi_data_piece_t *piece) {
    const zfi_data_t *data = args->data;
    for (uint32_t i = piece->first_segment; i < piece->first_segment + piece->n_segments; i++) {
        const zfi_data_segment_t *segment = &data->segments[i];
        const zfi_data_matrix_t *matrix = &data->matrices[segment->matrix];
        const unsigned char *grad = data->held[matrix->param];
        uint64_t to = piece->dense_base + segment->piece_offset, from = matrix->param_offset + segment->matrix_offset;
        if (args->step.present[matrix->param])
            kernels->accumulate_sums(data->sum1 + to, data->sum2 + to,
                                     grad + from * zfi_dtype_nbytes(piece->grad_dtype), piece->grad_dtype,
                                     args->scalars->s, segment->n_elems, !data->has_dense[segment->matrix]);
    }
}

void zfi_cpu_add_sums(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_add_sums_args_t *args = raw;
    const zfi_data_t *data = args->data;
    if (!args->scalars->applied)
        return;
    for (uint32_t i = 0; i < data->n_pieces; i++)
        add_piece(kernels, args, &data->pieces[i]);
    for (uint32_t i = 0; i < data->n_matrices; i++)
        data->has_dense[i] |= args->step.present[data->matrices[i].param] != 0;
}

static void round_in_place(const zfi_kernels_t *kernels, float *sum, uint32_t n_elems) {
    float block[BLOCK_ELEMS];
    for (uint32_t i = 0; i < n_elems; i += BLOCK_ELEMS) {
        uint32_t n = n_elems - i < BLOCK_ELEMS ? n_elems - i : BLOCK_ELEMS;
        memcpy(block, sum + i, n * sizeof *block);
        kernels->narrow((unsigned char *)sum + i * zfi_dtype_nbytes(ZFI_BF16), ZFI_BF16, block, n);
    }
}

void zfi_cpu_round_sums(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_round_sums_args_t *args = raw;
    const zfi_data_t *data = args->data;
    for (uint32_t i = args->first; i < args->first + args->n; i++) {
        const zfi_data_piece_t *piece = &data->pieces[data->listed_pieces[i]];
        if (zfi_dtype_nbytes(piece->grad_dtype) == 2) {
            round_in_place(kernels, data->sum1 + piece->dense_base, piece->n_elems);
            round_in_place(kernels, data->sum2 + piece->dense_base, piece->n_elems);
        }
        for (uint32_t s = piece->first_segment; s < piece->first_segment + piece->n_segments; s++)
            data->has_dense[data->segments[s].matrix] = 0;
    }
}
