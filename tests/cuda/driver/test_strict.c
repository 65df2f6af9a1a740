/* SPDX-License-Identifier: Apache-2.0 */
/* test_strict.c - what the double forbids though a GPU at hand may let it pass: races on global memory, memory that was
 * registered for copies alone, words that are written without a barrier or unregistered while a stream waits for them.
 * And what it promises less than one may think: a stream that is destroyed does not wait for its work, memory that is
 * mapped has no access yet and anything in it. */
#include <check.h>
#include <cuda.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "suite.h"

uint64_t fakecuda_n_findings(void);

static CUcontext context;
static CUmodule module;
static CUstream stream;

static void need(CUresult rc) { ck_assert_int_eq(rc, CUDA_SUCCESS); }

static void start(void) {
    static char ptx[1 << 20];
    FILE *file = fopen(getenv("ZT_PTX"), "rb");
    ck_assert_ptr_nonnull(file);
    ptx[fread(ptx, 1, sizeof ptx - 1, file)] = 0;
    fclose(file);
    need(cuInit(0));
    need(cuDevicePrimaryCtxRetain(&context, 0));
    need(cuCtxSetCurrent(context));
    need(cuModuleLoadData(&module, ptx));
    need(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

/* A process with findings would end with status 96. Each is of one line of a kernel. */
static void end_with(uint64_t n_findings) {
    ck_assert_uint_eq(fakecuda_n_findings(), n_findings);
    _exit(0);
}

static CUresult run(const char *kernel, unsigned n_blocks, CUdeviceptr words, uint32_t n) {
    CUfunction f;
    void *params[] = {&words, &n};
    need(cuModuleGetFunction(&f, module, kernel));
    need(cuLaunchKernel(f, n_blocks, 1, 1, 256, 1, 1, 0, stream, params, NULL));
    return cuStreamSynchronize(stream);
}

static CUdeviceptr new_words(void) {
    CUdeviceptr words;
    need(cuMemAlloc(&words, 4096));
    need(cuMemsetD8Async(words, 0, 4096, stream));
    return words;
}

static _Atomic uint64_t *register_words(unsigned flags) {
    void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(cuMemHostRegister(memory, 4096, flags));
    return memory;
}

static CUdeviceptr at(_Atomic uint64_t *word) { return (CUdeviceptr)(uintptr_t)word; }

/* ---- races on global memory -------------------------------------------------------------------------------------- */

static void expect_race(const char *kernel, unsigned n_blocks, uint32_t n, uint64_t n_findings) {
    start();
    need(run(kernel, n_blocks, new_words(), n));
    end_with(n_findings);
}

START_TEST(a_sum_without_an_atomic) { expect_race("add_plainly", 1, 2, 2); }
END_TEST
START_TEST(a_sum_of_two_blocks_without_an_atomic) { expect_race("add_plainly", 2, 1, 2); }
END_TEST
START_TEST(one_thread_is_no_race) { expect_race("add_plainly", 1, 1, 0); }
END_TEST
START_TEST(a_sum_by_atomics_is_no_race) { expect_race("add_atomically", 3, 256, 0); }
END_TEST
START_TEST(a_neighbours_word_at_once) { expect_race("pass_on_at_once", 1, 0, 1); }
END_TEST
START_TEST(a_neighbours_word_after_a_barrier_is_no_race) { expect_race("pass_on_after_a_barrier", 1, 0, 0); }
END_TEST
START_TEST(two_blocks_and_one_word) { expect_race("last_block_wins", 2, 0, 1); }
END_TEST

/* The grid's end is an order: the next launch may write the same words. */
START_TEST(two_launches_are_no_race) {
    start();
    CUdeviceptr words = new_words();
    for (int i = 0; i < 40; i++)
        need(run("add_one", 2, words, 512));
    end_with(0);
}
END_TEST

/* In places that no launch has touched before, and in both orders of the threads. */
static void write_words_and_bytes(uint32_t at, uint64_t n_findings) {
    enum { LAUNCHES = 40, NBYTES = 4096 };
    CUdeviceptr words;
    start();
    need(cuMemAlloc(&words, (size_t)LAUNCHES * NBYTES));
    for (uint32_t i = 0; i < LAUNCHES; i++)
        need(run("word_and_byte", 1, words + (CUdeviceptr)i * NBYTES, at));
    end_with(n_findings);
}

START_TEST(a_word_and_its_last_byte) { write_words_and_bytes(3, 2); }
END_TEST
START_TEST(a_word_and_the_byte_behind_it_are_no_race) { write_words_and_bytes(4, 0); }
END_TEST

/* ---- flags ------------------------------------------------------------------------------------------------------- */

START_TEST(memory_for_copies_is_not_for_kernels) {
    CUdeviceptr there;
    start();
    _Atomic uint64_t *words = register_words(CU_MEMHOSTREGISTER_PORTABLE);
    ck_assert_int_eq(cuMemHostGetDevicePointer(&there, (void *)words, 0), CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(cuStreamWriteValue64(stream, at(words), 1, 0), CUDA_ERROR_INVALID_VALUE);
    need(cuMemcpyAsync(new_words(), at(words), 4096, stream));
    ck_assert_int_eq(run("add_one", 1, at(words), 4), CUDA_ERROR_ILLEGAL_ADDRESS);
    end_with(2); /* its load and its store */
}
END_TEST

START_TEST(flags_of_memory_operations_are_known_ones) {
    start();
    _Atomic uint64_t *words = register_words(CU_MEMHOSTREGISTER_DEVICEMAP);
    ck_assert_int_eq(cuStreamWriteValue64(stream, at(words), 1, 2), CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(cuStreamWaitValue64(stream, at(words), 0, 4), CUDA_ERROR_INVALID_VALUE);
    need(cuStreamWriteValue64(stream, at(words), 1, CU_STREAM_WRITE_VALUE_DEFAULT));
    need(cuStreamSynchronize(stream));
    ck_assert_uint_eq(fakecuda_n_findings(), 0);
    need(cuStreamWriteValue64(stream, at(words), 2, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER));
    need(cuStreamSynchronize(stream));
    end_with(1);
}
END_TEST

/* ---- what goes while it is used ---------------------------------------------------------------------------------- */

START_TEST(a_word_that_goes_while_a_stream_waits_for_it) {
    start();
    _Atomic uint64_t *words = register_words(CU_MEMHOSTREGISTER_DEVICEMAP);
    need(cuStreamWaitValue64(stream, at(words), 1, CU_STREAM_WAIT_VALUE_GEQ));
    usleep(50000);
    need(cuMemHostUnregister((void *)words));
    ck_assert_int_eq(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    end_with(1);
}
END_TEST

START_TEST(a_destroyed_stream_goes_on) {
    start();
    _Atomic uint64_t *words = register_words(CU_MEMHOSTREGISTER_DEVICEMAP);
    need(cuStreamWaitValue64(stream, at(words), 1, CU_STREAM_WAIT_VALUE_GEQ));
    need(cuStreamWriteValue64(stream, at(words + 1), 7, 0));
    need(cuStreamDestroy(stream)); /* would never return if it waited */
    ck_assert_int_eq(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
    ck_assert_uint_eq(atomic_load(&words[1]), 0);
    atomic_store(&words[0], 1);
    need(cuCtxSynchronize());
    ck_assert_uint_eq(atomic_load(&words[1]), 7);
    end_with(0);
}
END_TEST

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

START_TEST(memory_goes_and_comes_at_one_address) {
    CUdeviceptr at;
    unsigned char seen[64], first[64];
    start();
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
        need(cuMemsetD8Async(at, 0xAB, PIECE, stream));
        need(cuStreamSynchronize(stream));
        need(cuMemUnmap(at, PIECE));
        ck_assert_uint_eq(used(), before);
    }
    need(cuMemAddressFree(at, PIECE));
    end_with(0);
}
END_TEST

START_TEST(what_is_mapped_has_no_access_yet) {
    CUdeviceptr at;
    start();
    need(cuMemAddressReserve(&at, PIECE, 0, 0, 0));
    map(at);
    ck_assert_int_eq(run("add_one", 1, at, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
    end_with(2); /* its load and its store */
}
END_TEST

START_TEST(what_is_unmapped_is_gone) {
    CUdeviceptr at;
    start();
    need(cuMemAddressReserve(&at, PIECE, 0, 0, 0));
    map(at);
    open_up(at);
    need(run("add_one", 1, at, 4));
    need(cuMemUnmap(at, PIECE));
    ck_assert_int_eq(run("add_one", 1, at, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
    end_with(2);
}
END_TEST

START_TEST(whole_mappings_and_each_once) {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    start();
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
END_TEST

ZT_MAIN("strict", a_sum_without_an_atomic, a_sum_of_two_blocks_without_an_atomic, one_thread_is_no_race,
        a_sum_by_atomics_is_no_race, a_neighbours_word_at_once, a_neighbours_word_after_a_barrier_is_no_race,
        two_blocks_and_one_word, two_launches_are_no_race, a_word_and_its_last_byte,
        a_word_and_the_byte_behind_it_are_no_race, memory_for_copies_is_not_for_kernels,
        flags_of_memory_operations_are_known_ones, a_word_that_goes_while_a_stream_waits_for_it,
        a_destroyed_stream_goes_on, memory_goes_and_comes_at_one_address, what_is_mapped_has_no_access_yet,
        what_is_unmapped_is_gone, whole_mappings_and_each_once)
