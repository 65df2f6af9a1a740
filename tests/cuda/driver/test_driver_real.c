/* SPDX-License-Identifier: Apache-2.0 */
/* test_driver_real.c - CUDA's own rules, which hold for a driver and a GPU as well: the kit's session.sh runs this
 * program there. */
#include "rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "suite.h"

ZT_TEST(streams_ordered_by_events) { ck_assert_uint_eq(train(0), 0); }

/* The host releases a stream through one word and hears of it through another. GEQ is cyclic. */
ZT_TEST(host_and_stream_by_words) {
    CUdeviceptr at = 0;
    _Atomic uint64_t *words = words_new(&at);
    CUstream s = stream_new();
    atomic_store(&words[0], UINT64_MAX - 5);
    need(cuStreamWaitValue64(s, at, 3, CU_STREAM_WAIT_VALUE_GEQ));
    need(cuStreamWriteValue64(s, at + 8, 77, 0));
    usleep(20000);
    ck_assert_uint_eq(atomic_load(&words[1]), 0);
    ck_assert_int_eq(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    atomic_store(&words[0], 4);
    while (atomic_load(&words[1]) != 77)
        usleep(100);
    need(cuStreamWaitValue64(s, at, (uint64_t)-9, CU_STREAM_WAIT_VALUE_GEQ));
    need(cuStreamSynchronize(s));
    cuStreamDestroy(s), cuMemFreeHost((void *)words);
}

ZT_TEST(pageable_copies_are_over_on_return) {
    CUstream s = stream_new();
    CUdeviceptr p = alloc(1 << 20);
    unsigned char *there = malloc(1 << 20), *back = calloc(1, 1 << 20);
    memset(there, 7, 1 << 20);
    need(cuMemcpyAsync(p, (CUdeviceptr)(uintptr_t)there, 1 << 20, s));
    memset(there, 0, 1 << 20); /* its memory is the caller's again */
    need(cuMemcpyAsync((CUdeviceptr)(uintptr_t)back, p, 1 << 20, s));
    ck_assert_int_eq(back[(1 << 20) - 1], 7);
    free(there), free(back);
    cuMemFree(p), cuStreamDestroy(s);
}

ZT_TEST(registered_memory) {
    CUdeviceptr at = 0;
    void *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUstream s = stream_new();
    need(cuMemHostRegister(p, 8192, CU_MEMHOSTREGISTER_DEVICEMAP));
    ck_assert_int_eq(cuMemHostRegister(p, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    need(cuMemHostGetDevicePointer(&at, (char *)p + 4096, 0));
    memset(p, 0, 8192);
    ck_assert_int_eq(launch("add_one", 4, s, at, 1024), 0);
    need(cuStreamSynchronize(s));
    ck_assert_int_eq(((uint32_t *)p)[1024 + 1023], 1);
    need(cuMemHostUnregister(p));
    ck_assert_int_eq(cuMemHostUnregister(p), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    cuStreamDestroy(s);
    munmap(p, 8192);
}

ZT_TEST(contexts_are_per_thread) {
    CUdeviceptr p = 0;
    CUcontext now = NULL;
    need(cuCtxPopCurrent(&now));
    ck_assert_ptr_eq(now, context);
    ck_assert_int_eq(cuMemAlloc(&p, 16), CUDA_ERROR_INVALID_CONTEXT);
    need(cuCtxGetCurrent(&now));
    ck_assert_ptr_null(now);
    need(cuCtxPushCurrent(context));
}

/* A kernel in the legacy stream waits for a blocking stream, and not for one that is not. */
ZT_TEST(legacy_stream) {
    CUdeviceptr at = 0;
    CUstream blocking = NULL;
    _Atomic uint64_t *words = words_new(&at);
    need(cuStreamCreateWithPriority(&blocking, CU_STREAM_DEFAULT, 0));
    CUstream other = stream_new();
    ck_assert_int_eq(launch("add_one", 1, other, at + 128, 1), 0); /* loads it, which waits for everything */
    need(cuStreamSynchronize(other));
    need(cuStreamWaitValue64(other, at, 1, CU_STREAM_WAIT_VALUE_GEQ));
    ck_assert_int_eq(launch("add_one", 1, NULL, at + 64, 1), 0);
    need(cuStreamSynchronize(NULL));
    need(cuStreamWaitValue64(blocking, at, 1, CU_STREAM_WAIT_VALUE_GEQ));
    ck_assert_int_eq(launch("add_one", 1, NULL, at + 64, 1), 0);
    usleep(20000);
    ck_assert_uint_eq(atomic_load(&words[8]), 1);
    atomic_store(&words[0], 1);
    need(cuStreamSynchronize(NULL));
    ck_assert_uint_eq(atomic_load(&words[8]), 2);
    cuStreamDestroy(blocking), cuStreamDestroy(other), cuMemFreeHost((void *)words);
}

ZT_TEST(capture_has_its_status) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUgraph graph = NULL;
    CUstream s = stream_new();
    need(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    need(cuStreamIsCapturing(s, &status));
    ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    ck_assert_int_ne(cuStreamSynchronize(s), 0);
    cuStreamEndCapture(s, &graph);
    need(cuStreamIsCapturing(s, &status));
    ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
    cuStreamDestroy(s);
}

static void *id_in_another_thread(void *out) {
    need(cuCtxPushCurrent(context));
    need(cuStreamGetId(CU_STREAM_PER_THREAD, out));
    need(cuCtxPopCurrent(&context));
    return NULL;
}

ZT_TEST(each_thread_has_a_stream) {
    unsigned long long mine = 0, again = 0, other = 0;
    pthread_t thread;
    need(cuStreamGetId(CU_STREAM_PER_THREAD, &mine));
    need(cuStreamGetId(CU_STREAM_PER_THREAD, &again));
    ck_assert_int_eq(pthread_create(&thread, NULL, id_in_another_thread, &other), 0);
    pthread_join(thread, NULL);
    ck_assert_uint_eq(mine, again);
    ck_assert_uint_ne(mine, other);
}

static void *query_in_another_thread(void *event) {
    need(cuCtxPushCurrent(context));
    CUresult rc = cuEventQuery(event);
    need(cuCtxPopCurrent(&context));
    return rc ? event : NULL;
}

static void *query_without_a_part(void *event) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    need(cuThreadExchangeStreamCaptureMode(&mode));
    return query_in_another_thread(event);
}

/* A query beside a capture in the global mode spoils it, but not by a thread whose mode is relaxed. */
ZT_TEST(queries_beside_a_capture) {
    static void *(*const queries[])(void *) = {query_without_a_part, query_in_another_thread};
    CUevent e;
    CUstream s = stream_new();
    need(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    for (int spoils = 0; spoils < 2; spoils++) {
        CUgraph graph = NULL;
        pthread_t thread;
        void *failed;
        need(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
        ck_assert_int_eq(pthread_create(&thread, NULL, queries[spoils], e), 0);
        pthread_join(thread, &failed);
        ck_assert_int_eq(failed != NULL, spoils);
        ck_assert_int_eq(cuStreamEndCapture(s, &graph) != CUDA_SUCCESS, spoils);
    }
    cuEventDestroy(e), cuStreamDestroy(s);
}

ZT_TEST(host_functions_run_in_order) {
    static _Atomic int n;
    CUstream s = stream_new();
    for (int i = 0; i < 10; i++)
        need(cuLaunchHostFunc(s, note, &n));
    need(cuStreamSynchronize(s));
    ck_assert_int_eq(atomic_load(&n), 10);
    cuStreamDestroy(s);
}

ZT_SUITE_WITH("driver_real", open_device, close_device)
