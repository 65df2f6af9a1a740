/* SPDX-License-Identifier: Apache-2.0 */
/* test_driver.c - every fault that the driver's double looks for, seen found; what it forbids though a GPU at hand may
 * let it pass; and what it promises less than one may think. Each test is a process of its own. */
#include "rig.h"

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

uint64_t fakecuda_n_findings(void);
uint32_t fakecuda_n_waiting_calls(void);

/* Before open_device: the double reads the environment once. */
static void set(const char *name, const char *value) { ck_assert_int_eq(setenv(name, value, 1), 0); }

/* After findings the double ends a process with status 96; these tests want to see them and pass. Each is one line. */
static void end_with(uint64_t n_findings) {
    ck_assert_uint_eq(fakecuda_n_findings(), n_findings);
    _exit(0);
}

/* The status of a process that does it. */
static int in_child(void (*act)(int), int i) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        act(i);
        exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return status;
}

static CUresult run(const char *kernel, uint32_t n_blocks, CUdeviceptr words, uint32_t n) {
    need(launch(kernel, n_blocks, NULL, words, n));
    return cuStreamSynchronize(NULL);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* A launch on `nbytes` of memory, how it ends, and what is found. */
typedef struct sound {
    const char *kernel;
    uint32_t n_blocks, n, nbytes;
    CUresult ends;
    uint64_t n_findings;
} sound_t;

static const sound_t launches[] = {
    {"one_too_far", 1, 25, 100, CUDA_ERROR_ILLEGAL_ADDRESS, 2},
    {"misaligned", 1, 0, 2048, CUDA_ERROR_ILLEGAL_ADDRESS, 1},
    {"unwritten_shared", 1, 0, 2048, CUDA_SUCCESS, 1},
    {"barrier_for_some", 1, 100, 2048, CUDA_SUCCESS, 1},
    {"shuffle_for_some", 1, 40, 2048, CUDA_ERROR_ILLEGAL_ADDRESS, 1},
    {"warp_exchange", 1, 0, 2048, CUDA_SUCCESS, 0},
    {"warp_exchange_unsynced", 1, 0, 2048, CUDA_SUCCESS, 1},
    {"sum_without_a_barrier", 1, 0, 2048, CUDA_SUCCESS, 2},
    /* races on global memory: one thread is none, nor are atomics, nor is a neighbour's word after a barrier */
    {"add_plainly", 1, 2, 2048, CUDA_SUCCESS, 2},
    {"add_plainly", 2, 1, 2048, CUDA_SUCCESS, 2},
    {"add_plainly", 1, 1, 2048, CUDA_SUCCESS, 0},
    {"add_atomically", 3, 256, 2048, CUDA_SUCCESS, 0},
    {"pass_on_at_once", 1, 0, 2048, CUDA_SUCCESS, 1},
    {"pass_on_after_a_barrier", 1, 0, 2048, CUDA_SUCCESS, 0},
    {"last_block_wins", 2, 0, 2048, CUDA_SUCCESS, 1},
};

/* After a bad address every call fails. */
static void launch_row(int i) {
    const sound_t *row = &launches[i];
    open_device();
    CUdeviceptr words = alloc(row->nbytes);
    need(cuMemsetD8Async(words, 0, row->nbytes, NULL));
    ck_assert_int_eq(run(row->kernel, row->n_blocks, words, row->n), row->ends);
    ck_assert_int_eq(cuMemAlloc(&words, 16), row->ends);
    end_with(row->n_findings);
}

ZT_TEST(what_launches_are_found_to_do) {
    for (int i = 0; i < (int)(sizeof launches / sizeof *launches); i++) {
        int status = in_child(launch_row, i);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s, row %d", launches[i].kernel, i);
    }
}

/* The order of blocks, and what is in a register that was never written. */
ZT_TEST(what_comes_from_the_seed_differs) {
    static const char *const kernels[] = {"last_block_wins", "unwritten_register"};
    open_device();
    CUdeviceptr p = alloc(2048);
    for (int k = 0; k < 2; k++) {
        uint32_t first = 0, seen = 0;
        for (int i = 0; i < 20 && seen == first; i++) {
            need(run(kernels[k], k == 0 ? 16 : 1, p, 0));
            need(cuMemcpyDtoH(&seen, p, 4));
            first = i == 0 ? seen : first;
        }
        ck_assert_msg(seen != first, "%s: 20 times %u", kernels[k], first);
    }
    end_with(1); /* that blocks write one word */
}

/* The grid's end is an order: the next launch may write the same words. */
ZT_TEST(two_launches_are_no_race) {
    open_device();
    CUdeviceptr words = alloc(4096);
    need(cuMemsetD8Async(words, 0, 4096, NULL));
    for (int i = 0; i < 40; i++)
        need(run("add_one", 2, words, 512));
    end_with(0);
}

/* In both orders of the threads, and in places that no launch has touched before, or one that had no race. */
static void write_words_and_bytes(const char *kernel, uint32_t at, uint32_t before, uint64_t n_findings) {
    enum { LAUNCHES = 40, NBYTES = 4096 };
    open_device();
    CUdeviceptr words = alloc((size_t)LAUNCHES * NBYTES);
    for (uint32_t i = 0; i < LAUNCHES; i++) {
        if (before)
            need(run(kernel, 1, words + (CUdeviceptr)i * NBYTES, before));
        need(run(kernel, 1, words + (CUdeviceptr)i * NBYTES, at));
    }
    end_with(n_findings);
}

ZT_TEST(a_word_and_its_last_byte) { write_words_and_bytes("word_and_byte", 3, 0, 2); }
ZT_TEST(a_word_and_the_byte_behind_it_are_no_race) { write_words_and_bytes("word_and_byte", 4, 0, 0); }
ZT_TEST(a_word_and_its_last_byte_where_others_were) { write_words_and_bytes("word_and_byte", 3, 4, 2); }
ZT_TEST(four_words_and_their_last_byte) { write_words_and_bytes("words_and_byte", 15, 0, 2); }
ZT_TEST(four_words_and_the_byte_behind_them_are_no_race) { write_words_and_bytes("words_and_byte", 16, 0, 0); }
ZT_TEST(four_words_and_their_last_byte_where_others_were) { write_words_and_bytes("words_and_byte", 15, 32, 2); }

/* ---- memory ------------------------------------------------------------------------------------------------------ */

ZT_TEST(freed_memory_stays_wrong) {
    open_device();
    CUdeviceptr p = alloc(1024);
    need(cuMemFree(p));
    ck_assert_int_eq(run("add_one", 1, p, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
    end_with(2); /* its load and its store */
}

static void touch_device_memory(int unused) {
    (void)unused;
    open_device();
    CUdeviceptr p = alloc(64);
    signal(SIGSEGV, SIG_DFL);
    _exit(*(volatile int *)(uintptr_t)p & 1);
}

/* The host's own access to device memory faults; sanitizers end the process themselves. */
ZT_TEST(host_cannot_touch_device_memory) {
    int status = in_child(touch_device_memory, 0);
    ck_assert(WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) > 1);
}

ZT_TEST(out_of_memory) {
    CUdeviceptr p = 0;
    size_t left = 0, all = 0;
    set("FAKECUDA_DEVICE_BYTES", "1000000");
    open_device();
    CUdeviceptr first = alloc(600000);
    ck_assert_int_eq(cuMemAlloc(&p, 600000), CUDA_ERROR_OUT_OF_MEMORY);
    need(cuMemGetInfo(&left, &all));
    ck_assert_uint_eq(left, 400000);
    cuMemFree(first);
    close_device();
}

ZT_TEST(nth_call_fails) {
    CUdeviceptr p = 0;
    set("FAKECUDA_FAIL", "cuMemAlloc:2:2");
    open_device();
    CUdeviceptr first = alloc(64);
    ck_assert_int_eq(cuMemAlloc(&p, 64), CUDA_ERROR_OUT_OF_MEMORY);
    CUdeviceptr third = alloc(64);
    cuMemFree(first), cuMemFree(third);
    close_device();
}

static _Atomic uint64_t *register_words(unsigned flags) {
    void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(cuMemHostRegister(memory, 4096, flags));
    return memory;
}

static CUdeviceptr at(_Atomic uint64_t *word) { return (CUdeviceptr)(uintptr_t)word; }

ZT_TEST(memory_for_copies_is_not_for_kernels) {
    CUdeviceptr there;
    open_device();
    _Atomic uint64_t *words = register_words(CU_MEMHOSTREGISTER_PORTABLE);
    ck_assert_int_eq(cuMemHostGetDevicePointer(&there, (void *)words, 0), CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(cuStreamWriteValue64(NULL, at(words), 1, 0), CUDA_ERROR_INVALID_VALUE);
    need(cuMemcpyAsync(alloc(4096), at(words), 4096, NULL));
    ck_assert_int_eq(run("add_one", 1, at(words), 4), CUDA_ERROR_ILLEGAL_ADDRESS);
    end_with(2); /* its load and its store */
}

ZT_TEST(flags_of_memory_operations_are_known_ones) {
    open_device();
    _Atomic uint64_t *words = register_words(CU_MEMHOSTREGISTER_DEVICEMAP);
    ck_assert_int_eq(cuStreamWriteValue64(NULL, at(words), 1, 2), CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(cuStreamWaitValue64(NULL, at(words), 0, 4), CUDA_ERROR_INVALID_VALUE);
    need(cuStreamWriteValue64(NULL, at(words), 1, CU_STREAM_WRITE_VALUE_DEFAULT));
    need(cuStreamSynchronize(NULL));
    ck_assert_uint_eq(fakecuda_n_findings(), 0);
    need(cuStreamWriteValue64(NULL, at(words), 2, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER));
    need(cuStreamSynchronize(NULL));
    end_with(1);
}

/* ---- what goes while it is used ---------------------------------------------------------------------------------- */

ZT_TEST(a_word_that_goes_while_a_stream_waits_for_it) {
    set("FAKECUDA_LOCKS", "none");
    open_device();
    _Atomic uint64_t *words = register_words(CU_MEMHOSTREGISTER_DEVICEMAP);
    need(cuStreamWaitValue64(NULL, at(words), 1, CU_STREAM_WAIT_VALUE_GEQ));
    usleep(50000);
    need(cuMemHostUnregister((void *)words));
    ck_assert_int_eq(cuStreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    end_with(1);
}

ZT_TEST(a_destroyed_stream_goes_on) {
    open_device();
    CUstream s = stream_new();
    _Atomic uint64_t *words = register_words(CU_MEMHOSTREGISTER_DEVICEMAP);
    need(cuStreamWaitValue64(s, at(words), 1, CU_STREAM_WAIT_VALUE_GEQ));
    need(cuStreamWriteValue64(s, at(words + 1), 7, 0));
    need(cuStreamDestroy(s)); /* would never return if it waited */
    ck_assert_int_eq(cuStreamSynchronize(s), CUDA_ERROR_INVALID_HANDLE);
    ck_assert_uint_eq(atomic_load(&words[1]), 0);
    atomic_store(&words[0], 1);
    need(cuCtxSynchronize());
    ck_assert_uint_eq(atomic_load(&words[1]), 7);
    end_with(0);
}

/* ---- virtual memory ---------------------------------------------------------------------------------------------- */

enum { PIECE = 2 << 20 };
static const CUmemAllocationProp kind = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                         .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

static size_t used(void) {
    size_t is_free, total;
    need(cuMemGetInfo(&is_free, &total));
    return total - is_free;
}

/* Without access; the handle is let go at once, which frees nothing that is mapped. */
static void map(CUdeviceptr at) {
    CUmemGenericAllocationHandle handle;
    need(cuMemCreate(&handle, PIECE, &kind, 0));
    need(cuMemMap(at, PIECE, 0, handle, 0));
    need(cuMemRelease(handle));
}

static void open_up(CUdeviceptr at) {
    const CUmemAccessDesc access = {.location = kind.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    need(cuMemSetAccess(at, PIECE, &access, 1));
}

ZT_TEST(memory_goes_and_comes_at_one_address) {
    CUdeviceptr at;
    unsigned char seen[64], first[64];
    open_device();
    size_t before = used();
    need(cuMemAddressReserve(&at, PIECE, 0, 0, 0));
    ck_assert_uint_eq(used(), before);
    for (int i = 0; i < 3; i++) {
        map(at);
        ck_assert_uint_eq(used(), before + PIECE);
        open_up(at);
        need(cuMemcpyDtoH(seen, at, sizeof seen));
        memset(first, 0xAB, sizeof first);
        ck_assert_int_ne(memcmp(seen, first, sizeof seen), 0); /* not what was there */
        need(cuMemsetD8Async(at, 0xAB, PIECE, NULL));
        need(cuStreamSynchronize(NULL));
        need(cuMemUnmap(at, PIECE));
        ck_assert_uint_eq(used(), before);
    }
    need(cuMemAddressFree(at, PIECE));
    end_with(0);
}

ZT_TEST(what_is_mapped_has_no_access_yet) {
    CUdeviceptr at;
    open_device();
    need(cuMemAddressReserve(&at, PIECE, 0, 0, 0));
    map(at);
    ck_assert_int_eq(run("add_one", 1, at, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
    end_with(2); /* its load and its store */
}

ZT_TEST(what_is_unmapped_is_gone) {
    CUdeviceptr at;
    open_device();
    need(cuMemAddressReserve(&at, PIECE, 0, 0, 0));
    map(at);
    open_up(at);
    need(run("add_one", 1, at, 4));
    need(cuMemUnmap(at, PIECE));
    ck_assert_int_eq(run("add_one", 1, at, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
    end_with(2);
}

ZT_TEST(whole_mappings_and_each_once) {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    open_device();
    need(cuMemAddressReserve(&at, 2 * PIECE, 0, 0, 0));
    map(at);
    open_up(at);
    need(cuMemCreate(&handle, PIECE, &kind, 0));
    ck_assert_int_eq(cuMemMap(at, PIECE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(cuMemMap(at + 2 * PIECE, PIECE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    need(cuMemRelease(handle));
    ck_assert_int_eq(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(cuMemUnmap(at, PIECE / 2), CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(cuMemAddressFree(at, 2 * PIECE), CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(cuMemFree(at), CUDA_ERROR_INVALID_VALUE); /* said by its status alone */
    ck_assert_int_eq(cuMemCreate(&handle, PIECE / 2, &kind, 0), CUDA_ERROR_INVALID_VALUE);
    need(cuMemUnmap(at, PIECE));
    ck_assert_int_eq(cuMemUnmap(at, PIECE), CUDA_ERROR_INVALID_VALUE);
    need(cuMemAddressFree(at, 2 * PIECE));
    end_with(6);
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

ZT_TEST(memory_operations_can_be_missing) {
    CUdeviceptr at = 0;
    int can = 1;
    set("FAKECUDA_MEMOPS", "0");
    open_device();
    _Atomic uint64_t *words = words_new(&at);
    cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0);
    ck_assert_int_eq(can, 0);
    ck_assert_int_eq(cuStreamWriteValue64(NULL, at, 1, 0), CUDA_ERROR_NOT_SUPPORTED);
    cuMemFreeHost((void *)words);
    close_device();
}

/* Two streams on one queue: an event that is recorded before it is waited for is no problem, whoever is in front. A
 * word that only the host writes is none either. */
ZT_TEST(shared_queue_goes_on) {
    CUdeviceptr at = 0;
    CUevent e;
    set("CUDA_DEVICE_MAX_CONNECTIONS", "1");
    open_device();
    _Atomic uint64_t *words = words_new(&at);
    CUstream a = stream_new(), b = stream_new();
    need(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    need(cuStreamWaitValue64(a, at, 1, CU_STREAM_WAIT_VALUE_GEQ));
    need(cuEventRecord(e, a));
    need(cuStreamWaitEvent(b, e, 0));
    need(cuStreamWriteValue64(b, at + 8, 1, 0));
    atomic_store(&words[0], 1);
    need(cuStreamSynchronize(b));
    ck_assert_uint_eq(atomic_load(&words[1]), 1);
    cuEventDestroy(e), cuStreamDestroy(a), cuStreamDestroy(b), cuMemFreeHost((void *)words);
    close_device();
}

static void *write_many(void *raw) {
    const CUdeviceptr *at = raw;
    need(cuCtxPushCurrent(context));
    CUstream s = stream_new();
    need(cuStreamWaitValue64(s, *at, 1, CU_STREAM_WAIT_VALUE_GEQ));
    for (uint64_t i = 1; i < 5; i++)
        need(cuStreamWriteValue64(s, *at + 8, i, 0));
    need(cuStreamSynchronize(s));
    cuStreamDestroy(s);
    need(cuCtxPopCurrent(&context));
    return NULL;
}

/* The call that brings one command more than a queue takes waits; other streams go on. */
ZT_TEST(a_full_queue_makes_the_caller_wait) {
    CUdeviceptr at = 0;
    pthread_t thread;
    set("FAKECUDA_DEPTH", "4");
    set("FAKECUDA_LOCKS", "none");
    open_device();
    _Atomic uint64_t *words = words_new(&at);
    CUstream other = stream_new();
    ck_assert_int_eq(pthread_create(&thread, NULL, write_many, &at), 0);
    while (fakecuda_n_waiting_calls() == 0)
        need(cuStreamWriteValue64(other, at + 16, 1, 0));
    need(cuStreamSynchronize(other));
    ck_assert_uint_eq(atomic_load(&words[1]), 0);
    atomic_store(&words[0], 1);
    pthread_join(thread, NULL);
    ck_assert_uint_eq(atomic_load(&words[1]), 4);
    cuStreamDestroy(other), cuMemFreeHost((void *)words);
    close_device();
}

static _Atomic int is_held, may_go;

static void hold(void *unused) {
    (void)unused;
    atomic_store(&is_held, 1);
    while (!atomic_load(&may_go))
        usleep(100);
}

/* Of two streams. */
ZT_TEST(host_functions_run_one_by_one) {
    static _Atomic int n;
    open_device();
    CUstream a = stream_new(), b = stream_new();
    need(cuLaunchHostFunc(a, hold, NULL));
    while (!atomic_load(&is_held))
        usleep(100);
    need(cuLaunchHostFunc(b, note, &n));
    for (int i = 0; i < 200; i++)
        ck_assert_int_eq(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
    ck_assert_int_eq(atomic_load(&n), 0);
    atomic_store(&may_go, 1);
    need(cuStreamSynchronize(b));
    ck_assert_int_eq(atomic_load(&n), 1);
    cuStreamDestroy(a), cuStreamDestroy(b);
    close_device();
}

ZT_TEST(finds_a_wait_for_what_cuda_writes) {
    CUdeviceptr at = 0;
    open_device();
    _Atomic uint64_t *words = words_new(&at);
    CUstream a = stream_new(), b = stream_new();
    need(cuStreamWaitValue64(a, at, 1, CU_STREAM_WAIT_VALUE_GEQ));
    need(cuStreamWriteValue64(b, at, 1, 0));
    need(cuStreamSynchronize(a));
    ck_assert_uint_eq(atomic_load(&words[0]), 1);
    end_with(1);
}

static void call_cuda(void *unused) {
    (void)unused;
    cuStreamQuery(NULL);
}

ZT_TEST(finds_a_host_function_that_calls_cuda) {
    open_device();
    need(cuLaunchHostFunc(NULL, call_cuda, NULL));
    need(cuStreamSynchronize(NULL));
    end_with(1);
}

ZT_TEST(finds_leaks) {
    open_device();
    alloc(64);
    stream_new();
    close_device();
    end_with(1);
}

ZT_TEST(other_ptx_is_refused) {
    CUmodule other;
    open_device();
    char *text = strdup(read_ptx());
    *strstr(text, "add") = 'A';
    ck_assert_int_eq(cuModuleLoadData(&other, text), CUDA_ERROR_INVALID_PTX);
    free(text);
    close_device();
}

/* Coalescing as traffic.c counts it. The figures leave at the end of the process. */
static void count_traffic(int to) {
    dup2(to, 2);
    set("FAKECUDA_TRAFFIC", "1");
    open_device();
    CUdeviceptr p = alloc(1 << 20);
    launch("dense", 4, NULL, p, 1024);
    launch("sparse", 4, NULL, p, 8192);
    cuMemFree(p);
    close_device();
}

ZT_TEST(traffic) {
    int ends[2];
    char text[2000] = "";
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(in_child(count_traffic, ends[1]), 0);
    ck_assert_int_gt(read(ends[0], text, sizeof text - 1), 0);
    ck_assert_msg(strstr(text, "traffic dense 32 4096 4096 32 128 4096") != NULL, "%s", text);
    ck_assert_msg(strstr(text, "traffic sparse 32 32768 4096 32 1024 4096") != NULL, "%s", text);
}

#if defined(__SANITIZE_THREAD__)
enum { HAS_TSAN = 1 };
#else
enum { HAS_TSAN = 0 };
#endif

/* The wait that is left out, and the seed. */
static void train_without(int which) {
    char seed[12];
    snprintf(seed, sizeof seed, "%d", which / N_WAITS + 1);
    set("FAKECUDA_SEED", seed);
    set("FAKECUDA_DELAY_US", "3000");
    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stderr));
    open_device();
    uint32_t n_differ = train(which % N_WAITS + 1);
    close_device();
    exit(n_differ != 0);
}

/* Each wait that is left out is found: by wrong values with some seed or, also where values come out right, by the
 * thread sanitizer. The fourth changes only values that nobody looks at. */
ZT_TEST(missing_waits) {
    for (int wait = 0; wait < N_WAITS; wait++) {
        int caught = 0;
        for (int seed = 0; seed < 40 && !caught; seed++) {
            int status = in_child(train_without, seed * N_WAITS + wait);
            caught = !WIFEXITED(status) || WEXITSTATUS(status) == 1 || WEXITSTATUS(status) == 99 ||
                     WEXITSTATUS(status) == 66;
        }
        ck_assert_msg(caught || (wait == 3 && !HAS_TSAN), "wait %d: not caught", wait + 1);
    }
}

ZT_SUITE("driver")
