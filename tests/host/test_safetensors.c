/* SPDX-License-Identifier: Apache-2.0 */
/* test_safetensors.c - the safetensors reader: values of each type exactly, and hostile files, each refused with its
 * reason: wrong lengths, offsets, shapes, types, JSON. */
#define _POSIX_C_SOURCE 200809L
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "folder.h"
#include "host/safetensors.h"
#include "suite.h"

#define FILE_NAME "model.safetensors"

static host_safetensors_t *opens(const char *header, const void *data, size_t data_nbytes) {
    host_safetensors_t *file = NULL;
    glue_error_t err = {""};

    zt_write_tensors(FILE_NAME, header, strlen(header), data, data_nbytes);
    ck_assert_msg(host_safetensors_open(zt_path(FILE_NAME), &file, &err) == 0, "%s", err.text);
    return file;
}

static void fails(const char *reason) {
    host_safetensors_t *file = NULL;
    glue_error_t err = {""};

    ck_assert_msg(host_safetensors_open(zt_path(FILE_NAME), &file, &err) == -1, "opened, although \"%s\"", reason);
    ck_assert_ptr_null(file);
    ck_assert_msg(strstr(err.text, reason) != NULL && strstr(err.text, zt_path(FILE_NAME)) != NULL,
                  "\"%s\" lacks \"%s\"", err.text, reason);
    ck_assert_int_eq(host_safetensors_open(zt_path(FILE_NAME), &file, NULL), -1);
}

/* The header with 16 bytes of data is refused. */
static void refuses(const char *header, const char *reason) {
    static const unsigned char data[16];

    zt_write_tensors(FILE_NAME, header, strlen(header), data, sizeof data);
    fails(reason);
}

static float value_of(host_safetensors_t *file, const char *name, size_t i) {
    const host_tensor_t *t = host_safetensors_find(file, name);
    glue_error_t err = {""};
    float value = -77.0f;

    ck_assert_ptr_nonnull(t);
    ck_assert_msg(host_safetensors_read(file, t, i, 1, &value, &err) == 0, "%s", err.text);
    return value;
}

START_TEST(test_values) {
    /* 1, -2.5 | half: 1, -2.5, 2^-24, inf | bfloat16: 1, -2.5, 3 * 2^-130, -inf | I64: 7 */
    static const unsigned char data[] = {0,    0,    0x80, 0x3f, 0,    0,    0x20, 0xc0, 0x00, 0x3c, 0x00,
                                         0xc1, 1,    0,    0x00, 0x7c, 0x80, 0x3f, 0x20, 0xc0, 0x18, 0x00,
                                         0x80, 0xff, 7,    0,    0,    0,    0,    0,    0,    0};
    host_safetensors_t *f = opens("{\"__metadata__\":{\"format\":\"pt\"},"
                                  "\"w\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
                                  "\"i\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[24,32]},"
                                  "\"h\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[8,16]},"
                                  "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[16,24]}}  ",
                                  data, sizeof data);
    const host_tensor_t *w = host_safetensors_find(f, "w");
    float two[2];
    glue_error_t err = {""};

    ck_assert_uint_eq(host_safetensors_n(f), 4);
    ck_assert_ptr_null(host_safetensors_find(f, "__metadata__"));
    ck_assert_int_eq(w->n_dims, 2);
    ck_assert_uint_eq(w->shape[0], 2);
    ck_assert_int_eq(host_safetensors_read(f, w, 0, 2, two, &err), 0);
    ck_assert_float_eq(two[0], 1.0f);
    ck_assert_float_eq(two[1], -2.5f);
    ck_assert_float_eq(value_of(f, "h", 0), 1.0f);
    ck_assert_float_eq(value_of(f, "h", 1), -2.5f);
    ck_assert_float_eq(value_of(f, "h", 2), 0x1p-24f);
    ck_assert_float_eq(value_of(f, "h", 3), INFINITY);
    ck_assert_float_eq(value_of(f, "b", 0), 1.0f);
    ck_assert_float_eq(value_of(f, "b", 1), -2.5f);
    ck_assert_float_eq(value_of(f, "b", 2), 0x3p-130f);
    ck_assert_float_eq(value_of(f, "b", 3), -INFINITY);
    /* what cannot be read */
    ck_assert_int_eq(host_safetensors_read(f, host_safetensors_find(f, "i"), 0, 1, two, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "I64"));
    ck_assert_int_eq(host_safetensors_read(f, w, 1, 2, two, &err), -1);
    ck_assert_int_eq(host_safetensors_read(f, w, UINT64_MAX, 2, two, &err), -1);
    host_safetensors_close(f);
}
END_TEST

START_TEST(test_no_file) {
    host_safetensors_t *file = NULL;
    glue_error_t err = {""};

    ck_assert_int_eq(host_safetensors_open("/nonexistent/model.safetensors", &file, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "cannot open"));
    ck_assert_int_eq(host_safetensors_open("/tmp", &file, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "no regular file"));
    zt_write(FILE_NAME, "", 0);
    fails("has 0 bytes");
    zt_write(FILE_NAME, "\1\0\0\0\0\0\0", 7);
    fails("has 7 bytes");
}
END_TEST

#define TENSOR(shape, offsets) "{\"w\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

START_TEST(test_lengths) {
    static const unsigned char data[16];

    zt_write_tensors(FILE_NAME, "{}", 3, NULL, 0);
    fails("claims a header of 3 bytes");
    zt_write_tensors(FILE_NAME, "{}", UINT64_MAX, NULL, 0);
    fails("claims a header of 18446744073709551615 bytes");
    zt_write_tensors(FILE_NAME, "{}", (uint64_t)1 << 63, NULL, 0);
    fails("claims a header");
    zt_write_tensors(FILE_NAME, TENSOR("[4]", "[0,16]"), 10, data, 16); /* the header is cut inside */
    fails("no JSON object");
    zt_write_tensors(FILE_NAME, TENSOR("[4]", "[0,16]"), strlen(TENSOR("[4]", "[0,16]")), data,
                     15); /* the data is cut */
    fails("the file has 15 bytes of data");
    zt_write_tensors(FILE_NAME, "{}", 2, data, 1);
    fails("byte 10 of 11 belongs to no tensor");
    host_safetensors_close(opens("{}", NULL, 0));
}
END_TEST

START_TEST(test_ranges) {
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
END_TEST

/* A file that becomes shorter while it is open is an error at the read. */
START_TEST(test_shrinking) {
    static const unsigned char data[16];
    host_safetensors_t *f = opens(TENSOR("[4]", "[0,16]"), data, 16);
    float values[4];
    glue_error_t err = {""};

    ck_assert_int_eq(truncate(zt_path(FILE_NAME), 60), 0);
    ck_assert_int_eq(host_safetensors_read(f, host_safetensors_find(f, "w"), 0, 4, values, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "shorter"));
    host_safetensors_close(f);
}
END_TEST

ZT_MAIN_WITH("safetensors", zt_folder_make, zt_folder_remove, test_values, test_no_file, test_lengths, test_ranges,
             test_shrinking)
