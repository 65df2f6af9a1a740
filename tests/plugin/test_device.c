/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_device.c - the CPU backend through its table (device.h): order on a stream and between streams,
 * copies, marks and fences, deadlines, poison, full streams, the host's queues. What every backend promises:
 * tests/device/test_backends.c. */
#define _GNU_SOURCE
#include "device/device.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "device/cpu/cpu.h"
#include "suite.h"

enum { A_WHILE_US = 60000 };
static const uint64_t a_minute = 60000000000u, a_moment = 30000000; /* ns */

/* What the backend says about the instance. */
typedef struct said {
    _Atomic int n_timed_out, n_stuck;
    const zfi_timeline_t *timeline;
    uint64_t value;
    char stream[32];
    uint32_t n_waiting;
} said_t;

static said_t said;
static _Atomic int is_poisoned;
static const zfi_device_ops_t *ops;
static zfi_device_t *device;
static zfi_stream_t *first, *second;
static zfi_timeline_t gate, line;
static zf_error_t err = {.struct_size = sizeof err};

static void note_timeout(void *ctx, const zfi_timeline_t *timeline, uint64_t value) {
    said_t *to = ctx;
    to->timeline = timeline;
    to->value = value;
    atomic_fetch_add(&to->n_timed_out, 1);
}

static void note_stuck(void *ctx, const char *stream, uint32_t n_waiting) {
    said_t *to = ctx;
    strncpy(to->stream, stream, sizeof to->stream - 1);
    to->n_waiting = n_waiting;
    atomic_fetch_add(&to->n_stuck, 1);
}

static zfi_device_env_t env_of(uint64_t timeout_ns) {
    return (zfi_device_env_t){.kernels = zfi_kernels_of(zfi_isa_best()),
                              .timeout_ns = timeout_ns,
                              .is_poisoned = &is_poisoned,
                              .ctx = &said,
                              .timed_out = note_timeout,
                              .is_stuck = note_stuck};
}

static void find_backend(void) {
    for (uint32_t i = 0; i < zfi_n_backends; i++)
        if (zfi_backends[i]->device_type == ZF_DEVICE_CPU)
            ops = zfi_backends[i];
    ck_assert_ptr_nonnull(ops);
}

static void start(uint64_t timeout_ns) {
    zfi_device_env_t env = env_of(timeout_ns);
    find_backend();
    zfi_timeline_init(&gate, "gate");
    zfi_timeline_init(&line, "line");
    ck_assert_int_eq(ops->open(0, &env, &device, &err), ZF_OK);
    ck_assert_int_eq(ops->stream_create(device, "first", &first, &err), ZF_OK);
    ck_assert_int_eq(ops->stream_create(device, "second", &second, &err), ZF_OK);
}

static void end(void) {
    ops->stream_destroy(first);
    ops->stream_destroy(second);
    ops->close(device);
    zfi_timeline_free(&gate);
    zfi_timeline_free(&line);
}

static void enqueue(zfi_stream_t *stream, const zfi_op_t *list, uint32_t n) {
    ck_assert_int_eq(ops->enqueue(device, stream, list, n), ZF_OK);
}

static void enqueue_one(zfi_stream_t *stream, zfi_op_t op) { enqueue(stream, &op, 1); }

static void copy(zfi_stream_t *stream, void *to, const void *from, uint64_t nbytes) {
    zfi_range_t range = {to, from, nbytes};
    enqueue_one(stream, zfi_op_up(&range, 1));
}

/* The stream stands still until the gate reaches `value`, however long that takes. */
static void hold(zfi_stream_t *stream, uint64_t value) { enqueue_one(stream, zfi_op_wait_for_host(&gate, value)); }

static void sync_stream(zfi_stream_t *stream) {
    ck_assert_int_eq(ops->synchronise(stream, ops->mark(stream), a_minute, NULL), ZF_OK);
}

/* ---- device and memory ------------------------------------------------------------------------------------------- */

ZT_TEST(devices_that_are_not_there) {
    static const int32_t ids[] = {1, -1, 7};
    zfi_device_env_t env = env_of(a_minute);
    find_backend();
    for (int i = 0; i < 3; i++) {
        char number[32];
        ck_assert_int_eq(ops->open(ids[i], &env, &device, &err), ZF_ERR_DEVICE);
        snprintf(number, sizeof number, "device id %d", ids[i]);
        ck_assert_ptr_nonnull(strstr(err.message, number));
        ck_assert_ptr_null(device);
    }
    ops->close(NULL);
    ops->stream_destroy(NULL);
}

/* ---- one stream -------------------------------------------------------------------------------------------------- */

/* norm of one part, which shows that a launch has run with these arguments. */
static zfi_scalars_args_t norm_of(const zfi_norm_part_t *part, double unscale, zfi_step_scalars_t *out) {
    return (zfi_scalars_args_t){.parts = part, .n_parts = 1, .unscale = unscale, .out = out};
}

ZT_TEST(ranges_and_arguments_are_copied) { /* the caller's are gone when the stream comes to them */
    static zfi_norm_part_t part = {49.0, ZFI_NO_PARAM}, other = {1.0, 3};
    zfi_step_scalars_t made = {0}, wrong = {0};
    int from = 5, to = 0;
    zfi_range_t range = {&to, &from, sizeof to};
    zfi_scalars_args_t args = norm_of(&part, 1.0, &made);
    zfi_op_t list[] = {zfi_op_up(&range, 1), zfi_op_launch(ZFI_KERNEL_SCALARS, &args, sizeof args)};
    start(a_minute);
    hold(first, 1);
    enqueue(first, list, 2);
    range = (zfi_range_t){&wrong, &other, sizeof other};
    args = norm_of(&other, 0.0, &wrong);
    memset(list, 0, sizeof list);
    from = 6; /* what is pointed to is read when it is due */
    zfi_timeline_signal(&gate, 1);
    sync_stream(first);
    ck_assert_int_eq(to, 6);
    ck_assert(made.norm == 7.0 && wrong.norm == 0.0);
    end();
}

/* ---- several streams --------------------------------------------------------------------------------------------- */

ZT_TEST(a_wait_counts_its_time) {
    _Atomic uint64_t stall = 5;
    start(a_minute);
    enqueue_one(first, zfi_op_wait(&gate, 1, &stall));
    usleep(A_WHILE_US);
    zfi_timeline_signal(&gate, 1);
    sync_stream(first);
    ck_assert_uint_ge(atomic_load(&stall), a_moment);
    atomic_store(&stall, 5);
    enqueue_one(first, zfi_op_wait(&gate, 1, &stall)); /* no wait at all */
    sync_stream(first);
    ck_assert_uint_eq(atomic_load(&stall), 5);
    end();
}

/* ---- what goes wrong --------------------------------------------------------------------------------------------- */

ZT_TEST(an_order_has_a_deadline) { /* the stream waited for may be a host's that stands still */
    uint64_t mark;
    start(a_moment);
    hold(first, 1);
    mark = ops->mark(first);
    ck_assert_int_eq(ops->order(device, first, second), ZF_OK);
    sync_stream(second);
    ck_assert_int_eq(atomic_load(&said.n_timed_out), 1);
    ck_assert_str_eq(said.timeline->name, "first");
    ck_assert_uint_eq(said.value, mark);
    zfi_timeline_signal(&gate, 1);
    end();
}

/* As the engine does: first the flag, then every timeline. */
static void poison(void) {
    atomic_store(&is_poisoned, 1);
    zfi_timeline_poison(&gate);
}

ZT_TEST(poison_ends_waits) { /* those that begin later too, on whatever timeline, and those for another stream */
    zfi_timeline_t standing;
    zfi_stream_t *third;
    zfi_op_t stand;
    start(a_minute);
    zfi_timeline_init(&standing, "standing");
    stand = zfi_op_wait_for_host(&standing, 1);
    ck_assert_int_eq(ops->stream_create(device, "third", &third, &err), ZF_OK);
    hold(first, 1);
    enqueue_one(second, stand);
    usleep(A_WHILE_US); /* it has begun: as a host's stream, which poison does not reach */
    poison();
    ck_assert_int_eq(ops->order(device, second, third), ZF_OK);
    enqueue_one(third, zfi_op_wait(&line, 1, NULL));
    enqueue_one(third, zfi_op_wait_for_host(&line, 1));
    ck_assert_int_eq(ops->synchronise(third, ops->mark(third), a_minute / 6, NULL), ZF_OK);
    ck_assert_int_eq(atomic_load(&said.n_timed_out), 0);
    zfi_timeline_signal(&standing, 1);
    ops->stream_destroy(third);
    end();
    zfi_timeline_free(&standing);
}

ZT_TEST(a_full_stream_is_stuck) {
    uint32_t n = 0;
    zfi_op_t op = zfi_op_signal(&line, 1);
    zf_status_t st;
    start(a_moment);
    hold(first, 1);
    while ((st = ops->enqueue(device, first, &op, 1)) == ZF_OK && n < 1000000)
        n++;
    ck_assert_int_eq(st, ZF_ERR_TIMEOUT);
    ck_assert_int_eq(atomic_load(&said.n_stuck), 1);
    ck_assert_str_eq(said.stream, "first");
    ck_assert_uint_eq(said.n_waiting, n + 1); /* those, and the wait */
    ck_assert_int_eq(ops->order(device, second, first), ZF_ERR_TIMEOUT);
    ck_assert_int_eq(atomic_load(&said.n_stuck), 2);
    copy(second, &(int){0}, &(int){1}, sizeof(int)); /* the other one takes its work */
    sync_stream(second);
    zfi_timeline_signal(&gate, 1);
    sync_stream(first);
    ck_assert_int_eq(ops->enqueue(device, first, &op, 1), ZF_OK);
    end();
}

/* ---- the host's queues ------------------------------------------------------------------------------------------- */

static void refuses(zf_stream_t given, const char *part) {
    zfi_stream_t *stream = first;
    given.struct_size = sizeof given;
    ck_assert_int_eq(ops->stream_resolve(device, &given, "step_submit", &stream, &err), ZF_ERR_DEVICE);
    ck_assert_ptr_null(stream);
    ck_assert_msg(strstr(err.message, part) != NULL, "%s", err.message);
}

ZT_TEST(streams_that_are_none) {
    start(a_minute);
    refuses((zf_stream_t){.kind = ZF_STREAM_CUDA, .handle = 1}, "stream kind 3");
    refuses((zf_stream_t){.kind = ZF_STREAM_HOST_THREAD, .device_id = 2}, "CPU device 2");
    end();
}

ZT_SUITE("device")
