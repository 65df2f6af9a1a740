/* SPDX-License-Identifier: Apache-2.0 */
/* driver/rig.h - what the tests of the driver's double share: libcuda.so.1 opened as a plugin would, one device,
 * kernels, and a training that is ordered by events alone. */
#ifndef ZT_DRIVER_RIG_H
#define ZT_DRIVER_RIG_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#define FUNCTIONS(X)                                                                                                   \
    X(cuInit)                                                                                                          \
    X(cuDeviceGet)                                                                                                     \
    X(cuDeviceGetAttribute)                                                                                            \
    X(cuDevicePrimaryCtxRetain)                                                                                        \
    X(cuCtxGetCurrent)                                                                                                 \
    X(cuMemGetInfo)                                                                                                    \
    X(cuDevicePrimaryCtxRelease)                                                                                       \
    X(cuCtxPushCurrent)                                                                                                \
    X(cuCtxPopCurrent) X(cuCtxSynchronize) X(cuMemAlloc) X(cuMemFree) X(cuMemHostAlloc) X(cuMemFreeHost)               \
        X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemHostGetDevicePointer) X(cuMemcpyAsync) X(cuMemcpyHtoD)      \
            X(cuMemcpyDtoH) X(cuMemsetD8Async) X(cuStreamCreateWithPriority) X(cuStreamDestroy) X(cuStreamSynchronize) \
                X(cuStreamQuery) X(cuStreamWaitEvent) X(cuStreamWaitValue64) X(cuStreamWriteValue64)                   \
                    X(cuStreamBeginCapture) X(cuStreamEndCapture) X(cuStreamIsCapturing)                               \
                        X(cuThreadExchangeStreamCaptureMode) X(cuStreamGetId) X(cuLaunchHostFunc) X(cuEventCreate)     \
                            X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize)                   \
                                X(cuModuleLoadData) X(cuModuleUnload) X(cuModuleGetFunction) X(cuLaunchKernel)

#define DECLARE(name) __typeof__(&name) name##_;
typedef struct functions {
    FUNCTIONS(DECLARE)
} functions_t;
extern functions_t cu;
#define CU(name) cu.name##_

extern CUdevice device;
extern CUcontext context;
extern CUmodule module;
extern void *library;

void open_library(void);
char *read_ptx(void);
void open_device(void);
void close_device(void);
CUdeviceptr alloc(size_t nbytes);
CUstream stream_new(void);
_Atomic uint64_t *words_new(CUdeviceptr *out);
void note(void *at); /* one more, in an _Atomic int: a host function */
/* A kernel of driver/kernels.cu. */
CUresult launch(const char *name, uint32_t blocks, CUstream s, CUdeviceptr words, uint32_t n);
/* Three streams, ordered by events alone: gradients go up, an update, weights come down. The fault leaves one order
 * out. Returns how many weights differ from the host's. */
uint32_t train(const char *fault);

#endif
