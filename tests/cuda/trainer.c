/* SPDX-License-Identifier: Apache-2.0 */
/* trainer.c - a few steps of a small model on the driver's double.
 *
 *     trainer PLUGIN.so WHAT [OPTION...] [KEY=VALUE...]
 *
 * WHAT is plain: one matrix of bfloat16 and one bias in float32, so that every kernel works and its traffic can be
 * counted (FAKECUDA_TRAFFIC=1). ROWSxCOLUMNS: the same with a matrix of that shape. strided: with room between the rows
 * of its gradient. A number: so many small matrices, delivered one by one, so that streams are given more commands in a
 * step than a driver's queue takes.
 *
 * OPTION: what trainers do beside a step.
 *     free       frees memory after each step, as PyTorch's allocator does when it gives a block back
 *     beside     another thread creates, binds and destroys an instance, again and again
 *     pool=I     makes 32 streams, as PyTorch's pool, and computes on number I
 *     fresh      computes each step on a stream of its own
 *     steps=N    so many steps
 *     leaves     ends behind the gradients of a step, with the instance as it is
 *     late       the same, and destroys the instance when the driver is gone, as a destructor of a static object does
 *
 * KEY=VALUE are overrides of the configuration, as section.key=value. ZF_TEST_BLOCK_ELEMS cuts parameters into blocks.
 * Those that are alike have the same gradient: in the end they are the same, bit for bit. A step gives the streams half
 * as many commands as it has small gradients, and FEW_COMMANDS, for one launch copies those of a batch. From
 * bind_params to destroy the plugin makes nothing of the driver's, and after each hook the thread's context and capture
 * mode are as before. Who waits for a queue for ever is ended by the test's time limit. */
#include <cuda.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zf_loader.h"

enum { MOST = 20000, GAP = 64, FEW_COMMANDS = 64, POOL = 32, FRESH_KEPT = 2, OTHERS = 2 };

typedef struct shape {
    int is_bf16;
    int32_t ndim;
    int64_t dims[2];
} shape_t;

static shape_t usual[] = {{1, 2, {256, 512}}, {0, 1, {512, 1}}};
static const shape_t small = {0, 2, {8, 64}};
static const int64_t strides[] = {512 + GAP, 1};

static _Thread_local zf_error_t err = {.struct_size = sizeof err};
static zf_stream_t stream = {.struct_size = sizeof stream, .kind = ZF_STREAM_CUDA, .device_type = ZF_DEVICE_CUDA};
static zf_tensor_t weights[MOST], gradients[MOST];
static zf_param_decl_t decls[MOST];
static zf_grad_item_t items[MOST];
static uint64_t n_makes;
static char names[MOST][16];
static uint32_t ids[MOST];

static CUcontext context;
static _Atomic int is_over, n_beside;
static struct {
    int frees, has_beside, is_fresh, leaves, is_late;
    uint32_t pool, n_steps;
    const char *keys[16];
    uint32_t n_keys;
} options;

uint64_t fakecuda_n_commands(void);
uint64_t fakecuda_n_makes(void);

static void need(int is_good, const char *what) {
    if (is_good)
        return;
    fprintf(stderr, "trainer: %s: %s\n", what, err.message);
    exit(1);
}

static void read_options(char **words) {
    for (; *words; words++)
        if (strcmp(*words, "free") == 0)
            options.frees = 1;
        else if (strcmp(*words, "beside") == 0)
            options.has_beside = 1;
        else if (strcmp(*words, "fresh") == 0)
            options.is_fresh = 1;
        else if (strcmp(*words, "leaves") == 0)
            options.leaves = 1;
        else if (strcmp(*words, "late") == 0)
            options.leaves = options.is_late = 1;
        else if (strchr(*words, '.') && options.n_keys < sizeof options.keys / sizeof *options.keys)
            options.keys[options.n_keys++] = *words;
        else
            need(sscanf(*words, "pool=%u", &options.pool) == 1 || sscanf(*words, "steps=%u", &options.n_steps) == 1,
                 *words);
}

static CUstream make_stream(void) {
    CUstream made = NULL;
    need(!cuStreamCreate(&made, CU_STREAM_NON_BLOCKING), "a stream");
    return made;
}

static void start(void) {
    CUdevice device;
    CUstream made = NULL;
    need(!cuInit(0) && !cuDeviceGet(&device, 0) && !cuDevicePrimaryCtxRetain(&context, device) &&
             !cuCtxSetCurrent(context),
         "the driver");
    for (uint32_t i = 0; i < (options.pool ? POOL : 1); i++) {
        CUstream one = make_stream();
        made = i + 1 == options.pool || !made ? one : made;
    }
    stream.handle = (uint64_t)(uintptr_t)made;
}

/* The context is the only one on the thread's stack, and a capture of the thread's is told of its calls. */
static void check_thread(void) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    CUcontext top = NULL, below = NULL;
    need(!cuThreadExchangeStreamCaptureMode(&mode) && mode == CU_STREAM_CAPTURE_MODE_GLOBAL, "the capture mode");
    need(!cuCtxPopCurrent(&top) && top == context && !cuCtxGetCurrent(&below) && !below && !cuCtxPushCurrent(context),
         "the stack of contexts");
}

/* As PyTorch's allocator when it gives a block back. */
static void free_memory(void) {
    CUdeviceptr at = 0;
    need(!cuMemAlloc(&at, 1 << 20) && !cuMemFree(at), "memory that is freed");
}

/* The stream before the last is destroyed: its handle may come again, as another stream. */
static void change_stream(int k) {
    static CUstream kept[FRESH_KEPT];
    CUstream *place = &kept[k % FRESH_KEPT];
    if (*place)
        need(!cuStreamDestroy(*place), "a stream that is destroyed");
    *place = make_stream();
    stream.handle = (uint64_t)(uintptr_t)*place;
    stream.id = (uint64_t)k + 1;
}

static void begin_step(int k) {
    if (options.frees)
        free_memory();
    if (options.is_fresh)
        change_stream(k);
}

/* A tensor on the device that holds small numbers, all different, and `gap` elements more for each row. */
static void make_tensor(const shape_t *shape, int64_t gap, zf_tensor_t *out) {
    size_t n = (size_t)(shape->dims[0] * (shape->dims[1] + gap)), elem_nbytes = shape->is_bf16 ? 2 : 4;
    unsigned char *host = calloc(n, elem_nbytes);
    CUdeviceptr at = 0;
    need(host != NULL && cuMemAlloc(&at, n * elem_nbytes) == CUDA_SUCCESS, "memory");
    for (size_t i = 0; i < n; i++) {
        float value = (float)(i * 2654435761u % 1000003) / 1000003.0f - 0.5f;
        memcpy(host + i * elem_nbytes, (unsigned char *)&value + (4 - elem_nbytes), elem_nbytes);
    }
    need(cuMemcpyHtoD(at, host, n * elem_nbytes) == CUDA_SUCCESS, "a copy");
    free(host);
    zf_tensor_contiguous((void *)(uintptr_t)at, shape->is_bf16 ? zf_dtype_bfloat16() : zf_dtype_float32(), shape->ndim,
                         shape->dims, out);
    out->dl.device_type = ZF_DEVICE_CUDA;
    out->nbytes = n * elem_nbytes;
    if (gap)
        out->dl.strides = (int64_t *)strides;
}

static void make_model(const shape_t *shapes, int is_alike, uint32_t n, int64_t gap) {
    for (uint32_t i = 0; i < n; i++) {
        const shape_t *shape = &shapes[is_alike ? 0 : i];
        make_tensor(shape, 0, &weights[i]);
        make_tensor(shape, shape->ndim == 2 ? gap : 0, &gradients[i]);
        snprintf(names[i], sizeof names[i], "p%u", i);
        decls[i] = (zf_param_decl_t){.struct_size = sizeof *decls, .name = names[i], .tensor = &weights[i]};
    }
}

static void train(const zf_plugin_t *zf, zf_instance_t *opt, uint32_t n, uint32_t at_once, int n_steps) {
    zf_group_hyper_t hyper = {.struct_size = sizeof hyper, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    zf_step_args_t step = {
        .struct_size = sizeof step, .groups = &hyper, .n_groups = 1, .elem_size = sizeof hyper, .stream = &stream};
    zf_quiesce_args_t flush = {.struct_size = sizeof flush, .mode = ZF_QUIESCE_FLUSH};
    for (uint32_t i = 0; i < n; i++)
        items[i] = (zf_grad_item_t){
            .struct_size = sizeof *items, .id = ids[i], .flags = ZF_GRAD_TOTAL | ZF_GRAD_LAST, .tensor = &gradients[i]};
    for (int k = 0; k < n_steps || (options.has_beside && atomic_load(&n_beside) < OTHERS); k++) {
        begin_step(k);
        for (uint32_t i = 0; i < n; i += at_once)
            need(zf->grads_ready(opt, &items[i], at_once, sizeof *items, &stream, NULL, &err) >= 0, "grads_ready");
        check_thread();
        need(zf->step(opt, &step, NULL, &err) >= 0, "step");
        check_thread();
        if (k == 0 && gradients[0].dl.strides) /* which are staged: that memory is taken when the first of them comes */
            n_makes = fakecuda_n_makes();
    }
    need(zf->quiesce(opt, &flush, &err) >= 0, "quiesce");
}

static void compare(uint32_t n) {
    float first[512], other[512];
    for (uint32_t i = 0; i < n; i++)
        need(cuMemcpyDtoH(i ? other : first, (CUdeviceptr)(uintptr_t)weights[i].dl.data, sizeof first) ==
                     CUDA_SUCCESS &&
                 (i ? memcmp(first, other, sizeof first) == 0 : first[0] != -0.5f),
             names[i]);
}

static zf_instance_t *make_instance(const zf_plugin_t *zf, const zf_param_decl_t *params, uint32_t n,
                                    uint32_t *out_ids) {
    zf_instance_t *opt;
    zf_host_t host;
    zf_host_stderr("trainer", "1", ZF_LOG_WARN, &host);
    zf_create_args_t create = {.struct_size = sizeof create,
                               .host = &host,
                               .device_type = ZF_DEVICE_CUDA,
                               .overrides = options.keys,
                               .n_overrides = options.n_keys};
    need(zf->create(&create, &opt, &err) >= 0, "create");
    zf_bind_args_t bind = {.struct_size = sizeof bind, .decls = params, .n_decls = n, .decl_size = sizeof *decls};
    need(zf->bind_params(opt, &bind, out_ids, NULL, &err) >= 0, "bind_params");
    return opt;
}

/* Of one parameter, behind those that are trained. */
static void *make_others(void *zf) {
    uint32_t n = 0, id;
    while (names[n + 1][0])
        n++;
    need(!cuCtxPushCurrent(context), "the context of a thread");
    while (!atomic_load(&is_over)) {
        ((const zf_plugin_t *)zf)->destroy(make_instance(zf, &decls[n], 1, &id), NULL);
        atomic_fetch_add(&n_beside, 1);
    }
    return NULL;
}

static const zf_plugin_t *zf_of_late;
static zf_instance_t *late;

static void destroy_late(void) {
    if (late)
        zf_of_late->destroy(late, NULL);
    puts("destroyed");
}

int main(int argc, char **argv) {
    const char *what = argc > 2 ? argv[2] : "";
    int is_shape = sscanf(what, "%" SCNd64 "x%" SCNd64, &usual[0].dims[0], &usual[0].dims[1]) == 2;
    uint32_t n_alike = is_shape ? 0 : (uint32_t)atoi(what), n = n_alike ? n_alike : 2;
    zf_loader_t *loader = NULL;
    pthread_t other;
    need(argc > 2 && n < MOST && zf_loader_open(argv[1], &loader, &err) >= 0,
         "PLUGIN.so plain|ROWSxCOLUMNS|strided|PARAMETERS [OPTION...]");
    read_options(argv + 3);
    const zf_plugin_t *zf = zf_of_late = zf_loader_plugin(loader);
    need(!options.is_late || !atexit(destroy_late), "a function at exit");
    start();
    make_model(n_alike ? &small : usual, n_alike != 0, n + (options.has_beside ? 1 : 0),
               strcmp(what, "strided") == 0 ? GAP : 0);
    zf_instance_t *opt = make_instance(zf, decls, n, ids);
    uint32_t n_steps = options.n_steps ? options.n_steps : n_alike ? 3 : 9;
    uint64_t n_commands = fakecuda_n_commands();
    n_makes = fakecuda_n_makes();
    if (options.has_beside)
        need(pthread_create(&other, NULL, make_others, (void *)(uintptr_t)zf) == 0, "a thread");
    train(zf, opt, n, n_alike ? 1 : n, (int)n_steps);
    n_commands = fakecuda_n_commands() - n_commands;
    need(n_alike == 0 || options.has_beside || n_commands <= (n / 2 + FEW_COMMANDS) * n_steps,
         "fewer commands than gradients in each step");
    need(options.has_beside || fakecuda_n_makes() == n_makes, "nothing is made while it trains");
    atomic_store(&is_over, 1);
    if (options.has_beside)
        need(pthread_join(other, NULL) == 0, "instances beside");
    compare(n_alike);
    if (options.leaves) {
        need(zf->grads_ready(opt, items, n, sizeof *items, &stream, NULL, &err) >= 0, "grads_ready");
        late = options.is_late ? opt : NULL;
        return 0;
    }
    zf->destroy(opt, NULL);
    zf_loader_close(loader);
    printf("%u parameters, %" PRIu64 " commands in %u steps\n", n, n_commands, n_steps);
    return 0;
}
