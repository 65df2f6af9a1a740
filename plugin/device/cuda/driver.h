/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/device/cuda/driver.h - CUDA's driver, found at run time: a table of its functions.
 *
 * The library is opened when the first instance for a CUDA device is created, and stays open. Nothing of CUDA is
 * linked: the same plugin loads on machines without it. cuda.h is needed to compile, for types alone. */
#pragma once

#include <cuda.h>

#include "zf/types.h"

/* The version whose functions are asked for: the oldest driver that is good enough. */
enum { ZFI_CUDA_DRIVER_VERSION = 12000 };

#define ZFI_CUDA_FUNCTIONS(X)                                                                                          \
    X(cuInit)                                                                                                          \
    X(cuDriverGetVersion)                                                                                              \
    X(cuDeviceGetCount)                                                                                                \
    X(cuDeviceGet)                                                                                                     \
    X(cuDeviceGetName)                                                                                                 \
    X(cuDeviceGetAttribute)                                                                                            \
    X(cuDevicePrimaryCtxRetain)                                                                                        \
    X(cuDevicePrimaryCtxRelease)                                                                                       \
    X(cuCtxPushCurrent)                                                                                                \
    X(cuCtxPopCurrent)                                                                                                 \
    X(cuCtxGetStreamPriorityRange)                                                                                     \
    X(cuMemGetInfo)                                                                                                    \
    X(cuMemGetAddressRange)                                                                                            \
    X(cuMemAlloc)                                                                                                      \
    X(cuMemFree)                                                                                                       \
    X(cuMemAddressReserve)                                                                                             \
    X(cuMemAddressFree)                                                                                                \
    X(cuMemCreate)                                                                                                     \
    X(cuMemRelease)                                                                                                    \
    X(cuMemMap)                                                                                                        \
    X(cuMemUnmap)                                                                                                      \
    X(cuMemSetAccess)                                                                                                  \
    X(cuMemGetAllocationGranularity)                                                                                   \
    X(cuMemHostRegister)                                                                                               \
    X(cuMemHostUnregister)                                                                                             \
    X(cuMemHostGetDevicePointer)                                                                                       \
    X(cuMemcpyHtoDAsync)                                                                                               \
    X(cuMemcpyDtoHAsync)                                                                                               \
    X(cuMemsetD8Async)                                                                                                 \
    X(cuStreamCreateWithPriority)                                                                                      \
    X(cuStreamDestroy)                                                                                                 \
    X(cuStreamSynchronize)                                                                                             \
    X(cuStreamQuery)                                                                                                   \
    X(cuStreamIsCapturing)                                                                                             \
    X(cuThreadExchangeStreamCaptureMode)                                                                               \
    X(cuStreamWaitEvent)                                                                                               \
    X(cuStreamWaitValue64)                                                                                             \
    X(cuStreamWriteValue64)                                                                                            \
    X(cuEventCreate)                                                                                                   \
    X(cuEventDestroy)                                                                                                  \
    X(cuEventRecord)                                                                                                   \
    X(cuEventQuery)                                                                                                    \
    X(cuLaunchKernel)                                                                                                  \
    X(cuModuleLoadDataEx)                                                                                              \
    X(cuModuleUnload)                                                                                                  \
    X(cuModuleGetFunction)                                                                                             \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor)                                                                     \
    X(cuGetErrorName)                                                                                                  \
    X(cuGetErrorString)

typedef struct zfi_cuda_driver {
#define ZFI_CUDA_MEMBER(name) __typeof__(name) *name;
    ZFI_CUDA_FUNCTIONS(ZFI_CUDA_MEMBER)
#undef ZFI_CUDA_MEMBER
} zfi_cuda_driver_t;

/* [any-thread] The driver, opened and initialised; ZF_ERR_DEVICE says what is missing. */
zf_status_t zfi_cuda_driver(const zfi_cuda_driver_t **out, zf_error_t *err);

/* [any-thread] "CUDA_ERROR_...: what it means". */
const char *zfi_cuda_error_text(const zfi_cuda_driver_t *driver, CUresult rc, char *text, size_t nbytes);
