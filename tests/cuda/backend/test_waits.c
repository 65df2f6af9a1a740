/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/backend/test_waits.c - who waits for what, and how: by events, parked, in a stream, behind the driver's
 * lock; and which streams there are. */
#include <stdlib.h>
#include <unistd.h>

#include "device_rig.h"
#include "suite.h"

enum { N_SIGNALS = 40 /* more than a timeline's ring of events holds */ };

/* No two streams of the plugin have the same priority as far as there are some: the scheduler gives such streams other
 * queues. */
ZT_TEST(streams_differ_in_priority) {
    enum { N = 4 };
    zfi_stream_t *streams[N] = {0};
    int priorities[N];
    open_all();
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(ops->stream_create(device, "one of many", &streams[i], NULL), ZF_OK);
        ck_assert_int_eq(cuStreamGetPriority(streams[i]->handle, &priorities[i]), CUDA_SUCCESS);
        for (int k = 0; k < i; k++)
            ck_assert_int_ne(priorities[i], priorities[k]);
    }
    for (int i = 0; i < N; i++)
        ops->stream_destroy(streams[i]);
}

static zfi_stream_t *resolve(CUstream handle, uint64_t id) {
    zf_stream_t given = {.struct_size = sizeof given,
                         .kind = ZF_STREAM_CUDA,
                         .device_type = ZF_DEVICE_CUDA,
                         .handle = (uint64_t)(uintptr_t)handle,
                         .id = id};
    zfi_stream_t *resolved = NULL;
    ck_assert_int_eq(ops->stream_resolve(device, &given, "test", &resolved, NULL), ZF_OK);
    return resolved;
}

/* A host that makes a stream for each step. A record on which work of ours is left is not taken, nor the one that work
 * was ordered on last. */
ZT_TEST(records_of_a_thousand_streams) {
    enum { N = 1000 };
    open_all();
    zfi_stream_t *held = hosts;
    CUstream helds_handle = hosts_handle;
    zfi_stream_t *current = host_stream(); /* whose handle the others have */
    ck_assert_int_eq(cuLaunchHostFunc(helds_handle, wait_for_gate, NULL), CUDA_SUCCESS);
    enqueue(held, zfi_op_signal(&answer, 1));
    ck_assert_int_eq(ops->order(device, own, current), ZF_OK);
    for (uint64_t i = 1; i <= N; i++) {
        zfi_stream_t *other = resolve(hosts_handle, 100 + i);
        ck_assert(other != held && other != current);
        enqueue(other, zfi_op_signal(&line, i));
        await_all(other);
    }
    await(&line, N);
    ck_assert_ptr_eq(resolve(helds_handle, 0), held);
    zfi_timeline_signal(&gate, 1);
    await(&answer, 1);
}

/* The driver's lock is held by a thread of the host, and the host's stream waits for what nobody will say: the wait is
 * found late after its own deadline, and its end lets the driver go. */
static void *free_something(void *at) {
    ck_assert_int_eq(cuCtxSetCurrent(device->context), CUDA_SUCCESS);
    ck_assert_int_eq(cuMemFree((CUdeviceptr)(uintptr_t)at), CUDA_SUCCESS);
    return NULL;
}

ZT_TEST(what_stands_behind_the_drivers_lock_is_found_late) {
    CUdeviceptr at = 0;
    setenv("ZF_CUDA_MEMOPS", "wait", 1);
    open_with(1000000000u);
    if (!device->streams_wait)
        return; /* of the test without memory operations */
    ck_assert_int_eq(cuMemAlloc(&at, 4096), CUDA_SUCCESS);
    enqueue(hosts, zfi_op_wait(&gate, 1, NULL));
    pthread_t other = start(free_something, (void *)(uintptr_t)at);
    zfi_run_clock_t clock = zfi_run_clock();
    while (n_timed_out == 0 && zfi_run_ns(&clock) < ZFI_HOST_DEADLINES * device->env.timeout_ns)
        usleep(1000);
    ck_assert_int_ne(n_timed_out, 0);
    atomic_store(&n_timed_out, 0);
    atomic_store(&is_poisoned, 1);
    zfi_timeline_poison(&gate);
    pthread_join(other, NULL);
    await_all(hosts);
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

/* The words' thread waits for nobody who may be in a call of the driver. */
ZT_TEST(signals_are_told_while_the_lock_is_held) {
    open_all();
    if (!device->has_memops)
        return; /* events are asked for under it */
    hold_hosts();
    ck_assert_int_eq(ops->order(device, hosts, own), ZF_OK);
    enqueue(own, zfi_op_signal(&line, 1));
    pthread_mutex_lock(&device->lock);
    zfi_timeline_signal(&gate, 1);
    await(&line, 1);
    pthread_mutex_unlock(&device->lock);
}

static int has_parked(zfi_stream_t *stream) {
    pthread_mutex_lock(&device->lock);
    int has = stream->park.head != stream->park.tail;
    pthread_mutex_unlock(&device->lock);
    return has;
}

/* A load sets the timeline back: signals of before, and their events, mean nothing. A wait is parked until its signal
 * is enqueued; then it is one for the event, though nothing has run. */
ZT_TEST(a_wait_is_for_the_event_of_its_own_run) {
    zfi_stream_t *second;
    open_all();
    ck_assert_int_eq(ops->stream_create(device, "second", &second, NULL), ZF_OK);
    for (uint64_t value = 1; value <= N_SIGNALS; value++)
        enqueue(own, zfi_op_signal(&line, value));
    await(&line, N_SIGNALS);
    zfi_timeline_set(&line, 0);
    hold_hosts();
    ck_assert_int_eq(ops->order(device, hosts, own), ZF_OK);
    enqueue(second, zfi_op_wait(&line, 1, NULL));
    enqueue(second, zfi_op_signal(&answer, 1));
    ck_assert(has_parked(second));
    enqueue(own, zfi_op_signal(&line, 1));
    ck_assert(!has_parked(second));
    usleep(PAUSE_US);
    ck_assert_uint_eq(zfi_timeline_now(&answer), 0);
    zfi_timeline_signal(&gate, 1);
    await(&answer, 1);
    ops->stream_destroy(second);
}

/* A stream of the plugin never waits for what the host decides, nor a stream of the host by default: the wait is
 * parked, or the hook waits. */
static void *wait_with_hosts(void *unused) {
    (void)unused;
    enqueue(hosts, zfi_op_wait(&line, 1, NULL));
    zfi_timeline_signal(&answer, 1);
    return NULL;
}

ZT_TEST(hooks_wait_and_streams_do_not) {
    open_all();
    enqueue(own, zfi_op_wait(&gate, 1, NULL));
    ck_assert(has_parked(own));
    pthread_t hook = start(wait_with_hosts, NULL);
    usleep(PAUSE_US);
    ck_assert_int_eq(cuCtxSynchronize(), CUDA_SUCCESS); /* nothing that is enqueued waits for anything */
    ck_assert_uint_eq(zfi_timeline_now(&answer), 0);
    zfi_timeline_signal(&line, 1);
    await(&answer, 1);
    pthread_join(hook, NULL);
    zfi_timeline_signal(&gate, 1);
    await_all(own);
}

/* Poison ends a wait in the host's stream, and the kernel behind it keeps all later ones from doing anything. */
ZT_TEST(poison_shuts_the_gate_behind_a_wait) {
    uint64_t has_ended = 0;
    setenv("ZF_CUDA_MEMOPS", "wait", 1);
    setenv("FAKECUDA_LOCKS", "none", 1);
    open_all();
    if (!device->streams_wait)
        return; /* of a device without memory operations */
    enqueue(hosts, zfi_op_wait(&line, 1, NULL));
    ck_assert_int_eq(cuStreamSynchronize(device->control), CUDA_SUCCESS); /* where another gate might be */
    usleep(PAUSE_US);
    atomic_store(&is_poisoned, 1);
    zfi_timeline_poison(&line);
    await_all(hosts);
    ck_assert_int_eq(cuMemcpyDtoH(&has_ended, device->has_ended, sizeof has_ended), CUDA_SUCCESS);
    ck_assert_uint_ne(has_ended, 0);
}

/* Without memory operations an event is all that tells of a signal: the host's own work behind the first one waits
 * until it was told, so its event is not recorded again before. */
static void wait_for_line(void *unused) {
    (void)unused;
    await(&line, 1);
}

static void *signal_again(void *unused) {
    (void)unused;
    for (uint64_t value = 2; value <= N_SIGNALS; value++)
        enqueue(hosts, zfi_op_signal(&line, value));
    return NULL;
}

static uint32_t n_signals(void) {
    pthread_mutex_lock(&device->lock);
    uint32_t n = zfi_cuda_line(device, &line, 1)->n_signals;
    pthread_mutex_unlock(&device->lock);
    return n;
}

ZT_TEST(an_event_is_asked_before_it_is_recorded_again) {
    open_all();
    if (device->has_memops)
        return;
    hold_hosts();
    enqueue(hosts, zfi_op_signal(&line, 1));
    ck_assert_int_eq(cuLaunchHostFunc(hosts_handle, wait_for_line, NULL), CUDA_SUCCESS);
    pthread_t other = start(signal_again, NULL);
    while (n_signals() < ZFI_CUDA_SIGNALS)
        usleep(1000);
    usleep(PAUSE_US); /* one more would take the first one's event */
    zfi_timeline_signal(&gate, 1);
    await(&line, N_SIGNALS);
    pthread_join(other, NULL);
    await_all(hosts);
}

ZT_SUITE_WITH("cuda_waits", NULL, close_all)
