/* SPDX-License-Identifier: Apache-2.0 */
/* exact_rng.c - splitmix64 (Steele, Lea, Flood, OOPSLA 2014). */
#include "exact_rng.h"

#include <math.h>

uint64_t zx_rng_bits(zx_rng_t *rng) {
    uint64_t x = rng->state += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

zx_rng_t zx_rng(uint64_t seed, uint64_t law, uint64_t index) {
    zx_rng_t a = {.state = seed}, b = {.state = law}, c = {.state = index};
    return (zx_rng_t){.state = zx_rng_bits(&a) ^ (zx_rng_bits(&b) << 1) ^ (zx_rng_bits(&c) << 2)};
}

void zx_rng_swap(zx_rng_t *a, zx_rng_t *b) {
    zx_rng_t kept = *a;
    *a = *b;
    *b = kept;
}

uint32_t zx_below(zx_rng_t *rng, uint32_t n) { return (uint32_t)(((zx_rng_bits(rng) >> 32) * n) >> 32); }

uint32_t zx_between(zx_rng_t *rng, uint32_t lo, uint32_t hi) { return lo + zx_below(rng, hi - lo + 1); }

void zx_shuffle(zx_rng_t *rng, uint32_t *list, uint32_t n) {
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = zx_below(rng, i), kept = list[j];
        list[j] = list[i - 1];
        list[i - 1] = kept;
    }
}

int zx_chance(zx_rng_t *rng, uint32_t percent) { return zx_below(rng, 100) < percent; }

double zx_uniform(zx_rng_t *rng, double lo, double hi) {
    return lo + (hi - lo) * ((double)(zx_rng_bits(rng) >> 11) * 0x1p-53);
}

double zx_log_uniform(zx_rng_t *rng, double lo, double hi) { return exp2(zx_uniform(rng, log2(lo), log2(hi))); }
