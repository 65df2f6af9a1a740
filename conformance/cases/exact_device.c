/* SPDX-License-Identifier: Apache-2.0 */
/* exact_device.c - see exact_device.h. CUDA's driver is opened at run time and its few functions are declared here, so
 * that the suite builds and runs without CUDA. */
#include "exact_device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address_t; /* CUdeviceptr */

enum { LENT_NBYTES = 16 << 20, STREAM_NON_BLOCKING = 1 };

static struct driver {
    int is_open;
    void *stream, *context;
    unsigned char *lent; /* [LENT_NBYTES] page-locked */
    uint64_t n_lent;
    int (*Init)(unsigned);
    int (*DeviceGet)(int *, int);
    int (*DevicePrimaryCtxRetain)(void **, int);
    int (*CtxSetCurrent)(void *);
    int (*MemAlloc_v2)(address_t *, size_t);
    int (*MemFree_v2)(address_t);
    int (*MemHostAlloc)(void **, size_t, unsigned);
    int (*MemcpyHtoDAsync_v2)(address_t, const void *, size_t, void *);
    int (*MemcpyDtoHAsync_v2)(void *, address_t, size_t, void *);
    int (*MemsetD8Async)(address_t, unsigned char, size_t, void *);
    int (*StreamCreate)(void **, unsigned);
    int (*StreamSynchronize)(void *);
    int (*LaunchHostFunc)(void *, void (*)(void *), void *);
} cuda;

static void check(int rc, const char *what) {
    if (rc == 0)
        return;
    fprintf(stderr, "zf-conform exact: %s: CUDA error %d\n", what, rc);
    exit(2);
}

static void find_all(void *library) {
    const struct function {
        const char *name;
        void *at;
    } functions[] = {
#define FIND(name) {"cu" #name, &cuda.name}
        FIND(Init),           FIND(DeviceGet),          FIND(DevicePrimaryCtxRetain),
        FIND(CtxSetCurrent),  FIND(MemAlloc_v2),        FIND(MemFree_v2),
        FIND(MemHostAlloc),   FIND(MemcpyHtoDAsync_v2), FIND(MemcpyDtoHAsync_v2),
        FIND(MemsetD8Async),  FIND(StreamCreate),       FIND(StreamSynchronize),
        FIND(LaunchHostFunc),
#undef FIND
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(library, functions[i].name);

        if (!found) {
            fprintf(stderr, "zf-conform exact: libcuda.so.1 has no %s\n", functions[i].name);
            exit(2);
        }
        *(void **)functions[i].at = found;
    }
}

static void open_device(void) {
    void *library, *lent;
    int device;

    if (cuda.is_open)
        return;
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "zf-conform exact: --device cuda: %s\n", dlerror());
        exit(2);
    }
    find_all(library);
    check(cuda.Init(0), "cuInit");
    check(cuda.DeviceGet(&device, 0), "cuDeviceGet");
    check(cuda.DevicePrimaryCtxRetain(&cuda.context, device), "cuDevicePrimaryCtxRetain");
    check(cuda.CtxSetCurrent(cuda.context), "cuCtxSetCurrent");
    check(cuda.StreamCreate(&cuda.stream, STREAM_NON_BLOCKING), "cuStreamCreate");
    check(cuda.MemHostAlloc(&lent, LENT_NBYTES, 0), "cuMemHostAlloc");
    cuda.lent = lent;
    cuda.is_open = 1;
}

int zx_device_is_gpu(void) {
    const char *name = getenv(ZX_DEVICE_ENV);

    return name && strcmp(name, "cuda") == 0;
}

int32_t zx_device_type(void) { return zx_device_is_gpu() ? ZF_DEVICE_CUDA : ZF_DEVICE_CPU; }

void zx_device_stream(zf_stream_t *out) {
    open_device();
    *out = (zf_stream_t){.struct_size = sizeof *out,
                         .kind = ZF_STREAM_CUDA,
                         .device_type = ZF_DEVICE_CUDA,
                         .handle = (uint64_t)(uintptr_t)cuda.stream};
}

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

void zx_device_adopt(zx_array_t *a) {
    open_device();
    if (a->device_mem)
        return;
    check(cuda.MemAlloc_v2(&a->device_mem, a->mem_nbytes), "cuMemAlloc");
    a->tensor.dl.data = (unsigned char *)(uintptr_t)a->device_mem + ((unsigned char *)a->tensor.dl.data - a->mem);
    a->tensor.dl.device_type = ZF_DEVICE_CUDA;
    zx_device_push(a);
}

void zx_device_release(zx_array_t *a) {
    if (a->device_mem)
        check(cuda.MemFree_v2(a->device_mem), "cuMemFree");
    a->device_mem = 0;
}

void zx_device_push(zx_array_t *a) {
    void *lent = zx_device_lend(a->mem_nbytes);

    memcpy(lent, a->mem, a->mem_nbytes);
    check(cuda.MemcpyHtoDAsync_v2(a->device_mem, lent, a->mem_nbytes, cuda.stream), "cuMemcpyHtoDAsync");
}

typedef struct zx_pull {
    zx_array_t *array;
    const void *lent;
} zx_pull_t;

static void take_pulled(void *arg) {
    const zx_pull_t *pull = arg;

    memcpy(pull->array->mem, pull->lent, pull->array->mem_nbytes);
}

void zx_device_pull(zx_array_t *a) {
    void *lent = zx_device_lend(a->mem_nbytes + sizeof(zx_pull_t));
    zx_pull_t *pull = lent;

    *pull = (zx_pull_t){a, pull + 1};
    check(cuda.MemcpyDtoHAsync_v2(pull + 1, a->device_mem, a->mem_nbytes, cuda.stream), "cuMemcpyDtoHAsync");
    zx_device_launch(take_pulled, pull);
}

static void take_elements(void *arg) {
    const zx_pull_t *pull = arg;

    zx_array_write(pull->array, pull->lent);
}

void zx_device_take(zx_array_t *a, const void *from) {
    uint64_t nbytes = a->n_elems * zo_dtype_nbytes(a->dtype);
    void *lent = zx_device_lend(nbytes + sizeof(zx_pull_t));
    zx_pull_t *pull = lent;

    *pull = (zx_pull_t){a, pull + 1};
    check(cuda.MemcpyDtoHAsync_v2(pull + 1, (uintptr_t)from, nbytes, cuda.stream), "cuMemcpyDtoHAsync");
    zx_device_launch(take_elements, pull);
}

void zx_device_give(void *to, const void *values, uint64_t nbytes) {
    void *lent = zx_device_lend(nbytes);

    memcpy(lent, values, nbytes);
    check(cuda.MemcpyHtoDAsync_v2((uintptr_t)to, lent, nbytes, cuda.stream), "cuMemcpyHtoDAsync");
}

void zx_device_scribble(zx_array_t *a) {
    if (a->tensor.nbytes)
        check(cuda.MemsetD8Async(a->device_mem + a->first, 0xFF, a->tensor.nbytes, cuda.stream), "cuMemsetD8Async");
}

/* ---- the stream -------------------------------------------------------------------------------------------------- */

void zx_device_launch(void (*fn)(void *arg), void *arg) {
    check(cuda.LaunchHostFunc(cuda.stream, fn, arg), "cuLaunchHostFunc");
}

void *zx_device_lend(uint64_t nbytes) {
    uint64_t rounded = (nbytes + 63) / 64 * 64;
    void *memory;

    open_device();
    if (rounded > LENT_NBYTES) {
        fprintf(stderr, "zf-conform exact: %llu bytes are more than one transfer takes\n", (unsigned long long)nbytes);
        exit(2);
    }
    if (cuda.n_lent + rounded > LENT_NBYTES)
        zx_device_sync();
    memory = cuda.lent + cuda.n_lent;
    cuda.n_lent += rounded;
    return memory;
}

void zx_device_sync(void) {
    check(cuda.StreamSynchronize(cuda.stream), "cuStreamSynchronize");
    cuda.n_lent = 0;
}
