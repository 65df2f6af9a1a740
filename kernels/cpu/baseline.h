/* SPDX-License-Identifier: Apache-2.0 */
/* baseline.h - the vectors of generic.c: four floats, two doubles, and nothing that the baseline CPU lacks.
 *
 * On x86-64 that is SSE2, which has no fma, and libm's takes about 100 ns where the CPU has none either. Here it is
 * made of doubles. The product of two floats is exact in double. The sum with the third is rounded there, and once more
 * to float. Two roundings differ from one only where the first lands on a tie of the second, halfway between two
 * floats, and was not exact. So a sum that is no tie is right as it is. The test for ties knows those between normal
 * floats, which show in the lower 29 bits; below 2^-126, where ties lie elsewhere, every sum but an exact zero is
 * suspect. Four lanes with a suspect among them are computed again by fma_by_odd, which is right for all numbers.
 *
 * Elsewhere (arm64, for one) the C library's fmaf is an instruction that the compiler knows, or exact all the same. */
#pragma once

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define VL 4
#define N_INFLIGHT 2
#define PREFETCH_NBYTES 2048u
#define HAS_UNROLLED_SLOTS 0
#include "lanes.h"

#ifdef __SSE2__

static ALWAYS_INLINE vd vd_lower(vf x) { return (vd)_mm_cvtps_pd((__m128)x); }

static ALWAYS_INLINE vd vd_upper(vf x) { return (vd)_mm_cvtps_pd(_mm_movehl_ps((__m128)x, (__m128)x)); }

static ALWAYS_INLINE vf floats_of(vd lower, vd upper) {
    return (vf)_mm_movelh_ps(_mm_cvtpd_ps((__m128d)lower), _mm_cvtpd_ps((__m128d)upper));
}

/* a*b + c of values that are floats, rounded to odd: where it is not exact, towards zero with the last bit set. Rounded
 * to float it is a*b + c rounded once, because a double has more than two bits more (Boldo and Melquiond, 2008). The
 * error of the sum is Knuth's. Its product with the sum, which cannot underflow, has the sign that says whether the
 * sum lies beyond the exact value; with NaN and Inf it is NaN, and neither comparison holds. */
static ALWAYS_INLINE vd fma_to_odd(vd a, vd b, vd c) {
    const vd product = a * b, sum = product + c, rest = sum - product;
    const vd error = (product - (sum - rest)) + (c - rest), side = error * sum, zero = {0.0};
    const vdu is_beyond = (vdu)(side < zero), is_short = (vdu)(side > zero);
    return (vd)(((vdu)sum + is_beyond) | ((is_beyond | is_short) & 1u));
}

static ONE_COPY vf fma_by_odd(vf a, vf b, vf c) {
    return floats_of(fma_to_odd(vd_lower(a), vd_lower(b), vd_lower(c)),
                     fma_to_odd(vd_upper(a), vd_upper(b), vd_upper(c)));
}

/* Whether one of four sums may be rounded wrongly: lanes whose lower 29 bits are those of a tie, or whose magnitude is
 * below 2^-126 and not zero. Twice the upper half has no sign; adding 2^31 - 1 takes one away, which puts zero last,
 * and lets a signed comparison stand for the unsigned one. */
static ALWAYS_INLINE int has_suspect(vd lower, vd upper) {
    const vu low = (vu)_mm_shuffle_ps((__m128)lower, (__m128)upper, _MM_SHUFFLE(2, 0, 2, 0));
    const vu high = (vu)_mm_shuffle_ps((__m128)lower, (__m128)upper, _MM_SHUFFLE(3, 1, 3, 1));
    const uint32_t high_of_limit = (1023u - 126u) << 20, shift = 0x7fffffffu;
    const vi is_tie = (vi)((low & 0x1fffffffu) == 0x10000000u);
    const vi is_small = (vi)(high + high + shift) < (vi)((vu){0} + (2 * high_of_limit + shift));
    return _mm_movemask_ps((__m128)(is_tie | is_small));
}

static ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) {
    const vd lower = vd_lower(a) * vd_lower(b) + vd_lower(c);
    const vd upper = vd_upper(a) * vd_upper(b) + vd_upper(c);
    if (__builtin_expect(has_suspect(lower, upper), 0))
        return fma_by_odd(a, b, c);
    return floats_of(lower, upper);
}

static ALWAYS_INLINE vf vf_sqrt(vf a) { return (vf)_mm_sqrt_ps((__m128)a); }

static ALWAYS_INLINE vu vu_load_16(const void *from) {
    return (vu)_mm_unpacklo_epi16(_mm_loadl_epi64((const __m128i *)from), _mm_setzero_si128());
}

/* Saturation is signed, so the lower halves are sign-extended first. */
static ALWAYS_INLINE void vu_store_16(void *to, vu x) {
    const __m128i extended = _mm_srai_epi32(_mm_slli_epi32((__m128i)x, 16), 16);
    _mm_storel_epi64((__m128i *)to, _mm_packs_epi32(extended, extended));
}

static ALWAYS_INLINE vu vu_load_8(const void *from) {
    const __m128i zero = _mm_setzero_si128();
    int32_t bytes;
    memcpy(&bytes, from, sizeof bytes);
    return (vu)_mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(bytes), zero), zero);
}

static ALWAYS_INLINE void vu_store_8(void *to, const vu x[4]) {
    const __m128i lower = _mm_packs_epi32((__m128i)x[0], (__m128i)x[1]);
    const __m128i upper = _mm_packs_epi32((__m128i)x[2], (__m128i)x[3]);
    _mm_storeu_si128((__m128i *)to, _mm_packus_epi16(lower, upper));
}

#else

static ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) {
    vf x = {0};
    for (int l = 0; l < VL; l++)
        x[l] = fmaf(a[l], b[l], c[l]);
    return x;
}

static ALWAYS_INLINE vf vf_sqrt(vf a) {
    vf x = {0};
    for (int l = 0; l < VL; l++)
        x[l] = sqrtf(a[l]);
    return x;
}

static ALWAYS_INLINE vu vu_load_16(const void *from) {
    uint16_t half[VL];
    vu x = {0};
    memcpy(half, from, sizeof half);
    for (int l = 0; l < VL; l++)
        x[l] = half[l];
    return x;
}

static ALWAYS_INLINE void vu_store_16(void *to, vu x) {
    uint16_t half[VL];
    for (int l = 0; l < VL; l++)
        half[l] = (uint16_t)x[l];
    memcpy(to, half, sizeof half);
}

static ALWAYS_INLINE vu vu_load_8(const void *from) {
    const uint8_t *byte = from;
    return (vu){byte[0], byte[1], byte[2], byte[3]};
}

static ALWAYS_INLINE void vu_store_8(void *to, const vu x[4]) {
    uint8_t *byte = to;
    for (int i = 0; i < 4 * VL; i++)
        byte[i] = (uint8_t)x[i / VL][i % VL];
}

static ALWAYS_INLINE vd vd_lower(vf x) { return (vd){x[0], x[1]}; }

static ALWAYS_INLINE vd vd_upper(vf x) { return (vd){x[2], x[3]}; }

#endif

static ALWAYS_INLINE vu vu_where(vu a, uint32_t bits, vu x) { return (vu)((a & bits) != 0) & x; }

static ALWAYS_INLINE vu vu_if_nan(vf x, vu then, vu otherwise) {
    const vu is_nan = (vu)((vi)((vu)x & 0x7FFFFFFFU) > 0x7F800000);
    return (is_nan & then) | (~is_nan & otherwise);
}

static ALWAYS_INLINE vu vu_most(vu a, vu b) {
    const vu is_larger = (vu)((vi)a > (vi)b);
    return (is_larger & a) | (~is_larger & b);
}

static ALWAYS_INLINE vu vu_least(vu a, vu b) { return a ^ b ^ vu_most(a, b); }

static ALWAYS_INLINE vf vf_zip_lower(vf a, vf b) { return (vf){a[0], b[0], a[1], b[1]}; }

static ALWAYS_INLINE vf vf_zip_upper(vf a, vf b) { return (vf){a[2], b[2], a[3], b[3]}; }

#include "halves.h"

static ALWAYS_INLINE vf vf_load_f16(const void *from) { return floats_of_f16(vu_load_16(from)); }

static ALWAYS_INLINE void vf_store_f16(void *to, vf x) { vu_store_16(to, f16_of_floats(x)); }
