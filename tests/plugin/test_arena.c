/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_arena.c - counting and handing out are the same walk. */
#include "base/arena.h"

#include <check.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "suite.h"

enum { N_TAKES = 7 };
static const uint64_t takes[N_TAKES] = {1, 0, 63, 64, 65, 4096, 100000};

static void walk(zfi_arena_t *arena, unsigned char **out) {
    for (int i = 0; i < N_TAKES; i++)
        out[i] = zfi_arena_take(arena, takes[i], 1);
}

START_TEST(counted_is_mapped) {
    zfi_arena_t arena = {0};
    unsigned char *at[N_TAKES];
    uint64_t planned;
    walk(&arena, at);
    for (int i = 0; i < N_TAKES; i++)
        ck_assert_ptr_null(at[i]);
    planned = zfi_arena_mapped_nbytes(&arena);
    ck_assert_uint_eq(planned % 4096, 0);
    ck_assert_int_eq(zfi_arena_map(&arena, "a test", NULL), ZF_OK);
    ck_assert_uint_eq(arena.total_nbytes, planned);
    ck_assert_uint_eq(zfi_arena_mapped_nbytes(&arena), planned);
    walk(&arena, at);
    ck_assert_uint_le(arena.used_nbytes, planned);
    ck_assert_uint_gt(arena.used_nbytes, planned - 4096);
    for (int i = 0; i < N_TAKES; i++) {
        ck_assert_uint_eq((uintptr_t)at[i] % ZFI_ARENA_ALIGN, 0);
        for (uint64_t k = 0; k < takes[i]; k++)
            ck_assert_uint_eq(at[i][k], 0);
        memset(at[i], i + 1, takes[i]);
    }
    for (int i = 0; i < N_TAKES; i++) /* nothing overlaps */
        for (uint64_t k = 0; k < takes[i]; k++)
            ck_assert_int_eq(at[i][k], i + 1);
    zfi_arena_free(&arena);
    ck_assert_ptr_null(arena.base);
    zfi_arena_free(&arena);
}
END_TEST

START_TEST(nothing_to_map) {
    zfi_arena_t arena = {0};
    zfi_arena_take(&arena, 0, 8);
    ck_assert_int_eq(zfi_arena_map(&arena, "nothing", NULL), ZF_OK);
    ck_assert_uint_eq(zfi_arena_mapped_nbytes(&arena), 0);
    zfi_arena_free(&arena);
}
END_TEST

START_TEST(more_than_there_is) {
    zfi_arena_t arena = {0};
    zf_error_t err = {.struct_size = sizeof err};
    zfi_arena_take(&arena, (uint64_t)1 << 50, 8);
    ck_assert_int_eq(zfi_arena_map(&arena, "a dream", &err), ZF_ERR_MEMORY);
    ck_assert_ptr_nonnull(strstr(err.message, "a dream"));
    ck_assert_ptr_null(arena.base);
    ck_assert_int_ne((int)err.native_code, 0);
}
END_TEST

/* The flags that the system keeps of the mapping that holds an address. */
static void flags_of(const void *at, char out[256]) {
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512];
    uintptr_t first, end;
    int is_it = 0;
    ck_assert_ptr_nonnull(file);
    *out = '\0';
    while (!*out && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &first, &end) == 2)
            is_it = (uintptr_t)at >= first && (uintptr_t)at < end;
        else if (is_it && strncmp(line, "VmFlags:", 8) == 0)
            snprintf(out, 256, "%.255s", line);
    }
    fclose(file);
}

/* Address space of this process, in pages; allocates nothing. */
static uint64_t n_pages(void) {
    char text[64] = "";
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ck_assert_int_gt(read(fd, text, sizeof text - 1), 0);
    close(fd);
    return strtoull(text, NULL, 10);
}

/* What is large begins where a huge page may, and says whether it wants them, from its first byte to its last. */
START_TEST(huge_pages) {
    static const uint64_t sizes[] = {3000000, (uint64_t)2 << 20, (uint64_t)4 << 20, 12345678};
    char flags[256];
    if (access("/sys/kernel/mm/transparent_hugepage", F_OK) != 0)
        return;             /* this system has none */
    flags_of(flags, flags); /* what the library keeps for files */
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        zfi_arena_t arena = {0};
        uint64_t before = n_pages();
        zfi_arena_take(&arena, sizes[i], 1);
        ck_assert_int_eq(zfi_arena_map(&arena, "a test", NULL), ZF_OK);
        ck_assert_uint_eq((uintptr_t)arena.base % ZFI_HUGE_PAGE, 0);
        ck_assert_uint_lt(arena.total_nbytes - sizes[i], 4096);
        ck_assert_uint_eq((n_pages() - before) * 4096, arena.total_nbytes); /* nothing around it is left */
        for (int k = 0; k < 2; k++) {
            flags_of(arena.base + (k ? arena.total_nbytes - 1 : 0), flags);
            ck_assert_ptr_nonnull(strstr(flags, " hg"));
        }
        zfi_arena_free(&arena);
    }
}
END_TEST

/* A promise counts until its pages exist, or until it is withdrawn. */
START_TEST(promises) {
    zfi_arena_t kept = {0}, withdrawn = {0}, refused = {0};
    zfi_arena_take(&kept, 200 << 20, 1);
    zfi_arena_take(&withdrawn, 5000, 1);
    zfi_arena_take(&refused, (uint64_t)1 << 50, 8);
    ck_assert_uint_eq(zfi_arena_all_promised(), 0);
    zfi_arena_promise(&kept);
    ck_assert_uint_eq(zfi_arena_all_promised(), 200 << 20);
    zfi_arena_promise(&withdrawn);
    ck_assert_uint_eq(zfi_arena_all_promised(), (200 << 20) + 8192);
    zfi_arena_free(&withdrawn);
    ck_assert_uint_eq(zfi_arena_all_promised(), 200 << 20);
    ck_assert_int_eq(zfi_arena_map(&kept, "a test", NULL), ZF_OK);
    ck_assert_uint_eq(zfi_arena_all_promised(), 0);
    zfi_arena_free(&kept);
    ck_assert_uint_eq(zfi_arena_all_promised(), 0);
    zfi_arena_promise(&refused);
    ck_assert_int_eq(zfi_arena_map(&refused, "a dream", NULL), ZF_ERR_MEMORY);
    ck_assert_uint_gt(zfi_arena_all_promised(), 0); /* until the caller gives up */
    zfi_arena_free(&refused);
    ck_assert_uint_eq(zfi_arena_all_promised(), 0);
}
END_TEST

ZT_MAIN("arena", counted_is_mapped, nothing_to_map, more_than_there_is, huge_pages, promises)
