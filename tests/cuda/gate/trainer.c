/* SPDX-License-Identifier: Apache-2.0 */
/* trainer.c - a few steps on a shape of the usual kind, so that every kernel of the plugin works and the double can
 * count its traffic: FAKECUDA_TRAFFIC=1 trainer PLUGIN.so [plain|strided] [KEY=VALUE...]
 *
 * One matrix of ROWS x COLS in bfloat16, with aligned rows, and one bias in float32; every step is applied. `strided`:
 * a gradient with room between its rows. KEY=VALUE are overrides of the configuration, as section.key=value. */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zf_loader.h"

enum { ROWS = 256, COLS = 512, GAP = 64, N_STEPS = 9 };

static zf_error_t err = {.struct_size = sizeof err};

static void need(int is_good, const char *what) {
    if (is_good)
        return;
    fprintf(stderr, "trainer: %s: %s\n", what, err.message);
    exit(1);
}

/* Device memory of n elements of 2 or 4 bytes that hold small numbers, all different. */
static CUdeviceptr numbers(size_t n, size_t elem_nbytes) {
    unsigned char *host = calloc(n, elem_nbytes);
    CUdeviceptr at = 0;
    need(host != NULL && cuMemAlloc(&at, n * elem_nbytes) == CUDA_SUCCESS, "memory");
    for (size_t i = 0; i < n; i++) {
        float value = (float)(i * 2654435761u % 1000003) / 1000003.0f - 0.5f;
        memcpy(host + i * elem_nbytes, (unsigned char *)&value + (4 - elem_nbytes), elem_nbytes);
    }
    need(cuMemcpyHtoD(at, host, n * elem_nbytes) == CUDA_SUCCESS, "a copy");
    free(host);
    return at;
}

static void describe(CUdeviceptr at, zf_dtype_t dtype, int32_t ndim, const int64_t *shape, zf_tensor_t *out) {
    zf_tensor_contiguous((void *)(uintptr_t)at, dtype, ndim, shape, out);
    out->dl.device_type = ZF_DEVICE_CUDA;
}

static void start(CUstream *out) {
    CUdevice device;
    CUcontext context;
    need(!cuInit(0) && !cuDeviceGet(&device, 0) && !cuDevicePrimaryCtxRetain(&context, device) &&
             !cuCtxSetCurrent(context) && !cuStreamCreate(out, CU_STREAM_NON_BLOCKING),
         "the driver");
}

static void train(const zf_plugin_t *zf, zf_instance_t *opt, const zf_grad_item_t *items, const zf_stream_t *stream) {
    zf_group_hyper_t hyper = {.struct_size = sizeof hyper, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    zf_step_args_t step = {
        .struct_size = sizeof step, .groups = &hyper, .n_groups = 1, .elem_size = sizeof hyper, .stream = stream};
    for (int i = 0; i < N_STEPS; i++) {
        need(zf->grads_ready(opt, items, 2, sizeof *items, stream, NULL, &err) >= 0, "grads_ready");
        need(zf->step(opt, &step, NULL, &err) >= 0, "step");
    }
    zf_quiesce_args_t flush = {.struct_size = sizeof flush, .mode = ZF_QUIESCE_FLUSH};
    need(zf->quiesce(opt, &flush, &err) >= 0, "quiesce");
}

int main(int argc, char **argv) {
    const int64_t shape[] = {ROWS, COLS}, bias_shape[] = {COLS};
    int64_t strides[] = {COLS + GAP, 1};
    int is_strided = argc > 2 && strcmp(argv[2], "strided") == 0;
    zf_tensor_t tensors[4]; /* weights, bias, their gradients */
    zf_stream_t stream = {.struct_size = sizeof stream, .kind = ZF_STREAM_CUDA, .device_type = ZF_DEVICE_CUDA};
    zf_loader_t *loader;
    zf_instance_t *opt;
    zf_host_t host;
    uint32_t ids[2];
    CUstream made;
    need(argc > 1 && zf_loader_open(argv[1], &loader, &err) >= 0, "the plugin");
    const zf_plugin_t *zf = zf_loader_plugin(loader);
    start(&made);
    stream.handle = (uint64_t)(uintptr_t)made;
    zf_host_stderr("trainer", "1", ZF_LOG_ERROR, &host);
    describe(numbers(ROWS * COLS, 2), zf_dtype_bfloat16(), 2, shape, &tensors[0]);
    describe(numbers(COLS, 4), zf_dtype_float32(), 1, bias_shape, &tensors[1]);
    describe(numbers(ROWS * (COLS + GAP), 2), zf_dtype_bfloat16(), 2, shape, &tensors[2]);
    describe(numbers(COLS, 4), zf_dtype_float32(), 1, bias_shape, &tensors[3]);
    if (is_strided) {
        tensors[2].dl.strides = strides;
        tensors[2].nbytes = ROWS * (COLS + GAP) * 2;
    }
    zf_create_args_t create = {.struct_size = sizeof create,
                               .host = &host,
                               .device_type = ZF_DEVICE_CUDA,
                               .overrides = argc > 3 ? (const char *const *)(argv + 3) : NULL,
                               .n_overrides = argc > 3 ? (uint32_t)(argc - 3) : 0};
    need(zf->create(&create, &opt, &err) >= 0, "create");
    zf_param_decl_t decls[] = {{.struct_size = sizeof *decls, .name = "w", .tensor = &tensors[0]},
                               {.struct_size = sizeof *decls, .name = "b", .tensor = &tensors[1]}};
    need(zf->bind_params(
             opt,
             &(zf_bind_args_t){
                 .struct_size = sizeof(zf_bind_args_t), .decls = decls, .n_decls = 2, .decl_size = sizeof *decls},
             ids, NULL, &err) >= 0,
         "bind_params");
    zf_grad_item_t items[] = {
        {.struct_size = sizeof *items, .id = ids[0], .flags = ZF_GRAD_TOTAL | ZF_GRAD_LAST, .tensor = &tensors[2]},
        {.struct_size = sizeof *items, .id = ids[1], .flags = ZF_GRAD_TOTAL | ZF_GRAD_LAST, .tensor = &tensors[3]}};
    train(zf, opt, items, &stream);
    zf->destroy(opt, NULL);
    zf_loader_close(loader);
    return 0;
}
