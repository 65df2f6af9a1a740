/* SPDX-License-Identifier: Apache-2.0 */
/* halves.h - fp16 by vectors of integers: the bits of f16.c whatever the mode of the thread is, for instruction sets
 * whose conversions are missing or follow that mode. Included after lanes.h. */
#pragma once

/* zfi_f16_to_f32 of every lane, also for a thread that flushes denormals or rounds otherwise: no float below
 * 2^-24 takes part, and nothing is rounded. */
static ALWAYS_INLINE vf floats_of_f16(vu half) {
    const vu rest = half & 0x7fffu;
    const vu is_small = (vu)((vi)rest < 0x400), is_special = (vu)((vi)rest > 0x7bff);
    const vu is_nan = (vu)((vi)rest > 0x7c00);
    const vu small = (vu)(__builtin_convertvector((vi)rest, vf) * vf_splat(0x1p-24f));
    const vu normal = (rest << 13) + ((127u - 15u) << 23);
    const vu finite = (is_small & small) | (~is_small & normal);
    return (vf)(finite | (is_special & 0x7f800000u) | (is_nan & 0x400000u) | (half & 0x8000u) << 16);
}

/* The bits of |x| < 2^-14 as a half: a count of 2^-24. Twelve more bits and whether there are others decide how it is
 * rounded; the conversion to integers truncates in every rounding mode. */
static ALWAYS_INLINE vu small_f16_of(vf magnitude) {
    const vf scaled = magnitude * vf_splat(0x1p36f);
    const vi whole = __builtin_convertvector(scaled, vi);
    const vu has_more = (vu)(__builtin_convertvector(whole, vf) != scaled), count = (vu)whole | (has_more & 1u);
    return (count + 0x7ffu + (count >> 12 & 1u)) >> 12;
}

/* zfi_f32_to_f16 of every lane, whatever the rounding mode of the thread is. */
static ALWAYS_INLINE vu f16_of_floats(vf x) {
    const vu bits = (vu)x, rest = bits & 0x7fffffffu;
    const vu is_nan = (vu)((vi)rest > 0x7f800000), is_inf = (vu)((vi)rest > 0x477fffff);
    const vu is_small = (vu)((vi)rest < 0x38800000);
    const vu small = small_f16_of((vf)(rest & is_small));
    const vu normal = (rest - ((127u - 15u) << 23) + 0xfffu + (rest >> 13 & 1u)) >> 13;
    const vu finite = (is_small & small) | (~is_small & normal);
    const vu special = 0x7c00u | (is_nan & (0x200u | (rest >> 13 & 0x3ffu)));
    return (is_inf & special) | (~is_inf & finite) | (bits >> 16 & 0x8000u);
}
