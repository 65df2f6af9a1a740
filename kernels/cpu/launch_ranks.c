/* SPDX-License-Identifier: Apache-2.0 */
/* launch_ranks.c - what is done with the memory that ranks exchange: parts are summed, pieces packed and unpacked. */
#include <string.h>

#include "launch.h"

enum { SUM_ELEMS = 2048 };

void zfi_cpu_sum_parts(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_sum_parts_args_t *args = raw;
    size_t elem = zfi_dtype_nbytes(args->dtype);
    const unsigned char *own = args->own, *arrived = args->arrived;
    unsigned char *out = args->out;
    float sum[SUM_ELEMS];
    for (uint64_t at = 0; at < args->n_elems; at += SUM_ELEMS) {
        uint64_t left = args->n_elems - at, n = left < SUM_ELEMS ? left : SUM_ELEMS;
        for (uint32_t r = 0; r < args->n_ranks; r++)
            kernels->accumulate(sum, (r == args->rank ? own : arrived + r * args->n_elems * elem) + at * elem,
                                args->dtype, n, r == 0);
        for (uint64_t i = 0; i < n && args->divisor; i++)
            sum[i] /= (float)args->divisor;
        kernels->narrow(out + at * elem, args->dtype, sum, n);
    }
}

void zfi_cpu_move(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_move_args_t *args = raw;
    size_t elem = zfi_dtype_nbytes(args->dtype);
    (void)kernels;
    for (uint64_t i = 0; i < args->n; i++) {
        const zfi_move_t *move = &args->moves[i];
        unsigned char *from = (unsigned char *)args->from + move->from * elem;
        unsigned char *to = (unsigned char *)args->to + move->to * elem;
        memcpy(args->goes_back ? from : to, args->goes_back ? to : from, move->n_elems * elem);
    }
}
