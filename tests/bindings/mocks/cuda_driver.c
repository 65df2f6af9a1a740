/* SPDX-License-Identifier: Apache-2.0 */
/* tests/bindings/mocks/cuda_driver.c - a libcuda.so.1 of two devices, for `zf doctor`; MOCK_CUDA_FAILS in the
 * environment is what cuInit returns. A copy is a copy; page-locked memory is none left on device 1, and leaks of
 * either kind end the process. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* the driver's header is not needed for these */

int cuInit(unsigned flags) {
    const char *status = getenv("MOCK_CUDA_FAILS");
    (void)flags;
    return status ? (int)strtol(status, NULL, 10) : 0;
}

int cuDriverGetVersion(int *out) {
    *out = 12080;
    return 0;
}

int cuDeviceGetCount(int *out) {
    *out = 2;
    return 0;
}

int cuDeviceGetName(char *out, int nbytes, int device) {
    snprintf(out, (size_t)nbytes, "Mock\033[31m device %d", device);
    return 0;
}

int cuDeviceTotalMem_v2(size_t *out, int device) {
    *out = (size_t)(device + 1) << 34;
    return 0;
}

int cuMemGetInfo_v2(size_t *out_free, size_t *out_total) {
    *out_free = *out_total = (size_t)1 << 34;
    return 0;
}

/* ---- memory and copies ---- */

static int current = -1, n_open;

static void check_leaks(void) {
    if (n_open)
        abort();
}

static int opened(void *memory, void **out) {
    static int is_watching;
    if (!is_watching++)
        atexit(check_leaks);
    *out = memory;
    n_open++;
    return 0;
}

static int closed(void *memory) {
    free(memory);
    n_open--;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **out, int device) {
    static char contexts[2];
    current = device;
    return opened(NULL, out), *out = &contexts[device], 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    n_open--;
    return 0;
}

int cuCtxSetCurrent(void *context) {
    (void)context;
    return 0;
}

int cuMemAlloc_v2(unsigned long long *out, size_t nbytes) {
    void *memory;
    opened(malloc(nbytes), &memory);
    *out = (uintptr_t)memory;
    return 0;
}

int cuMemFree_v2(unsigned long long at) { return closed((void *)(uintptr_t)at); }

int cuMemHostAlloc(void **out, size_t nbytes, unsigned flags) {
    (void)flags;
    return current == 1 ? 2 : opened(malloc(nbytes), out);
}

int cuMemFreeHost(void *memory) { return closed(memory); }

int cuStreamCreate(void **out, unsigned flags) {
    (void)flags;
    return opened(malloc(1), out);
}

int cuStreamDestroy_v2(void *stream) { return closed(stream); }

int cuStreamSynchronize(void *stream) { return stream == NULL; }

int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t nbytes, void *stream) {
    (void)stream;
    memcpy((void *)(uintptr_t)to, from, nbytes);
    return 0;
}

int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t nbytes, void *stream) {
    (void)stream;
    memcpy(to, (const void *)(uintptr_t)from, nbytes);
    return 0;
}

int cuDeviceGetAttribute(int *out, int attribute, int device) {
    (void)device;
    *out = attribute == 75 ? 9 : 0;
    return 0;
}

/* ---- what nobody calls here, but what makes a driver ---- */

#define ABSENT(name)                                                                                                   \
    int name(void) { return 801; } /* CUDA_ERROR_NOT_SUPPORTED */
ABSENT(cuGetProcAddress_v2)
ABSENT(cuDeviceGet)
ABSENT(cuMemcpyDtoDAsync_v2)
ABSENT(cuMemsetD8Async)
ABSENT(cuModuleLoadData)
ABSENT(cuModuleUnload)
ABSENT(cuModuleGetFunction)
ABSENT(cuLaunchKernel)
ABSENT(cuLaunchHostFunc)
