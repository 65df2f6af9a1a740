/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_struct.c - sized structs of hosts older and newer than this plugin. */
#include "base/struct.h"

#include <check.h>
#include <string.h>

#include "suite.h"

typedef struct known {
    uint32_t struct_size, a;
    uint64_t b, c; /* c came later: the first version ended before it */
} known_t;

enum { FIRST = 16, SIZE = sizeof(known_t) };

static unsigned char given[256];
static known_t out;
static zf_error_t err = {.struct_size = sizeof err};

static void set_size(uint32_t size) {
    memset(given, 0, sizeof given);
    memcpy(given, &size, sizeof size);
    given[4] = 11;
    given[8] = 22;
    if (size > FIRST)
        given[16] = 33;
    memset(&out, 0x5A, sizeof out);
}

static zf_status_t read_it(void) { return zfi_struct_read(&out, given, FIRST, SIZE, "known_t", &err); }

START_TEST(inputs) {
    known_t before;
    set_size(SIZE);
    ck_assert_int_eq(read_it(), ZF_OK);
    ck_assert(out.a == 11 && out.b == 22 && out.c == 33);
    set_size(FIRST);
    given[16] = 99; /* not the struct's any more */
    ck_assert_int_eq(read_it(), ZF_OK);
    ck_assert(out.a == 11 && out.b == 22 && out.c == 0);
    set_size(SIZE + 8);
    ck_assert_int_eq(read_it(), ZF_OK);
    given[SIZE + 7] = 1;
    before = out;
    ck_assert_int_eq(read_it(), ZF_ERR_UNSUPPORTED_FIELD);
    ck_assert_ptr_nonnull(strstr(err.message, "byte 31 of 32"));
    ck_assert_int_eq(memcmp(&before, &out, sizeof out), 0);
}
END_TEST

START_TEST(absurd_sizes) {
    static const uint32_t sizes[] = {0, 4, FIRST - 1, 65537, UINT32_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        set_size(sizes[i]);
        ck_assert_int_eq(read_it(), ZF_ERR_ABI);
        ck_assert_uint_eq(out.a, 0x5A5A5A5A);
    }
    ck_assert_int_eq(zfi_struct_read(&out, NULL, FIRST, SIZE, "known_t", &err), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(zfi_struct_check(NULL, FIRST, SIZE, "known_t", NULL), ZF_ERR_ARGUMENT);
}
END_TEST

START_TEST(items) { /* of an array with a stride */
    uint32_t size = SIZE;
    memset(given, 0, sizeof given);
    memcpy(given + 64, &size, sizeof size);
    given[68] = 7;
    ck_assert_int_eq(zfi_struct_read_item(&out, given, 2, 32, FIRST, SIZE, "known_t", &err), ZF_OK);
    ck_assert_uint_eq(out.a, 7);
    size = 40;
    memcpy(given + 64, &size, sizeof size);
    ck_assert_int_eq(zfi_struct_read_item(&out, given, 2, 32, FIRST, SIZE, "known_t", &err), ZF_ERR_ABI);
}
END_TEST

START_TEST(outputs) {
    known_t from = {SIZE, 1, 2, 3}, to = {FIRST, 9, 9, 9};
    zfi_struct_write(&to, &from, SIZE);
    ck_assert(to.struct_size == FIRST && to.a == 1 && to.b == 2 && to.c == 9);
    to = (known_t){SIZE, 9, 9, 9};
    zfi_struct_write(&to, &from, SIZE);
    ck_assert(to.struct_size == SIZE && to.c == 3);
    set_size(100);
    memset(given + 4, 9, 96);
    zfi_struct_write(given, &from, SIZE);
    ck_assert_uint_eq(given[SIZE], 9); /* beyond what is known: the host's */
    zfi_struct_write(NULL, &from, SIZE);
    ck_assert_int_eq(zfi_struct_check_out(NULL, "known_t", &err), ZF_OK);
    to.struct_size = 4;
    ck_assert_int_eq(zfi_struct_check_out(&to, "known_t", &err), ZF_ERR_ABI);
    to.struct_size = 8;
    ck_assert_int_eq(zfi_struct_check_out(&to, "known_t", &err), ZF_OK);
}
END_TEST

START_TEST(arrays) {
    ck_assert_int_eq(zfi_array_check(given, 3, 1, SIZE, FIRST, "known_t", &err), ZF_OK);
    ck_assert_int_eq(zfi_array_check(NULL, 0, 0, 0, FIRST, "known_t", &err), ZF_OK);
    ck_assert_int_eq(zfi_array_check(given, 0, 1, SIZE, FIRST, "known_t", &err), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(zfi_array_check(NULL, 1, 1, SIZE, FIRST, "known_t", &err), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(zfi_array_check(given, 1, 1, FIRST - 8, FIRST, "known_t", &err), ZF_ERR_ABI);
    ck_assert_int_eq(zfi_array_check(given, 1, 1, SIZE + 4, FIRST, "known_t", &err), ZF_ERR_ABI);
    ck_assert_int_eq(zfi_array_check(given, 1, 1, 4104, FIRST, "known_t", &err), ZF_ERR_ABI);
}
END_TEST

ZT_MAIN("struct", inputs, absurd_sizes, items, outputs, arrays)
