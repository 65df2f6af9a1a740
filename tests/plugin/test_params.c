/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_params.c - declarations: ties and shared memory. What else is wrong with a descriptor is zf-conform
 * abi's, what its matrices are zf-conform exact's. */
#include "plan/params.h"

#include <string.h>

#include "rig.h"
#include "suite.h"

enum { N = 4 };
static float memory[4096];
static int64_t shapes[N][2], strides[N][2];
static zf_tensor_t tensors[N];
static zf_param_decl_t decls[N];
static char names[N][300];
static zfi_param_t *params;
static zf_error_t err = {.struct_size = sizeof err};

static void end(void) {
    zfi_params_free(params, N);
    params = NULL;
}

/* Four parameters of 3 x 5, apart from each other: what each test begins with. */
static void start(void) {
    end();
    memset(err.message, 0, sizeof err.message);
    for (int i = 0; i < N; i++) {
        shapes[i][0] = 3;
        shapes[i][1] = 5;
        zt_tensor(&tensors[i], memory + 512 * i, shapes[i], 2, 0);
        memcpy(names[i], "p0", 3);
        names[i][1] = (char)('0' + i);
        decls[i] = (zf_param_decl_t){.struct_size = sizeof decls[i], .name = names[i], .tensor = &tensors[i]};
    }
}

static zf_status_t build(void) { return zfi_params_build(decls, N, sizeof *decls, ZF_DEVICE_CPU, &params, &err); }

static void refused(zf_status_t want, const char *part) {
    zt_refused(&err, build(), want, part);
    ck_assert_ptr_null(params);
}

static void accepted(void) { ck_assert_msg(build() == ZF_OK, "%s", err.message); }

/* Types of 8 bits have numbers, and nothing is trained in them. */
ZT_TEST(types_of_8_bits) {
    decls[2].grad_dtype = (zf_dtype_t){ZF_DTYPE_CODE_FLOAT8_E5M2, 8, 1};
    refused(ZF_ERR_DTYPE, "\"p2\": gradient data type float8_e5m2 (code 12");
}

ZT_TEST(ties) {
    decls[2].flags = ZF_PARAM_TIED;
    decls[2].tied_to = 2;
    refused(ZF_ERR_PARAM, "the owner must be declared before");
    decls[2].tied_to = 3;
    refused(ZF_ERR_PARAM, "the owner must be declared before");
    decls[2].tied_to = 1;
    tensors[2] = tensors[1];
    decls[3].flags = ZF_PARAM_TIED;
    decls[3].tied_to = 2; /* a chain ends at its first */
    tensors[3] = tensors[1];
    accepted();
    ck_assert(params[2].owner == 1 && params[3].owner == 1 && !params[2].has_state && !params[3].has_state);
}

/* A tied parameter's gradient is read as its owner's: anything else about it must be equal. */
ZT_TEST(ties_of_different_tensors) {
    decls[2].flags = ZF_PARAM_TIED;
    decls[2].tied_to = 1;
    shapes[2][0] = 5;
    shapes[2][1] = 3;
    refused(ZF_ERR_SHAPE, "[5, 3]");
    start();
    decls[2].flags = ZF_PARAM_TIED;
    decls[2].tied_to = 1;
    decls[2].grad_dtype = (zf_dtype_t){ZF_DTYPE_CODE_BFLOAT, 16, 1};
    refused(ZF_ERR_DTYPE, "\"p2\" and \"p1\"");
    start();
    decls[2].flags = ZF_PARAM_TIED;
    decls[2].tied_to = 1;
    refused(ZF_ERR_PARAM, "share one memory");
}

ZT_TEST(shared_memory) {
    tensors[3].dl.data = memory + 512 + 14; /* the last element of p1 */
    refused(ZF_ERR_PARAM, "\"p1\" and \"p3\" share memory");
    decls[3].flags = ZF_PARAM_FROZEN;
    accepted();
    ck_assert_int_eq(params[3].has_state, 0);
    start();
    tensors[3].dl.data = memory + 512 + 15; /* right behind it */
    accepted();
    start();
    shapes[0][0] = 400; /* over p1 and p2 */
    tensors[0].nbytes = 8000;
    refused(ZF_ERR_PARAM, "share memory");
}

ZT_TEST(interleaved_views) { /* two halves of one [3, 10] tensor */
    tensors[1].dl.data = memory + 512;
    tensors[2].dl.data = memory + 517;
    for (int i = 1; i < 3; i++) {
        strides[i][0] = 10;
        strides[i][1] = 1;
        tensors[i].dl.strides = strides[i];
        tensors[i].nbytes = 100;
    }
    accepted();
    ck_assert(params[1].row_stride == 10 && params[1].col_offset == NULL);
    end();
    tensors[2].dl.data = memory + 512;
    refused(ZF_ERR_PARAM, "share memory");
}

ZT_TEST(nothing_and_scalars) {
    shapes[1][0] = 0;
    tensors[1].nbytes = 0;
    tensors[2].dl.ndim = 0;
    accepted();
    ck_assert(!params[1].has_state && params[1].n_elems == 0);
    ck_assert(params[2].n_elems == 1 && params[2].rows == 1 && params[2].cols == 1);
}

ZT_TEST(too_many_rows) {
    shapes[1][0] = (int64_t)1 << 32;
    shapes[1][1] = 1;
    tensors[1].nbytes = (uint64_t)1 << 34;
    refused(ZF_ERR_SHAPE, "at most 2^32 - 1");
}

ZT_SUITE_WITH("params", start, end)
