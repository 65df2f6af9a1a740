/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_tensor.c - descriptors from a host that is wrong or hostile; strided copies. */
#include "base/tensor.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#include "rig.h"
#include "suite.h"

static float data[4096];
static int64_t shape[16], strides[16];
static zf_tensor_t tensor;
static zfi_view_t view;
static zf_error_t err = {.struct_size = sizeof err};

static void good(int ndim, int64_t a, int64_t b, int64_t c) {
    shape[0] = a;
    shape[1] = b;
    shape[2] = c;
    zt_tensor(&tensor, data, shape, ndim, 0);
    memset(&err.message, 0, sizeof err.message);
}

static zf_status_t check(void) { return zfi_tensor_check(&tensor, "gradient", "x.weight", ZF_DEVICE_CPU, &view, &err); }

static void refused(zf_status_t want, const char *part) {
    zf_status_t st = check();
    ck_assert_msg(st == want, "%d, need %d: %s", st, want, err.message);
    ck_assert_msg(strstr(err.message, part) != NULL, "\"%s\" is not in \"%s\"", part, err.message);
}

START_TEST(plain) {
    good(3, 2, 3, 4);
    ck_assert_int_eq(check(), ZF_OK);
    ck_assert(view.n_elems == 24 && view.ndim == 3 && view.is_contiguous && view.dtype == ZFI_F32);
    ck_assert(view.strides[0] == 12 && view.strides[1] == 4 && view.strides[2] == 1);
    ck_assert_ptr_eq(view.data, data);
    good(0, 0, 0, 0);
    tensor.dl.shape = NULL;
    ck_assert_int_eq(check(), ZF_OK);
    ck_assert(view.n_elems == 1 && view.is_contiguous);
}
END_TEST

START_TEST(strided) {
    good(2, 3, 4, 0);
    strides[0] = 1;
    strides[1] = 3;
    tensor.dl.strides = strides;
    ck_assert_int_eq(check(), ZF_OK);
    ck_assert_int_eq(view.is_contiguous, 0);
    strides[0] = 100;
    strides[1] = 1;
    refused(ZF_ERR_SHAPE, "reach 816 bytes"); /* (2 * 100 + 3 + 1) * 4 */
    tensor.nbytes = 816;
    ck_assert_int_eq(check(), ZF_OK);
    strides[0] = 0; /* an expanded gradient */
    ck_assert_int_eq(check(), ZF_OK);
    ck_assert_int_eq(view.is_contiguous, 0);
    good(2, 1, 4, 0); /* the stride of an axis of one element does not matter */
    strides[0] = 77;
    tensor.dl.strides = strides;
    ck_assert_int_eq(check(), ZF_OK);
    ck_assert_int_eq(view.is_contiguous, 1);
}
END_TEST

START_TEST(empty) {
    good(3, 4, 0, 5);
    tensor.dl.data = NULL;
    ck_assert_int_eq(check(), ZF_OK);
    ck_assert_uint_eq(view.n_elems, 0);
    ck_assert_ptr_null(view.data);
}
END_TEST

START_TEST(hostile_shapes) {
    static const int64_t sizes[][3] = {
        {-1, 2, 2},
        {2, INT64_MIN, 2},
        {INT64_MAX, INT64_MAX, INT64_MAX},
        {(int64_t)1 << 32, (int64_t)1 << 32, 1},
        {(int64_t)1 << 31, (int64_t)1 << 31, 4},
        {INT64_MAX, 2, 1},
        {((int64_t)1 << 48) + 1, 1, 1},
        {INT64_MAX, INT64_MAX, 0},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        good(3, 1, 1, 1);
        memcpy(shape, sizes[i], sizeof sizes[i]);
        tensor.nbytes = UINT64_MAX;
        refused(ZF_ERR_SHAPE, "x.weight");
    }
    good(3, 4, 4, 4);
    tensor.nbytes--;
    refused(ZF_ERR_SHAPE, "nbytes = 255");
}
END_TEST

START_TEST(hostile_strides) {
    static const int64_t lists[][2] = {{-1, 1},        {1, INT64_MIN},        {INT64_MAX, INT64_MAX},
                                       {INT64_MAX, 1}, {(int64_t)1 << 48, 1}, {(int64_t)1 << 62, (int64_t)1 << 62}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        good(2, 3, 3, 0);
        memcpy(strides, lists[i], sizeof lists[i]);
        tensor.dl.strides = strides;
        tensor.nbytes = UINT64_MAX;
        refused(ZF_ERR_SHAPE, "gradient of \"x.weight\"");
    }
}
END_TEST

START_TEST(hostile_members) {
    ck_assert_int_eq(zfi_tensor_check(NULL, "parameter", "p", ZF_DEVICE_CPU, &view, &err), ZF_ERR_ARGUMENT);
    good(2, 3, 3, 0);
    tensor.dl.ndim = 9;
    refused(ZF_ERR_SHAPE, "ndim = 9");
    tensor.dl.ndim = -1;
    refused(ZF_ERR_SHAPE, "ndim = -1");
    tensor.dl.ndim = INT32_MIN;
    refused(ZF_ERR_SHAPE, "ndim");
    good(2, 3, 3, 0);
    tensor.dl.shape = NULL;
    refused(ZF_ERR_SHAPE, "shape is NULL");
    good(2, 3, 3, 0);
    tensor.dl.data = NULL;
    refused(ZF_ERR_ARGUMENT, "data is NULL");
    good(2, 3, 3, 0);
    tensor.struct_size = 8;
    refused(ZF_ERR_ABI, "struct_size");
    good(2, 3, 3, 0);
    tensor.flags = ZF_TENSOR_SPARSE;
    refused(ZF_ERR_SHAPE, "sparse");
    tensor.flags = 4;
    refused(ZF_ERR_UNSUPPORTED_FIELD, "0x4");
    good(2, 3, 3, 0);
    tensor.dl.device_type = ZF_DEVICE_CUDA;
    refused(ZF_ERR_DEVICE, "device type 2");
    good(2, 3, 3, 0);
    for (uint64_t offset = 1; offset < 4; offset++) {
        tensor.dl.byte_offset = offset;
        refused(ZF_ERR_ARGUMENT, "not aligned to 4 bytes");
    }
    tensor.dl.byte_offset = 4;
    ck_assert_int_eq(check(), ZF_OK);
    ck_assert_ptr_eq(view.data, data + 1);
}
END_TEST

START_TEST(data_types) {
    static const struct {
        zf_dtype_t dtype;
        int want;
    } all[] = {{{2, 32, 1}, ZFI_F32}, {{4, 16, 1}, ZFI_BF16}, {{2, 16, 1}, ZFI_F16}, {{2, 64, 1}, -1},
               {{0, 32, 1}, -1},      {{2, 32, 4}, -1},       {{4, 32, 1}, -1},      {{0, 0, 0}, -1}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        ck_assert_int_eq(zfi_dtype_of(all[i].dtype), all[i].want);
        good(1, 4, 0, 0);
        tensor.dl.dtype = all[i].dtype;
        ck_assert_int_eq(check(), all[i].want < 0 ? ZF_ERR_DTYPE : ZF_OK);
    }
}
END_TEST

/* Types that later versions may know are refused by their names. */
START_TEST(reserved_types) {
    static const char *const names[] = {"float8_e3m4",     "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn",
                                        "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",    "float8_e8m0fnu"};
    for (uint8_t i = 0; i < 8; i++) {
        char need[48];
        good(1, 4, 0, 0);
        tensor.dl.dtype = (zf_dtype_t){(uint8_t)(ZF_DTYPE_CODE_FLOAT8_E3M4 + i), 8, 1};
        snprintf(need, sizeof need, "data type %s (code %d, 8 bits", names[i], 7 + i);
        refused(ZF_ERR_DTYPE, need);
    }
}
END_TEST

START_TEST(packing) {
    static const int64_t sizes[4] = {3, 2, 5, 4}, steps[4] = {1, 200, 3, 30};
    float out[3 * 2 * 5 * 4];
    size_t at = 0;
    for (size_t i = 0; i < 4096; i++)
        data[i] = (float)i;
    zfi_pack(out, data, 4, 4, sizes, steps);
    for (int64_t a = 0; a < 3; a++)
        for (int64_t b = 0; b < 2; b++)
            for (int64_t c = 0; c < 5; c++)
                for (int64_t d = 0; d < 4; d++)
                    ck_assert(out[at++] == (float)(a + 200 * b + 3 * c + 30 * d));
    zfi_pack(out, data + 9, 4, 0, NULL, NULL);
    ck_assert(out[0] == 9);
}
END_TEST

START_TEST(shape_text) {
    static const int64_t long_shape[8] = {1234567890123, 2, 3, 4, 5, 6, 7, 8};
    char text[64], small[8];
    zfi_shape_text(text, sizeof text, 0, NULL);
    ck_assert_str_eq(text, "[]");
    zfi_shape_text(text, sizeof text, 2, long_shape + 1);
    ck_assert_str_eq(text, "[2, 3]");
    memset(small, 'x', sizeof small);
    zfi_shape_text(small, sizeof small, 8, long_shape);
    ck_assert_ptr_nonnull(memchr(small, 0, sizeof small));
}
END_TEST

ZT_MAIN("tensor", reserved_types, plain, strided, empty, hostile_shapes, hostile_strides, hostile_members, data_types,
        packing, shape_text)
