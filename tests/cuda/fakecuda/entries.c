/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakecuda/entries.c - cuGetProcAddress, and the names of errors. */
#define _GNU_SOURCE
#include "fake.h"

#include <dlfcn.h>

/* Of two forms the newer one. */
FC_API cuGetProcAddress(const char *symbol, void **out, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *found) {
    CUresult st = fc_enter(__func__, FC_NEEDS_NOTHING);
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    char newer[128];
    (void)version, (void)flags;
    if (st)
        return st;
    snprintf(newer, sizeof newer, "%s_v2", symbol);
    *out = dlsym(library, newer);
    if (*out == NULL)
        *out = dlsym(library, symbol);
    dlclose(library);
    if (found)
        *found = *out ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

FC_API cuGetErrorName(CUresult error, const char **out) {
    static __thread char name[32];
    snprintf(name, sizeof name, "CUDA_ERROR %d", (int)error);
    *out = name;
    return CUDA_SUCCESS;
}

FC_API cuGetErrorString(CUresult error, const char **out) { return cuGetErrorName(error, out); }
