/* SPDX-License-Identifier: Apache-2.0 */
/* driver/rig.c - contract in rig.h. */
#include "rig.h"

#include <check.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

functions_t cu;
CUdevice device;
CUcontext context;
CUmodule module;
void *library;

void open_library(void) {
    CUresult (*find)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *) = NULL;
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(library != NULL, "%s", dlerror());
    *(void **)&find = dlsym(library, "cuGetProcAddress_v2");
    ck_assert_ptr_nonnull(find);
#define FIND(name) ck_assert_int_eq(find(#name, (void **)&cu.name##_, 12000, 0, NULL), 0);
    FUNCTIONS(FIND)
}

char *read_ptx(void) {
    static char text[1 << 20];
    FILE *f = fopen(getenv("ZT_PTX"), "rb");
    ck_assert_ptr_nonnull(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}

void open_device(void) {
    open_library();
    ck_assert_int_eq(CU(cuInit)(0), 0);
    ck_assert_int_eq(CU(cuDeviceGet)(&device, 0), 0);
    ck_assert_int_eq(CU(cuDevicePrimaryCtxRetain)(&context, device), 0);
    ck_assert_int_eq(CU(cuCtxPushCurrent)(context), 0);
    ck_assert_int_eq(CU(cuModuleLoadData)(&module, read_ptx()), 0);
}

void close_device(void) {
    ck_assert_int_eq(CU(cuModuleUnload)(module), 0);
    ck_assert_int_eq(CU(cuCtxPopCurrent)(&context), 0);
    ck_assert_int_eq(CU(cuDevicePrimaryCtxRelease)(device), 0);
}

CUdeviceptr alloc(size_t nbytes) {
    CUdeviceptr p = 0;
    ck_assert_int_eq(CU(cuMemAlloc)(&p, nbytes), 0);
    return p;
}

CUstream stream_new(void) {
    CUstream s = NULL;
    ck_assert_int_eq(CU(cuStreamCreateWithPriority)(&s, CU_STREAM_NON_BLOCKING, 0), 0);
    return s;
}

CUresult launch(const char *name, uint32_t blocks, CUstream s, CUdeviceptr words, uint32_t n) {
    CUfunction f = NULL;
    void *params[] = {&words, &n};
    ck_assert_int_eq(CU(cuModuleGetFunction)(&f, module, name), 0);
    return CU(cuLaunchKernel)(f, blocks, 1, 1, 256, 1, 1, 0, s, params, NULL);
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

uint32_t train(const char *fault) {
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
    ck_assert_int_eq(CU(cuModuleGetFunction)(&f, module, "adamw"), 0);
    ck_assert_int_eq(CU(cuMemHostAlloc)((void **)&weights, N * 4, 0), 0);
    ck_assert_int_eq(CU(cuMemHostAlloc)((void **)&g, N * 2, 0), 0);
    ck_assert_int_eq(CU(cuEventCreate)(&arrived, CU_EVENT_DISABLE_TIMING), 0);
    ck_assert_int_eq(CU(cuEventCreate)(&updated, CU_EVENT_DISABLE_TIMING), 0);
    ck_assert_int_eq(CU(cuEventCreate)(&shown, CU_EVENT_DISABLE_TIMING), 0);
    for (size_t i = 0; i < N; i++)
        weights[i] = hw[i] = (float)i * 0.37f - 100;
    memset(hm, 0, sizeof hm);
    memset(hv, 0, sizeof hv);
    ck_assert_int_eq(CU(cuMemcpyHtoD)(w, weights, N * 4), 0);
    ck_assert_int_eq(CU(cuMemsetD8Async)(m, 0, 2 * N * 4, up), 0);
    for (int t = 0; t < 8; t++) {
        void *params[] = {&w, &m, &v, &gradients, (void *)&scalars, &n};
        if (t > 0 && strcmp(fault, "host reuses its memory early") != 0)
            ck_assert_int_eq(CU(cuEventSynchronize)(arrived), 0);
        for (size_t i = 0; i < N; i++)
            g[i] = (uint16_t)((i * 2654435761u + (uint32_t)t * 77) >> 9 & 0xbfff);
        adamw_on_host(hw, hm, hv, g);
        if (t > 0 && strcmp(fault, "staging is overwritten early") != 0)
            ck_assert_int_eq(CU(cuStreamWaitEvent)(up, updated, 0), 0);
        ck_assert_int_eq(CU(cuMemcpyAsync)(gradients, (CUdeviceptr)(uintptr_t)g, N * 2, up), 0);
        ck_assert_int_eq(CU(cuEventRecord)(arrived, up), 0);
        if (strcmp(fault, "update does not wait for the gradients") != 0)
            ck_assert_int_eq(CU(cuStreamWaitEvent)(run, arrived, 0), 0);
        if (t > 0 && strcmp(fault, "update does not wait for the copy down") != 0)
            ck_assert_int_eq(CU(cuStreamWaitEvent)(run, shown, 0), 0);
        ck_assert_int_eq(CU(cuLaunchKernel)(f, 4, 1, 1, 256, 1, 1, 0, run, params, NULL), 0);
        ck_assert_int_eq(CU(cuEventRecord)(updated, run), 0);
        if (strcmp(fault, "copy down does not wait for the update") != 0)
            ck_assert_int_eq(CU(cuStreamWaitEvent)(down, updated, 0), 0);
        ck_assert_int_eq(CU(cuMemcpyAsync)((CUdeviceptr)(uintptr_t)weights, w, N * 4, down), 0);
        ck_assert_int_eq(CU(cuEventRecord)(shown, down), 0);
    }
    if (strcmp(fault, "host does not wait at the end") != 0)
        ck_assert_int_eq(CU(cuEventSynchronize)(shown), 0);
    for (size_t i = 0; i < N; i++)
        n_differ += memcmp(&weights[i], &hw[i], 4) != 0;
    ck_assert_int_eq(CU(cuCtxSynchronize)(), 0);
    CU(cuEventDestroy)(arrived), CU(cuEventDestroy)(updated), CU(cuEventDestroy)(shown);
    CU(cuStreamDestroy)(up), CU(cuStreamDestroy)(run), CU(cuStreamDestroy)(down);
    CU(cuMemFree)(state), CU(cuMemFree)(gradients), CU(cuMemFreeHost)(weights), CU(cuMemFreeHost)(g);
    return n_differ;
}

_Atomic uint64_t *words_new(CUdeviceptr *out) {
    void *p = NULL;
    ck_assert_int_eq(CU(cuMemHostAlloc)(&p, 4096, CU_MEMHOSTALLOC_DEVICEMAP), 0);
    memset(p, 0, 4096);
    ck_assert_int_eq(CU(cuMemHostGetDevicePointer)(out, p, 0), 0);
    return p;
}

void note(void *at) { atomic_fetch_add((_Atomic int *)at, 1); }
