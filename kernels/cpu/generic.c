/* SPDX-License-Identifier: Apache-2.0 */
/* generic.c - the table for any CPU: vectors of four, which the compiler maps to SSE2, NEON or scalar code. fma is
 * libm's fmaf: exact everywhere, fast only where the C library finds an instruction for it. */
#define VL 4
#define VD 4
#define N_INFLIGHT 2
#define PREFETCH_NBYTES 2048u
#define HAS_UNROLLED_SLOTS 0
#include "lanes.h"

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

static ALWAYS_INLINE vhu vhu_load_16(const void *from) {
    uint16_t half[VD];
    vhu x = {0};

    memcpy(half, from, sizeof half);
    for (int l = 0; l < VD; l++)
        x[l] = half[l];
    return x;
}

static ALWAYS_INLINE vf vf_load_f16(const void *from) {
    uint16_t half[VL];
    vf x = {0};

    memcpy(half, from, sizeof half);
    for (int l = 0; l < VL; l++)
        x[l] = zfi_f16_to_f32(half[l]);
    return x;
}

static ALWAYS_INLINE void vf_store_f16(void *to, vf x) {
    uint16_t half[VL];

    for (int l = 0; l < VL; l++)
        half[l] = zfi_f32_to_f16(x[l]);
    memcpy(to, half, sizeof half);
}

static ALWAYS_INLINE vh vh_load_f16(const void *from) { return vf_load_f16(from); /* VD = VL */ }

static ALWAYS_INLINE vd vd_of(vh x) { return __builtin_convertvector(x, vd); }

#include "replay.h"
#include "rows.h"
#include "run_ahead.h"
#include "stats.h"

#define ISA_NAME "generic"
#define ISA_TABLE zfi_kernels_generic
#include "table.inc.h"
