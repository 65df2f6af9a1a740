/* SPDX-License-Identifier: Apache-2.0 */
/* pack.c - single elements and whole tensors at strided places. */
#include <string.h>

#include "../kernels.h"

void zfi_pack(void *dst, const void *src, size_t elem_nbytes, int ndim, const int64_t *shape, const int64_t *strides) {
    size_t inner = elem_nbytes;
    if (ndim == 0) {
        memcpy(dst, src, elem_nbytes);
        return;
    }
    if (ndim == 1 && strides[0] == 1) {
        memcpy(dst, src, (size_t)shape[0] * elem_nbytes);
        return;
    }
    for (int i = 1; i < ndim; i++)
        inner *= (size_t)shape[i];
    for (int64_t i = 0; i < shape[0]; i++) {
        char *to = (char *)dst + (size_t)i * inner;
        const char *from = (const char *)src + i * strides[0] * (int64_t)elem_nbytes;
        if (ndim == 1)
            memcpy(to, from, elem_nbytes);
        else
            zfi_pack(to, from, elem_nbytes, ndim - 1, shape + 1, strides + 1);
    }
}

void *zfi_place_at(const zfi_place_t *place, uint64_t row, uint64_t col) {
    int64_t offset = (int64_t)row * place->row_stride + (place->col_offset ? place->col_offset[col] : (int64_t)col);
    return (unsigned char *)place->visible + offset * (int64_t)zfi_dtype_nbytes(place->dtype);
}

void zfi_place_write(const zfi_place_t *place, uint64_t row, uint64_t col, float value) {
    void *at = zfi_place_at(place, row, col);
    if (place->dtype == ZFI_F32) {
        memcpy(at, &value, sizeof value);
        return;
    }
    uint16_t bits = place->dtype == ZFI_BF16 ? zfi_f32_to_bf16(value) : zfi_f32_to_f16(value);
    memcpy(at, &bits, sizeof bits);
}
