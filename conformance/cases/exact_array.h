/* SPDX-License-Identifier: Apache-2.0 */
/* exact_array.h - a strided tensor in memory of its own, as a host might hold it: any axis order, gaps between rows, an
 * odd offset, and guard bytes before, between and behind its elements that nobody may touch.
 *
 * Model: an image is the whole memory (guards and all) with given elements in it. Two images are equal if every element
 * has the same bits and every guard byte is untouched, so one memcmp checks both. */
#pragma once

#include "exact_rng.h"
#include "oracle/oracle.h"
#include "zf/types.h"

#define ZX_GUARD_BYTE 0xA5

typedef struct zx_array {
    uint32_t ndim;
    int64_t shape[ZO_MAX_NDIM], strides[ZO_MAX_NDIM];
    zo_dtype_t dtype;
    uint64_t n_elems;
    unsigned char *mem;
    uint64_t mem_nbytes, first;    /* bytes: all of it, and where element 0 lies */
    unsigned long long device_mem; /* a GPU's, of which mem is the shadow (exact_device.h); 0: mem is all there is */
    zf_tensor_t tensor;            /* points into this struct: do not copy it */
} zx_array_t;

/* Allocates; is_strided: random strides, else contiguous. Ends the program where memory is short. */
void zx_array_init(zx_array_t *a, zx_rng_t *rng, const zo_decl_t *decl, zo_dtype_t dtype, int is_strided);

/* Writes elements, [n_elems] row-major; guards stay. */
void zx_array_write(zx_array_t *a, const void *elems);
/* A new image with these elements, to be freed by the caller. */
unsigned char *zx_array_image(const zx_array_t *a, const void *elems);
/* Every byte of the span becomes garbage that reads as NaN. */
void zx_array_scribble(zx_array_t *a);
/* Fills gaps of a gradient with NaN: who reads them will be seen. */
void zx_array_poison_gaps(zx_array_t *a);

/* Where two images differ first: the element, or UINT64_MAX where a guard byte was touched. */
uint64_t zx_array_first_difference(const zx_array_t *a, const unsigned char *image, uint32_t *out_expected,
                                   uint32_t *out_found);

zf_dtype_t zx_dtype(zo_dtype_t dtype);
void *zx_alloc(uint64_t nbytes); /* zeroed; ends the program where memory is short */
