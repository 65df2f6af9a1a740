/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_borrowed.c - gradient memory that the device still reads when an error ends the instance: no hook
 * returns the error before the reading is over, for the host may free the memory then.
 *
 * The reader is held up in the middle of its work (the linker wraps what reads: the kernel that takes statistics, and
 * memcpy, by which the down stream copies). Meanwhile a deadline passes, which poisons the instance. A gate lets the
 * reader go on a while after that; a hook that returns before has not waited. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "kernels.h"
#include "rig.h"
#include "suite.h"
#include "wrap.h"

static const zt_shape_t shapes[] = {{.rows = 24, .cols = 40}, {.rows = 17, .cols = 30}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* The deadline is what the error path has for waiting, too: much longer than the gate stays closed. */
static const char config[] = "[zenflow]\nupdate_interval = 4\nfull_warm_up_rounds = 1\n[host]\nthreads = 1\n"
                             "deadline_ms = 1500\n";

static zt_rig_t rig;

typedef enum reader { NOBODY, STATISTICS, COPY } reader_t;

static _Atomic int held_reader; /* whom the gate stops, once */
static _Atomic int is_reading, is_open;

static void pass_gate(void) {
    atomic_store(&is_reading, 1);
    while (!atomic_load(&is_open))
        usleep(200);
}

static int is_held(reader_t reader) {
    int expected = (int)reader;
    return atomic_compare_exchange_strong(&held_reader, &expected, NOBODY);
}

ZT_WRAP(void, zfi_cpu_statistics, const zfi_kernels_t *kernels, const void *raw) {
    int is_mine = is_held(STATISTICS);
    if (is_mine)
        pass_gate();
    __real_zfi_cpu_statistics(kernels, raw);
    if (is_mine)
        atomic_store(&is_reading, 0);
}

static int is_gradient(const void *from) {
    const unsigned char *at = from, *grad = rig.params ? rig.params[0].grad : NULL;
    return grad && at >= grad && at < grad + rig.params[0].n_elems * rig.params[0].elem_nbytes;
}

ZT_WRAP(void *, memcpy, void *to, const void *from, size_t n) {
    int is_mine = is_gradient(from) && is_held(COPY);
    if (is_mine)
        pass_gate();
    __real_memcpy(to, from, n);
    if (is_mine)
        atomic_store(&is_reading, 0);
    return to;
}

/* All counters become all ones with the error; a while later the reader goes on. */
static void *open_gate_after_poison(void *raw) {
    const zf_fence_t *fence = raw;
    while (__atomic_load_n(fence->counter, __ATOMIC_ACQUIRE) != UINT64_MAX)
        usleep(200);
    usleep(150000);
    atomic_store(&is_open, 1);
    return NULL;
}

static void start(void) {
    atomic_store(&held_reader, NOBODY);
    atomic_store(&is_open, 0);
    atomic_store(&is_reading, 0);
    zt_rig_make(&rig, shapes, N_SHAPES, config, ZT_ON_QUEUE);
    zt_rig_steps(&rig, 3);
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
    zt_rig_sync(&rig);
}

/* Delivers the first parameter's gradient, which this reader begins to read and does not end. */
static void deliver_to(reader_t reader, zf_fence_t *fence) {
    zt_rig_fill_grad(&rig, 0, rig.step + 1);
    atomic_store(&held_reader, (int)reader);
    ZT_OK(&rig, zt_rig_deliver(&rig, 0, 0, fence));
    while (!atomic_load(&is_reading))
        usleep(200);
}

/* The hook passes its deadline; the memory is free once it has said so. */
static void expect_error_behind_reader(zf_fence_t *fence) {
    pthread_t opener;
    ck_assert_int_eq(pthread_create(&opener, NULL, open_gate_after_poison, fence), 0);
    ck_assert_int_eq(zt_quiesce(&rig, ZF_QUIESCE_DRAIN), ZF_ERR_TIMEOUT);
    ck_assert_msg(!atomic_load(&is_reading), "the error came while the gradient was read");
    pthread_join(opener, NULL);
    zt_rig_end(&rig);
}

ZT_TEST(statistics_are_waited_for) {
    zf_fence_t fence = {.struct_size = sizeof fence};
    start();
    deliver_to(STATISTICS, &fence);
    expect_error_behind_reader(&fence);
}

ZT_TEST(copies_down_are_waited_for) {
    zf_fence_t fence = {.struct_size = sizeof fence};
    start();
    deliver_to(COPY, &fence);
    expect_error_behind_reader(&fence);
}

ZT_TEST(a_former_stream_is_waited_for) { /* the host has gone on to another stream, which waits for the first */
    zf_fence_t fence = {.struct_size = sizeof fence};
    zf_cpu_queue_t *second;
    start();
    deliver_to(STATISTICS, &fence);
    rig.stream = (zf_stream_t){.struct_size = sizeof rig.stream};
    ZT_OK(&rig, rig.cpu->queue_create(&second, &rig.stream, &rig.err));
    zt_rig_fill_grad(&rig, 1, rig.step + 1);
    ZT_OK(&rig, zt_rig_deliver(&rig, 1, 0, NULL));
    expect_error_behind_reader(&fence);
    rig.cpu->queue_destroy(second);
}

ZT_SUITE("borrowed")
