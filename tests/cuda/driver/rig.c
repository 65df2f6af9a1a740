/* SPDX-License-Identifier: Apache-2.0 */
/* driver/rig.c - contract in rig.h. */
#include "rig.h"

#include <math.h>
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

enum { N = 5000 };

static float bf16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

typedef struct scalars {
    float s, beta1, one_minus_beta1, beta2, one_minus_beta2, root_correction, eps, negative_step, decay;
} scalars_t;

static const scalars_t scalars = {0.37f, 0.9f, 0.1f, 0.999f, 0.001f, 3.3f, 1e-8f, -1e-3f, 0.99999f};

static void adamw_on_host(float *w, float *m, float *v, const uint16_t *g) {
    const scalars_t *k = &scalars;
    for (size_t i = 0; i < N; i++) {
        float scaled = bf16(g[i]) * k->s;
        m[i] = fmaf(k->beta1, m[i], k->one_minus_beta1 * scaled);
        v[i] = fmaf(k->beta2, v[i], (k->one_minus_beta2 * scaled) * scaled);
        float d = fmaf(sqrtf(v[i]), k->root_correction, k->eps);
        w[i] = fmaf(k->negative_step, m[i] / d, w[i] * k->decay);
    }
}

uint32_t train(int left_out) {
    CUdeviceptr state = alloc(3 * N * 4), gradients = alloc(N * 2);
    CUdeviceptr w = state, m = state + N * 4, v = state + 2 * N * 4;
    CUstream up = stream_new(), run = stream_new(), down = stream_new();
    CUevent arrived, updated, shown;
    CUfunction f;
    static float hw[N], hm[N], hv[N];
    float *weights = NULL;
    uint16_t *g = NULL;
    uint64_t n = N;
    uint32_t n_differ = 0;
    need(cuModuleGetFunction(&f, module, "adamw"));
    need(cuMemHostAlloc((void **)&weights, N * 4, 0));
    need(cuMemHostAlloc((void **)&g, N * 2, 0));
    need(cuEventCreate(&arrived, CU_EVENT_DISABLE_TIMING));
    need(cuEventCreate(&updated, CU_EVENT_DISABLE_TIMING));
    need(cuEventCreate(&shown, CU_EVENT_DISABLE_TIMING));
    for (size_t i = 0; i < N; i++)
        weights[i] = hw[i] = (float)i * 0.37f - 100;
    memset(hm, 0, sizeof hm);
    memset(hv, 0, sizeof hv);
    need(cuMemcpyHtoD(w, weights, N * 4));
    need(cuMemsetD8Async(m, 0, 2 * N * 4, up));
    for (int t = 0; t < 8; t++) {
        void *params[] = {&w, &m, &v, &gradients, (void *)&scalars, &n};
        if (t > 0 && left_out != 1)
            need(cuEventSynchronize(arrived));
        for (size_t i = 0; i < N; i++)
            g[i] = (uint16_t)((i * 2654435761u + (uint32_t)t * 77) >> 9 & 0xbfff);
        adamw_on_host(hw, hm, hv, g);
        if (t > 0 && left_out != 2)
            need(cuStreamWaitEvent(up, updated, 0));
        need(cuMemcpyAsync(gradients, (CUdeviceptr)(uintptr_t)g, N * 2, up));
        need(cuEventRecord(arrived, up));
        if (left_out != 3)
            need(cuStreamWaitEvent(run, arrived, 0));
        if (t > 0 && left_out != 4)
            need(cuStreamWaitEvent(run, shown, 0));
        need(cuLaunchKernel(f, 4, 1, 1, 256, 1, 1, 0, run, params, NULL));
        need(cuEventRecord(updated, run));
        if (left_out != 5)
            need(cuStreamWaitEvent(down, updated, 0));
        need(cuMemcpyAsync((CUdeviceptr)(uintptr_t)weights, w, N * 4, down));
        need(cuEventRecord(shown, down));
    }
    if (left_out != 6)
        need(cuEventSynchronize(shown));
    for (size_t i = 0; i < N; i++)
        n_differ += memcmp(&weights[i], &hw[i], 4) != 0;
    need(cuCtxSynchronize());
    cuEventDestroy(arrived), cuEventDestroy(updated), cuEventDestroy(shown);
    cuStreamDestroy(up), cuStreamDestroy(run), cuStreamDestroy(down);
    cuMemFree(state), cuMemFree(gradients), cuMemFreeHost(weights), cuMemFreeHost(g);
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
