/* SPDX-License-Identifier: Apache-2.0 */
/* stochastic.c - stochastic rounding to bfloat16 by a counter-based hash: no state, the same for any cut of work. */
#include <string.h>

#include "../kernels.h"

static uint32_t fmix(uint32_t h) {
    h ^= h >> 16;
    h *= 0x85ebca6bu;
    h ^= h >> 13;
    h *= 0xc2b2ae35u;
    return h ^ h >> 16;
}

uint32_t zfi_random32(uint64_t key, uint64_t index) {
    uint32_t h = fmix((uint32_t)index * 0x9e3779b9u ^ (uint32_t)key);
    return fmix(h ^ (uint32_t)(key >> 32) ^ (uint32_t)(index >> 32) * 0x85ebca6bu);
}

uint16_t zfi_f32_to_bf16_stochastic(float x, uint32_t random) {
    uint32_t bits, rounded;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    rounded = bits + (random & 0xffffu);
    if ((rounded & 0x7fffffffu) >= 0x7f800000u) /* Inf has no discarded bits to carry from */
        rounded = bits;
    return (uint16_t)(rounded >> 16);
}
