/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakecuda/entries.c - cuGetProcAddress, and the names of errors. */
#include "fake.h"

/* cuda.h makes cuMemAlloc a macro for the newest version of the function: the text is the name that is asked for. */
#define ENTRY(name)                                                                                                    \
    { #name, (void *)(name) }

static const struct {
    const char *name;
    void *function;
} entries[] = {
    ENTRY(cuInit),
    ENTRY(cuDriverGetVersion),
    ENTRY(cuGetErrorName),
    ENTRY(cuGetErrorString),
    ENTRY(cuGetProcAddress),
    ENTRY(cuDeviceGetCount),
    ENTRY(cuDeviceGet),
    ENTRY(cuDeviceGetName),
    ENTRY(cuDeviceTotalMem),
    ENTRY(cuDeviceGetAttribute),
    ENTRY(cuDevicePrimaryCtxRetain),
    ENTRY(cuDevicePrimaryCtxRelease),
    ENTRY(cuCtxPushCurrent),
    ENTRY(cuCtxPopCurrent),
    ENTRY(cuCtxGetCurrent),
    ENTRY(cuCtxSetCurrent),
    ENTRY(cuCtxSynchronize),
    ENTRY(cuCtxGetStreamPriorityRange),
    ENTRY(cuMemAlloc),
    ENTRY(cuMemFree),
    ENTRY(cuMemGetInfo),
    ENTRY(cuMemAddressReserve),
    ENTRY(cuMemAddressFree),
    ENTRY(cuMemGetAllocationGranularity),
    ENTRY(cuMemCreate),
    ENTRY(cuMemRelease),
    ENTRY(cuMemMap),
    ENTRY(cuMemSetAccess),
    ENTRY(cuMemUnmap),
    ENTRY(cuMemHostAlloc),
    ENTRY(cuMemFreeHost),
    ENTRY(cuMemHostRegister),
    ENTRY(cuMemHostUnregister),
    ENTRY(cuMemHostGetDevicePointer),
    ENTRY(cuMemcpyHtoD),
    ENTRY(cuMemcpyDtoH),
    ENTRY(cuMemcpyAsync),
    ENTRY(cuMemcpyHtoDAsync),
    ENTRY(cuMemcpyDtoHAsync),
    ENTRY(cuMemcpyDtoDAsync),
    ENTRY(cuMemsetD8),
    ENTRY(cuMemsetD8Async),
    ENTRY(cuStreamCreate),
    ENTRY(cuStreamCreateWithPriority),
    ENTRY(cuStreamDestroy),
    ENTRY(cuStreamSynchronize),
    ENTRY(cuStreamQuery),
    ENTRY(cuStreamGetId),
    ENTRY(cuThreadExchangeStreamCaptureMode),
    ENTRY(cuStreamBeginCapture),
    ENTRY(cuStreamEndCapture),
    ENTRY(cuStreamIsCapturing),
    ENTRY(cuStreamWaitEvent),
    ENTRY(cuStreamWaitValue64),
    ENTRY(cuStreamWriteValue64),
    ENTRY(cuLaunchHostFunc),
    ENTRY(cuEventCreate),
    ENTRY(cuEventDestroy),
    ENTRY(cuEventRecord),
    ENTRY(cuEventQuery),
    ENTRY(cuEventSynchronize),
    ENTRY(cuEventElapsedTime),
    ENTRY(cuModuleLoadData),
    ENTRY(cuModuleLoadDataEx),
    ENTRY(cuModuleUnload),
    ENTRY(cuModuleGetFunction),
    ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessor),
    ENTRY(cuLaunchKernel),
};

FC_API cuGetProcAddress(const char *symbol, void **out, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *found) {
    CUresult st = fc_enter(__func__, FC_NEEDS_NOTHING);
    (void)version, (void)flags;
    if (st)
        return st;
    *out = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        if (strcmp(entries[i].name, symbol) == 0)
            *out = entries[i].function;
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
