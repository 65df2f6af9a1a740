/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/digest.c - 64-bit digests of tensors (contract in digest.h).
 *
 * Model. The bytes are 64-bit words, the last one filled up with zeros; word i goes into lane i mod N_LANES:
 *     lane = (lane xor word) * MULTIPLIER mod (2^64 - 1)
 * and the number of bytes and the lanes into one word in the same way.
 *
 * Invariant. MULTIPLIER and 2^64 - 1 have no common factor, so each step is a bijection of its lane for a given word,
 * and of the word for a given lane: a change within one word is never lost. Modulo 2^64 - 1 the top bits of a product
 * go around into the low ones, so all bits of a word are mixed alike. Modulo 2^64 a changed top bit would stay one
 * changed bit, and two changed signs could undo each other.
 *
 * Cost. One multiplication per 8 bytes; several lanes hide its latency. Strided memory goes through a block on the
 * stack. */
#include "base/digest.h"

#include <string.h>

enum {
    N_LANES = 4,
    ROUND_NBYTES = 8 * N_LANES,
    PREFETCH_NBYTES = 4096, /* ahead of the read: a page, where the hardware's own prefetch ends */
    BLOCK_NBYTES = 4096     /* of gathered elements; a multiple of ROUND_NBYTES and of every element size */
};

#define MULTIPLIER 0xC2B2AE3D27D4EB4Fu
_Static_assert(MULTIPLIER % 3 != 0 && MULTIPLIER % 5 != 0 && MULTIPLIER % 17 != 0 && MULTIPLIER % 257 != 0 &&
                   MULTIPLIER % 641 != 0 && MULTIPLIER % 65537 != 0 && MULTIPLIER % 6700417 != 0,
               "the prime factors of 2^64 - 1");

static const uint64_t start[N_LANES] = {0x243F6A8885A308D3u, 0x13198A2E03707344u, 0xA4093822299F31D0u,
                                        0x082EFA98EC4E6C89u}; /* digits of pi */

__extension__ typedef unsigned __int128 wide_t;

static uint64_t mix(uint64_t lane, uint64_t word) {
    wide_t product = (wide_t)(lane ^ word) * MULTIPLIER;
    uint64_t low = (uint64_t)product, sum;
    int carry = __builtin_add_overflow(low, (uint64_t)(product >> 64), &sum);
    return sum + (uint64_t)carry;
}

static uint64_t load(const unsigned char *from) {
    uint64_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

static void take_rounds(uint64_t lanes[N_LANES], const unsigned char *from, uint64_t n_rounds) {
    uint64_t at[N_LANES];
    memcpy(at, lanes, sizeof at);
    for (; n_rounds; n_rounds--, from += ROUND_NBYTES) {
        __builtin_prefetch((const void *)((uintptr_t)from + PREFETCH_NBYTES));
        for (int i = 0; i < N_LANES; i++)
            at[i] = mix(at[i], load(from + 8 * i));
    }
    memcpy(lanes, at, sizeof at);
}

/* The last rounds of nbytes_all bytes, and one word of all. */
static uint64_t finish(uint64_t lanes[N_LANES], const unsigned char *from, uint64_t nbytes, uint64_t nbytes_all) {
    unsigned char last[ROUND_NBYTES] = {0};
    uint64_t n_rounds = nbytes / ROUND_NBYTES, n_left = nbytes % ROUND_NBYTES, digest = mix(start[0], nbytes_all);
    take_rounds(lanes, from, n_rounds);
    if (n_left) {
        memcpy(last, from + n_rounds * ROUND_NBYTES, n_left);
        take_rounds(lanes, last, 1);
    }
    for (int i = 0; i < N_LANES; i++)
        digest = mix(digest, lanes[i]);
    return mix(digest, start[1]);
}

/* ---- strided memory ---------------------------------------------------------------------------------------------- */

/* The next element in row-major order. */
typedef struct cursor {
    const zfi_view_t *view;
    int64_t index[ZF_MAX_NDIM];
    uint64_t offset; /* elements; wraps where an axis of one element has a wild stride */
} cursor_t;

static inline void copy_each(unsigned char *to, const unsigned char *from, size_t elem_nbytes, uint64_t n,
                             uint64_t step_nbytes) {
    for (uint64_t i = 0; i < n; i++)
        memcpy(to + i * elem_nbytes, from + i * step_nbytes, elem_nbytes);
}

/* Elements `step_nbytes` apart; one loop per size, so that a copy is one instruction. */
static void copy_run(unsigned char *to, const unsigned char *from, size_t elem_nbytes, uint64_t n,
                     uint64_t step_nbytes) {
    if (elem_nbytes == 1)
        copy_each(to, from, 1, n, step_nbytes);
    else if (elem_nbytes == 2)
        copy_each(to, from, 2, n, step_nbytes);
    else if (elem_nbytes == 4)
        copy_each(to, from, 4, n, step_nbytes);
    else
        copy_each(to, from, 8, n, step_nbytes);
}

/* Moves n elements on within the last axis, and to the next row at its end. */
static void advance(cursor_t *at, uint64_t n) {
    const zfi_view_t *view = at->view;
    int axis = view->ndim - 1;
    at->index[axis] += (int64_t)n;
    at->offset += n * (uint64_t)view->strides[axis];
    while (axis > 0 && at->index[axis] == view->shape[axis]) {
        at->offset += (uint64_t)view->strides[axis - 1] - (uint64_t)view->shape[axis] * (uint64_t)view->strides[axis];
        at->index[axis--] = 0;
        at->index[axis]++;
    }
}

/* The next n elements, contiguous. */
static void gather(cursor_t *at, unsigned char *to, uint64_t n) {
    const zfi_view_t *view = at->view;
    int last = view->ndim - 1;
    while (n) {
        uint64_t n_row = (uint64_t)(view->shape[last] - at->index[last]), n_run = n_row < n ? n_row : n;
        copy_run(to, view->data + at->offset * view->elem_nbytes, view->elem_nbytes, n_run,
                 (uint64_t)view->strides[last] * view->elem_nbytes);
        advance(at, n_run);
        to += n_run * view->elem_nbytes;
        n -= n_run;
    }
}

static uint64_t digest_strided(const zfi_view_t *view, uint64_t lanes[N_LANES]) {
    unsigned char block[BLOCK_NBYTES];
    uint64_t n_block = BLOCK_NBYTES / view->elem_nbytes, n_left = view->n_elems;
    cursor_t at = {.view = view};
    for (; n_left > n_block; n_left -= n_block) {
        gather(&at, block, n_block);
        take_rounds(lanes, block, BLOCK_NBYTES / ROUND_NBYTES);
    }
    gather(&at, block, n_left);
    return finish(lanes, block, n_left * view->elem_nbytes, view->n_elems * view->elem_nbytes);
}

uint64_t zfi_digest(const zfi_view_t *view) {
    uint64_t lanes[N_LANES], nbytes = view->n_elems * view->elem_nbytes;
    memcpy(lanes, start, sizeof lanes);
    return view->is_contiguous ? finish(lanes, view->data, nbytes, nbytes) : digest_strided(view, lanes);
}
