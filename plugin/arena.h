/* plugin/arena.h - exact memory: one pass of requests counts, a second one hands out.
 *
 * The same layout function runs twice over an arena: first with base NULL, which adds up sizes (the plan), then over
 * one mapping of exactly that size (mmap, pages touched). So planned and allocated bytes are equal by construction, and
 * no allocator rounds up. */
#ifndef ZFI_ARENA_H
#define ZFI_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "zf/types.h"

#define ZFI_ARENA_ALIGN 64u

typedef struct zfi_arena {
    unsigned char *base;   /* NULL: count only */
    uint64_t used_nbytes;  /* handed out or counted so far */
    uint64_t total_nbytes; /* mapped; 0 while counting */
} zfi_arena_t;

/* Next piece, 64-byte aligned and zero; NULL while counting. */
void *zfi_arena_take(zfi_arena_t *arena, uint64_t n, size_t elem_nbytes);

/* Maps as much as was counted, touches every page, and rewinds: the next takes hand out memory. */
zf_status_t zfi_arena_map(zfi_arena_t *arena, const char *what, zf_error_t *err);

/* Bytes that the mapping takes: counted bytes rounded up to pages. */
uint64_t zfi_arena_mapped_nbytes(const zfi_arena_t *arena);

void zfi_arena_free(zfi_arena_t *arena);

/* Bytes this process may still allocate: the lower of MemAvailable and what its memory cgroup leaves; UINT64_MAX
 * unknown. */
uint64_t zfi_memory_available(void);

#endif
