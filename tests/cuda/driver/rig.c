/* SPDX-License-Identifier: Apache-2.0 */
/* driver/rig.c - contract in rig.h. */
#include "rig.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CUcontext context;
static CUmodule module;

char *read_ptx(void) {
    static char text[1 << 20];
    FILE *f = fopen(getenv("ZT_PTX"), "rb");
    ck_assert_ptr_nonnull(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}

void open_device(void) {
    need(cuInit(0));
    need(cuDevicePrimaryCtxRetain(&context, 0));
    need(cuCtxPushCurrent(context));
    need(cuModuleLoadData(&module, read_ptx()));
}

void close_device(void) {
    need(cuModuleUnload(module));
    need(cuCtxPopCurrent(&context));
    need(cuDevicePrimaryCtxRelease(0));
}

CUdeviceptr alloc(size_t nbytes) {
    CUdeviceptr p = 0;
    need(cuMemAlloc(&p, nbytes));
    return p;
}

CUstream stream_new(void) {
    CUstream s = NULL;
    need(cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, 0));
    return s;
}

CUresult launch(const char *name, uint32_t blocks, CUstream s, CUdeviceptr words, uint32_t n) {
    CUfunction f = NULL;
    void *params[] = {&words, &n};
    need(cuModuleGetFunction(&f, module, name));
    return cuLaunchKernel(f, blocks, 1, 1, 256, 1, 1, 0, s, params, NULL);
}

uint32_t train(int left_out) {
    enum { N = 5000, NBYTES = N * sizeof(uint32_t) };
    CUdeviceptr w = alloc(NBYTES), gradients = alloc(NBYTES);
    CUstream up = stream_new(), run = stream_new(), down = stream_new();
    CUevent arrived, updated, shown;
    CUfunction f;
    static uint32_t here[N];
    uint32_t *weights = NULL, *g = NULL, n_differ = 0;
    uint64_t n = N;
    void *params[] = {&w, &gradients, &n};
    need(cuModuleGetFunction(&f, module, "train"));
    need(cuMemHostAlloc((void **)&weights, NBYTES, 0));
    need(cuMemHostAlloc((void **)&g, NBYTES, 0));
    need(cuEventCreate(&arrived, CU_EVENT_DISABLE_TIMING));
    need(cuEventCreate(&updated, CU_EVENT_DISABLE_TIMING));
    need(cuEventCreate(&shown, CU_EVENT_DISABLE_TIMING));
    memset(here, 0, sizeof here);
    need(cuMemsetD8Async(w, 0, NBYTES, up));
    for (uint32_t t = 0; t < 8; t++) {
        if (t > 0 && left_out != 1)
            need(cuEventSynchronize(arrived));
        for (uint32_t i = 0; i < N; i++) {
            g[i] = i * 2654435761u + t * 77;
            here[i] = here[i] * 3 + g[i];
        }
        if (t > 0 && left_out != 2)
            need(cuStreamWaitEvent(up, updated, 0));
        need(cuMemcpyAsync(gradients, (CUdeviceptr)(uintptr_t)g, NBYTES, up));
        need(cuEventRecord(arrived, up));
        if (left_out != 3)
            need(cuStreamWaitEvent(run, arrived, 0));
        if (t > 0 && left_out != 4)
            need(cuStreamWaitEvent(run, shown, 0));
        need(cuLaunchKernel(f, 4, 1, 1, 256, 1, 1, 0, run, params, NULL));
        need(cuEventRecord(updated, run));
        if (left_out != 5)
            need(cuStreamWaitEvent(down, updated, 0));
        need(cuMemcpyAsync((CUdeviceptr)(uintptr_t)weights, w, NBYTES, down));
        need(cuEventRecord(shown, down));
    }
    if (left_out != 6)
        need(cuEventSynchronize(shown));
    for (uint32_t i = 0; i < N; i++)
        n_differ += weights[i] != here[i];
    need(cuCtxSynchronize());
    cuEventDestroy(arrived), cuEventDestroy(updated), cuEventDestroy(shown);
    cuStreamDestroy(up), cuStreamDestroy(run), cuStreamDestroy(down);
    cuMemFree(w), cuMemFree(gradients), cuMemFreeHost(weights), cuMemFreeHost(g);
    return n_differ;
}

_Atomic uint64_t *words_new(CUdeviceptr *out) {
    void *p = NULL;
    need(cuMemHostAlloc(&p, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    memset(p, 0, 4096);
    need(cuMemHostGetDevicePointer(out, p, 0));
    return p;
}

void note(void *at) { atomic_fetch_add((_Atomic int *)at, 1); }
