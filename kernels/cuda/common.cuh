/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/common.cuh - what the kernels share: exact arithmetic, element types, places, how work is shared out.
 *
 * Arithmetic. Every floating-point operation names its rounding (__fmaf_rn, __dadd_rn ...): a plain product next to a
 * sum might be contracted. Conversions between element types are kernels.h's, by integers where bits could differ.
 *
 * Work. A grid has as many blocks as the device runs at once; the backend does not know how much there is to do, since
 * the tables lie in device memory. Work is a list of units (a slice of a matrix, of a piece); block b takes units b, b
 * + gridDim.x, ... Neighbouring units touch neighbouring memory, so that what a second look reads is still in the
 * cache. */
#pragma once

#include "params.h"

#define DEVICE static __device__ __forceinline__
#define THREADS ((uint32_t)ZFI_CUDA_THREADS)

/* A kernel's head: its two parameters. RETURN_IF_ENDED comes before anything that args point to is read: the backend
 * launches every kernel once with empty arguments. */
#define KERNEL(name, args_t)                                                                                           \
    extern "C" __global__ void __launch_bounds__(ZFI_CUDA_THREADS) name(const args_t args, const uint32_t *has_ended)
/* One whose loads hide behind each other only with several blocks on a processor. */
#define KERNEL_OF(blocks, name, args_t)                                                                                \
    extern "C" __global__ void __launch_bounds__(ZFI_CUDA_THREADS, blocks)                                             \
        name(const args_t args, const uint32_t *has_ended)
#ifndef STREAMING_BLOCKS
#define STREAMING_BLOCKS 3
#endif
#define STREAMING_KERNEL(name, args_t) KERNEL_OF(STREAMING_BLOCKS, name, args_t)
#define RETURN_IF_ENDED                                                                                                \
    if (__syncthreads_or((int)*has_ended)) /* one answer for all threads, though the word may change */                \
    return

/* A pointer that was read from a table, to device or page-locked memory: without this, accesses are generic ones. */
template <typename T> DEVICE T *in_global(T *at) {
    __builtin_assume(__isGlobal(at));
    return at;
}

DEVICE uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }
DEVICE uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }
DEVICE uint64_t ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

/* Quotient and rest; 64-bit division is many times slower, and rarely needed. */
DEVICE uint64_t divide(uint64_t a, uint64_t b, uint64_t *rest) {
    uint64_t q;
    if ((a | b) >> 32)
        q = a / b;
    else
        q = (uint32_t)a / (uint32_t)b;
    *rest = a - q * b;
    return q;
}

/* The lowest bit that is set of some. */
DEVICE uint32_t lowest_of(uint32_t bits) { return (uint32_t)__popc((bits & (0u - bits)) - 1u); }

/* The value of lane `lane ^ off`; all lanes of a warp ask. */
DEVICE double from_partner(double x, int off) {
    uint32_t low = (uint32_t)__double_as_longlong(x), high = (uint32_t)(__double_as_longlong(x) >> 32);
    low = __shfl_xor_sync(0xffffffffu, low, off);
    high = __shfl_xor_sync(0xffffffffu, high, off);
    return __longlong_as_double((long long)((uint64_t)high << 32 | low));
}

/* ---- units ------------------------------------------------------------------------------------------------------- */

/* Slices into which each of n things is cut, so that every block finds some eight units. */
DEVICE uint32_t slices_of(uint32_t n) {
    uint32_t slices = n ? 8 * gridDim.x / n : 1;
    return slices < 1 ? 1 : slices > 4096 ? 4096 : slices;
}

typedef struct span {
    uint64_t first, end;
} span_t;

/* Slice number `slice` of n elements, cut at multiples of `grain`; the first ones may have one grain more. */
DEVICE span_t slice_of(uint64_t n, uint32_t slice, uint32_t n_slices, uint32_t grain) {
    uint64_t rest, each = divide(ceil_div(n, grain), n_slices, &rest);
    span_t span;
    span.first = smaller(n, (each * slice + smaller(slice, rest)) * grain);
    span.end = smaller(n, span.first + (each + (slice < rest)) * grain);
    return span;
}

/* ---- element types ----------------------------------------------------------------------------------------------- */

DEVICE float bf16_to_f32(uint32_t bits) { return __uint_as_float(bits << 16); }

DEVICE uint32_t f32_to_bf16(float x) {
    uint32_t bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (bits >> 16 | 0x40u) & 0xffffu;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

DEVICE float f16_to_f32(uint32_t bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((uint16_t)bits));
    return x;
}

DEVICE uint32_t f32_to_f16(float x) { /* kernels/cpu/f16.c */
    uint32_t bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu, unit;
    if (rest > 0x7f800000u)
        return sign | 0x7e00u | (rest >> 13 & 0x3ffu);
    if (rest >= 0x47800000u)
        return sign | 0x7c00u;
    if (rest >= 0x38800000u) {
        rest -= (127u - 15u) << 23;
        return sign | (rest + 0xfffu + (rest >> 13 & 1u)) >> 13;
    }
    if (rest >> 23 < 102u)
        return sign;
    unit = 126u - (rest >> 23);
    rest = (rest & 0x7fffffu) | 0x800000u;
    return sign | (rest + (1u << (unit - 1)) - 1u + (rest >> unit & 1u)) >> unit;
}

DEVICE uint32_t elem_nbytes(int dtype) { return dtype == ZFI_F32 ? 4u : 2u; }

/* An element's bits. */
DEVICE uint32_t load_bits(const void *array, int dtype, uint64_t i) {
    return dtype == ZFI_F32 ? ((const uint32_t *)array)[i] : ((const uint16_t *)array)[i];
}

DEVICE float widen(int dtype, uint32_t bits) {
    return dtype == ZFI_F32 ? __uint_as_float(bits) : dtype == ZFI_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}
DEVICE uint32_t narrow(int dtype, float x) {
    return dtype == ZFI_F32 ? __float_as_uint(x) : dtype == ZFI_BF16 ? f32_to_bf16(x) : f32_to_f16(x);
}
DEVICE float load_float(const void *array, int dtype, uint64_t i) { return widen(dtype, load_bits(array, dtype, i)); }

DEVICE bool is_finite(double x) { return (__double_as_longlong(x) & 0x7ff0000000000000ll) != 0x7ff0000000000000ll; }
DEVICE bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

/* ---- matrices and places ----------------------------------------------------------------------------------------- */

DEVICE uint64_t rows_selected(const zfi_data_matrix_t *matrix) {
    return matrix->channels_are_rows ? matrix->k : matrix->rows;
}
DEVICE uint64_t cols_selected(const zfi_data_matrix_t *matrix) {
    return matrix->channels_are_rows ? matrix->cols : matrix->k;
}

/* The selected channels by position; NULL: all, in order. */
DEVICE const uint32_t *index_of(const zfi_data_t *data, const zfi_data_matrix_t *matrix) {
    return matrix->has_sums ? data->index + matrix->index_base : NULL;
}

/* Elements from the place's start. */
DEVICE int64_t place_offset(const zfi_place_t *place, uint64_t row, uint64_t col) {
    return (int64_t)row * place->row_stride + (place->col_offset ? in_global(place->col_offset)[col] : (int64_t)col);
}

/* ---- digests ----------------------------------------------------------------------------------------------------- */

/* zfi_digest_element */
DEVICE uint64_t digest_element(uint32_t bits, uint64_t index) {
    uint32_t h = (uint32_t)index * 0x9e3779b1u, x;
    h ^= h >> 15;
    x = bits ^ h;
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x ^= x >> 15;
    return x * (2 * (uint64_t)h + 1);
}
/* The amount that the digest moves by where an element's bits change. */
DEVICE uint64_t digest_move(uint32_t from, uint32_t to, uint64_t index) {
    return digest_element(to, index) - digest_element(from, index);
}

/* Every thread of a warp calls it, and gets the sum of their parts. */
DEVICE uint64_t sum_of_warp(uint64_t part) {
    for (int half = 16; half > 0; half /= 2) {
        uint32_t low = __shfl_xor_sync(0xffffffffu, (uint32_t)part, half);
        uint32_t high = __shfl_xor_sync(0xffffffffu, (uint32_t)(part >> 32), half);
        part += (uint64_t)high << 32 | low;
    }
    return part;
}
/* Adds the sum of a warp's parts to *sum. */
DEVICE void add_to_digest(uint64_t *sum, uint64_t part) {
    part = sum_of_warp(part);
    if (threadIdx.x % 32 == 0)
        atomicAdd((unsigned long long *)in_global(sum), (unsigned long long)part);
}

/* ---- hash -------------------------------------------------------------------------------------------------------- */

DEVICE uint32_t fmix(uint32_t h) {
    h ^= h >> 16;
    h *= 0x85ebca6bu;
    h ^= h >> 13;
    h *= 0xc2b2ae35u;
    return h ^ h >> 16;
}

DEVICE uint32_t random32(uint64_t key, uint64_t index) {
    uint32_t h = fmix((uint32_t)index * 0x9e3779b9u ^ (uint32_t)key);
    return fmix(h ^ (uint32_t)(key >> 32) ^ (uint32_t)(index >> 32) * 0x85ebca6bu);
}
