/* SPDX-License-Identifier: Apache-2.0 */
/* lanes.h - the vector vocabulary in which update.h, moments.h, replay.h, rows.h, run_ahead.h and stats.h are written
 * once.
 *
 * A file of one instruction set (baseline.h, neon.c, avx2.c, avx512.c) defines VL, the floats in one vector, includes
 * this file, defines the functions declared below, and includes the others. Types are the compilers' vector extension:
 * + - * / act per lane with IEEE rounding, and -ffp-contract=off keeps them apart. Everything is static, so nothing
 * compiled for one instruction set can be linked in place of another's.
 *
 *   vf   VL floats     vu   their bits     vd   half as many doubles     vdu  their bits */
#pragma once

#include <math.h>
#include <string.h>

#include "tables.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* One copy in the object file: neither inlined nor cloned for constant arguments. */
#ifdef __clang__
#define ONE_COPY __attribute__((noinline))
#else
#define ONE_COPY __attribute__((noinline, noclone))
#endif

/* Before a loop over an array of vectors: without it the array lives in memory instead of registers. */
#define UNROLL _Pragma("GCC unroll 16")

enum { VD = VL / 2 }; /* doubles in one vector */

typedef float vf __attribute__((vector_size(4 * VL)));
typedef int32_t vi __attribute__((vector_size(4 * VL)));
typedef uint32_t vu __attribute__((vector_size(4 * VL)));
typedef double vd __attribute__((vector_size(4 * VL)));
typedef uint64_t vdu __attribute__((vector_size(4 * VL)));

/* Defined by each instruction set. */
static vf vf_fma(vf a, vf b, vf c);              /* a*b + c, rounded once */
static vf vf_sqrt(vf a);                         /* IEEE */
static vu vu_load_16(const void *from);          /* VL 16-bit integers, zero-extended */
static void vu_store_16(void *to, vu x);         /* the lower halves; the upper ones are zero */
static vu vu_load_8(const void *from);           /* VL bytes, zero-extended */
static void vu_store_8(void *to, const vu x[4]); /* 4*VL bytes, the lowest of each; the others are zero */
static vu vu_where(vu a, uint32_t bits, vu x);   /* x where a has one of these bits, else 0 */
static vu vu_if_nan(vf x, vu then, vu otherwise);
static vu vu_most(vu a, vu b);            /* the larger of each two, which are below 2^31 */
static vu vu_least(vu a, vu b);           /* the smaller */
static vf vf_load_f16(const void *from);  /* VL halves, bits as zfi_f16_to_f32 */
static void vf_store_f16(void *to, vf x); /* bits as zfi_f32_to_f16 */
static vd vd_lower(vf x);                 /* the first VD lanes, exact */
static vd vd_upper(vf x);                 /* the others */
static vf vf_zip_lower(vf a, vf b);       /* a[0], b[0], a[1], b[1] ... */
static vf vf_zip_upper(vf a, vf b);       /* those of the upper halves */

static ALWAYS_INLINE vf vf_splat(float x) {
    return x - (vf){0.0f}; /* x - +0.0 is x, -0.0 too; compiles to one broadcast */
}

static ALWAYS_INLINE vf vf_load(const float *from) {
    vf x;
    memcpy(&x, from, sizeof x);
    return x;
}

static ALWAYS_INLINE void vf_store(float *to, vf x) { memcpy(to, &x, sizeof x); }

/* VL elements of a gradient, from element i on, as floats. */
static ALWAYS_INLINE vf vf_load_as(const void *array, zfi_dtype_t dtype, uint64_t i) {
    if (dtype == ZFI_F32)
        return vf_load((const float *)array + i);
    if (dtype == ZFI_F16)
        return vf_load_f16((const uint16_t *)array + i);
    return (vf)(vu_load_16((const uint16_t *)array + i) << 16);
}

/* zfi_f32_to_bf16 of every lane, in the lower half. */
static ALWAYS_INLINE vu vf_to_bf16(vf x) {
    const vu bits = (vu)x;
    return vu_if_nan(x, bits | 0x400000u, bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

static ALWAYS_INLINE void vf_store_as(void *array, zfi_dtype_t dtype, uint64_t i, vf x) {
    if (dtype == ZFI_F32)
        vf_store((float *)array + i, x);
    else if (dtype == ZFI_F16)
        vf_store_f16((uint16_t *)array + i, x);
    else
        vu_store_16((uint16_t *)array + i, vf_to_bf16(x));
}

/* The first n < VL elements of an array from element i on; other lanes are +0.0. */
static ALWAYS_INLINE vf vf_load_tail(const void *array, zfi_dtype_t dtype, uint64_t i, uint64_t n) {
    const size_t nbytes = zfi_dtype_nbytes(dtype);
    float padded[VL] = {0.0f}; /* holds VL bf16 as well */
    memcpy(padded, (const char *)array + i * nbytes, n * nbytes);
    return vf_load_as(padded, dtype, 0);
}

static ALWAYS_INLINE void vf_store_tail(void *array, zfi_dtype_t dtype, uint64_t i, uint64_t n, vf x) {
    const size_t nbytes = zfi_dtype_nbytes(dtype);
    float padded[VL];
    vf_store_as(padded, dtype, 0, x);
    memcpy((char *)array + i * nbytes, padded, n * nbytes);
}

/* The same for n <= VL. */
static ALWAYS_INLINE vf vf_load_upto(const void *array, zfi_dtype_t dtype, uint64_t i, uint64_t n) {
    return n == VL ? vf_load_as(array, dtype, i) : vf_load_tail(array, dtype, i, n);
}

static ALWAYS_INLINE void vf_store_upto(void *array, zfi_dtype_t dtype, uint64_t i, uint64_t n, vf x) {
    if (n == VL)
        vf_store_as(array, dtype, i, x);
    else
        vf_store_tail(array, dtype, i, n, x);
}

/* Element i of an array. */
static ALWAYS_INLINE float load_one(const void *array, zfi_dtype_t dtype, uint64_t i) {
    if (dtype == ZFI_F32)
        return ((const float *)array)[i];
    return dtype == ZFI_F16 ? zfi_f16_to_f32(((const uint16_t *)array)[i])
                            : zfi_bf16_to_f32(((const uint16_t *)array)[i]);
}

/* Brings the line of base + nbytes near. Addresses past the end of an array are harmless: a prefetch never faults. */
static ALWAYS_INLINE void prefetch(const void *base, uint64_t nbytes) {
    __builtin_prefetch((const void *)((uintptr_t)base + nbytes), 0, 3);
}
