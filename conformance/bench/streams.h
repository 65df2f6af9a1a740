/* SPDX-License-Identifier: Apache-2.0 */
/* streams.h - what the machine can do at best with the streams of a replay, for the limit column of the benchmarks. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The streams of one replay: n_elems of w, m, v (NULL: none) are read and written, n_slots gradients of elem_nbytes
 * read, visible of 2 bytes written. n_elems is a multiple of 64; every pointer is aligned to 64 bytes. */
typedef struct streams {
    float *w;
    void *m, *v;
    size_t m_nbytes, v_nbytes; /* per element: 4, 2 or 1 */
    const void *const *grads;
    uint32_t n_slots;
    size_t elem_nbytes;
    uint16_t *visible;
    uint64_t n_elems;
} streams_t;

/* Touches every byte of the streams as a replay does, with next to no arithmetic; ahead_nbytes of software prefetch, 0
 * = none. */
void streams_read_modify_write(const streams_t *streams, size_t ahead_nbytes);
