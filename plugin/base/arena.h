/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/arena.h - exact memory: one pass of requests counts, a second one hands out.
 *
 * The same layout function runs twice over an arena: first with base NULL, which adds up sizes (the plan), then over
 * one mapping of exactly that size (mmap, pages touched). So planned and allocated bytes are equal by construction, and
 * no allocator rounds up. A mapping begins where a huge page may, so that the system can back all of it but its end by
 * huge pages.
 *
 * Between the check that a mapping fits and the moment its last page exists, the system still counts its bytes as
 * free, which takes seconds for a large state; two instances that bind at the same time would both be given them. So
 * they are promised first: one number, the only one that the instances of a process share (abi.md forbids such state
 * elsewhere; the system keeps no account of it that could be read instead). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "zf/types.h"

#define ZFI_ARENA_ALIGN 64u
#define ZFI_HUGE_PAGE ((uint64_t)2 << 20) /* where they are larger, mappings still begin at every such place */

typedef struct zfi_arena {
    unsigned char *base;      /* NULL: count only */
    uint64_t used_nbytes;     /* handed out or counted so far */
    uint64_t total_nbytes;    /* mapped; 0 while counting */
    uint64_t promised_nbytes; /* of the mapping to come; 0 without a promise */
} zfi_arena_t;

/* Next piece, 64-byte aligned and zero; NULL while counting. */
void *zfi_arena_take(zfi_arena_t *arena, uint64_t n, size_t elem_nbytes);

/* [any-thread] Promises as many bytes as were counted. Mapping keeps the promise page by page, freeing withdraws it. */
void zfi_arena_promise(zfi_arena_t *arena);

/* [any-thread] Bytes of all promises of this process that are not yet kept. */
uint64_t zfi_arena_all_promised(void);

/* Maps as much as was counted, touches every page, and rewinds: the next takes hand out memory. */
zf_status_t zfi_arena_map(zfi_arena_t *arena, const char *what, zf_error_t *err);

/* Takes over memory of zfi_arena_mapped_nbytes that the caller has allocated, zeroed, for what was counted. */
void zfi_arena_adopt(zfi_arena_t *arena, void *memory);

/* Bytes that the mapping takes: counted bytes rounded up to pages. */
uint64_t zfi_arena_mapped_nbytes(const zfi_arena_t *arena);

void zfi_arena_free(zfi_arena_t *arena);
