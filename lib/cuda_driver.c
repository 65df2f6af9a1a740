/* SPDX-License-Identifier: Apache-2.0 */
/* lib/cuda_driver.c - opening CUDA's driver (contract in cuda_driver.h). */
#include "cuda_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "libcuda.so.1"

static const struct function {
    const char *symbol;
    size_t at; /* in zf_cuda_driver_t */
} functions[] = {
#define ROW(name)                                                                                                      \
    { "cu" #name, offsetof(zf_cuda_driver_t, name) }
    ROW(GetProcAddress_v2),
    ROW(Init),
    ROW(DriverGetVersion),
    ROW(DeviceGetCount),
    ROW(DeviceGet),
    ROW(DeviceGetName),
    ROW(DeviceGetAttribute),
    ROW(DeviceTotalMem_v2),
    ROW(DevicePrimaryCtxRetain),
    ROW(DevicePrimaryCtxRelease_v2),
    ROW(CtxSetCurrent),
    ROW(StreamCreate),
    ROW(StreamDestroy_v2),
    ROW(StreamSynchronize),
    ROW(MemAlloc_v2),
    ROW(MemFree_v2),
    ROW(MemGetInfo_v2),
    ROW(MemHostAlloc),
    ROW(MemFreeHost),
    ROW(MemcpyHtoDAsync_v2),
    ROW(MemcpyDtoHAsync_v2),
    ROW(MemcpyDtoDAsync_v2),
    ROW(MemsetD8Async),
    ROW(ModuleLoadData),
    ROW(ModuleUnload),
    ROW(ModuleGetFunction),
    ROW(LaunchKernel),
    ROW(LaunchHostFunc),
#undef ROW
};
_Static_assert(sizeof functions / sizeof *functions == sizeof(zf_cuda_driver_t) / sizeof(void *), "one row each");

int zf_cuda_driver_open(zf_cuda_driver_t *out, char *why, size_t why_nbytes) {
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(why, why_nbytes, LIBRARY " cannot be opened (%s): is NVIDIA's driver installed?", dlerror());
        return -1;
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *symbol = dlsym(library, functions[i].symbol);
        if (!symbol) {
            snprintf(why, why_nbytes, LIBRARY " has no %s: a driver of CUDA 12.0 or newer is needed",
                     functions[i].symbol);
            return -1;
        }
        memcpy((char *)out + functions[i].at, &symbol, sizeof symbol);
    }
    return 0;
}
