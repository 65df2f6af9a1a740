/* SPDX-License-Identifier: Apache-2.0 */
/* collect.cu - delivered gradients made contiguous: packed, copied, added to sums of micro-batch parts.
 *
 * No parameter stands twice in the list of a launch, so entries need no barrier between them. */
#include "wide.cuh"

/* The place where row `row` of a strided tensor begins, in elements from its start: a row is what the last dimension
 * counts. */
DEVICE int64_t row_offset(const zfi_gradient_t *gradient, uint64_t row) {
    int64_t offset = 0;
    for (int i = gradient->ndim - 2; i >= 0; i--) {
        uint64_t rest;
        row = divide(row, (uint64_t)gradient->shape[i], &rest);
        offset += (int64_t)rest * gradient->strides[i];
    }
    return offset;
}

/* Elements of an entry: a packed one may be a part of its parameter. */
DEVICE uint64_t elems_of(const zfi_data_param_t *param, const zfi_gradient_t *gradient) {
    uint64_t n = 1;
    if (!(gradient->flags & ZFI_GRADIENT_STRIDED))
        return param->n_elems;
    for (int i = 0; i < gradient->ndim; i++)
        n *= (uint64_t)gradient->shape[i];
    return n;
}

/* The work of an entry with each element; the same for all of them. */
typedef struct work {
    const void *source; /* NULL: the entry is the sum alone */
    void *grad;
    float *sum;
    int dtype;
    bool keeps, reads_sum, adds, rounds;
} work_t;

DEVICE work_t work_of(const zfi_gradient_t *gradient, int dtype) {
    const uint32_t flags = gradient->flags;
    work_t work;
    work.source = flags & ZFI_GRADIENT_FROM_SUM ? NULL : gradient->source;
    work.grad = gradient->grad;
    work.sum = gradient->sum;
    work.dtype = dtype;
    work.keeps = flags & (ZFI_GRADIENT_STRIDED | ZFI_GRADIENT_KEEP);
    work.adds = flags & ZFI_GRADIENT_SUM;
    work.reads_sum = work.adds ? !(flags & ZFI_GRADIENT_SUM_FIRST) : (flags & ZFI_GRADIENT_FROM_SUM) != 0;
    work.rounds =
        (flags & (ZFI_GRADIENT_SUM | ZFI_GRADIENT_FROM_SUM)) && (flags & (ZFI_GRADIENT_SHIP | ZFI_GRADIENT_ROUND));
    return work;
}

/* The sum with the entry's element, where it adds one. */
DEVICE float sum_with(const work_t &work, float sum, uint32_t bits) {
    const float x = widen(work.dtype, bits);
    return !work.adds ? sum : work.reads_sum ? __fadd_rn(sum, x) : x;
}

/* Four neighbours from element e on. */
DEVICE void collect_four(const work_t &work, uint64_t e) {
    const packed_t none = {{0, 0, 0, 0}};
    const packed_t x = work.source ? get_four(work.source, work.dtype, e) : none;
    const packed_t before = work.reads_sum ? get_four(work.sum, ZFI_F32, e) : none;
    float sum[FOUR];
#pragma unroll
    for (int j = 0; j < FOUR; j++)
        sum[j] = sum_with(work, __uint_as_float(before.word[j]), bits_of(x, work.dtype, j));
    if (work.adds)
        put_four(work.sum, ZFI_F32, e, narrow_four(ZFI_F32, sum));
    if (work.rounds)
        put_four(work.grad, work.dtype, e, narrow_four(work.dtype, sum));
    else if (work.keeps)
        put_four(work.grad, work.dtype, e, x);
}

/* Elements e, e + by, ... before `end`, at most four, with sources from `source` on, source_by apart. */
DEVICE void collect_some(const work_t &work, uint64_t e, uint64_t by, uint64_t end, int64_t source, int64_t source_by) {
    uint32_t x[FOUR];
    float sum[FOUR];
#pragma unroll
    for (int j = 0; j < FOUR; j++) {
        const int i = e + j * by < end ? j : 0;
        x[j] = work.source ? get_bits(work.source, work.dtype, (uint64_t)(source + i * source_by)) : 0;
        sum[j] = work.reads_sum ? __uint_as_float(get_bits(work.sum, ZFI_F32, e + i * by)) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < FOUR; j++) {
        const float total = sum_with(work, sum[j], x[j]);
        if (e + j * by >= end)
            break;
        if (work.adds)
            put_bits(work.sum, ZFI_F32, e + j * by, __float_as_uint(total));
        if (work.rounds)
            put_bits(work.grad, work.dtype, e + j * by, narrow(work.dtype, total));
        else if (work.keeps)
            put_bits(work.grad, work.dtype, e + j * by, x[j]);
    }
}

/* A contiguous source of n elements. */
DEVICE void collect_flat(const work_t &work, uint64_t n) {
    const bool by_fours =
        takes_four(work.source, work.dtype) && takes_four(work.grad, work.dtype) && takes_four(work.sum, ZFI_F32);
    const uint64_t middle = by_fours ? n - n % FOUR : 0, step = (uint64_t)gridDim.x * THREADS;
    const uint64_t first = blockIdx.x * (uint64_t)THREADS + threadIdx.x;
#pragma unroll 1
    for (uint64_t e = first * FOUR; e < middle; e += step * FOUR)
        collect_four(work, e);
#pragma unroll 1
    for (uint64_t e = middle + first; e < n; e += step * FOUR)
        collect_some(work, e, step, n, (int64_t)e, (int64_t)step);
}

/* A strided one: lanes side by side take a part of a row, as many as short rows have elements. */
DEVICE void collect_strided(const zfi_gradient_t *gradient, const work_t &work, uint64_t n) {
    enum { PART_ELEMS = 2048 };
    const uint64_t cols = gradient->ndim ? (uint64_t)gradient->shape[gradient->ndim - 1] : 1;
    const int64_t by = gradient->ndim ? gradient->strides[gradient->ndim - 1] : 1;
    const uint64_t n_parts = ceil_div(cols, PART_ELEMS), n_items = n / cols * n_parts;
    uint32_t lanes = 32;
    while (lanes > 1 && lanes / 2 >= cols)
        lanes /= 2;
    for (uint64_t item = (blockIdx.x * (uint64_t)THREADS + threadIdx.x) / lanes; item < n_items;
         item += (uint64_t)gridDim.x * THREADS / lanes) {
        uint64_t part, row = divide(item, n_parts, &part);
        const int64_t from = row_offset(gradient, row);
        const uint64_t end = smaller(cols, (part + 1) * PART_ELEMS);
#pragma unroll 1
        for (uint64_t col = part * PART_ELEMS + threadIdx.x % lanes; col < end; col += FOUR * lanes)
            collect_some(work, row * cols + col, lanes, row * cols + end, from + (int64_t)col * by, lanes * by);
    }
}

enum { NEEDS_WORK = ZFI_GRADIENT_SUM | ZFI_GRADIENT_FROM_SUM | ZFI_GRADIENT_STRIDED | ZFI_GRADIENT_KEEP };

KERNEL(zf_collect, zfi_gradients_args_t) {
    __shared__ zfi_gradient_t gradient; /* the list lies in host memory: each block reads an entry once */
    RETURN_IF_ENDED;
    for (uint32_t i = 0; i < args.n; i++) {
        for (uint32_t k = threadIdx.x; k < sizeof gradient / 4; k += THREADS)
            ((uint32_t *)&gradient)[k] = ((const volatile uint32_t *)&args.gradients[i])[k];
        __syncthreads();
        if (gradient.flags & NEEDS_WORK) {
            const zfi_data_param_t *param = in_global(&args.data->params[gradient.param]);
            const work_t work = work_of(&gradient, param->grad_dtype);
            const uint64_t n = elems_of(param, &gradient);
            if (gradient.flags & ZFI_GRADIENT_STRIDED && n)
                collect_strided(&gradient, work, n);
            else
                collect_flat(work, n);
        }
        __syncthreads();
    }
}
