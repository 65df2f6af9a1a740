/* rows.h - element-wise passes over contiguous arrays: mean of slots, accumulation, widening and narrowing. All are
 * bound by memory. */
#ifndef ZFI_ROWS_H
#define ZFI_ROWS_H

#include "lanes.h"

static ALWAYS_INLINE vf mean_of(const void *const *grads, zfi_dtype_t dtype, const float *s, uint32_t n_slots,
                                uint64_t i, uint64_t n) {
    vf sum = vf_splat(0.0f);

    for (uint32_t k = 0; k < n_slots; k++) {
        vf g = n == VL ? vf_load_as(grads[k], dtype, i) : vf_load_tail(grads[k], dtype, i, n);
        vf term = g * vf_splat(s[k]);

        sum = k == 0 ? term : sum + term; /* 0 + -0 would lose the sign */
    }
    return sum / vf_splat((float)n_slots);
}

static void mean_grad(float *out, const void *const *grads, zfi_dtype_t dtype, const float *s, uint32_t n_slots,
                      uint64_t n_elems) {
    uint64_t i = 0;

    if (dtype == ZFI_BF16)
        for (; i + VL <= n_elems; i += VL)
            vf_store(out + i, mean_of(grads, ZFI_BF16, s, n_slots, i, VL));
    else
        for (; i + VL <= n_elems; i += VL)
            vf_store(out + i, mean_of(grads, ZFI_F32, s, n_slots, i, VL));
    if (i < n_elems)
        vf_store_tail(out, ZFI_F32, i, n_elems - i, mean_of(grads, dtype, s, n_slots, i, n_elems - i));
}

static ALWAYS_INLINE void accumulate_as(float *acc, const void *grad, zfi_dtype_t dtype, uint64_t n_elems) {
    uint64_t i = 0, rest;

    for (; i + VL <= n_elems; i += VL)
        vf_store(acc + i, vf_load(acc + i) + vf_load_as(grad, dtype, i));
    rest = n_elems - i;
    if (rest > 0)
        vf_store_tail(acc, ZFI_F32, i, rest, vf_load_tail(acc, ZFI_F32, i, rest) + vf_load_tail(grad, dtype, i, rest));
}

static void widen(float *dst, const void *src, zfi_dtype_t dtype, uint64_t n_elems) {
    uint64_t i = 0;

    if (dtype == ZFI_F32) {
        memcpy(dst, src, n_elems * sizeof *dst);
        return;
    }
    for (; i + VL <= n_elems; i += VL)
        vf_store(dst + i, vf_load_as(src, ZFI_BF16, i));
    for (; i < n_elems; i++)
        dst[i] = zfi_bf16_to_f32(((const uint16_t *)src)[i]);
}

static void narrow(void *dst, zfi_dtype_t dtype, const float *src, uint64_t n_elems) {
    uint64_t i = 0;

    if (dtype == ZFI_F32) {
        memcpy(dst, src, n_elems * sizeof *src);
        return;
    }
    for (; i + VL <= n_elems; i += VL)
        vf_store_as(dst, ZFI_BF16, i, vf_load(src + i));
    for (; i < n_elems; i++) {
        const uint16_t bits = zfi_f32_to_bf16(src[i]);

        memcpy((uint16_t *)dst + i, &bits, sizeof bits); /* dst may be a buffer of floats */
    }
}

static void accumulate(float *acc, const void *grad, zfi_dtype_t dtype, uint64_t n_elems, int is_first) {
    if (is_first)
        widen(acc, grad, dtype, n_elems);
    else if (dtype == ZFI_BF16)
        accumulate_as(acc, grad, ZFI_BF16, n_elems);
    else
        accumulate_as(acc, grad, ZFI_F32, n_elems);
}

#endif
