/* SPDX-License-Identifier: Apache-2.0 */
/* bf16.c - bfloat16 by integers: widening is a shift, narrowing rounds to nearest even with a carry that runs into the
 * exponent (so the largest finite values become Inf) and keeps denormals. No floating-point instruction is involved, so
 * the mode of the calling thread does not matter. */
#include <string.h>

#include "../kernels.h"

float zfi_bf16_to_f32(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

uint16_t zfi_f32_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
