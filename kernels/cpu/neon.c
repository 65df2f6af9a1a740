/* SPDX-License-Identifier: Apache-2.0 */
/* neon.c - the table for arm64, whose baseline has vectors of four floats with fma, square root and division. */
#include <arm_neon.h>

#define VL 4
#define N_INFLIGHT 4
#define PREFETCH_NBYTES 2048u
#define HAS_UNROLLED_SLOTS 1
#include "lanes.h"

static ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) {
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}

static ALWAYS_INLINE vf vf_sqrt(vf a) { return (vf)vsqrtq_f32((float32x4_t)a); }

static ALWAYS_INLINE vu vu_load_16(const void *from) {
    uint16x4_t half;
    memcpy(&half, from, sizeof half);
    return (vu)vmovl_u16(half);
}

static ALWAYS_INLINE void vu_store_16(void *to, vu x) {
    const uint16x4_t half = vmovn_u32((uint32x4_t)x);
    memcpy(to, &half, sizeof half);
}

static ALWAYS_INLINE vu vu_load_8(const void *from) {
    uint32_t bytes;
    memcpy(&bytes, from, sizeof bytes);
    return (vu)vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes))));
}

static ALWAYS_INLINE void vu_store_8(void *to, const vu x[4]) {
    const uint16x8_t lower = vcombine_u16(vmovn_u32((uint32x4_t)x[0]), vmovn_u32((uint32x4_t)x[1]));
    const uint16x8_t upper = vcombine_u16(vmovn_u32((uint32x4_t)x[2]), vmovn_u32((uint32x4_t)x[3]));
    vst1q_u8(to, vcombine_u8(vmovn_u16(lower), vmovn_u16(upper)));
}

static ALWAYS_INLINE vu vu_where(vu a, uint32_t bits, vu x) { return (vu)((a & bits) != 0) & x; }

static ALWAYS_INLINE vu vu_if_nan(vf x, vu then, vu otherwise) {
    const vu is_nan = (vu)(x != x);
    return (is_nan & then) | (~is_nan & otherwise);
}

static ALWAYS_INLINE vu vu_most(vu a, vu b) { return (vu)vmaxq_u32((uint32x4_t)a, (uint32x4_t)b); }

static ALWAYS_INLINE vu vu_least(vu a, vu b) { return (vu)vminq_u32((uint32x4_t)a, (uint32x4_t)b); }

static ALWAYS_INLINE vd vd_lower(vf x) { return (vd)vcvt_f64_f32(vget_low_f32((float32x4_t)x)); }

static ALWAYS_INLINE vd vd_upper(vf x) { return (vd)vcvt_high_f64_f32((float32x4_t)x); }

static ALWAYS_INLINE vf vf_zip_lower(vf a, vf b) { return (vf)vzip1q_f32((float32x4_t)a, (float32x4_t)b); }

static ALWAYS_INLINE vf vf_zip_upper(vf a, vf b) { return (vf)vzip2q_f32((float32x4_t)a, (float32x4_t)b); }

#include "halves.h"

/* Widening is exact in the mode of the plugin's threads (fpmode.c); narrowing follows the thread's rounding mode, so it
 * is done by integers. */
static ALWAYS_INLINE vf vf_load_f16(const void *from) {
    uint16x4_t half;
    memcpy(&half, from, sizeof half);
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(half));
}

static ALWAYS_INLINE void vf_store_f16(void *to, vf x) { vu_store_16(to, f16_of_floats(x)); }

#include "replay.h"
#include "rows.h"
#include "run_ahead.h"
#include "stats.h"

#define ISA_NAME "neon"
#define ISA_TABLE zfi_kernels_neon
#include "table.inc.h"
