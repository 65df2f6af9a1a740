/* SPDX-License-Identifier: Apache-2.0 */
/* driver.c - CUDA's driver at run time (driver.h). */
#include "driver.h"

#include <dlfcn.h>

int host_cuda_driver_open(host_cuda_driver_t *cuda, glue_error_t *err) {
    const struct function {
        const char *name;
        void *at;
    } functions[] = {
#define FIND(name) {"cu" #name, &cuda->name}
        FIND(Init),
        FIND(DeviceGetCount),
        FIND(DeviceGet),
        FIND(DeviceGetName),
        FIND(DevicePrimaryCtxRetain),
        FIND(DevicePrimaryCtxRelease_v2),
        FIND(CtxSetCurrent),
        FIND(StreamCreate),
        FIND(StreamDestroy_v2),
        FIND(StreamSynchronize),
        FIND(ModuleLoadData),
        FIND(ModuleUnload),
        FIND(ModuleGetFunction),
        FIND(MemAlloc_v2),
        FIND(MemFree_v2),
        FIND(MemcpyHtoDAsync_v2),
        FIND(MemcpyDtoHAsync_v2),
        FIND(MemcpyDtoDAsync_v2),
        FIND(MemsetD8Async),
        FIND(LaunchKernel),
#undef FIND
    };

    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (library == NULL)
        return glue_fail(err, "cuda: %s; the driver of an NVIDIA GPU is needed", dlerror());
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(library, functions[i].name);

        if (found == NULL)
            return glue_fail(err, "cuda: libcuda.so.1 has no %s: a driver of CUDA 12 or newer is needed",
                             functions[i].name);
        *(void **)functions[i].at = found;
    }
    return 0;
}
