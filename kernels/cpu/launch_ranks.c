/* SPDX-License-Identifier: Apache-2.0 */
/* launch_ranks.c - what is done with the memory that ranks exchange: parts are summed, pieces packed and unpacked. */
#include <string.h>

#include "launch.h"

enum { SUM_ELEMS = 2048 };

static const unsigned char *part_of(const zfi_sum_parts_args_t *args, uint32_t rank, uint64_t at) {
    const unsigned char *own = args->own, *arrived = args->arrived;
    size_t elem = zfi_dtype_nbytes(args->dtype);
    return (rank == args->rank ? own : arrived + rank * args->n_elems * elem) + at * elem;
}

static int has_nonfinite(const float *x, uint64_t n) {
    uint32_t most = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    return most >= 0x7f800000;
}

/* Where a sum is not finite: whose part is to blame? None, where finite ones add up to more than fp32 holds. */
static void look(const zfi_kernels_t *kernels, const zfi_sum_parts_args_t *args, const float *sum, uint64_t at,
                 uint64_t n) {
    float part[SUM_ELEMS];
    for (uint32_t r = 0; has_nonfinite(sum, n) && r < args->n_ranks && !*args->found; r++) {
        kernels->widen(part, part_of(args, r, at), args->dtype, n);
        if (has_nonfinite(part, n))
            *args->found = args->found_as | r;
    }
}

void zfi_cpu_sum_parts(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_sum_parts_args_t *args = raw;
    size_t elem = zfi_dtype_nbytes(args->dtype);
    unsigned char *out = args->out;
    float sum[SUM_ELEMS];
    for (uint64_t at = 0; at < args->n_elems; at += SUM_ELEMS) {
        uint64_t left = args->n_elems - at, n = left < SUM_ELEMS ? left : SUM_ELEMS;
        for (uint32_t r = 0; r < args->n_ranks; r++)
            kernels->accumulate(sum, part_of(args, r, at), args->dtype, n, r == 0);
        if (at < args->n_looked && !*args->found)
            look(kernels, args, sum, at, args->n_looked - at < n ? args->n_looked - at : n);
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
