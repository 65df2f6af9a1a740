/* SPDX-License-Identifier: Apache-2.0 */
/* rng.h - a counter-based random number generator: the same numbers for a seed on every machine.
 *
 * Draw number `counter` of a stream is a pure function of (seed, stream, counter): no state, any order, any thread.
 * The mixing is that of SplitMix64 (Steele, Lea and Flood, 2014), applied once per key part. Everything derived from
 * it here uses integers and exact floating-point operations only, no libm. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct glue_rng {
    uint64_t key; /* of one seed and stream */
} glue_rng_t;

glue_rng_t glue_rng(uint64_t seed, uint64_t stream);

/* 64 random bits. */
uint64_t glue_rng_bits(glue_rng_t rng, uint64_t counter);

/* Uniform in [0, 1), a multiple of 2^-53. */
double glue_rng_uniform(glue_rng_t rng, uint64_t counter);

/* Uniform in 0 .. n-1, n >= 1 (bias below n / 2^64). */
uint64_t glue_rng_below(glue_rng_t rng, uint64_t counter, uint64_t n);

/* Mean 0, variance 1, close to normal, within (-6, 6): the sum of twelve 16-bit uniforms. */
double glue_rng_normal(glue_rng_t rng, uint64_t counter);

/* Fisher and Yates: a uniform order of n row numbers. */
void glue_rng_shuffle(glue_rng_t rng, uint32_t *rows, size_t n);
