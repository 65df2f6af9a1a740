/* SPDX-License-Identifier: Apache-2.0 */
/* rng.c - the counter-based generator of rng.h. */
#include "rng.h"

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static const uint64_t golden_gamma = 0x9e3779b97f4a7c15u;

glue_rng_t glue_rng(uint64_t seed, uint64_t stream) {
    return (glue_rng_t){.key = mix(mix(seed + golden_gamma) + (stream + 1) * golden_gamma)};
}

uint64_t glue_rng_bits(glue_rng_t rng, uint64_t counter) {
    return mix(mix(rng.key + (counter + 1) * golden_gamma) ^ rng.key);
}

double glue_rng_uniform(glue_rng_t rng, uint64_t counter) {
    return (double)(glue_rng_bits(rng, counter) >> 11) * 0x1p-53;
}

/* The high word of bits * n, by 32-bit halves. */
uint64_t glue_rng_below(glue_rng_t rng, uint64_t counter, uint64_t n) {
    uint64_t bits = glue_rng_bits(rng, counter);
    uint64_t low = (bits & 0xffffffffu) * (n & 0xffffffffu);
    uint64_t middle1 = (bits >> 32) * (n & 0xffffffffu) + (low >> 32);
    uint64_t middle2 = (bits & 0xffffffffu) * (n >> 32) + (middle1 & 0xffffffffu);
    return (bits >> 32) * (n >> 32) + (middle1 >> 32) + (middle2 >> 32);
}

double glue_rng_normal(glue_rng_t rng, uint64_t counter) {
    int64_t sum = 0;
    for (uint64_t word = 0; word < 3; word++) {
        uint64_t bits = glue_rng_bits(rng, 3 * counter + word);
        for (int shift = 0; shift < 64; shift += 16)
            sum += (int64_t)((bits >> shift) & 0xffffu);
    }
    return ((double)sum - 6.0 * 65535.0) / 65536.0;
}

void glue_rng_shuffle(glue_rng_t rng, uint32_t *rows, size_t n) {
    for (size_t i = n; i > 1; i--) {
        size_t j = (size_t)glue_rng_below(rng, i, i);
        uint32_t swapped = rows[i - 1];
        rows[i - 1] = rows[j];
        rows[j] = swapped;
    }
}
