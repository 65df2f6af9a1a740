/* SPDX-License-Identifier: Apache-2.0 */
/* test_safetensors.c - the safetensors reader: values of each type exactly, and hostile files, each refused with its
 * reason: wrong lengths, offsets, shapes, types, JSON. */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/safetensors.h"
#include "suite.h"
#include "tensors.h"

#define FILE_NAME "model.safetensors"

static zf_safetensors_t opens(const char *header, const void *data, size_t data_nbytes) {
    zf_safetensors_t file;
    char why[ZF_SAFETENSORS_WHY] = "";
    zt_write_tensors(FILE_NAME, header, strlen(header), data, data_nbytes);
    ck_assert_msg(zf_safetensors_open(zt_path(FILE_NAME), &file, why, sizeof why) == 0, "%s", why);
    return file;
}

static void fails_at(const char *path, const char *reason) {
    zf_safetensors_t file;
    char why[ZF_SAFETENSORS_WHY] = "";
    ck_assert_msg(zf_safetensors_open(path, &file, why, sizeof why) == -1, "opened, although \"%s\"", reason);
    ck_assert_msg(strstr(why, reason) != NULL, "\"%s\" lacks \"%s\"", why, reason);
}

static void fails(const char *reason) { fails_at(zt_path(FILE_NAME), reason); }

/* The header with 16 bytes of data is refused. */
static void refuses(const char *header, const char *reason) {
    static const unsigned char data[16];
    zt_write_tensors(FILE_NAME, header, strlen(header), data, sizeof data);
    fails(reason);
}

ZT_TEST(test_values) {
    /* F32: 1, -2.5 | U8: 3, 4 | I64: 7 */
    static const unsigned char data[] = {0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0, 3, 4, 7, 0, 0, 0, 0, 0, 0, 0};
    zf_safetensors_t f = opens("{\"__metadata__\":{\"format\":\"pt\"},"
                               "\"i\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[10,18]},"
                               "\"w\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
                               "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[8,10]}}  ",
                               data, sizeof data);
    static const char *const names[] = {"w", "b", "i"}; /* by offset */
    static const uint64_t n_elems[] = {2, 2, 1};
    float two[2];
    char why[ZF_SAFETENSORS_WHY];
    ck_assert_uint_eq(f.n, 3);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_str_eq(f.tensors[i].name, names[i]);
        ck_assert_uint_eq(f.tensors[i].n_elems, n_elems[i]);
    }
    ck_assert_int_eq(f.tensors[0].n_dims, 2);
    ck_assert_int_eq(f.tensors[2].n_dims, 0);
    ck_assert_int_eq(zf_safetensors_read(&f, f.tensors[0].offset, two, sizeof two, why, sizeof why), 0);
    ck_assert_float_eq(two[0], 1.0f);
    ck_assert_float_eq(two[1], -2.5f);
    zf_safetensors_close(&f);
}

ZT_TEST(test_no_file) {
    fails_at("/nonexistent/model.safetensors", "cannot open");
    fails_at("/tmp", "no regular file");
    zt_write(FILE_NAME, "", 0);
    fails("has 0 bytes");
    zt_write(FILE_NAME, "\1\0\0\0\0\0\0", 7);
    fails("has 7 bytes");
}

#define TENSOR(shape, offsets) "{\"w\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

ZT_TEST(test_lengths) {
    static const unsigned char data[16];
    zt_write_tensors(FILE_NAME, "{}", 3, NULL, 0);
    fails("claims a header of 3 bytes");
    zt_write_tensors(FILE_NAME, "{}", UINT64_MAX, NULL, 0);
    fails("claims a header of 18446744073709551615 bytes");
    zt_write_tensors(FILE_NAME, "{}", (uint64_t)1 << 63, NULL, 0);
    fails("claims a header");
    zt_write_tensors(FILE_NAME, TENSOR("[4]", "[0,16]"), 10, data, 16); /* the header is cut inside */
    fails("no JSON object");
    zt_write_tensors(FILE_NAME, "{\"\\u00\n9\":1}", 12, NULL, 0); /* what is quoted of it is one line */
    fails("no JSON object: invalid escape near '\"\\u00 ' (byte 7)");
    zt_write_tensors(FILE_NAME, TENSOR("[4]", "[0,16]"), strlen(TENSOR("[4]", "[0,16]")), data,
                     15); /* the data is cut */
    fails("the file has 15 bytes of data");
    zt_write_tensors(FILE_NAME, "{}", 2, data, 1);
    fails("byte 10 of 11 belongs to no tensor");
    zf_safetensors_t f = opens("{}", NULL, 0);
    zf_safetensors_close(&f);
}

ZT_TEST(test_ranges) {
    refuses(TENSOR("[4]", "[0]"), "two whole numbers");
    refuses(TENSOR("[4]", "16"), "two whole numbers");
    refuses(TENSOR("[4]", "[-16,0]"), "two whole numbers");
    refuses(TENSOR("[4]", "[16,0]"), "bytes 16 to 0 are claimed");
    refuses(TENSOR("[4]", "[4,20]"), "bytes 4 to 20 are claimed");
    refuses(TENSOR("[4]", "[9223372036854775791,9223372036854775807]"), "the file has 16 bytes of data");
    refuses(TENSOR("[2]", "[0,8]"), "belongs to no tensor");
    refuses(TENSOR("[2]", "[8,16]"), "belongs to no tensor");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
            "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}",
            "overlap at byte");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
            "\"b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}",
            "overlap at byte");
}

/* A file that becomes shorter while it is open is an error at the read. */
ZT_TEST(test_shrinking) {
    static const unsigned char data[16];
    zf_safetensors_t f = opens(TENSOR("[4]", "[0,16]"), data, 16);
    float values[4];
    char why[ZF_SAFETENSORS_WHY];
    ck_assert_int_eq(truncate(zt_path(FILE_NAME), 60), 0);
    ck_assert_int_eq(zf_safetensors_read(&f, f.tensors[0].offset, values, sizeof values, why, sizeof why), -1);
    ck_assert_ptr_nonnull(strstr(why, "shorter"));
    zf_safetensors_close(&f);
}

ZT_SUITE("safetensors")
