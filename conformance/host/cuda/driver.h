/* SPDX-License-Identifier: Apache-2.0 */
/* driver.h - the functions of CUDA's driver that device.c calls, found at run time, under their names without "cu".
 * They are declared here as cuda.h has them, so that neither header nor library is needed to build. */
#ifndef ZF_CONFORMANCE_HOST_CUDA_DRIVER_H
#define ZF_CONFORMANCE_HOST_CUDA_DRIVER_H

#include "glue/error.h"

#include <stddef.h>

typedef unsigned long long host_cuda_address_t; /* CUdeviceptr */

typedef struct host_cuda_driver {
    int (*Init)(unsigned);
    int (*DeviceGetCount)(int *);
    int (*DeviceGet)(int *, int);
    int (*DeviceGetName)(char *, int, int);
    int (*DevicePrimaryCtxRetain)(void **, int);
    int (*DevicePrimaryCtxRelease_v2)(int);
    int (*CtxSetCurrent)(void *);
    int (*StreamCreate)(void **, unsigned);
    int (*StreamDestroy_v2)(void *);
    int (*StreamSynchronize)(void *);
    int (*ModuleLoadData)(void **, const void *);
    int (*ModuleUnload)(void *);
    int (*ModuleGetFunction)(void **, void *, const char *);
    int (*MemAlloc_v2)(host_cuda_address_t *, size_t);
    int (*MemFree_v2)(host_cuda_address_t);
    int (*MemcpyHtoDAsync_v2)(host_cuda_address_t, const void *, size_t, void *);
    int (*MemcpyDtoHAsync_v2)(void *, host_cuda_address_t, size_t, void *);
    int (*MemcpyDtoDAsync_v2)(host_cuda_address_t, host_cuda_address_t, size_t, void *);
    int (*MemsetD8Async)(host_cuda_address_t, unsigned char, size_t, void *);
    int (*LaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                        void **);
} host_cuda_driver_t;

/* Opens libcuda.so.1, which stays loaded. -1: there is none, or it lacks a function. */
int host_cuda_driver_open(host_cuda_driver_t *out, glue_error_t *err);

#endif
