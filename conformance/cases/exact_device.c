/* SPDX-License-Identifier: Apache-2.0 */
/* exact_device.c - see exact_device.h. CUDA's driver is opened at run time, so that the suite builds and runs without
 * CUDA. */
#include "exact_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cuda_driver.h"

enum { LENT_NBYTES = 16 << 20 };

static struct device {
    int is_open;
    void *stream, *context;
    unsigned char *lent; /* [LENT_NBYTES] page-locked */
    uint64_t n_lent;
    zf_cuda_address_t taken; /* by zx_device_fill */
    zf_cuda_driver_t cuda;
} device;

static void check(int rc, const char *what) {
    if (rc == 0)
        return;
    fprintf(stderr, "zf-conform exact: %s: CUDA error %d\n", what, rc);
    exit(2);
}

int zx_device_find(void) {
    char why[256];
    int rc;
    if (zf_cuda_driver_open(&device.cuda, why, sizeof why) != 0)
        return fprintf(stderr, "zf-conform exact: --device cuda: %s\n", why), -1;
    if ((rc = device.cuda.Init(0)) != 0)
        return fprintf(stderr, "zf-conform exact: --device cuda: CUDA does not start: error %d\n", rc), -1;
    return 0;
}

static void open_device(void) {
    zf_cuda_driver_t *cuda = &device.cuda;
    void *lent;
    int number;
    if (device.is_open)
        return;
    if (zx_device_find() != 0)
        exit(2);
    check(cuda->DeviceGet(&number, 0), "cuDeviceGet");
    check(cuda->DevicePrimaryCtxRetain(&device.context, number), "cuDevicePrimaryCtxRetain");
    check(cuda->CtxSetCurrent(device.context), "cuCtxSetCurrent");
    check(cuda->StreamCreate(&device.stream, ZF_CUDA_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(cuda->MemHostAlloc(&lent, LENT_NBYTES, 0), "cuMemHostAlloc");
    device.lent = lent;
    device.is_open = 1;
}

int zx_device_is_gpu(void) {
    const char *name = getenv(ZX_DEVICE_ENV);
    return name && strcmp(name, "cuda") == 0;
}

int zx_device_is_plain(void) { return getenv(ZX_PLAIN_ENV) != NULL; }

int32_t zx_device_type(void) { return zx_device_is_gpu() ? ZF_DEVICE_CUDA : ZF_DEVICE_CPU; }

void zx_device_stream(zf_stream_t *out) {
    open_device();
    *out = (zf_stream_t){.struct_size = sizeof *out,
                         .kind = ZF_STREAM_CUDA,
                         .device_type = ZF_DEVICE_CUDA,
                         .handle = (uint64_t)(uintptr_t)device.stream};
}

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

void zx_device_adopt(zx_array_t *a) {
    open_device();
    if (a->device_mem)
        return;
    check(device.cuda.MemAlloc_v2(&a->device_mem, a->mem_nbytes), "cuMemAlloc");
    a->tensor.dl.data = (unsigned char *)(uintptr_t)a->device_mem + ((unsigned char *)a->tensor.dl.data - a->mem);
    a->tensor.dl.device_type = ZF_DEVICE_CUDA;
    zx_device_push(a);
}

void zx_device_free(zx_array_t *a) {
    if (a->device_mem)
        check(device.cuda.MemFree_v2(a->device_mem), "cuMemFree");
    a->device_mem = 0;
    free(a->mem);
    a->mem = NULL;
}

int zx_device_is_alone(void) {
    char name[32] = "";
    if (!zx_device_is_gpu())
        return 0;
    open_device();
    check(device.cuda.DeviceGetName(name, sizeof name, 0), "cuDeviceGetName");
    return strcmp(name, "Test double") == 0;
}

int zx_device_given(zx_given_t *out) {
    void (*count)(uint64_t * device, uint64_t * host) = NULL;
    if (!zx_device_is_alone() ||
        device.cuda.GetProcAddress_v2("fakecuda_plugin_nbytes", (void **)&count, 12000, 0, NULL))
        return 0;
    count(&out->device, &out->host);
    return 1;
}

void zx_device_fill(uint64_t left) {
    size_t free_nbytes, all;
    open_device();
    if (device.taken)
        check(device.cuda.MemFree_v2(device.taken), "cuMemFree");
    device.taken = 0;
    check(device.cuda.MemGetInfo_v2(&free_nbytes, &all), "cuMemGetInfo");
    if (left < free_nbytes && free_nbytes - left > all / 4)
        check(device.cuda.MemAlloc_v2(&device.taken, free_nbytes - left - all / 4), "cuMemAlloc");
}

void zx_device_push(zx_array_t *a) {
    void *lent = zx_device_lend(a->mem_nbytes);
    memcpy(lent, a->mem, a->mem_nbytes);
    check(device.cuda.MemcpyHtoDAsync_v2(a->device_mem, lent, a->mem_nbytes, device.stream), "cuMemcpyHtoDAsync");
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
    check(device.cuda.MemcpyDtoHAsync_v2(pull + 1, a->device_mem, a->mem_nbytes, device.stream), "cuMemcpyDtoHAsync");
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
    check(device.cuda.MemcpyDtoHAsync_v2(pull + 1, (uintptr_t)from, nbytes, device.stream), "cuMemcpyDtoHAsync");
    zx_device_launch(take_elements, pull);
}

void zx_device_give(void *to, const void *values, uint64_t nbytes) {
    void *lent = zx_device_lend(nbytes);
    memcpy(lent, values, nbytes);
    check(device.cuda.MemcpyHtoDAsync_v2((uintptr_t)to, lent, nbytes, device.stream), "cuMemcpyHtoDAsync");
}

void zx_device_scribble(zx_array_t *a) {
    if (a->tensor.nbytes)
        check(device.cuda.MemsetD8Async(a->device_mem + a->first, 0xFF, a->tensor.nbytes, device.stream),
              "cuMemsetD8Async");
}

/* ---- the stream -------------------------------------------------------------------------------------------------- */

void zx_device_launch(void (*fn)(void *arg), void *arg) {
    check(device.cuda.LaunchHostFunc(device.stream, fn, arg), "cuLaunchHostFunc");
}

void *zx_device_lend(uint64_t nbytes) {
    uint64_t rounded = (nbytes + 63) / 64 * 64;
    open_device();
    if (rounded > LENT_NBYTES) {
        fprintf(stderr, "zf-conform exact: %llu bytes are more than one transfer takes\n", (unsigned long long)nbytes);
        exit(2);
    }
    if (device.n_lent + rounded > LENT_NBYTES)
        zx_device_sync();
    void *memory = device.lent + device.n_lent;
    device.n_lent += rounded;
    return memory;
}

void zx_device_sync(void) {
    check(device.cuda.StreamSynchronize(device.stream), "cuStreamSynchronize");
    device.n_lent = 0;
}
