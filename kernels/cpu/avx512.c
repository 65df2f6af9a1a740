/* SPDX-License-Identifier: Apache-2.0 */
/* avx512.c - the table for AVX-512 (F, BW, VL, DQ): vectors of sixteen. Reached only through dispatch.c. */
#include <immintrin.h>

#define VL 16
#define N_INFLIGHT 2
#define PREFETCH_NBYTES 2048u
#define HAS_UNROLLED_SLOTS 1
#include "lanes.h"

static ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }

static ALWAYS_INLINE vf vf_sqrt(vf a) { return (vf)_mm512_sqrt_ps((__m512)a); }

static ALWAYS_INLINE vu vu_load_16(const void *from) {
    return (vu)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
}

static ALWAYS_INLINE void vu_store_16(void *to, vu x) {
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16((__m512i)x));
}

static ALWAYS_INLINE vu vu_load_8(const void *from) {
    return (vu)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from));
}

static ALWAYS_INLINE void vu_store_8(void *to, vu x) {
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)x));
}

static ALWAYS_INLINE vf vf_load_f16(const void *from) {
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}

static ALWAYS_INLINE void vf_store_f16(void *to, vf x) {
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
}

static ALWAYS_INLINE vd vd_lower(vf x) { return (vd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x)); }

static ALWAYS_INLINE vd vd_upper(vf x) { return (vd)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x, 1)); }

static ALWAYS_INLINE vf vf_zip_lower(vf a, vf b) {
    const __m512i from = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return (vf)_mm512_permutex2var_ps((__m512)a, from, (__m512)b);
}

static ALWAYS_INLINE vf vf_zip_upper(vf a, vf b) {
    const __m512i from = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    return (vf)_mm512_permutex2var_ps((__m512)a, from, (__m512)b);
}

#include "replay.h"
#include "rows.h"
#include "run_ahead.h"
#include "stats.h"

#define ISA_NAME "avx512"
#define ISA_TABLE zfi_kernels_avx512
#include "table.inc.h"
