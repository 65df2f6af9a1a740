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

/* Packing takes four of each vector in turn. */
static ALWAYS_INLINE void vu_store_8(void *to, const vu x[4]) {
    const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i lower = _mm512_packus_epi32((__m512i)x[0], (__m512i)x[1]);
    const __m512i upper = _mm512_packus_epi32((__m512i)x[2], (__m512i)x[3]);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(in_order, _mm512_packus_epi16(lower, upper)));
}

static ALWAYS_INLINE vu vu_where(vu a, uint32_t bits, vu x) {
    return (vu)_mm512_maskz_mov_epi32(_mm512_test_epi32_mask((__m512i)a, _mm512_set1_epi32((int)bits)), (__m512i)x);
}

static ALWAYS_INLINE vu vu_if_nan(vf x, vu then, vu otherwise) {
    const __mmask16 is_nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    return (vu)_mm512_mask_mov_epi32((__m512i)otherwise, is_nan, (__m512i)then);
}

static ALWAYS_INLINE vu vu_most(vu a, vu b) { return (vu)_mm512_max_epu32((__m512i)a, (__m512i)b); }

static ALWAYS_INLINE vu vu_least(vu a, vu b) { return (vu)_mm512_min_epu32((__m512i)a, (__m512i)b); }

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
