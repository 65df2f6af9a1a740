/* SPDX-License-Identifier: Apache-2.0 */
/* bfloat16.h - bfloat16 as its bits: the upper half of a float. Inline, since loops over whole tensors use it. */
#pragma once

#include "real.h"

#include <stdint.h>
#include <string.h>

/* Round to nearest even; denormals are kept, overflow is infinity, NaN stays NaN. */
HOST_ALWAYS_INLINE uint16_t host_bfloat16_from_float(float value) {
    uint32_t bits, rounded;
    memcpy(&bits, &value, sizeof bits);
    rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    rounded = (bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded;
    return (uint16_t)(rounded >> 16);
}

HOST_ALWAYS_INLINE float host_float_from_bfloat16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}
