/* SPDX-License-Identifier: Apache-2.0 */
/* avx2.c - the table for AVX2 with FMA and F16C: vectors of eight. Compiled with -mavx2 -mfma -mf16c, reached only
 * through dispatch.c. */
#include <immintrin.h>

#define VL 8
#define N_INFLIGHT 2
#define PREFETCH_NBYTES 2048u
#define HAS_UNROLLED_SLOTS 1
#include "lanes.h"

static ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }

static ALWAYS_INLINE vf vf_sqrt(vf a) { return (vf)_mm256_sqrt_ps((__m256)a); }

static ALWAYS_INLINE vu vu_load_16(const void *from) {
    return (vu)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
}

static ALWAYS_INLINE void vu_store_16(void *to, vu x) {
    __m128i low = _mm256_castsi256_si128((__m256i)x), high = _mm256_extracti128_si256((__m256i)x, 1);
    _mm_storeu_si128((__m128i *)to, _mm_packus_epi32(low, high));
}

static ALWAYS_INLINE vu vu_load_8(const void *from) {
    return (vu)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from));
}

/* Packing takes four of each vector in turn. */
static ALWAYS_INLINE void vu_store_8(void *to, const vu x[4]) {
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i lower = _mm256_packus_epi32((__m256i)x[0], (__m256i)x[1]);
    const __m256i upper = _mm256_packus_epi32((__m256i)x[2], (__m256i)x[3]);
    _mm256_storeu_si256((__m256i *)to, _mm256_permutevar8x32_epi32(_mm256_packus_epi16(lower, upper), in_order));
}

static ALWAYS_INLINE vu vu_where(vu a, uint32_t bits, vu x) { return (vu)((a & bits) != 0) & x; }

static ALWAYS_INLINE vu vu_if_nan(vf x, vu then, vu otherwise) {
    const __m256 is_nan = _mm256_cmp_ps((__m256)x, (__m256)x, _CMP_UNORD_Q);
    return (vu)_mm256_blendv_ps((__m256)otherwise, (__m256)then, is_nan);
}

static ALWAYS_INLINE vu vu_most(vu a, vu b) { return (vu)_mm256_max_epu32((__m256i)a, (__m256i)b); }

static ALWAYS_INLINE vu vu_least(vu a, vu b) { return (vu)_mm256_min_epu32((__m256i)a, (__m256i)b); }

static ALWAYS_INLINE vf vf_load_f16(const void *from) {
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
}

static ALWAYS_INLINE void vf_store_f16(void *to, vf x) {
    _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
}

static ALWAYS_INLINE vd vd_lower(vf x) { return (vd)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x)); }

static ALWAYS_INLINE vd vd_upper(vf x) { return (vd)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1)); }

static ALWAYS_INLINE vf vf_zip_lower(vf a, vf b) {
    const __m256 low = _mm256_unpacklo_ps((__m256)a, (__m256)b), high = _mm256_unpackhi_ps((__m256)a, (__m256)b);
    return (vf)_mm256_permute2f128_ps(low, high, 0x20);
}

static ALWAYS_INLINE vf vf_zip_upper(vf a, vf b) {
    const __m256 low = _mm256_unpacklo_ps((__m256)a, (__m256)b), high = _mm256_unpackhi_ps((__m256)a, (__m256)b);
    return (vf)_mm256_permute2f128_ps(low, high, 0x31);
}

#include "replay.h"
#include "rows.h"
#include "run_ahead.h"
#include "stats.h"

#define ISA_NAME "avx2"
#define ISA_TABLE zfi_kernels_avx2
#include "table.inc.h"
