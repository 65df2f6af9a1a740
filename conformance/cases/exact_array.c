/* SPDX-License-Identifier: Apache-2.0 */
/* exact_array.c - strided tensors with guards. */
#include "exact_array.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zf_loader.h"

enum { GUARD_NBYTES = 64 };

void *zx_alloc(uint64_t nbytes) {
    void *p = calloc(nbytes ? (size_t)nbytes : 1, 1);
    if (!p) {
        fprintf(stderr, "out of memory for %llu bytes\n", (unsigned long long)nbytes);
        exit(2);
    }
    return p;
}

zf_dtype_t zx_dtype(zo_dtype_t dtype) {
    if (dtype == ZO_F32)
        return zf_dtype_float32();
    return dtype == ZO_BF16 ? zf_dtype_bfloat16() : zf_dtype_float16();
}

static uint64_t choose_strides(zx_array_t *a, zx_rng_t *rng, int is_strided) {
    uint32_t order[ZO_MAX_NDIM]; /* order[0] = innermost in memory */
    int64_t stride = 1, span = 1;
    for (uint32_t i = 0; i < a->ndim; i++)
        order[i] = a->ndim - 1 - i;
    for (uint32_t i = a->ndim; is_strided && i > 1; i--) {
        uint32_t j = zx_chance(rng, 50) ? zx_below(rng, i) : i - 1, axis = order[j];
        order[j] = order[i - 1];
        order[i - 1] = axis;
    }
    for (uint32_t i = 0; i < a->ndim; i++) {
        if (is_strided && zx_chance(rng, 40))
            stride += zx_between(rng, 1, 3);
        a->strides[order[i]] = stride;
        if (a->shape[order[i]] > 0) {
            span += stride * (a->shape[order[i]] - 1);
            stride *= a->shape[order[i]];
        }
        if (stride < span)
            stride = span;
    }
    return a->n_elems ? (uint64_t)span : 0;
}

void zx_array_init(zx_array_t *a, zx_rng_t *rng, const zo_decl_t *decl, zo_dtype_t dtype, int is_strided) {
    uint64_t size = zo_dtype_nbytes(dtype), span_nbytes, pad = zx_below(rng, 5) * size;
    uint64_t byte_offset = zx_below(rng, 3) * size, far = byte_offset > size ? UINT64_C(1) << 33 : 0;
    memset(a, 0, sizeof *a);
    a->ndim = decl->ndim;
    a->dtype = dtype;
    a->n_elems = 1;
    for (uint32_t i = 0; i < a->ndim; i++) {
        a->shape[i] = decl->shape[i];
        a->n_elems *= (uint64_t)decl->shape[i];
    }
    span_nbytes = choose_strides(a, rng, is_strided) * size;
    a->first = GUARD_NBYTES + pad + byte_offset;
    a->mem_nbytes = a->first + span_nbytes + GUARD_NBYTES;
    a->mem = zx_alloc(a->mem_nbytes);
    memset(a->mem, ZX_GUARD_BYTE, a->mem_nbytes);
    zf_tensor_contiguous(a->mem + GUARD_NBYTES + pad, zx_dtype(dtype), (int32_t)a->ndim, a->ndim ? a->shape : NULL,
                         &a->tensor);
    a->tensor.dl.data = (void *)((uintptr_t)a->tensor.dl.data - far);
    a->tensor.dl.byte_offset = byte_offset + far;
    a->tensor.nbytes = span_nbytes;
    if (is_strided && a->ndim)
        a->tensor.dl.strides = a->strides;
}

/* Element counter over the axes, last axis fastest; returns the new offset in elements. */
static uint64_t advance(const zx_array_t *a, int64_t *index, uint64_t offset) {
    for (uint32_t i = a->ndim; i > 0; i--) {
        uint32_t axis = i - 1;
        offset += (uint64_t)a->strides[axis];
        if (++index[axis] < a->shape[axis])
            return offset;
        offset -= (uint64_t)(a->strides[axis] * a->shape[axis]);
        index[axis] = 0;
    }
    return offset;
}

static void write_elems(const zx_array_t *a, unsigned char *mem, const void *elems) {
    uint64_t size = zo_dtype_nbytes(a->dtype), offset = 0;
    const unsigned char *src = elems;
    int64_t index[ZO_MAX_NDIM] = {0};
    if (!a->tensor.dl.strides) {
        if (a->n_elems)
            memcpy(mem + a->first, src, a->n_elems * size);
        return;
    }
    for (uint64_t i = 0; i < a->n_elems; i++) {
        memcpy(mem + a->first + offset * size, src + i * size, size);
        offset = advance(a, index, offset);
    }
}

void zx_array_write(zx_array_t *a, const void *elems) { write_elems(a, a->mem, elems); }

unsigned char *zx_array_image(const zx_array_t *a, const void *elems) {
    unsigned char *image = zx_alloc(a->mem_nbytes);
    memset(image, ZX_GUARD_BYTE, a->mem_nbytes);
    write_elems(a, image, elems);
    return image;
}

void zx_array_scribble(zx_array_t *a) { memset(a->mem + a->first, 0xFF, a->tensor.nbytes); }

void zx_array_poison_gaps(zx_array_t *a) { memset(a->mem, 0xFF, a->mem_nbytes); }

static uint32_t element_bits(const zx_array_t *a, const unsigned char *mem, uint64_t offset) {
    uint64_t size = zo_dtype_nbytes(a->dtype);
    uint16_t half;
    uint32_t bits;
    if (size == 2) {
        memcpy(&half, mem + a->first + offset * size, sizeof half);
        return half;
    }
    memcpy(&bits, mem + a->first + offset * size, sizeof bits);
    return bits;
}

uint64_t zx_array_first_difference(const zx_array_t *a, const unsigned char *image, uint32_t *out_expected,
                                   uint32_t *out_found) {
    uint64_t offset = 0;
    int64_t index[ZO_MAX_NDIM] = {0};
    for (uint64_t i = 0; i < a->n_elems; i++) {
        *out_expected = element_bits(a, image, offset);
        *out_found = element_bits(a, a->mem, offset);
        if (*out_expected != *out_found)
            return i;
        offset = advance(a, index, offset);
    }
    *out_expected = *out_found = 0;
    return UINT64_MAX;
}
