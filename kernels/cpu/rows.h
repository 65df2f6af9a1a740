/* SPDX-License-Identifier: Apache-2.0 */
/* rows.h - element-wise passes over contiguous arrays: mean and sums of slots, accumulation, widening and narrowing.
 * All are bound by memory. */
#pragma once

#include "lanes.h"

static ALWAYS_INLINE void mean_as(float *out, const void *const *grads, zfi_dtype_t dtype, const float *s,
                                  uint32_t n_slots, uint64_t n_elems) {
    for (uint64_t i = 0; i < n_elems; i += VL) {
        const uint64_t n = n_elems - i < VL ? n_elems - i : VL;
        vf sum = vf_splat(0.0f);

        for (uint32_t k = 0; k < n_slots; k++) {
            vf term = vf_load_upto(grads[k], dtype, i, n) * vf_splat(s[k]);

            sum = k == 0 ? term : sum + term; /* 0 + -0 would lose the sign */
        }
        vf_store_upto(out, ZFI_F32, i, n, sum / vf_splat((float)n_slots));
    }
}

static void mean_grad(float *out, const void *const *grads, zfi_dtype_t dtype, const float *s, uint32_t n_slots,
                      uint64_t n_elems) {
    if (dtype == ZFI_BF16)
        mean_as(out, grads, ZFI_BF16, s, n_slots, n_elems);
    else if (dtype == ZFI_F16)
        mean_as(out, grads, ZFI_F16, s, n_slots, n_elems);
    else
        mean_as(out, grads, ZFI_F32, s, n_slots, n_elems);
}

static ALWAYS_INLINE void accumulate_as(float *acc, const void *grad, zfi_dtype_t dtype, uint64_t n_elems) {
    for (uint64_t i = 0; i < n_elems; i += VL) {
        const uint64_t n = n_elems - i < VL ? n_elems - i : VL;

        vf_store_upto(acc, ZFI_F32, i, n, vf_load_upto(acc, ZFI_F32, i, n) + vf_load_upto(grad, dtype, i, n));
    }
}

static ALWAYS_INLINE void widen_as(float *dst, const void *src, zfi_dtype_t dtype, uint64_t n_elems) {
    for (uint64_t i = 0; i < n_elems; i += VL) {
        const uint64_t n = n_elems - i < VL ? n_elems - i : VL;

        vf_store_upto(dst, ZFI_F32, i, n, vf_load_upto(src, dtype, i, n));
    }
}

static void widen(float *dst, const void *src, zfi_dtype_t dtype, uint64_t n_elems) {
    if (dtype == ZFI_F32)
        memcpy(dst, src, n_elems * sizeof *dst);
    else if (dtype == ZFI_F16)
        widen_as(dst, src, ZFI_F16, n_elems);
    else
        widen_as(dst, src, ZFI_BF16, n_elems);
}

static ALWAYS_INLINE void narrow_as(void *dst, zfi_dtype_t dtype, const float *src, uint64_t n_elems) {
    for (uint64_t i = 0; i < n_elems; i += VL) {
        const uint64_t n = n_elems - i < VL ? n_elems - i : VL;

        vf_store_upto(dst, dtype, i, n, vf_load_upto(src, ZFI_F32, i, n));
    }
}

static void narrow(void *dst, zfi_dtype_t dtype, const float *src, uint64_t n_elems) {
    if (dtype == ZFI_F32)
        memcpy(dst, src, n_elems * sizeof *src);
    else if (dtype == ZFI_F16)
        narrow_as(dst, ZFI_F16, src, n_elems);
    else
        narrow_as(dst, ZFI_BF16, src, n_elems);
}

static void accumulate(float *acc, const void *grad, zfi_dtype_t dtype, uint64_t n_elems, int is_first) {
    if (is_first)
        widen(acc, grad, dtype, n_elems);
    else if (dtype == ZFI_BF16)
        accumulate_as(acc, grad, ZFI_BF16, n_elems);
    else if (dtype == ZFI_F16)
        accumulate_as(acc, grad, ZFI_F16, n_elems);
    else
        accumulate_as(acc, grad, ZFI_F32, n_elems);
}
