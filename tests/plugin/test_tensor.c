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

ZT_MAIN("tensor", hostile_shapes, hostile_strides, hostile_members)
