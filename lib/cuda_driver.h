/* SPDX-License-Identifier: Apache-2.0 */
/* lib/cuda_driver.h - CUDA's driver, opened at run time: the one place that knows libcuda.so.1.
 *
 * Functions have their symbols as names, without "cu". They are declared here as cuda.h has them, so that neither the
 * header nor the library is needed to build: handles are void *, device addresses 64-bit numbers, results int. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef unsigned long long zf_cuda_address_t; /* CUdeviceptr */

typedef struct zf_cuda_driver {
    int (*GetProcAddress_v2)(const char *symbol, void **out, int version, uint64_t flags, void *out_status);
    int (*Init)(unsigned flags);
    int (*DriverGetVersion)(int *out);
    int (*DeviceGetCount)(int *out);
    int (*DeviceGet)(int *out, int ordinal);
    int (*DeviceGetName)(char *out, int nbytes, int device);
    int (*DeviceGetAttribute)(int *out, int attribute, int device);
    int (*DeviceTotalMem_v2)(size_t *out, int device);
    int (*DevicePrimaryCtxRetain)(void **out, int device);
    int (*DevicePrimaryCtxRelease_v2)(int device);
    int (*CtxSetCurrent)(void *context);
    int (*StreamCreate)(void **out, unsigned flags);
    int (*StreamDestroy_v2)(void *stream);
    int (*StreamSynchronize)(void *stream);
    int (*MemAlloc_v2)(zf_cuda_address_t *out, size_t nbytes);
    int (*MemFree_v2)(zf_cuda_address_t at);
    int (*MemGetInfo_v2)(size_t *out_free, size_t *out_total);
    int (*MemHostAlloc)(void **out, size_t nbytes, unsigned flags);
    int (*MemFreeHost)(void *memory);
    int (*MemcpyHtoDAsync_v2)(zf_cuda_address_t to, const void *from, size_t nbytes, void *stream);
    int (*MemcpyDtoHAsync_v2)(void *to, zf_cuda_address_t from, size_t nbytes, void *stream);
    int (*MemcpyDtoDAsync_v2)(zf_cuda_address_t to, zf_cuda_address_t from, size_t nbytes, void *stream);
    int (*MemsetD8Async)(zf_cuda_address_t to, unsigned char value, size_t nbytes, void *stream);
    int (*ModuleLoadData)(void **out, const void *image);
    int (*ModuleUnload)(void *module);
    int (*ModuleGetFunction)(void **out, void *module, const char *name);
    int (*LaunchKernel)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_nbytes, void *stream, void **args,
                        void **extra);
    int (*LaunchHostFunc)(void *stream, void (*fn)(void *ctx), void *ctx);
} zf_cuda_driver_t;

enum { ZF_CUDA_STREAM_NON_BLOCKING = 1 };

/* [any-thread] Opens libcuda.so.1, which stays loaded, and finds the functions; none is called. 0, or -1: no such
 * library, or one before CUDA 12.0, as `why` says. */
int zf_cuda_driver_open(zf_cuda_driver_t *out, char *why, size_t why_nbytes);
