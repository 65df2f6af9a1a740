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

#define ERROR(code)                                                                                                    \
    { code, #code }

static const struct {
    CUresult code;
    const char *name;
} errors[] = {
    ERROR(CUDA_SUCCESS),
    ERROR(CUDA_ERROR_INVALID_VALUE),
    ERROR(CUDA_ERROR_OUT_OF_MEMORY),
    ERROR(CUDA_ERROR_NOT_INITIALIZED),
    ERROR(CUDA_ERROR_NO_DEVICE),
    ERROR(CUDA_ERROR_INVALID_DEVICE),
    ERROR(CUDA_ERROR_INVALID_CONTEXT),
    ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU),
    ERROR(CUDA_ERROR_INVALID_PTX),
    ERROR(CUDA_ERROR_UNSUPPORTED_PTX_VERSION),
    ERROR(CUDA_ERROR_INVALID_HANDLE),
    ERROR(CUDA_ERROR_ILLEGAL_STATE),
    ERROR(CUDA_ERROR_NOT_FOUND),
    ERROR(CUDA_ERROR_NOT_READY),
    ERROR(CUDA_ERROR_ILLEGAL_ADDRESS),
    ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
    ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
    ERROR(CUDA_ERROR_NOT_PERMITTED),
    ERROR(CUDA_ERROR_NOT_SUPPORTED),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION),
    ERROR(CUDA_ERROR_UNKNOWN),
};

FC_API cuGetErrorName(CUresult error, const char **out) {
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].code == error) {
            *out = errors[i].name;
            return CUDA_SUCCESS;
        }
    *out = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

FC_API cuGetErrorString(CUresult error, const char **out) { return cuGetErrorName(error, out); }
