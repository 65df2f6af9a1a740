/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/emulator/arithmetic.c - what a few instructions compute that C has no operator for. */
#include "emu.h"

float emu_from_f16(uint16_t bits) {
    uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    float value = exponent == 31
                      ? (fraction ? NAN : INFINITY)
                      : ldexpf((float)(exponent ? 1024 + fraction : fraction), (int)(exponent ? exponent : 1) - 25);
    return bits & 0x8000 ? -value : value;
}

/* To nearest even; denormals are kept, what is too large becomes Inf. */
uint16_t emu_to_f16(float value) {
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    float a = fabsf(value);
    if (isnan(value))
        return 0x7fff;
    if (a >= 65520.0f)
        return sign | 0x7c00;
    int exponent = 0;
    frexpf(a, &exponent); /* a < 2^exponent */
    int unit = exponent - 11 < -24 ? -24 : exponent - 11;
    uint32_t n = (uint32_t)nearbyintf(ldexpf(a, -unit)); /* exact before it is rounded, at most 2^11 */
    if (n == 0)
        return sign;
    /* n units are the bits themselves above the denormals' exponent: a carry moves on into it. */
    uint32_t out = n < 1024 ? n : ((uint32_t)(unit + 24) << 10) + n;
    return (uint16_t)(sign | out);
}

uint32_t emu_prmt(uint32_t a, uint32_t b, uint32_t selector) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t pick = selector >> (4 * i) & 15, byte = (uint32_t)(bytes >> (8 * (pick & 7))) & 255;
        if (pick & 8)
            byte = byte & 128 ? 255 : 0;
        out |= byte << (8 * i);
    }
    return out;
}

uint32_t emu_lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t out = 0;
    for (int i = 0; i < 32; i++)
        out |= (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i;
    return out;
}
