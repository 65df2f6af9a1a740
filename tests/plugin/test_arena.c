/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_arena.c - counting and handing out are the same walk. */
#include "base/arena.h"

#include <check.h>
#include <string.h>

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

ZT_MAIN("arena", counted_is_mapped, nothing_to_map, more_than_there_is, promises)
