/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/backend/test_backend.c - orders of the CUDA backend that no training run is sure to come to: made
 * here call by call, on the double's driver, with a stream of a host that stands still until it is let go. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "device_rig.h"
#include "suite.h"

uint32_t fakecuda_n_waiting_calls(void);

enum { N_SIGNALS = 40 /* more than a timeline's ring of events holds */ };

/* Whoever answers: the plugin's own stream, or a thread of the host. */
static void *answer_to_one(void *by_stream) {
    usleep(PAUSE_US); /* until the host's thread has sent all signals, or waits with them */
    if (by_stream) {
        enqueue(own, zfi_op_wait(&line, 1, NULL));
        enqueue(own, zfi_op_signal(&answer, 1));
    }
    usleep(PAUSE_US);
    zfi_timeline_signal(&gate, 1);
    if (!by_stream && zfi_timeline_wait(&line, 1, DEADLINE_NS, NULL) == ZF_OK)
        zfi_timeline_signal(&answer, 1);
    return NULL;
}

/* The host's stream signals 1, waits for the answer, and signals so often that the event of 1 is recorded anew. The
 * answer waits for 1: no later event may stand for it, for those lie behind the answer. Without memory operations the
 * host's thread waits with its signals until the first ones have been noticed. */
static void lose_an_event(int is_by_stream) {
    open_all();
    pthread_t other = start(answer_to_one, is_by_stream ? &gate : NULL);
    enqueue(hosts, zfi_op_wait_for_host(&gate, 1));
    enqueue(hosts, zfi_op_signal(&line, 1));
    enqueue(hosts, zfi_op_wait(&answer, 1, NULL));
    for (uint64_t value = 2; value <= N_SIGNALS; value++)
        enqueue(hosts, zfi_op_signal(&line, value));
    await(&answer, 1);
    await_all(hosts);
    await(&line, N_SIGNALS);
    pthread_join(other, NULL);
}
ZT_TEST(a_signal_whose_event_is_lost_is_waited_for_by_its_value) { lose_an_event(0); }
ZT_TEST(a_lost_event_and_an_answer_by_a_stream) { lose_an_event(1); }

/* A host may change streams between two calls: the plugin's work on the new one comes behind what is on the old one. */
ZT_TEST(a_stream_that_is_ordered_behind_another_waits_for_it) {
    open_all();
    hold_hosts();
    ck_assert_int_eq(ops->order(device, hosts, own), ZF_OK);
    enqueue(own, zfi_op_signal(&line, 1));
    ck_assert_int_eq(zfi_timeline_wait(&line, 1, 1000 * PAUSE_US, NULL), ZF_ERR_TIMEOUT);
    zfi_timeline_signal(&gate, 1);
    await(&line, 1);
    await_all(hosts);
}

static void *ask_for_line(void *is_done) {
    find_line();
    atomic_store((_Atomic int *)is_done, 1);
    return NULL;
}

/* A load sets timelines back. What the words' thread is just reading of one stays until it has done with it: else it
 * would tell the old value of the new run. */
ZT_TEST(a_line_that_is_set_back_waits_for_who_reads_it) {
    static _Atomic int is_done;
    open_all();
    enqueue(own, zfi_op_signal(&line, 3));
    await(&line, 3);
    zfi_cuda_line_t *known = find_line();
    zfi_timeline_set(&line, 0);
    pthread_mutex_lock(&device->poll_lock); /* as the words' thread, in the middle of its look */
    pthread_t other = start(ask_for_line, (void *)&is_done);
    usleep(PAUSE_US);
    ck_assert_uint_eq(atomic_load(known->device_word), 3);
    ck_assert_int_eq(atomic_load(&is_done), 0);
    pthread_mutex_unlock(&device->poll_lock);
    pthread_join(other, NULL);
    ck_assert_uint_eq(atomic_load(known->device_word), 0);
}

/* Waits that have yet to be found passed: none is looked at of a stream that is gone. */
ZT_TEST(a_stream_that_is_gone_has_no_waits) {
    zfi_stream_t *short_lived;
    zfi_cuda_wait_t *kept[2];
    open_all();
    kept[0] = &device->waits[0];
    kept[1] = &device->waits[ZFI_CUDA_WAITS - 1];
    ck_assert_int_eq(ops->stream_create(device, "short-lived", &short_lived, NULL), ZF_OK);
    pthread_mutex_lock(&device->poll_lock);
    for (int i = 0; i < 2; i++)
        *kept[i] = (zfi_cuda_wait_t){.stream = short_lived, .begin = UINT64_MAX, .end = UINT64_MAX};
    pthread_mutex_unlock(&device->poll_lock);
    ops->stream_destroy(short_lived);
    pthread_mutex_lock(&device->poll_lock);
    for (int i = 0; i < 2; i++)
        ck_assert_ptr_null(kept[i]->stream);
    pthread_mutex_unlock(&device->poll_lock);
}

static void *signal_late(void *unused) {
    (void)unused;
    usleep(PAUSE_US);
    enqueue(hosts, zfi_op_signal(&line, 1));
    return NULL;
}

/* A hook that finds no room for more waits for it, and keeps nobody from ending the wait before it. */
ZT_TEST(what_waits_may_be_more_than_there_is_room_for) {
    enum { MANY = ZFI_CUDA_PARK_NBYTES / 64 };
    open_all();
    pthread_t other = start(signal_late, NULL);
    enqueue(own, zfi_op_wait(&line, 1, NULL));
    for (uint64_t value = 1; value <= MANY; value++)
        enqueue(own, zfi_op_signal(&answer, value));
    await(&answer, MANY);
    pthread_join(other, NULL);
}

enum { MORE_THAN_A_QUEUE_TAKES = 1200 };

static void *send_many(void *stream) {
    for (uint64_t value = 1; value <= MORE_THAN_A_QUEUE_TAKES; value++)
        enqueue(stream, zfi_op_signal(&line, value));
    return NULL;
}

/* Fails by a word of its own where the lock is held for long: who waits for it below would stand still. */
static void need_lock(void) {
    struct timespec by;
    clock_gettime(CLOCK_REALTIME, &by);
    by.tv_sec += 10;
    ck_assert_msg(pthread_mutex_timedlock(&device->lock, &by) == 0, "a call that blocks in the driver holds the lock");
    pthread_mutex_unlock(&device->lock);
}

/* The host's stream stands still and is full, so a hook's call blocks in the driver. All others go on, and what they do
 * lets the host's stream go on. */
ZT_TEST(a_hook_that_blocks_in_the_driver_keeps_nobody_waiting) {
    uint64_t value = 0;
    setenv("FAKECUDA_LOCKS", "free alloc pin stream load",
           1); /* a call that waits for room keeps no other one waiting */
    open_all();
    hold_hosts();
    pthread_t other = start(send_many, hosts);
    while (device->has_memops && fakecuda_n_waiting_calls() == 0)
        usleep(1000);
    need_lock();
    enqueue(own, zfi_op_signal(&answer, ++value));
    await(&answer, value);
    zfi_timeline_signal(&gate, 1);
    pthread_join(other, NULL);
    await(&line, MORE_THAN_A_QUEUE_TAKES);
}

/* A stream of the plugin that stands still is given no more than it takes for sure; the rest is parked. Copies of one
 * operation are, too. */
ZT_TEST(what_is_in_flight_is_bounded) {
    enum { N_RANGES = 600, N_NUMBERS = 2 * N_RANGES };
    static uint64_t numbers[2 * N_NUMBERS];
    uint64_t *from = numbers, *to = numbers + N_NUMBERS;
    zfi_range_t ranges[N_RANGES];
    int is_pageable;
    void *there;
    open_all();
    ck_assert_int_eq(ops->pin(device, numbers, sizeof numbers, &is_pageable, NULL), ZF_OK);
    ck_assert_int_eq(ops->alloc(device, sizeof numbers / 2, "numbers", &there, NULL), ZF_OK);
    for (uint64_t i = 0; i < N_NUMBERS; i++)
        from[i] = i + 1;
    for (uint32_t i = 0; i < N_RANGES; i++) /* every other number: no two of them are one copy */
        ranges[i] = (zfi_range_t){(uint64_t *)there + 2 * i, &from[2 * i], sizeof *from};
    hold_hosts();
    ck_assert_int_eq(ops->order(device, hosts, own), ZF_OK);
    enqueue(own, zfi_op_up(ranges, N_RANGES));
    pthread_t other = start(send_many, own);
    while (pthread_tryjoin_np(other, NULL) != 0)
        ck_assert_uint_eq(fakecuda_n_waiting_calls(), 0);
    pthread_mutex_lock(&device->lock);
    ck_assert_uint_le(own->flight.n_given - own->flight.n_over, device->most_in_flight);
    pthread_mutex_unlock(&device->lock);
    zfi_timeline_signal(&gate, 1);
    await(&line, MORE_THAN_A_QUEUE_TAKES);
    for (uint32_t i = 0; i < N_RANGES; i++)
        ranges[i] = (zfi_range_t){&to[2 * i], (uint64_t *)there + 2 * i, sizeof *to};
    enqueue(own, zfi_op_down(ranges, N_RANGES));
    await_all(own);
    for (uint32_t i = 0; i < N_NUMBERS; i++)
        ck_assert_uint_eq(to[i], i % 2 ? 0 : from[i]);
    ops->free(device, there, sizeof numbers / 2);
    ops->unpin(device, numbers, sizeof numbers);
}

/* A call that is about to wait for an event, without the lock, waits for the place that it found. */
ZT_TEST(an_event_that_a_call_waits_for_is_not_recorded_anew) {
    open_all();
    enqueue(own, zfi_op_signal(&line, 1));
    zfi_cuda_line_t *known = find_line();
    pthread_mutex_lock(&device->lock);
    zfi_cuda_event_t *event = known->signals[0].event;
    event->n_users++;
    pthread_mutex_unlock(&device->lock);
    for (uint64_t value = 2; value <= N_SIGNALS; value++)
        enqueue(own, zfi_op_signal(&line, value));
    await(&line, N_SIGNALS);
    ck_assert_int_eq(event->is_out, 1);
    ck_assert_ptr_ne(known->signals[0].event, event);
    zfi_cuda_enter(device);
    device->driver->cuEventDestroy(event->handle);
    zfi_cuda_leave(device);
    free(event);
}

/* Two threads that use it would count as one stream. */
ZT_TEST(the_stream_of_each_thread_is_refused) {
    zf_stream_t given = {.struct_size = sizeof given, .kind = ZF_STREAM_CUDA, .device_type = ZF_DEVICE_CUDA};
    zf_error_t err = {.struct_size = sizeof err};
    zfi_stream_t *resolved = NULL;
    open_all();
    for (int by_flag = 0; by_flag < 2; by_flag++) {
        given.handle = by_flag ? 0 : (uint64_t)(uintptr_t)CU_STREAM_PER_THREAD;
        given.flags = by_flag ? ZF_STREAM_FLAG_PER_THREAD : 0;
        ck_assert_int_eq(ops->stream_resolve(device, &given, "test", &resolved, &err), ZF_ERR_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(err.message, "CU_STREAM_PER_THREAD"));
    }
}

/* Whether the words' thread has seen that a stream has come to a wait. */
static int is_waited_for(void) {
    int n = 0;
    pthread_mutex_lock(&device->poll_lock);
    for (uint32_t i = 0; i < ZFI_CUDA_WAITS; i++)
        n += device->waits[i].stream && device->waits[i].reached_ns;
    pthread_mutex_unlock(&device->poll_lock);
    return n;
}

static uint64_t looked_ns(void) {
    pthread_mutex_lock(&device->poll_lock);
    uint64_t ns = device->clock.last_ns;
    pthread_mutex_unlock(&device->poll_lock);
    return ns;
}

/* A child stops this process for longer than the deadline. */
static void be_stopped(void) {
    pid_t self = getpid(), child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        kill(self, SIGSTOP);
        usleep(2500000);
        kill(self, SIGCONT);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
}

ZT_TEST(a_stopped_process_has_its_time_left) {
    uint64_t begin_ns = zfi_now_ns();
    open_with(2000000000u);
    enqueue(own, zfi_op_wait(&line, 1, NULL));
    while (!is_waited_for() && zfi_now_ns() - begin_ns < DEADLINE_NS)
        usleep(PAUSE_US);
    ck_assert(is_waited_for());
    be_stopped();
    begin_ns = zfi_now_ns();
    while (looked_ns() < begin_ns && zfi_now_ns() - begin_ns < DEADLINE_NS)
        usleep(PAUSE_US);
    zfi_timeline_signal(&line, 1);
    await_all(own);
}

enum { N_ROUNDS = 30 };

static void *wait_with_hosts(void *unused) {
    (void)unused;
    for (uint64_t value = 1; value <= N_ROUNDS; value++)
        enqueue(hosts, zfi_op_wait(&line, value, NULL));
    return NULL;
}

static void tell_line(void *unused) {
    (void)unused;
    zfi_timeline_signal(&line, zfi_timeline_now(&line) + 1);
}

/* The host's stream waits for what a function of the host in another stream will tell: that one comes to run, though a
 * context runs its functions one by one. */
ZT_TEST(a_wait_keeps_no_host_function_from_running) {
    open_all();
    zfi_stream_t *waiting = hosts;
    host_stream(); /* whose handle the functions take */
    pthread_t other = start(wait_with_hosts, NULL);
    for (uint64_t value = 1; value <= N_ROUNDS; value++) {
        await(&waiting->executed, 10 * value - 5); /* it waits */
        ck_assert_int_eq(cuLaunchHostFunc(hosts_handle, tell_line, NULL), CUDA_SUCCESS);
    }
    pthread_join(other, NULL);
    await(&line, N_ROUNDS);
    await_all(waiting);
}

/* A thread of the host captures a graph, while another one's hooks and the monitor go about their work. */
ZT_TEST(a_capture_of_the_hosts_is_left_alone) {
    CUgraph graph = NULL;
    open_all();
    ck_assert_int_eq(cuStreamBeginCapture(hosts_handle, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    pthread_t other = start(send_many, own);
    await(&line, MORE_THAN_A_QUEUE_TAKES);
    pthread_join(other, NULL);
    ck_assert_int_eq(cuStreamEndCapture(hosts_handle, &graph), CUDA_SUCCESS);
}

/* What was loaded is said; a driver that knows neither PTX nor machine code of this build's toolkit is told from
 * others. */
static void name_the_image(int is_old) {
    zfi_device_env_t env = {
        .kernels = zfi_kernels_of(zfi_isa_best()), .is_poisoned = &is_poisoned, .failed = note_failure};
    zf_error_t err = {.struct_size = sizeof err};
    zfi_device_info_t info;
    if (is_old && CUDA_VERSION < 12010)
        return;
    if (is_old)
        ck_assert_int_eq(setenv("FAKECUDA_DRIVER_VERSION", "12000", 1), 0);
    ck_assert_int_eq(ops->open(0, &env, &device, &err), is_old ? ZF_ERR_DEVICE : ZF_OK);
    if (is_old) {
        ck_assert_msg(strstr(err.message, "the driver is of CUDA 12.0: install a newer driver"), "%s", err.message);
        return;
    }
    ops->info(device, &info);
    ck_assert_msg(strstr(info.image, "PTX, assembled by the driver"), "%s", info.image);
    ops->close(device);
    device = NULL;
}
ZT_TEST(the_kernels_image_is_named) { name_the_image(0); }
ZT_TEST(a_driver_that_is_too_old_is_named) { name_the_image(1); }

/* What comes after poison is left out; whoever waits for the stream goes on. */
ZT_TEST(work_after_poison_is_left_out) {
    static uint64_t number = 7;
    zfi_range_t range = {.to = &number, .nbytes = sizeof number};
    int is_pageable;
    void *there;
    open_all();
    ck_assert_int_eq(ops->pin(device, &number, sizeof number, &is_pageable, NULL), ZF_OK);
    ck_assert_int_eq(ops->alloc(device, sizeof number, "a number", &there, NULL), ZF_OK);
    range.from = there;
    atomic_store(&is_poisoned, 1);
    enqueue(own, zfi_op_down(&range, 1));
    await_all(own);
    ck_assert_uint_eq(number, 7);
    ops->free(device, there, sizeof number);
    ops->unpin(device, &number, sizeof number);
}

static void *order_behind_own(void *unused) {
    (void)unused;
    ck_assert_int_eq(ops->order(device, own, hosts), ZF_OK);
    enqueue(hosts, zfi_op_signal(&answer, 1));
    return NULL;
}

/* Whoever is ordered behind a stream comes behind what is parked there, too. */
ZT_TEST(an_order_comes_behind_what_is_parked) {
    open_all();
    enqueue(own, zfi_op_wait_for_host(&gate, 1));
    enqueue(own, zfi_op_signal(&line, 1));
    pthread_t other = start(order_behind_own, NULL);
    ck_assert_int_eq(zfi_timeline_wait(&answer, 1, 1000 * PAUSE_US, NULL), ZF_ERR_TIMEOUT);
    zfi_timeline_signal(&gate, 1);
    await(&answer, 1);
    pthread_join(other, NULL);
}

static void *open_gate_late(void *unused) {
    (void)unused;
    usleep(PAUSE_US);
    zfi_timeline_signal(&gate, 1);
    return NULL;
}

/* A stream is destroyed behind its work; words stay registered as long as one may write them. */
static void close_under_work(int by_stream) {
    open_all();
    hold_hosts();
    ck_assert_int_eq(ops->order(device, hosts, own), ZF_OK);
    enqueue(own, zfi_op_signal(&line, 1));
    pthread_t other = start(open_gate_late, NULL);
    if (by_stream)
        ops->stream_destroy(own);
    ck_assert_int_eq(zfi_timeline_now(&gate) == 1, by_stream);
    ops->close(device);
    device = NULL;
    pthread_join(other, NULL);
    usleep(PAUSE_US); /* what still came would be found to lack its word */
}
ZT_TEST(closing_waits_for_what_runs) { close_under_work(0); }
ZT_TEST(a_stream_is_destroyed_behind_its_work) { close_under_work(1); }

/* ---- release and resume ------------------------------------------------------------------------------------------ */

static uint64_t used_nbytes(void) {
    zfi_device_info_t info;
    ops->info(device, &info);
    return info.total_nbytes - info.free_nbytes;
}

/* Small ranges of the host's own memory, which stays while the backend's is released. */
static void copy_small_down(unsigned char *to) {
    enum { NBYTES = 64 };
    CUdeviceptr from;
    ck_assert_int_eq(cuMemAlloc(&from, 4 * NBYTES), CUDA_SUCCESS);
    memset(to, 7, 4 * NBYTES);
    ck_assert_int_eq(cuMemcpyHtoD(from, to, 4 * NBYTES), CUDA_SUCCESS);
    memset(to, 0, 4 * NBYTES);
    unsigned char *first = (unsigned char *)(uintptr_t)from;
    zfi_range_t ranges[] = {{to, first, NBYTES}, {to + NBYTES, first + 2 * NBYTES, NBYTES}};
    enqueue(own, zfi_op_down(ranges, 2));
    await_all(own);
    ck_assert(to[0] == 7 && memcmp(to, to + 1, 2 * NBYTES - 1) == 0);
    ck_assert_int_eq(cuMemFree(from), CUDA_SUCCESS);
}

/* All of it goes, behind what was given to the backend's own streams; where the third piece does not come again, none
 * does. */
ZT_TEST(memory_is_released_and_comes_again) {
    enum { N_BLOCKS = 2, N_FILLS = 60, NBYTES = (3 << 20) + 5 };
    static unsigned char seen[NBYTES];
    zf_error_t err = {.struct_size = sizeof err};
    zfi_block_t blocks[N_BLOCKS];
    zfi_range_t range = {seen, NULL, NBYTES};
    int is_pageable;
    setenv("FAKECUDA_FAIL", "cuMemCreate:6:2", 1);
    is_releasable = 1;
    open_all();
    for (int i = 0; i < N_BLOCKS; i++) {
        blocks[i].nbytes = NBYTES;
        ck_assert_int_eq(ops->alloc(device, NBYTES, "test", &blocks[i].memory, NULL), ZF_OK);
    }
    ck_assert_int_eq(ops->pin(device, seen, NBYTES, &is_pageable, NULL), ZF_OK);
    for (int i = 0; i < N_FILLS; i++)
        enqueue(own, zfi_op_fill(blocks[i % N_BLOCKS].memory, NBYTES));
    ck_assert_int_eq(ops->release(device, blocks, N_BLOCKS, &err), ZF_OK);
    ck_assert_uint_eq(used_nbytes(), 0);
    copy_small_down(seen);
    ck_assert_int_eq(ops->resume(device, blocks, N_BLOCKS, &err), ZF_ERR_MEMORY);
    ck_assert_ptr_nonnull(strstr(err.message, "resume again"));
    ck_assert_uint_eq(used_nbytes(), 0);
    ck_assert_int_eq(ops->resume(device, blocks, N_BLOCKS, &err), ZF_OK);
    ck_assert_uint_gt(used_nbytes(), N_BLOCKS * (uint64_t)NBYTES);
    memset(seen, 0x5A, sizeof seen);
    range.from = blocks[1].memory;
    enqueue(own, zfi_op_fill(blocks[1].memory, NBYTES));
    enqueue(own, zfi_op_down(&range, 1));
    await_all(own);
    ck_assert(seen[0] == 0 && memcmp(seen, seen + 1, NBYTES - 1) == 0);
    ck_assert_int_eq(ops->release(device, blocks, N_BLOCKS, &err), ZF_OK); /* freed as they are */
    ops->unpin(device, seen, NBYTES);
    for (int i = 0; i < N_BLOCKS; i++)
        ops->free(device, blocks[i].memory, NBYTES);
}

/* One range over all allocations, as the list of a stream merges what adjoins; more pieces than may be in flight. */
ZT_TEST(copies_end_where_allocations_do) {
    enum { N = 40, NBYTES = 1024 };
    static unsigned char there[N * NBYTES], back[N * NBYTES];
    CUdeviceptr at[N];
    zfi_range_t up, down[2];
    setenv("FAKECUDA_ADJOIN", "1", 1);
    setenv("ZF_CUDA_IN_FLIGHT", "16", 1);
    open_all();
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(cuMemAlloc(&at[i], NBYTES), CUDA_SUCCESS);
    ck_assert_uint_eq(at[N - 1] - at[0], (N - 1) * NBYTES);
    for (int i = 0; i < N * NBYTES; i++)
        there[i] = (unsigned char)(i % 251);
    up = (zfi_range_t){(void *)(uintptr_t)at[0], there, sizeof there};
    down[0] = (zfi_range_t){back, up.to, NBYTES * 3 / 2}; /* ends within one */
    down[1] =
        (zfi_range_t){back + down[0].nbytes, (unsigned char *)up.to + down[0].nbytes, sizeof back - down[0].nbytes};
    enqueue(own, zfi_op_up(&up, 1));
    enqueue(own, zfi_op_down(down, 2));
    await_all(own);
    ck_assert(memcmp(there, back, sizeof back) == 0);
}

/* Small ranges on their way down are written by a kernel where it reaches the memory: of elements of two bytes that lie
 * anyhow, more than one launch takes. Beside them are one in pageable memory, and one of an odd number of bytes. */
ZT_TEST(small_ranges_go_down_in_one_launch) {
    enum { N = 130, STRIDE = 600, NBYTES = N * STRIDE, FEW = 20 };
    static unsigned char sent[NBYTES], back[NBYTES], expected[NBYTES], pageable[8];
    zfi_range_t up = {.from = sent, .nbytes = NBYTES}, down[N + 2];
    open_all();
    ck_assert_int_eq(ops->pin(device, back, NBYTES, &(int){0}, NULL), ZF_OK);
    ck_assert_int_eq(ops->alloc(device, NBYTES, "test", &up.to, NULL), ZF_OK);
    for (int i = 0; i < NBYTES; i++)
        sent[i] = (unsigned char)(i % 251);
    for (int i = 0; i < N; i++) {
        int to = i * STRIDE + 2 * (i % 7), from = i * STRIDE + 2 * (i % 5), n = 2 * (i + 1);
        down[i] = (zfi_range_t){back + to, (unsigned char *)up.to + from, (uint64_t)n};
        memcpy(expected + to, sent + from, (size_t)n);
    }
    down[N] = (zfi_range_t){pageable, up.to, sizeof pageable};
    down[N + 1] = (zfi_range_t){back + NBYTES - 33, up.to, 33};
    memcpy(expected + NBYTES - 33, sent, 33);
    enqueue(own, zfi_op_up(&up, 1));
    await_all(own);
    uint64_t n_given = own->flight.n_given;
    enqueue(own, zfi_op_down(down, N + 2));
    await_all(own);
    ck_assert_uint_le(own->flight.n_given - n_given, FEW);
    ck_assert(memcmp(back, expected, NBYTES) == 0 && memcmp(pageable, sent, sizeof pageable) == 0);
    ops->free(device, up.to, NBYTES);
    ops->unpin(device, back, NBYTES);
}

/* Whether a child of fork has the page. */
static int is_a_childs(unsigned char *page) {
    unsigned char is_in_core;
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(mincore(page, 1, &is_in_core) == 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status);
}

ZT_TEST(page_locked_memory_is_not_a_childs) {
    enum { NBYTES = 1 << 16 };
    unsigned char *memory = mmap(NULL, NBYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    open_all();
    ck_assert_int_eq(ops->pin(device, memory, NBYTES, &(int){0}, NULL), ZF_OK);
    ck_assert(!is_a_childs(memory) && !is_a_childs(device->words));
    ops->unpin(device, memory, NBYTES);
    ck_assert(is_a_childs(memory));
}

static void copy_one(zfi_op_kind_t kind, void *to, const void *from, uint64_t nbytes) {
    zfi_range_t range = {to, from, nbytes};
    enqueue(own, kind == ZFI_OP_UP ? zfi_op_up(&range, 1) : zfi_op_down(&range, 1));
    await_all(own);
}

/* Of address space for more than is registered at once, few pages are touched: those around the end of a piece. */
ZT_TEST(memory_is_page_locked_in_pieces) {
    enum { NBYTES = 8192 };
    const size_t whole = (size_t)5 << 35;
    unsigned char sent[NBYTES];
    void *there;
    int is_pageable;
    setenv("FAKECUDA_REGISTER_BYTES", "0x1000000001", 1); /* 64 GiB and one */
    unsigned char *memory = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    unsigned char *end = memory + ZFI_CUDA_PIECE_NBYTES - (uintptr_t)memory % ZFI_CUDA_PIECE_NBYTES;
    ck_assert_int_eq(mprotect(end - NBYTES, 2 * NBYTES, PROT_READ | PROT_WRITE), 0);
    open_all();
    ck_assert_int_eq(ops->pin(device, memory, whole, &is_pageable, NULL), ZF_OK);
    ck_assert_int_eq(ops->alloc(device, NBYTES, "test", &there, NULL), ZF_OK);
    for (int i = 0; i < NBYTES; i++)
        sent[i] = end[i - NBYTES / 2] = (unsigned char)(i % 251);
    copy_one(ZFI_OP_UP, there, end - NBYTES / 2, NBYTES);
    memset(end - NBYTES / 2, 0, NBYTES);
    copy_one(ZFI_OP_DOWN, end - NBYTES / 2, there, NBYTES);
    ck_assert(memcmp(sent, end - NBYTES / 2, NBYTES) == 0);
    ops->free(device, there, NBYTES);
    ops->unpin(device, memory, whole);
    ck_assert_int_eq(munmap(memory, whole), 0);
}

/* As WSL2 and containers do. What was locked of it before the limit is given back. */
ZT_TEST(more_than_may_be_page_locked) {
    enum { NBYTES = 1 << 20 };
    zf_error_t err = {.struct_size = sizeof err};
    int is_pageable;
    setenv("FAKECUDA_PINNED_BYTES", "0x180000", 1);
    unsigned char *memory = mmap(NULL, 2 * NBYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    open_all();
    ck_assert_int_eq(ops->pin(device, memory, NBYTES, &is_pageable, &err), ZF_OK);
    ck_assert_int_eq(ops->pin(device, memory + NBYTES, NBYTES, &is_pageable, &err), ZF_ERR_MEMORY);
    ck_assert_ptr_nonnull(strstr(err.message, "1 MiB of host memory cannot be page-locked for CUDA device 0"));
    ck_assert_ptr_nonnull(strstr(err.message, "where 1 MiB are: "));
    ck_assert_ptr_nonnull(strstr(err.message, "memlock"));
    ops->unpin(device, memory, NBYTES);
    ck_assert_int_eq(ops->pin(device, memory + NBYTES, NBYTES, &is_pageable, &err), ZF_OK);
    ops->unpin(device, memory + NBYTES, NBYTES);
    ck_assert_int_eq(munmap(memory, 2 * NBYTES), 0);
}

ZT_TEST(memory_of_an_integrated_device_is_the_hosts) {
    zfi_device_info_t info;
    setenv("FAKECUDA_INTEGRATED", "1", 1);
    open_all();
    ops->info(device, &info);
    ck_assert(info.is_host_memory);
}

ZT_TEST(launches_that_wait_are_like_few_queues) {
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    setenv("ZF_CUDA_MEMOPS", "wait", 1);
    open_all();
    ck_assert(device->has_few_queues && !device->streams_wait);
}

ZT_TEST(a_device_that_cannot_release_is_refused) {
    zfi_device_env_t env = {.kernels = zfi_kernels_of(zfi_isa_best()), .is_poisoned = &is_poisoned, .is_releasable = 1};
    zf_error_t err = {.struct_size = sizeof err};
    setenv("FAKECUDA_VMM", "0", 1);
    ck_assert_int_eq(ops->open(0, &env, &device, &err), ZF_ERR_DEVICE);
    ck_assert_ptr_nonnull(strstr(err.message, "ZF_CREATE_CAP_RELEASE"));
}

ZT_SUITE_WITH("cuda_backend", NULL, close_all)
