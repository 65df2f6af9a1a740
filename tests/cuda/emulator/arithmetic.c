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
