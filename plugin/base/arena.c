/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/arena.c - exact memory: count, map, hand out (contract in arena.h). */
#include "base/arena.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"

static const uint64_t touched_at_once = (uint64_t)64 << 20;

/* Bytes of all arenas of the process. Each arena adds to it and takes away what it added. */
static _Atomic uint64_t all_promised;

void *zfi_arena_take(zfi_arena_t *arena, uint64_t n, size_t elem_nbytes) {
    uint64_t at = arena->used_nbytes;
    arena->used_nbytes = (at + n * elem_nbytes + ZFI_ARENA_ALIGN - 1) / ZFI_ARENA_ALIGN * ZFI_ARENA_ALIGN;
    return arena->base ? arena->base + at : NULL;
}

static uint64_t to_pages(uint64_t nbytes) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (nbytes + page - 1) / page * page;
}

uint64_t zfi_arena_mapped_nbytes(const zfi_arena_t *arena) {
    return to_pages(arena->total_nbytes ? arena->total_nbytes : arena->used_nbytes);
}

void zfi_arena_promise(zfi_arena_t *arena) {
    arena->promised_nbytes = zfi_arena_mapped_nbytes(arena);
    atomic_fetch_add(&all_promised, arena->promised_nbytes);
}

uint64_t zfi_arena_all_promised(void) { return atomic_load(&all_promised); }

/* At most nbytes of the promise are kept or withdrawn. */
static void end_promise(zfi_arena_t *arena, uint64_t nbytes) {
    if (nbytes > arena->promised_nbytes)
        nbytes = arena->promised_nbytes;
    atomic_fetch_sub(&all_promised, nbytes);
    arena->promised_nbytes -= nbytes;
}

/* Makes every page exist now, not at the first step. What exists is no longer promised. */
static void touch(zfi_arena_t *arena, unsigned char *base, uint64_t nbytes) {
    for (uint64_t at = 0; at < nbytes; at += touched_at_once) {
        uint64_t n = nbytes - at < touched_at_once ? nbytes - at : touched_at_once;
        memset(base + at, 0, n);
        end_promise(arena, n);
    }
}

/* Begins at a multiple of ZFI_HUGE_PAGE where it is that large: what lies around is given back. MAP_FAILED, errno. */
static void *map_pages(uint64_t nbytes) {
    uint64_t around = nbytes < ZFI_HUGE_PAGE ? 0 : ZFI_HUGE_PAGE - to_pages(1), before;
    unsigned char *base = mmap(NULL, nbytes + around, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || !around)
        return base;
    before = (ZFI_HUGE_PAGE - (uintptr_t)base % ZFI_HUGE_PAGE) % ZFI_HUGE_PAGE;
    if (before)
        munmap(base, before);
    if (around > before)
        munmap(base + before + nbytes, around - before);
    return base + before;
}

zf_status_t zfi_arena_map(zfi_arena_t *arena, const char *what, zf_error_t *err) {
    uint64_t nbytes = to_pages(arena->used_nbytes);
    if (nbytes == 0)
        return ZF_OK;
    void *base = map_pages(nbytes);
    if (base == MAP_FAILED)
        return zfi_error_scoped(err, ZF_ERR_MEMORY, ZF_SCOPE_CALL, errno, "memory",
                                "cannot map %" PRIu64 " bytes for %s: %s", nbytes, what, strerror(errno));
    madvise(base, nbytes, MADV_HUGEPAGE); /* a wish */
    touch(arena, base, nbytes);
    arena->base = base;
    arena->total_nbytes = nbytes;
    arena->used_nbytes = 0;
    return ZF_OK;
}

void zfi_arena_adopt(zfi_arena_t *arena, void *memory) {
    arena->total_nbytes = zfi_arena_mapped_nbytes(arena);
    end_promise(arena, arena->promised_nbytes);
    arena->base = memory;
    arena->used_nbytes = 0;
}

void zfi_arena_free(zfi_arena_t *arena) {
    if (arena->base)
        munmap(arena->base, arena->total_nbytes);
    end_promise(arena, arena->promised_nbytes);
    memset(arena, 0, sizeof *arena);
}
