/* SPDX-License-Identifier: Apache-2.0 */
/* collect.cu - delivered gradients made contiguous: packed, copied, added to sums of micro-batch parts.
 *
 * The list is walked in order, and an element of a parameter always falls to the same thread: what an entry leaves in
 * `grad` or `sum` the next entry of that parameter finds, without any barrier. */
#include "common.cuh"

/* Where element e of a strided tensor lies, in elements from its start. */
DEVICE int64_t strided_offset(const zfi_gradient_t *gradient, uint64_t e) {
    int64_t offset = 0;
    for (int i = gradient->ndim - 1; i >= 0; i--) {
        uint64_t rest;
        e = divide(e, (uint64_t)gradient->shape[i], &rest);
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

/* The sum with this entry's element, where there is one; out_of_sum: the entry is the sum alone. */
DEVICE float add_to_sum(const zfi_gradient_t *gradient, uint64_t e, int dtype, uint32_t bits) {
    float x = widen(dtype, bits);
    if (!(gradient->flags & ZFI_GRADIENT_SUM_FIRST))
        x = __fadd_rn(gradient->sum[e], x);
    gradient->sum[e] = x;
    return x;
}

DEVICE void collect_one(const zfi_gradient_t *gradient, int dtype, uint64_t e) {
    uint32_t flags = gradient->flags, bits = 0;
    float sum = 0.0f;
    if (!(flags & ZFI_GRADIENT_FROM_SUM))
        bits = load_bits(gradient->source, dtype,
                         flags & ZFI_GRADIENT_STRIDED ? (uint64_t)strided_offset(gradient, e) : e);
    if (flags & (ZFI_GRADIENT_STRIDED | ZFI_GRADIENT_KEEP))
        store_bits(gradient->grad, dtype, e, bits);
    if (flags & ZFI_GRADIENT_SUM)
        sum = add_to_sum(gradient, e, dtype, bits);
    else if (flags & ZFI_GRADIENT_FROM_SUM)
        sum = gradient->sum[e];
    if ((flags & (ZFI_GRADIENT_SUM | ZFI_GRADIENT_FROM_SUM)) && (flags & (ZFI_GRADIENT_SHIP | ZFI_GRADIENT_ROUND)))
        store_bits(gradient->grad, dtype, e, narrow(dtype, sum));
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
            const zfi_data_param_t *param = &args.data->params[gradient.param];
            uint64_t n = elems_of(param, &gradient);
            for (uint64_t e = blockIdx.x * (uint64_t)THREADS + threadIdx.x; e < n; e += (uint64_t)gridDim.x * THREADS)
                collect_one(&gradient, param->grad_dtype, e);
        }
        __syncthreads();
    }
}
