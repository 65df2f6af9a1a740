/* SPDX-License-Identifier: Apache-2.0 */
/* test_driver.c - every fault that the driver's double looks for, seen found. Each test is a process of its own. */
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

ZT_MAIN("driver", finds_an_address_past_the_end, finds_misalignment, finds_unwritten_shared_memory,
        finds_an_unwritten_register, finds_a_barrier_for_some, finds_a_shuffle_for_some,
        finds_an_exchange_without_a_meeting, finds_a_missing_barrier, a_meeting_of_the_warp_is_enough,
        order_of_blocks_comes_from_the_seed, freed_memory_stays_wrong, host_cannot_touch_device_memory, out_of_memory,
        registering_can_fail, nth_call_fails, registered_memory_elsewhere, memory_operations_can_be_missing,
        shared_queue_goes_on, a_full_queue_makes_the_caller_wait, host_functions_run_one_by_one,
        finds_a_wait_for_what_cuda_writes, finds_a_host_function_that_calls_cuda, finds_leaks,
        devices_do_not_share_memory, streams_belong_to_their_device, other_ptx_is_refused, no_device, traffic,
        missing_waits)
