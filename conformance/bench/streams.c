/* SPDX-License-Identifier: Apache-2.0 */
/* streams.c - see streams.h. Compiled for several instruction sets in one file (target_clones): a benchmark may. */
#include "streams.h"

#include <string.h>

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

typedef uint32_t line_t __attribute__((vector_size(64)));

enum { LINE = 64, TILE_ELEMS = 64 };

static inline __attribute__((always_inline)) void ask(const void *stream, size_t nbytes) {
    __builtin_prefetch((const void *)((uintptr_t)stream + nbytes), 0, 3);
}

/* Xor of floats as integers: cheap, and never slow on special values. */
static inline __attribute__((always_inline)) void fold(line_t *sum, const void *from) {
    line_t x;
    memcpy(&x, from, sizeof x);
    *sum ^= x;
}

/* Reads and writes the tile at element i. */
static inline __attribute__((always_inline)) void touch(void *stream, uint64_t i, size_t elem_nbytes, const line_t *sum,
                                                        size_t ahead_nbytes) {
    char *const from = (char *)stream + i * elem_nbytes;
    for (size_t at = 0; at < TILE_ELEMS * elem_nbytes; at += LINE) {
        line_t x = *sum;
        if (ahead_nbytes)
            ask(from + at, ahead_nbytes);
        fold(&x, from + at);
        memcpy(from + at, &x, sizeof x);
    }
}

CLONES void streams_read_modify_write(const streams_t *streams, size_t ahead_nbytes) {
    const size_t slot_nbytes = TILE_ELEMS * streams->elem_nbytes;
    for (uint64_t i = 0; i < streams->n_elems; i += TILE_ELEMS) {
        line_t sum = {0};
        for (uint32_t k = 0; k < streams->n_slots; k++)
            for (size_t at = 0; at < slot_nbytes; at += LINE) {
                const char *from = (const char *)streams->grads[k] + i * streams->elem_nbytes + at;
                if (ahead_nbytes)
                    ask(from, ahead_nbytes);
                fold(&sum, from);
            }
        for (uint64_t at = 0; at < TILE_ELEMS; at += LINE / sizeof *streams->visible)
            memcpy(streams->visible + i + at, &sum, sizeof sum);
        sum &= 1; /* keeps w, m, v in range: only the lowest bit of the mantissa changes */
        touch(streams->w, i, sizeof *streams->w, &sum, ahead_nbytes);
        touch(streams->m, i, streams->m_nbytes, &sum, ahead_nbytes);
        if (streams->v)
            touch(streams->v, i, streams->v_nbytes, &sum, ahead_nbytes);
    }
}
