/* SPDX-License-Identifier: Apache-2.0 */
/* exact_rng.h - random numbers of the exact cases: one 64-bit state (splitmix64), the same on every machine. */
#pragma once

#include <stdint.h>

typedef struct zx_rng {
    uint64_t state;
} zx_rng_t;

zx_rng_t zx_rng(uint64_t seed, uint64_t law, uint64_t index);
void zx_rng_swap(zx_rng_t *a, zx_rng_t *b); /* before and after what is drawn from another */
uint64_t zx_rng_bits(zx_rng_t *rng);
uint32_t zx_below(zx_rng_t *rng, uint32_t n);                 /* 0..n-1 */
uint32_t zx_between(zx_rng_t *rng, uint32_t lo, uint32_t hi); /* lo..hi */
void zx_shuffle(zx_rng_t *rng, uint32_t *list, uint32_t n);
int zx_chance(zx_rng_t *rng, uint32_t percent);
double zx_uniform(zx_rng_t *rng, double lo, double hi);
double zx_log_uniform(zx_rng_t *rng, double lo, double hi);
