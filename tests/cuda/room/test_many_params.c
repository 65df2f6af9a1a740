/* SPDX-License-Identifier: Apache-2.0 */
/* test_many_params.c - a model of many small parameters, delivered one by one, so that every stream is given more
 * commands in a step than a driver's queue takes: test_many_params PLUGIN.so PARAMETERS STEPS
 *
 * All parameters begin alike and have the same gradient, so in the end all are the same, bit for bit.
 * ZF_TEST_BLOCK_ELEMS cuts each into blocks. Who waits for a queue for ever is ended by the test's time limit. */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zf_loader.h"

enum { ROWS = 8, COLS = 64, N_ELEMS = ROWS * COLS, NBYTES = N_ELEMS * 4, MOST = 2000 };

static zf_error_t err = {.struct_size = sizeof err};
static zf_stream_t stream = {.struct_size = sizeof stream, .kind = ZF_STREAM_CUDA, .device_type = ZF_DEVICE_CUDA};
static zf_tensor_t weights[MOST], gradients[MOST];
static zf_param_decl_t decls[MOST];
static char names[MOST][16];
static uint32_t ids[MOST];

static void need(int is_good, const char *what) {
    if (is_good)
        return;
    fprintf(stderr, "test_many_params: %s: %s\n", what, err.message);
    exit(1);
}

static void start(void) {
    CUdevice device;
    CUcontext context;
    CUstream made = NULL;
    need(!cuInit(0) && !cuDeviceGet(&device, 0) && !cuDevicePrimaryCtxRetain(&context, device) &&
             !cuCtxSetCurrent(context) && !cuStreamCreate(&made, CU_STREAM_NON_BLOCKING),
         "the driver");
    stream.handle = (uint64_t)(uintptr_t)made;
}

/* n tensors on the device, all with the same small numbers. Returns the first one's address. */
static CUdeviceptr make_tensors(uint32_t n, unsigned factor, zf_tensor_t *out) {
    static const int64_t shape[] = {ROWS, COLS};
    float host[N_ELEMS];
    CUdeviceptr at = 0;
    for (unsigned i = 0; i < N_ELEMS; i++)
        host[i] = (float)(i * factor % 1009) / 1009.0f - 0.5f;
    need(cuMemAlloc(&at, (size_t)n * NBYTES) == CUDA_SUCCESS, "memory");
    for (uint32_t i = 0; i < n; i++) {
        CUdeviceptr mine = at + (size_t)i * NBYTES;
        need(cuMemcpyHtoD(mine, host, NBYTES) == CUDA_SUCCESS, "a copy");
        zf_tensor_contiguous((void *)(uintptr_t)mine, zf_dtype_float32(), 2, shape, &out[i]);
        out[i].dl.device_type = ZF_DEVICE_CUDA;
    }
    return at;
}

static void bind(const zf_plugin_t *zf, zf_instance_t *opt, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "p%u", i);
        decls[i] = (zf_param_decl_t){.struct_size = sizeof *decls, .name = names[i], .tensor = &weights[i]};
    }
    need(zf->bind_params(
             opt,
             &(zf_bind_args_t){
                 .struct_size = sizeof(zf_bind_args_t), .decls = decls, .n_decls = n, .decl_size = sizeof *decls},
             ids, NULL, &err) >= 0,
         "bind_params");
}

static void train(const zf_plugin_t *zf, zf_instance_t *opt, uint32_t n, int n_steps) {
    zf_group_hyper_t hyper = {.struct_size = sizeof hyper, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    zf_step_args_t step = {
        .struct_size = sizeof step, .groups = &hyper, .n_groups = 1, .elem_size = sizeof hyper, .stream = &stream};
    for (int k = 0; k < n_steps; k++) {
        for (uint32_t i = 0; i < n; i++) {
            zf_grad_item_t item = {.struct_size = sizeof item,
                                   .id = ids[i],
                                   .flags = ZF_GRAD_TOTAL | ZF_GRAD_LAST,
                                   .tensor = &gradients[i]};
            need(zf->grads_ready(opt, &item, 1, sizeof item, &stream, NULL, &err) >= 0, "grads_ready");
        }
        need(zf->step(opt, &step, NULL, &err) >= 0, "step");
    }
    zf_quiesce_args_t flush = {.struct_size = sizeof flush, .mode = ZF_QUIESCE_FLUSH};
    need(zf->quiesce(opt, &flush, &err) >= 0, "quiesce");
}

static void compare(CUdeviceptr at, uint32_t n) {
    float first[N_ELEMS], other[N_ELEMS];
    need(cuMemcpyDtoH(first, at, NBYTES) == CUDA_SUCCESS && first[0] != -0.5f, "the weights have not moved");
    for (uint32_t i = 1; i < n; i++)
        need(cuMemcpyDtoH(other, at + (size_t)i * NBYTES, NBYTES) == CUDA_SUCCESS && memcmp(first, other, NBYTES) == 0,
             names[i]);
}

int main(int argc, char **argv) {
    uint32_t n = argc > 3 ? (uint32_t)atoi(argv[2]) : 0;
    zf_loader_t *loader = NULL;
    zf_instance_t *opt;
    CUdeviceptr at;
    zf_host_t host;
    need(n > 0 && n <= MOST && zf_loader_open(argv[1], &loader, &err) >= 0, "PLUGIN.so PARAMETERS STEPS");
    const zf_plugin_t *zf = zf_loader_plugin(loader);
    start();
    zf_host_stderr("test_many_params", "1", ZF_LOG_WARN, &host);
    at = make_tensors(n, 17, weights);
    make_tensors(n, 29, gradients);
    zf_create_args_t create = {.struct_size = sizeof create, .host = &host, .device_type = ZF_DEVICE_CUDA};
    need(zf->create(&create, &opt, &err) >= 0, "create");
    bind(zf, opt, n);
    train(zf, opt, n, atoi(argv[3]));
    compare(at, n);
    zf->destroy(opt, NULL);
    zf_loader_close(loader);
    printf("%u parameters, %s steps\n", n, argv[3]);
    return 0;
}
