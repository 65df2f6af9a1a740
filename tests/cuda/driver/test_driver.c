/* SPDX-License-Identifier: Apache-2.0 */
/* test_driver.c - the double against CUDA's own rules, and every fault that it looks for, seen found.
 *
 * Each test is a process of its own that opens libcuda.so.1 as a plugin would. Those marked "also real" hold for a
 * driver and a GPU as well: `test_driver_real` is the same program without the others, and the kit's session.sh runs
 * it. */
#include <cuda.h>
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

#include "suite.h"

#define FUNCTIONS(X)                                                                                                   \
    X(cuInit)                                                                                                          \
    X(cuDeviceGet)                                                                                                     \
    X(cuDeviceGetAttribute)                                                                                            \
    X(cuDevicePrimaryCtxRetain)                                                                                        \
    X(cuCtxGetCurrent)                                                                                                 \
    X(cuMemGetInfo)                                                                                                    \
    X(cuDevicePrimaryCtxRelease) X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuCtxSynchronize) X(cuMemAlloc) X(cuMemFree) \
        X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemHostGetDevicePointer)    \
            X(cuMemcpyAsync) X(cuMemcpyHtoD) X(cuMemcpyDtoH) X(cuMemsetD8Async) X(cuStreamCreateWithPriority)          \
                X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamQuery) X(cuStreamWaitEvent) X(cuStreamWaitValue64) \
                    X(cuStreamWriteValue64) X(cuStreamBeginCapture) X(cuStreamEndCapture) X(cuStreamIsCapturing)       \
                        X(cuThreadExchangeStreamCaptureMode) X(cuStreamGetId) X(cuLaunchHostFunc) X(cuEventCreate)     \
                            X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize)                   \
                                X(cuModuleLoadData) X(cuModuleUnload) X(cuModuleGetFunction) X(cuLaunchKernel)

#define DECLARE(name) __typeof__(&name) name##_;
static struct { FUNCTIONS(DECLARE) } cu;
#define CU(name) cu.name##_

static CUdevice device;
static CUcontext context;
static CUmodule module;
static void *library;

static void open_library(void) {
    CUresult (*find)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *) = NULL;
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(library != NULL, "%s", dlerror());
    *(void **)&find = dlsym(library, "cuGetProcAddress_v2");
    ck_assert_ptr_nonnull(find);
#define FIND(name) ck_assert_int_eq(find(#name, (void **)&cu.name##_, 12000, 0, NULL), 0);
    FUNCTIONS(FIND)
}

static char *read_ptx(void) {
    static char text[1 << 20];
    FILE *f = fopen(getenv("ZT_PTX"), "rb");
    ck_assert_ptr_nonnull(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}

static void open_device(void) {
    open_library();
    ck_assert_int_eq(CU(cuInit)(0), 0);
    ck_assert_int_eq(CU(cuDeviceGet)(&device, 0), 0);
    ck_assert_int_eq(CU(cuDevicePrimaryCtxRetain)(&context, device), 0);
    ck_assert_int_eq(CU(cuCtxPushCurrent)(context), 0);
    ck_assert_int_eq(CU(cuModuleLoadData)(&module, read_ptx()), 0);
}

static void close_device(void) {
    ck_assert_int_eq(CU(cuModuleUnload)(module), 0);
    ck_assert_int_eq(CU(cuCtxPopCurrent)(&context), 0);
    ck_assert_int_eq(CU(cuDevicePrimaryCtxRelease)(device), 0);
}

static CUdeviceptr alloc(size_t nbytes) {
    CUdeviceptr p = 0;
    ck_assert_int_eq(CU(cuMemAlloc)(&p, nbytes), 0);
    return p;
}

static CUstream stream_new(void) {
    CUstream s = NULL;
    ck_assert_int_eq(CU(cuStreamCreateWithPriority)(&s, CU_STREAM_NON_BLOCKING, 0), 0);
    return s;
}

static CUresult launch(const char *name, uint32_t blocks, CUstream s, CUdeviceptr words, uint32_t n) {
    CUfunction f = NULL;
    void *params[] = {&words, &n};
    ck_assert_int_eq(CU(cuModuleGetFunction)(&f, module, name), 0);
    return CU(cuLaunchKernel)(f, blocks, 1, 1, 256, 1, 1, 0, s, params, NULL);
}

/* ---- also real --------------------------------------------------------------------------------------------------- */

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

/* Three streams, ordered by events alone: gradients go up, an update, weights come down. The fault leaves one order
 * out. Returns how many weights differ from the host's. */
static uint32_t train(const char *fault) {
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

START_TEST(streams_ordered_by_events) {
    open_device();
    ck_assert_uint_eq(train(""), 0);
    close_device();
}
END_TEST

static _Atomic uint64_t *words_new(CUdeviceptr *out) {
    void *p = NULL;
    ck_assert_int_eq(CU(cuMemHostAlloc)(&p, 4096, CU_MEMHOSTALLOC_DEVICEMAP), 0);
    memset(p, 0, 4096);
    ck_assert_int_eq(CU(cuMemHostGetDevicePointer)(out, p, 0), 0);
    return p;
}

/* The host releases a stream through one word and hears of it through another. GEQ is cyclic. */
START_TEST(host_and_stream_by_words) {
    CUdeviceptr at = 0;
    open_device();
    _Atomic uint64_t *words = words_new(&at);
    CUstream s = stream_new();
    atomic_store(&words[0], UINT64_MAX - 5);
    ck_assert_int_eq(CU(cuStreamWaitValue64)(s, at, 3, CU_STREAM_WAIT_VALUE_GEQ), 0);
    ck_assert_int_eq(CU(cuStreamWriteValue64)(s, at + 8, 77, 0), 0);
    usleep(20000);
    ck_assert_uint_eq(atomic_load(&words[1]), 0);
    ck_assert_int_eq(CU(cuStreamQuery)(s), CUDA_ERROR_NOT_READY);
    atomic_store(&words[0], 4);
    while (atomic_load(&words[1]) != 77)
        usleep(100);
    ck_assert_int_eq(CU(cuStreamWaitValue64)(s, at, (uint64_t)-9, CU_STREAM_WAIT_VALUE_GEQ), 0);
    ck_assert_int_eq(CU(cuStreamSynchronize)(s), 0);
    CU(cuStreamDestroy)(s), CU(cuMemFreeHost)((void *)words);
    close_device();
}
END_TEST

START_TEST(pageable_copies_are_over_on_return) {
    open_device();
    CUstream s = stream_new();
    CUdeviceptr p = alloc(1 << 20);
    unsigned char *there = malloc(1 << 20), *back = calloc(1, 1 << 20);
    memset(there, 7, 1 << 20);
    ck_assert_int_eq(CU(cuMemcpyAsync)(p, (CUdeviceptr)(uintptr_t)there, 1 << 20, s), 0);
    memset(there, 0, 1 << 20); /* its memory is the caller's again */
    ck_assert_int_eq(CU(cuMemcpyAsync)((CUdeviceptr)(uintptr_t)back, p, 1 << 20, s), 0);
    ck_assert_int_eq(back[(1 << 20) - 1], 7);
    free(there), free(back);
    CU(cuMemFree)(p), CU(cuStreamDestroy)(s);
    close_device();
}
END_TEST

START_TEST(registered_memory) {
    CUdeviceptr at = 0;
    open_device();
    void *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUstream s = stream_new();
    ck_assert_int_eq(CU(cuMemHostRegister)(p, 8192, CU_MEMHOSTREGISTER_DEVICEMAP), 0);
    ck_assert_int_eq(CU(cuMemHostRegister)(p, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    ck_assert_int_eq(CU(cuMemHostGetDevicePointer)(&at, (char *)p + 4096, 0), 0);
    memset(p, 0, 8192);
    ck_assert_int_eq(launch("add_one", 4, s, at, 1024), 0);
    ck_assert_int_eq(CU(cuStreamSynchronize)(s), 0);
    ck_assert_int_eq(((uint32_t *)p)[1024 + 1023], 1);
    ck_assert_int_eq(CU(cuMemHostUnregister)(p), 0);
    ck_assert_int_eq(CU(cuMemHostUnregister)(p), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    CU(cuStreamDestroy)(s);
    munmap(p, 8192);
    close_device();
}
END_TEST

START_TEST(sum_of_a_block) {
    open_device();
    CUdeviceptr in = alloc(2048), out = alloc(64);
    uint32_t words[512], sums[2], expected[2] = {0};
    CUfunction f;
    void *params[] = {&in, &out};
    for (uint32_t i = 0; i < 512; i++) {
        words[i] = i * 2654435761u;
        expected[i / 256] += words[i];
    }
    ck_assert_int_eq(CU(cuModuleGetFunction)(&f, module, "sum"), 0);
    ck_assert_int_eq(CU(cuMemcpyHtoD)(in, words, sizeof words), 0);
    ck_assert_int_eq(CU(cuLaunchKernel)(f, 2, 1, 1, 256, 1, 1, 0, NULL, params, NULL), 0);
    ck_assert_int_eq(CU(cuMemcpyDtoH)(sums, out, sizeof sums), 0);
    ck_assert_int_eq(memcmp(sums, expected, sizeof sums), 0);
    CU(cuMemFree)(in), CU(cuMemFree)(out);
    close_device();
}
END_TEST

START_TEST(contexts_are_per_thread) {
    CUdeviceptr p = 0;
    open_device();
    CUcontext now = NULL;
    ck_assert_int_eq(CU(cuCtxPopCurrent)(&now), 0);
    ck_assert_ptr_eq(now, context);
    ck_assert_int_eq(CU(cuMemAlloc)(&p, 16), CUDA_ERROR_INVALID_CONTEXT);
    ck_assert_int_eq(CU(cuCtxGetCurrent)(&now), 0);
    ck_assert_ptr_null(now);
    ck_assert_int_eq(CU(cuCtxPushCurrent)(context), 0);
    close_device();
}
END_TEST

/* A kernel in the legacy stream waits for a blocking stream, and not for one that is not. */
START_TEST(legacy_stream) {
    CUdeviceptr at = 0;
    CUstream blocking = NULL;
    open_device();
    _Atomic uint64_t *words = words_new(&at);
    ck_assert_int_eq(CU(cuStreamCreateWithPriority)(&blocking, CU_STREAM_DEFAULT, 0), 0);
    CUstream other = stream_new();
    ck_assert_int_eq(CU(cuStreamWaitValue64)(other, at, 1, CU_STREAM_WAIT_VALUE_GEQ), 0);
    ck_assert_int_eq(launch("add_one", 1, NULL, at + 64, 1), 0);
    ck_assert_int_eq(CU(cuStreamSynchronize)(NULL), 0);
    ck_assert_int_eq(CU(cuStreamWaitValue64)(blocking, at, 1, CU_STREAM_WAIT_VALUE_GEQ), 0);
    ck_assert_int_eq(launch("add_one", 1, NULL, at + 64, 1), 0);
    usleep(20000);
    ck_assert_uint_eq(atomic_load(&words[8]), 1);
    atomic_store(&words[0], 1);
    ck_assert_int_eq(CU(cuStreamSynchronize)(NULL), 0);
    ck_assert_uint_eq(atomic_load(&words[8]), 2);
    CU(cuStreamDestroy)(blocking), CU(cuStreamDestroy)(other), CU(cuMemFreeHost)((void *)words);
    close_device();
}
END_TEST

START_TEST(capture_has_its_status) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUgraph graph = NULL;
    open_device();
    CUstream s = stream_new();
    ck_assert_int_eq(CU(cuStreamBeginCapture)(s, CU_STREAM_CAPTURE_MODE_RELAXED), 0);
    ck_assert_int_eq(CU(cuStreamIsCapturing)(s, &status), 0);
    ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    ck_assert_int_ne(CU(cuStreamSynchronize)(s), 0);
    CU(cuStreamEndCapture)(s, &graph);
    ck_assert_int_eq(CU(cuStreamIsCapturing)(s, &status), 0);
    ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
    CU(cuStreamDestroy)(s);
    close_device();
}
END_TEST

static void *id_in_another_thread(void *out) {
    ck_assert_int_eq(CU(cuCtxPushCurrent)(context), 0);
    ck_assert_int_eq(CU(cuStreamGetId)(CU_STREAM_PER_THREAD, out), 0);
    ck_assert_int_eq(CU(cuCtxPopCurrent)(&context), 0);
    return NULL;
}

START_TEST(each_thread_has_a_stream) {
    unsigned long long mine = 0, again = 0, other = 0;
    pthread_t thread;
    open_device();
    ck_assert_int_eq(CU(cuStreamGetId)(CU_STREAM_PER_THREAD, &mine), 0);
    ck_assert_int_eq(CU(cuStreamGetId)(CU_STREAM_PER_THREAD, &again), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, id_in_another_thread, &other), 0);
    pthread_join(thread, NULL);
    ck_assert_uint_eq(mine, again);
    ck_assert_uint_ne(mine, other);
    close_device();
}
END_TEST

static void *query_in_another_thread(void *event) {
    ck_assert_int_eq(CU(cuCtxPushCurrent)(context), 0);
    CUresult rc = CU(cuEventQuery)(event);
    ck_assert_int_eq(CU(cuCtxPopCurrent)(&context), 0);
    return rc ? event : NULL;
}

static void *query_without_a_part(void *event) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    ck_assert_int_eq(CU(cuThreadExchangeStreamCaptureMode)(&mode), 0);
    return query_in_another_thread(event);
}

/* A query beside a capture in the global mode spoils it, but not by a thread whose mode is relaxed. */
START_TEST(queries_beside_a_capture) {
    static void *(*const queries[])(void *) = {query_without_a_part, query_in_another_thread};
    CUevent e;
    open_device();
    CUstream s = stream_new();
    ck_assert_int_eq(CU(cuEventCreate)(&e, CU_EVENT_DISABLE_TIMING), 0);
    for (int spoils = 0; spoils < 2; spoils++) {
        CUgraph graph = NULL;
        pthread_t thread;
        void *failed;
        ck_assert_int_eq(CU(cuStreamBeginCapture)(s, CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
        ck_assert_int_eq(pthread_create(&thread, NULL, queries[spoils], e), 0);
        pthread_join(thread, &failed);
        ck_assert_int_eq(failed != NULL, spoils);
        ck_assert_int_eq(CU(cuStreamEndCapture)(s, &graph) != CUDA_SUCCESS, spoils);
    }
    CU(cuEventDestroy)(e), CU(cuStreamDestroy)(s);
    close_device();
}
END_TEST

static void note(void *at) { atomic_fetch_add((_Atomic int *)at, 1); }

START_TEST(host_functions_run_in_order) {
    static _Atomic int n;
    open_device();
    CUstream s = stream_new();
    for (int i = 0; i < 10; i++)
        ck_assert_int_eq(CU(cuLaunchHostFunc)(s, note, &n), 0);
    ck_assert_int_eq(CU(cuStreamSynchronize)(s), 0);
    ck_assert_int_eq(atomic_load(&n), 10);
    CU(cuStreamDestroy)(s);
    close_device();
}
END_TEST

#ifndef ZT_REAL
/* ---- only the double: what it looks for -------------------------------------------------------------------------- */

/* Before open_device: the double reads the environment once. */
static void set(const char *name, const char *value) { ck_assert_int_eq(setenv(name, value, 1), 0); }

static uint64_t n_findings(void) {
    uint64_t (*count)(void) = NULL;
    *(void **)&count = dlsym(library, "fakecuda_n_findings");
    return count();
}

/* After findings the double ends a process with status 96; these tests want to see them and pass. */
static void pass(void) { _exit(0); }

static void expect_finding(const char *kernel, uint32_t n, size_t nbytes, CUresult expected) {
    open_device();
    CUdeviceptr p = alloc(nbytes);
    ck_assert_int_eq(CU(cuMemsetD8Async)(p, 0, nbytes, NULL), 0);
    ck_assert_int_eq(launch(kernel, 1, NULL, p, n), 0);
    ck_assert_int_eq(CU(cuStreamSynchronize)(NULL), expected);
    ck_assert_uint_ge(n_findings(), 1);
    if (expected) /* sticky */
        ck_assert_int_eq(CU(cuMemAlloc)(&p, 16), expected);
    pass();
}

START_TEST(finds_an_address_past_the_end) { expect_finding("one_too_far", 25, 100, CUDA_ERROR_ILLEGAL_ADDRESS); }
END_TEST
START_TEST(finds_misalignment) { expect_finding("misaligned", 0, 1024, CUDA_ERROR_ILLEGAL_ADDRESS); }
END_TEST
START_TEST(finds_unwritten_shared_memory) { expect_finding("unwritten_shared", 0, 1024, CUDA_SUCCESS); }
END_TEST
START_TEST(finds_an_unwritten_register) { expect_finding("unwritten_register", 0, 1024, CUDA_SUCCESS); }
END_TEST
START_TEST(finds_a_barrier_for_some) { expect_finding("barrier_for_some", 100, 1024, CUDA_SUCCESS); }
END_TEST
START_TEST(finds_a_shuffle_for_some) { expect_finding("shuffle_for_some", 40, 1024, CUDA_ERROR_ILLEGAL_ADDRESS); }
END_TEST
START_TEST(finds_an_exchange_without_a_meeting) { expect_finding("warp_exchange_unsynced", 0, 1024, CUDA_SUCCESS); }
END_TEST

START_TEST(finds_a_missing_barrier) {
    open_device();
    CUdeviceptr in = alloc(1024), out = alloc(64);
    CUfunction f;
    void *params[] = {&in, &out};
    ck_assert_int_eq(CU(cuModuleGetFunction)(&f, module, "sum_without_a_barrier"), 0);
    ck_assert_int_eq(CU(cuLaunchKernel)(f, 1, 1, 1, 256, 1, 1, 0, NULL, params, NULL), 0);
    ck_assert_int_eq(CU(cuStreamSynchronize)(NULL), 0);
    ck_assert_uint_ge(n_findings(), 1);
    pass();
}
END_TEST

START_TEST(a_meeting_of_the_warp_is_enough) {
    open_device();
    CUdeviceptr p = alloc(1024);
    ck_assert_int_eq(launch("warp_exchange", 1, NULL, p, 0), 0);
    ck_assert_int_eq(CU(cuStreamSynchronize)(NULL), 0);
    ck_assert_uint_eq(n_findings(), 0);
    CU(cuMemFree)(p);
    close_device();
}
END_TEST

START_TEST(order_of_blocks_comes_from_the_seed) {
    uint32_t first = 0, seen = 0;
    open_device();
    CUdeviceptr p = alloc(4);
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(launch("last_block_wins", 16, NULL, p, 0), 0);
        ck_assert_int_eq(CU(cuMemcpyDtoH)(&seen, p, 4), 0);
        first = i == 0 ? seen : first;
        if (seen != first)
            pass(); /* that blocks write one word is a finding of its own */
    }
    ck_abort_msg("block %u was the last one 20 times", first);
}
END_TEST

START_TEST(freed_memory_stays_wrong) {
    open_device();
    CUdeviceptr p = alloc(1024);
    ck_assert_int_eq(CU(cuMemFree)(p), 0);
    ck_assert_int_eq(launch("add_one", 1, NULL, p, 4), 0);
    ck_assert_int_eq(CU(cuStreamSynchronize)(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    pass();
}
END_TEST

/* The host's own access to device memory faults. */
START_TEST(host_cannot_touch_device_memory) {
    pid_t child = fork();
    int status = 0;
    if (child == 0) {
        open_device();
        CUdeviceptr p = alloc(64);
        signal(SIGSEGV, SIG_DFL);
        _exit(*(volatile int *)(uintptr_t)p & 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    /* Sanitizers end the process themselves. */
    ck_assert(WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) > 1);
}
END_TEST

START_TEST(out_of_memory) {
    CUdeviceptr p = 0;
    size_t left = 0, all = 0;
    set("FAKECUDA_DEVICE_BYTES", "1000000");
    open_device();
    CUdeviceptr first = alloc(600000);
    ck_assert_int_eq(CU(cuMemAlloc)(&p, 600000), CUDA_ERROR_OUT_OF_MEMORY);
    ck_assert_int_eq(CU(cuMemGetInfo)(&left, &all), 0);
    ck_assert_uint_eq(left, 400000);
    CU(cuMemFree)(first);
    close_device();
}
END_TEST

START_TEST(registering_can_fail) {
    static char memory[100];
    set("FAKECUDA_PIN_BYTES", "0");
    open_device();
    ck_assert_int_eq(CU(cuMemHostRegister)(memory, sizeof memory, 0), CUDA_ERROR_OUT_OF_MEMORY);
    close_device();
}
END_TEST

START_TEST(nth_call_fails) {
    CUdeviceptr p = 0;
    set("FAKECUDA_FAIL", "cuMemAlloc:2:2");
    open_device();
    CUdeviceptr first = alloc(64);
    ck_assert_int_eq(CU(cuMemAlloc)(&p, 64), CUDA_ERROR_OUT_OF_MEMORY);
    CUdeviceptr third = alloc(64);
    CU(cuMemFree)(first), CU(cuMemFree)(third);
    close_device();
}
END_TEST

/* Registered memory may have another address on the device; a kernel that takes the host's finds nothing there. */
START_TEST(registered_memory_elsewhere) {
    CUdeviceptr at = 0;
    set("FAKECUDA_HOST_POINTER", "0");
    open_device();
    uint32_t *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_int_eq(CU(cuMemHostRegister)(p, 4096, CU_MEMHOSTREGISTER_DEVICEMAP), 0);
    ck_assert_int_eq(CU(cuMemHostGetDevicePointer)(&at, p, 0), 0);
    ck_assert_uint_ne(at, (CUdeviceptr)(uintptr_t)p);
    ck_assert_int_eq(launch("add_one", 1, NULL, at, 4), 0);
    ck_assert_int_eq(CU(cuStreamSynchronize)(NULL), 0);
    ck_assert_uint_eq(p[3], 1);
    ck_assert_int_eq(launch("add_one", 1, NULL, (CUdeviceptr)(uintptr_t)p, 4), 0);
    ck_assert_int_eq(CU(cuStreamSynchronize)(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    pass();
}
END_TEST

START_TEST(memory_operations_can_be_missing) {
    CUdeviceptr at = 0;
    int can = 1;
    set("FAKECUDA_MEMOPS", "0");
    open_device();
    _Atomic uint64_t *words = words_new(&at);
    CU(cuDeviceGetAttribute)(&can, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device);
    ck_assert_int_eq(can, 0);
    ck_assert_int_eq(CU(cuStreamWriteValue64)(NULL, at, 1, 0), CUDA_ERROR_NOT_SUPPORTED);
    CU(cuMemFreeHost)((void *)words);
    close_device();
}
END_TEST

/* Two streams on one queue: an event that is recorded before it is waited for is no problem, whoever is in front. A
 * word that only the host writes is none either. */
START_TEST(shared_queue_goes_on) {
    CUdeviceptr at = 0;
    CUevent e;
    set("FAKECUDA_QUEUES", "1");
    open_device();
    _Atomic uint64_t *words = words_new(&at);
    CUstream a = stream_new(), b = stream_new();
    ck_assert_int_eq(CU(cuEventCreate)(&e, CU_EVENT_DISABLE_TIMING), 0);
    ck_assert_int_eq(CU(cuStreamWaitValue64)(a, at, 1, CU_STREAM_WAIT_VALUE_GEQ), 0);
    ck_assert_int_eq(CU(cuEventRecord)(e, a), 0);
    ck_assert_int_eq(CU(cuStreamWaitEvent)(b, e, 0), 0);
    ck_assert_int_eq(CU(cuStreamWriteValue64)(b, at + 8, 1, 0), 0);
    atomic_store(&words[0], 1);
    ck_assert_int_eq(CU(cuStreamSynchronize)(b), 0);
    ck_assert_uint_eq(atomic_load(&words[1]), 1);
    CU(cuEventDestroy)(e), CU(cuStreamDestroy)(a), CU(cuStreamDestroy)(b), CU(cuMemFreeHost)((void *)words);
    close_device();
}
END_TEST

static uint32_t n_waiting_calls(void) {
    uint32_t (*count)(void) = NULL;
    *(void **)&count = dlsym(library, "fakecuda_n_waiting_calls");
    return count();
}

static void *write_many(void *raw) {
    const CUdeviceptr *at = raw;
    CUstream s = stream_new();
    for (uint64_t i = 0; i < 5; i++)
        ck_assert_int_eq(i == 0 ? CU(cuStreamWaitValue64)(s, *at, 1, CU_STREAM_WAIT_VALUE_GEQ)
                                : CU(cuStreamWriteValue64)(s, *at + 8, i, 0),
                         0);
    ck_assert_int_eq(CU(cuStreamSynchronize)(s), 0);
    CU(cuStreamDestroy)(s);
    return NULL;
}

static void *write_many_there(void *raw) {
    ck_assert_int_eq(CU(cuCtxPushCurrent)(context), 0);
    write_many(raw);
    ck_assert_int_eq(CU(cuCtxPopCurrent)(&context), 0);
    return NULL;
}

/* The call that brings one command more than a queue takes waits; other streams go on. */
START_TEST(a_full_queue_makes_the_caller_wait) {
    CUdeviceptr at = 0;
    pthread_t thread;
    set("FAKECUDA_DEPTH", "4");
    open_device();
    _Atomic uint64_t *words = words_new(&at);
    CUstream other = stream_new();
    ck_assert_int_eq(pthread_create(&thread, NULL, write_many_there, &at), 0);
    while (n_waiting_calls() == 0)
        ck_assert_int_eq(CU(cuStreamWriteValue64)(other, at + 16, 1, 0), 0);
    ck_assert_int_eq(CU(cuStreamSynchronize)(other), 0);
    ck_assert_uint_eq(atomic_load(&words[1]), 0);
    atomic_store(&words[0], 1);
    pthread_join(thread, NULL);
    ck_assert_uint_eq(atomic_load(&words[1]), 4);
    CU(cuStreamDestroy)(other), CU(cuMemFreeHost)((void *)words);
    close_device();
}
END_TEST

static _Atomic int is_held, may_go;

static void hold(void *unused) {
    (void)unused;
    atomic_store(&is_held, 1);
    while (!atomic_load(&may_go))
        usleep(100);
}

/* Of two streams. */
START_TEST(host_functions_run_one_by_one) {
    static _Atomic int n;
    open_device();
    CUstream a = stream_new(), b = stream_new();
    ck_assert_int_eq(CU(cuLaunchHostFunc)(a, hold, NULL), 0);
    while (!atomic_load(&is_held))
        usleep(100);
    ck_assert_int_eq(CU(cuLaunchHostFunc)(b, note, &n), 0);
    for (int i = 0; i < 200; i++)
        ck_assert_int_eq(CU(cuStreamQuery)(b), CUDA_ERROR_NOT_READY);
    ck_assert_int_eq(atomic_load(&n), 0);
    atomic_store(&may_go, 1);
    ck_assert_int_eq(CU(cuStreamSynchronize)(b), 0);
    ck_assert_int_eq(atomic_load(&n), 1);
    CU(cuStreamDestroy)(a), CU(cuStreamDestroy)(b);
    close_device();
}
END_TEST

START_TEST(finds_a_wait_for_what_cuda_writes) {
    CUdeviceptr at = 0;
    open_device();
    _Atomic uint64_t *words = words_new(&at);
    CUstream a = stream_new(), b = stream_new();
    ck_assert_int_eq(CU(cuStreamWaitValue64)(a, at, 1, CU_STREAM_WAIT_VALUE_GEQ), 0);
    ck_assert_int_eq(CU(cuStreamWriteValue64)(b, at, 1, 0), 0);
    ck_assert_int_eq(CU(cuStreamSynchronize)(a), 0);
    ck_assert_uint_eq(atomic_load(&words[0]), 1);
    ck_assert_uint_eq(n_findings(), 1);
    pass();
}
END_TEST

static void call_cuda(void *unused) {
    (void)unused;
    CU(cuStreamQuery)(NULL);
}

START_TEST(finds_a_host_function_that_calls_cuda) {
    open_device();
    ck_assert_int_eq(CU(cuLaunchHostFunc)(NULL, call_cuda, NULL), 0);
    ck_assert_int_eq(CU(cuStreamSynchronize)(NULL), 0);
    ck_assert_uint_eq(n_findings(), 1);
    pass();
}
END_TEST

START_TEST(finds_leaks) {
    open_device();
    alloc(64);
    stream_new();
    ck_assert_int_eq(CU(cuModuleUnload)(module), 0);
    ck_assert_int_eq(CU(cuCtxPopCurrent)(&context), 0);
    ck_assert_int_eq(CU(cuDevicePrimaryCtxRelease)(device), 0);
    ck_assert_uint_eq(n_findings(), 1);
    pass();
}
END_TEST

START_TEST(devices_do_not_share_memory) {
    CUcontext second;
    CUdevice other;
    set("FAKECUDA_DEVICES", "2");
    open_device();
    ck_assert_int_eq(CU(cuDeviceGet)(&other, 1), 0);
    ck_assert_int_eq(CU(cuDevicePrimaryCtxRetain)(&second, other), 0);
    ck_assert_int_eq(CU(cuCtxPushCurrent)(second), 0);
    CUdeviceptr there = alloc(64);
    ck_assert_int_eq(CU(cuCtxPopCurrent)(&second), 0);
    CUstream s = stream_new();
    ck_assert_int_eq(launch("add_one", 1, s, there, 4), 0);
    ck_assert_int_eq(CU(cuStreamSynchronize)(s), CUDA_ERROR_ILLEGAL_ADDRESS);
    ck_assert_int_eq(CU(cuCtxPushCurrent)(second), 0); /* the other device is well */
    ck_assert_int_eq(CU(cuMemFree)(there), 0);
    pass();
}
END_TEST

START_TEST(streams_belong_to_their_device) {
    CUcontext second;
    CUstream s;
    CUdeviceptr p;
    set("FAKECUDA_DEVICES", "2");
    open_device();
    ck_assert_int_eq(CU(cuDevicePrimaryCtxRetain)(&second, 1), 0);
    ck_assert_int_eq(CU(cuCtxPushCurrent)(second), 0);
    s = stream_new();
    p = alloc(64);
    ck_assert_int_eq(launch("add_one", 1, s, p, 4), CUDA_ERROR_INVALID_HANDLE); /* the module is the first device's */
    CU(cuMemFree)(p), CU(cuStreamDestroy)(s), CU(cuCtxPopCurrent)(&second), CU(cuDevicePrimaryCtxRelease)(1);
    close_device();
}
END_TEST

START_TEST(other_ptx_is_refused) {
    CUmodule other;
    open_device();
    char *text = strdup(read_ptx());
    *strstr(text, "add") = 'A';
    ck_assert_int_eq(CU(cuModuleLoadData)(&other, text), CUDA_ERROR_INVALID_PTX);
    free(text);
    close_device();
}
END_TEST

START_TEST(no_device) {
    set("FAKECUDA_DEVICES", "0");
    open_library();
    ck_assert_int_eq(CU(cuInit)(0), CUDA_ERROR_NO_DEVICE);
    ck_assert_int_eq(CU(cuDeviceGet)(&device, 0), CUDA_ERROR_NOT_INITIALIZED);
}
END_TEST

/* Coalescing as traffic.h counts it. The figures leave at the end of the process, so that is a child. */
START_TEST(traffic) {
    int ends[2];
    char text[2000] = "";
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        set("FAKECUDA_TRAFFIC", "1");
        open_device();
        CUdeviceptr p = alloc(1 << 20);
        launch("dense", 4, NULL, p, 1024);
        launch("sparse", 4, NULL, p, 8192);
        launch("banks", 1, NULL, p, 4);
        CU(cuMemFree)(p);
        close_device();
        exit(0);
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got = 0; (got = read(ends[0], text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)got;
    close(ends[0]);
    waitpid(child, NULL, 0);
    ck_assert_msg(strstr(text, "traffic dense 32 128 4096 4096 0 0") != NULL, "%s", text);
    ck_assert_msg(strstr(text, "traffic sparse 32 1024 4096 32768 0 0") != NULL, "%s", text);
    ck_assert_msg(strstr(text, "traffic banks 8 32 1024 1024 16 64") != NULL, "%s", text);
}
END_TEST

#if defined(__SANITIZE_THREAD__)
enum { HAS_TSAN = 1 };
#else
enum { HAS_TSAN = 0 };
#endif

/* Each order that is left out is found: by wrong values with some seed or, also where values come out right, by the
 * thread sanitizer. The fourth changes only values that nobody looks at. */
START_TEST(missing_waits) {
    static const char *const faults[] = {
        "host reuses its memory early",           "staging is overwritten early",
        "update does not wait for the gradients", "update does not wait for the copy down",
        "copy down does not wait for the update", "host does not wait at the end"};
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        int status = 0, caught = 0;
        for (int seed = 1; seed <= 40 && !caught; seed++) {
            pid_t child = fork();
            if (child == 0) {
                char text[8];
                snprintf(text, sizeof text, "%d", seed);
                set("FAKECUDA_SEED", text);
                set("FAKECUDA_DELAY_US", "3000");
                ck_assert_ptr_nonnull(freopen("/dev/null", "w", stderr));
                open_device();
                uint32_t n_differ = train(faults[i]);
                close_device();
                exit(n_differ != 0);
            }
            waitpid(child, &status, 0);
            caught = !WIFEXITED(status) || WEXITSTATUS(status) == 1 || WEXITSTATUS(status) == 99 ||
                     WEXITSTATUS(status) == 66;
        }
        ck_assert_msg(caught || (i == 3 && !HAS_TSAN), "%s: not caught", faults[i]);
    }
}
END_TEST
#endif

#define REAL                                                                                                           \
    streams_ordered_by_events, host_and_stream_by_words, pageable_copies_are_over_on_return, registered_memory,        \
        sum_of_a_block, contexts_are_per_thread, legacy_stream, capture_has_its_status, each_thread_has_a_stream,      \
        queries_beside_a_capture, host_functions_run_in_order
#ifdef ZT_REAL
ZT_MAIN("driver_real", REAL)
#else
ZT_MAIN("driver", REAL, finds_an_address_past_the_end, finds_misalignment, finds_unwritten_shared_memory,
        finds_an_unwritten_register, finds_a_barrier_for_some, finds_a_shuffle_for_some,
        finds_an_exchange_without_a_meeting, finds_a_missing_barrier, a_meeting_of_the_warp_is_enough,
        order_of_blocks_comes_from_the_seed, freed_memory_stays_wrong, host_cannot_touch_device_memory, out_of_memory,
        registering_can_fail, nth_call_fails, registered_memory_elsewhere, memory_operations_can_be_missing,
        shared_queue_goes_on, a_full_queue_makes_the_caller_wait, host_functions_run_one_by_one,
        finds_a_wait_for_what_cuda_writes, finds_a_host_function_that_calls_cuda, finds_leaks,
        devices_do_not_share_memory, streams_belong_to_their_device, other_ptx_is_refused, no_device, traffic,
        missing_waits)
#endif
