/* SPDX-License-Identifier: Apache-2.0 */
/* f16.c - IEEE half precision by integers: the bits of the CPUs' conversion instructions, which round to nearest even,
 * keep denormals of 16 bits and make NaNs quiet. */
#include <string.h>

#include "../kernels.h"

float zfi_f16_to_f32(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, rest = bits & 0x7fffu, wide;
    float x;
    if (rest > 0x7c00u) {
        wide = sign | 0x7fc00000u | rest << 13;
    } else if (rest == 0x7c00u) {
        wide = sign | 0x7f800000u;
    } else if (rest >= 0x400u) {
        wide = sign | ((rest << 13) + ((127u - 15u) << 23));
    } else { /* rest counts 2^-24: normal in fp32 */
        x = (float)rest * 0x1p-24f;
        memcpy(&wide, &x, sizeof wide);
        wide |= sign;
    }
    memcpy(&x, &wide, sizeof x);
    return x;
}

uint16_t zfi_f32_to_f16(float x) {
    uint32_t bits, sign, rest, unit, exponent;
    memcpy(&bits, &x, sizeof bits);
    sign = bits >> 16 & 0x8000u;
    rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (rest >> 13 & 0x3ffu));
    if (rest >= 0x47800000u) /* 2^16 and more; 65520 and more get there by the carry below */
        return (uint16_t)(sign | 0x7c00u);
    if (rest >= 0x38800000u) { /* normal in 16 bits */
        rest -= (127u - 15u) << 23;
        return (uint16_t)(sign | (rest + 0xfffu + (rest >> 13 & 1u)) >> 13);
    }
    exponent = rest >> 23;
    if (exponent < 102u) /* below 2^-25, half of the smallest */
        return (uint16_t)sign;
    unit = 126u - exponent; /* bits that 2^-24 lies above the last bit of x */
    rest = (rest & 0x7fffffu) | 0x800000u;
    return (uint16_t)(sign | (rest + ((uint32_t)1 << (unit - 1)) - 1u + (rest >> unit & 1u)) >> unit);
}
