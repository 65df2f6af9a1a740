/* plugin/arena.c - exact memory: count, map, hand out (contract in arena.h). */
#include "arena.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "error.h"

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

zf_status_t zfi_arena_map(zfi_arena_t *arena, const char *what, zf_error_t *err) {
    uint64_t nbytes = to_pages(arena->used_nbytes);
    void *base;
    if (nbytes == 0)
        return ZF_OK;
    base = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return zfi_error_scoped(err, ZF_ERR_MEMORY, ZF_SCOPE_CALL, errno, "memory",
                                "cannot map %" PRIu64 " bytes for %s: %s", nbytes, what, strerror(errno));
    madvise(base, nbytes, MADV_HUGEPAGE); /* a wish: fewer TLB misses over the state */
    memset(base, 0, nbytes);              /* every page exists now, not at the first step */
    arena->base = base;
    arena->total_nbytes = nbytes;
    arena->used_nbytes = 0;
    return ZF_OK;
}

void zfi_arena_free(zfi_arena_t *arena) {
    if (arena->base)
        munmap(arena->base, arena->total_nbytes);
    memset(arena, 0, sizeof *arena);
}

/* First unsigned number after `key` in a small text file, or UINT64_MAX. */
static uint64_t read_number(const char *path, const char *key) {
    char line[256];
    uint64_t value = UINT64_MAX;
    FILE *file = fopen(path, "re");
    if (!file)
        return UINT64_MAX;
    while (value == UINT64_MAX && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%" SCNu64, &value) != 1)
            value = UINT64_MAX;
    fclose(file);
    return value;
}

uint64_t zfi_memory_available(void) {
    uint64_t available_kib = read_number("/proc/meminfo", "MemAvailable:");
    uint64_t available = available_kib == UINT64_MAX ? UINT64_MAX : available_kib * 1024;
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max", "");
    uint64_t used = read_number("/sys/fs/cgroup/memory.current", "");
    if (limit != UINT64_MAX && used != UINT64_MAX) {
        uint64_t left = limit > used ? limit - used : 0;
        if (left < available)
            available = left;
    }
    return available;
}
