/* SPDX-License-Identifier: Apache-2.0 */
/* digest.h - the digest of a matrix's visible values: whether they are still what they were, in 64 bits.
 *
 * Model. digest = the sum over the elements of mixed(bits ^ h) * (2 * h + 1) mod 2^64, with the element's 2 or 4 bytes
 * as a number, and h spread from its row-major index in the matrix. The sum has no order, so any number of threads may
 * take parts of it, and it moves by differences: a kernel that writes an element adds what the new bits give and takes
 * away what the old ones gave. An element that others wrote leaves its difference in the sum, even when it is written
 * again.
 *
 * What it finds. Mixing and spreading are permutations and factors are odd, so one changed element always shows. What
 * an edit adds depends on the place and on all bits of the element, and not on what changed in it alone: edits that
 * are alike (sign flips, one factor for all, exchanged values) do not cancel each other. Of other changes one in some
 * 2^60 is overlooked. Who knows the function finds edits that it does not see. */
#pragma once

#include <stdint.h>

/* A permutation of 32 bits. */
static inline uint32_t zfi_digest_spread(uint64_t index) {
    uint32_t h = (uint32_t)index * 0x9E3779B1u;
    return h ^ h >> 15;
}

/* Another one. */
static inline uint32_t zfi_digest_mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x85EBCA6Bu;
    return x ^ x >> 15;
}

/* One element's part. */
static inline uint64_t zfi_digest_element(uint32_t bits, uint64_t index) {
    uint32_t h = zfi_digest_spread(index), x = zfi_digest_mix(bits ^ h);
    return 2 * ((uint64_t)x * h) + x;
}

/* The factor of an index of more than 32 bits: the bits above count by this factor, which is odd, and 1 for the first
 * 2^32. */
static inline uint64_t zfi_digest_factor(uint64_t index) { return 2 * (index >> 32) * 0x9E3779B97F4A7C15u + 1; }
