/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakenccl/sum.c - the sums of a reduce-scatter, as a ring makes them: each rank adds its own part to what
 * comes from the one before, and what it passes on is rounded to the data type. Rank r's part begins at rank r + 1. */
#include "double.h"

#include <math.h>

/* To so many binary digits; below 2^least_exponent to fewer. */
static float rounded(float x, int n_digits, int least_exponent) {
    if (x == 0.0f || !isfinite(x))
        return x;
    int last = (ilogbf(x) > least_exponent ? ilogbf(x) : least_exponent) - n_digits + 1;
    return ldexpf(nearbyintf(ldexpf(x, -last)), last);
}

static float get_bf16(const unsigned char *at) {
    uint32_t bits = (uint32_t)emu_get16(at) << 16;
    return emu_f32(bits);
}

static void put_bf16(unsigned char *at, float x) { emu_put16(at, (uint16_t)(emu_bits32(rounded(x, 8, -126)) >> 16)); }

static float get_f16(const unsigned char *at) { return emu_from_f16(emu_get16(at)); }

static void put_f16(unsigned char *at, float x) {
    float r = fabsf(rounded(x, 11, -14));
    uint32_t sign = signbit(x) ? 0x8000 : 0, bits;
    if (isnan(r))
        bits = 0x7e00;
    else if (r > 65504.0f)
        bits = 0x7c00;
    else if (r < 0x1p-14f)
        bits = (uint32_t)ldexpf(r, 24);
    else
        bits = (uint32_t)ldexpf(r, 10 - ilogbf(r)) - 1024 + ((uint32_t)(ilogbf(r) + 15) << 10);
    emu_put16(at, (uint16_t)(sign | bits));
}

static float get_f32(const unsigned char *at) { return emu_f32(emu_get32(at)); }
static void put_f32(unsigned char *at, float x) { emu_put32(at, emu_bits32(x)); }

static const struct {
    uint64_t nbytes;
    float (*get)(const unsigned char *at);
    void (*put)(unsigned char *at, float x);
} kinds[] = {[FN_FLOAT16] = {2, get_f16, put_f16},
             [FN_FLOAT32] = {4, get_f32, put_f32},
             [FN_BFLOAT16] = {2, get_bf16, put_bf16}};

uint64_t fn_type_nbytes(int type) {
    return type >= 0 && type < (int)(sizeof kinds / sizeof *kinds) ? kinds[type].nbytes : 0;
}

void fn_sum(const unsigned char *parts, uint64_t part_nbytes, int type, int rank, int n_ranks, unsigned char *out) {
    for (uint64_t at = 0; at < part_nbytes; at += kinds[type].nbytes) {
        const unsigned char *first = parts + (uint64_t)((rank + 1) % n_ranks) * part_nbytes + at;
        memcpy(out + at, first, kinds[type].nbytes);
        for (int i = 2; i <= n_ranks; i++) {
            const unsigned char *own = parts + (uint64_t)((rank + i) % n_ranks) * part_nbytes + at;
            kinds[type].put(out + at, kinds[type].get(out + at) + kinds[type].get(own));
        }
    }
}
