/* SPDX-License-Identifier: Apache-2.0 */
/* digest.h - the digest of a matrix's visible values: whether they are still what they were, in 64 bits.
 *
 * Model. digest = the sum over the elements of bits * (2 * spread(index) + 1) mod 2^64, with the element's 2 or 4 bytes
 * as a number and its row-major index in the matrix. The sum has no order, so any number of threads may take parts of
 * it, and it moves by differences: whoever writes an element adds what the new bits give and takes away what the old
 * ones gave. An element that somebody else wrote leaves its difference in the sum, even when it is written again.
 *
 * What it finds. Factors are odd, and two indices below 2^32 never share one. So one changed element always shows, and
 * so do two exchanged ones: their difference is that of their bits (below 2^32) times that of their factors (below
 * 2^33), which has fewer than 64 factors of two. Of other changes one in some 2^60 is overlooked. */
#ifndef ZFI_DIGEST_H
#define ZFI_DIGEST_H

#include <stdint.h>

/* A permutation of 32 bits. */
static inline uint32_t zfi_digest_spread(uint64_t index) {
    uint32_t h = (uint32_t)index * 0x9E3779B1u;
    h = (h ^ h >> 15) * 0x85EBCA77u;
    return h ^ h >> 13;
}

/* One element's part. */
static inline uint64_t zfi_digest_element(uint32_t bits, uint64_t index) {
    return 2 * ((uint64_t)bits * zfi_digest_spread(index)) + bits;
}

#endif
