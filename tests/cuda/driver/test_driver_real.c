/* SPDX-License-Identifier: Apache-2.0 */
/* test_driver_real.c - CUDA's own rules, which hold for a driver and a GPU as well: the kit's session.sh runs this
 * program there. */
#include "rig.h"
#include "suite.h"
#include <check.h>
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

START_TEST(streams_ordered_by_events) {
    open_device();
    ck_assert_uint_eq(train(""), 0);
    close_device();
}
END_TEST

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

ZT_MAIN("driver_real", streams_ordered_by_events, host_and_stream_by_words, pageable_copies_are_over_on_return,
        registered_memory, sum_of_a_block, contexts_are_per_thread, legacy_stream, capture_has_its_status,
        each_thread_has_a_stream, queries_beside_a_capture, host_functions_run_in_order)
