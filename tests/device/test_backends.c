/* SPDX-License-Identifier: Apache-2.0 */
/* tests/device/test_backends.c - what device.h promises of every backend, on the CPU's and on the shuffling one; and
 * the checks of the latter, which must abort. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "device/cpu/cpu.h"
#include "suite.h"

enum { N_BYTES = 5000, N_ROUNDS = 40, A_WHILE_US = 60000 };
#define A_MINUTE_NS 60000000000u

static const zfi_device_ops_t *ops; /* the backend under test */
static zfi_device_t *device;
static zfi_stream_t *one, *other;
static zfi_timeline_t gate;
static unsigned char *memory; /* [N_BYTES] of the device */
static unsigned char host[2 * N_BYTES];
static _Atomic int is_poisoned, n_timed_out, is_host_busy;
static uint64_t opened_ns;
static const zfi_timeline_t *late_line; /* that of the newest wait which timed out, and its value */
static uint64_t late_value;

static void timed_out(void *ctx, const zfi_timeline_t *timeline, uint64_t value) {
    (void)ctx;
    late_line = timeline;
    late_value = value;
    atomic_fetch_add(&n_timed_out, 1);
    atomic_store(&is_poisoned, 1);
}

static char stuck_stream[32];
static uint32_t n_stuck;

static void is_stuck(void *ctx, const char *stream, uint32_t n_waiting) {
    (void)ctx;
    snprintf(stuck_stream, sizeof stuck_stream, "%s", stream);
    n_stuck = n_waiting;
}

static uint64_t host_busy_ns(void *ctx) {
    (void)ctx;
    return is_host_busy ? zfi_now_ns() - opened_ns : 0;
}

static zfi_device_env_t env_of(uint64_t timeout_ns) {
    return (zfi_device_env_t){.kernels = zfi_kernels_of(zfi_isa_best()),
                              .timeout_ns = timeout_ns,
                              .is_poisoned = &is_poisoned,
                              .timed_out = timed_out,
                              .is_stuck = is_stuck,
                              .host_busy_ns = host_busy_ns};
}

static void open_with(const zfi_device_ops_t *backend, uint64_t timeout_ns) {
    zfi_device_env_t env = env_of(timeout_ns);
    void *raw;
    ops = backend;
    opened_ns = zfi_now_ns();
    zfi_timeline_init(&gate, "gate");
    ck_assert_int_eq(ops->open(0, &env, &device, NULL), ZF_OK);
    ck_assert_int_eq(ops->alloc(device, N_BYTES, "a test", &raw, NULL), ZF_OK);
    memory = raw;
    ck_assert_int_eq(ops->stream_create(device, "one", &one, NULL), ZF_OK);
    ck_assert_int_eq(ops->stream_create(device, "other", &other, NULL), ZF_OK);
}

/* After each test. */
static void close_all(void) {
    if (!device)
        return;
    ops->stream_destroy(one);
    ops->stream_destroy(other);
    ops->free(device, memory, N_BYTES);
    ops->close(device);
    zfi_timeline_free(&gate);
    device = NULL;
}

static void enqueue(zfi_stream_t *stream, zfi_op_t op) {
    ck_assert_int_eq(ops->enqueue(device, stream, &op, 1), ZF_OK);
}

static void copy(zfi_stream_t *stream, zfi_op_kind_t kind, void *to, const void *from, uint64_t nbytes) {
    zfi_range_t range = {to, from, nbytes};
    enqueue(stream, (zfi_op_t){.kind = kind, .ranges = &range, .n_ranges = 1});
}

static void finish(zfi_stream_t *stream) {
    ck_assert_int_eq(ops->synchronise(stream, ops->mark(stream), A_MINUTE_NS, NULL), ZF_OK);
}

#define ON_BOTH(name) ZT_TEST_OF(name, 2, 0)

/* _i: 0 the shuffling backend, which is the list's first; 1 the CPU's */
static const zfi_device_ops_t *backend_of(int i) { return i == 0 ? zfi_backends[0] : &zfi_device_cpu; }

ON_BOTH(memory_is_zeroed_and_a_stream_runs_in_order) {
    open_with(backend_of(_i), A_MINUTE_NS);
    for (int i = 0; i < N_BYTES; i++)
        ck_assert_uint_eq(memory[i], 0);
    for (int round = 1; round <= N_ROUNDS; round++) {
        memset(host, round, N_BYTES);
        copy(one, ZFI_OP_UP, memory, host, N_BYTES);
        enqueue(one, zfi_op_fill(memory + 100, 100));
        copy(one, ZFI_OP_DOWN, host + N_BYTES, memory, N_BYTES);
        finish(one);
        for (int i = 0; i < N_BYTES; i++)
            ck_assert_uint_eq(host[N_BYTES + i], i >= 100 && i < 200 ? 0u : (unsigned)round);
    }
}

ON_BOTH(two_streams_are_ordered_by_order_and_timelines) {
    open_with(backend_of(_i), A_MINUTE_NS);
    for (int round = 1; round <= N_ROUNDS; round++) {
        memset(host, round, N_BYTES);
        copy(one, ZFI_OP_UP, memory, host, N_BYTES);
        enqueue(one, zfi_op_signal(&gate, (uint64_t)round));
        if (round % 2)
            enqueue(other, zfi_op_wait(&gate, (uint64_t)round, NULL));
        else
            ck_assert_int_eq(ops->order(device, one, other), ZF_OK);
        copy(other, ZFI_OP_DOWN, host + N_BYTES, memory, N_BYTES);
        finish(other);
        ck_assert_mem_eq(host, host + N_BYTES, N_BYTES);
    }
}

ON_BOTH(a_wait_for_the_host_stops_its_own_stream_only) {
    open_with(backend_of(_i), A_MINUTE_NS);
    memset(host, 7, N_BYTES);
    enqueue(one, zfi_op_wait_for_host(&gate, 1));
    copy(one, ZFI_OP_UP, memory, host, N_BYTES);
    copy(other, ZFI_OP_DOWN, host, memory, N_BYTES);
    finish(other);
    ck_assert_uint_eq(host[0], 0);
    ck_assert_int_eq(ops->synchronise(one, ops->mark(one), 1000000, NULL), ZF_ERR_TIMEOUT);
    zfi_timeline_signal(&gate, 1);
    finish(one);
}

ON_BOTH(a_late_wait_is_reported_and_poison_skips_what_follows) {
    zfi_timeline_t after;
    open_with(backend_of(_i), 20000000);
    zfi_timeline_init(&after, "after");
    memset(host, 7, N_BYTES);
    enqueue(one, zfi_op_wait(&gate, 1, NULL));
    copy(one, ZFI_OP_UP, memory, host, N_BYTES);
    enqueue(one, zfi_op_signal(&after, 1));
    finish(one);
    ck_assert_int_eq(n_timed_out, 1);
    ck_assert_uint_eq(memory[0], 0);
    ck_assert_uint_eq(zfi_timeline_now(&after), 0);
    close_all();
    zfi_timeline_free(&after);
}

ON_BOTH(a_deadline_does_not_count_the_hosts_own_work) {
    is_host_busy = 1;
    open_with(backend_of(_i), 100000000);
    enqueue(one, zfi_op_wait(&gate, 1, NULL));
    ck_assert_int_eq(ops->synchronise(one, ops->mark(one), 300000000, NULL), ZF_ERR_TIMEOUT);
    ck_assert_int_eq(n_timed_out, 0);
    zfi_timeline_signal(&gate, 1);
    finish(one);
}

ON_BOTH(streams_follow_a_host_queue_and_it_follows_them) {
    zf_cpu_queue_t *queue;
    zf_stream_t given = {.struct_size = sizeof given};
    zfi_stream_t *hosts;
    open_with(backend_of(_i), A_MINUTE_NS);
    ck_assert_int_eq(zfi_cpu_ext.queue_create(&queue, &given, NULL), ZF_OK);
    ck_assert_int_eq(ops->stream_resolve(device, &given, "test", &hosts, NULL), ZF_OK);
    for (int round = 1; round <= N_ROUNDS; round++) {
        memset(host, round, N_BYTES);
        copy(one, ZFI_OP_UP, memory, host, N_BYTES);
        ck_assert_int_eq(ops->order(device, one, hosts), ZF_OK);
        copy(hosts, ZFI_OP_DOWN, host + N_BYTES, memory, N_BYTES);
        ck_assert_int_eq(ops->order(device, hosts, other), ZF_OK);
        enqueue(other, zfi_op_fill(memory, N_BYTES));
        finish(other);
        ck_assert_mem_eq(host, host + N_BYTES, N_BYTES);
    }
    finish(hosts);
    close_all();
    zfi_cpu_ext.queue_destroy(queue);
}

/* norm of one part, which shows that a launch has run with these arguments. */
static zfi_scalars_args_t norm_of(const zfi_norm_part_t *part, double unscale, zfi_step_scalars_t *out) {
    return (zfi_scalars_args_t){.parts = part, .n_parts = 1, .unscale = unscale, .out = out};
}

ON_BOTH(ranges_and_arguments_are_copied) { /* the caller's are gone when the stream comes to them */
    static zfi_norm_part_t part = {49.0, ZFI_NO_PARAM}, another = {1.0, 3};
    zfi_step_scalars_t made = {0}, wrong = {0};
    zfi_range_t range = {NULL, host, 1};
    zfi_scalars_args_t args = norm_of(&part, 1.0, &made);
    zfi_op_t list[] = {zfi_op_up(&range, 1), zfi_op_launch(ZFI_KERNEL_SCALARS, &args, sizeof args)};
    open_with(backend_of(_i), A_MINUTE_NS);
    enqueue(one, zfi_op_wait_for_host(&gate, 1));
    range.to = memory;
    ck_assert_int_eq(ops->enqueue(device, one, list, 2), ZF_OK);
    range = (zfi_range_t){&wrong, &another, sizeof another};
    args = norm_of(&another, 0.0, &wrong);
    memset(list, 0, sizeof list);
    host[0] = 6; /* what is pointed to is read when it is due */
    zfi_timeline_signal(&gate, 1);
    finish(one);
    ck_assert_int_eq(memory[0], 6);
    ck_assert(made.norm == 7.0 && wrong.norm == 0.0);
}

ON_BOTH(a_wait_counts_its_time) {
    _Atomic uint64_t stall = 5;
    open_with(backend_of(_i), A_MINUTE_NS);
    enqueue(one, zfi_op_wait(&gate, 1, &stall));
    usleep(A_WHILE_US);
    zfi_timeline_signal(&gate, 1);
    finish(one);
    ck_assert_uint_ge(atomic_load(&stall), A_WHILE_US / 2 * 1000);
    atomic_store(&stall, 5);
    enqueue(one, zfi_op_wait(&gate, 1, &stall)); /* no wait at all */
    finish(one);
    ck_assert_uint_eq(atomic_load(&stall), 5);
}

ON_BOTH(an_order_has_a_deadline) { /* the stream waited for may be a host's that stands still */
    open_with(backend_of(_i), A_WHILE_US / 2 * 1000);
    enqueue(one, zfi_op_wait_for_host(&gate, 1));
    uint64_t mark = ops->mark(one);
    ck_assert_int_eq(ops->order(device, one, other), ZF_OK);
    finish(other);
    ck_assert_int_eq(n_timed_out, 1);
    ck_assert_str_eq(late_line->name, "one");
    ck_assert_uint_eq(late_value, mark);
    zfi_timeline_signal(&gate, 1);
}

ON_BOTH(poison_ends_waits) { /* those that begin later too, on whatever timeline, and those for another stream */
    zfi_timeline_t line;
    zfi_stream_t *third;
    open_with(backend_of(_i), A_MINUTE_NS);
    zfi_timeline_init(&line, "line");
    ck_assert_int_eq(ops->stream_create(device, "third", &third, NULL), ZF_OK);
    enqueue(one, zfi_op_wait_for_host(&line, 1));
    enqueue(other, zfi_op_wait_for_host(&gate, 1));
    usleep(A_WHILE_US); /* it has begun: as a host's stream, which poison does not reach */
    atomic_store(&is_poisoned, 1);
    zfi_timeline_poison(&line);
    ck_assert_int_eq(ops->order(device, other, third), ZF_OK);
    enqueue(third, zfi_op_wait(&line, 1, NULL));
    enqueue(third, zfi_op_wait_for_host(&line, 1));
    finish(third);
    ck_assert_int_eq(n_timed_out, 0);
    zfi_timeline_signal(&gate, 1);
    ops->stream_destroy(third);
    close_all();
    zfi_timeline_free(&line);
}

ZT_TEST(a_full_stream_is_stuck) { /* of the CPU's; the other one takes its work */
    uint32_t n = 0;
    open_with(&zfi_device_cpu, A_WHILE_US / 2 * 1000);
    zfi_op_t op = zfi_op_wait_for_host(&gate, 1);
    while (ops->enqueue(device, one, &op, 1) == ZF_OK && n < 1000000)
        n++;
    ck_assert_str_eq(stuck_stream, "one");
    ck_assert_uint_eq(n_stuck, n);
    ck_assert_int_eq(ops->order(device, other, one), ZF_ERR_TIMEOUT);
    copy(other, ZFI_OP_UP, memory, host, 1);
    finish(other);
    zfi_timeline_signal(&gate, 1);
    finish(one);
    ck_assert_int_eq(ops->enqueue(device, one, &op, 1), ZF_OK);
}

/* ---- what the CPU's refuses -------------------------------------------------------------------------------------- */

ZT_TEST(devices_and_streams_that_are_not_there) {
    static const int32_t ids[] = {1, -1, 7};
    zfi_device_env_t env = env_of(A_MINUTE_NS);
    zf_error_t err = {.struct_size = sizeof err};
    zf_stream_t given = {.struct_size = sizeof given, .kind = ZF_STREAM_HOST_THREAD, .device_id = 2};
    for (int i = 0; i < 3; i++) {
        char number[32];
        ck_assert_int_eq(zfi_device_cpu.open(ids[i], &env, &device, &err), ZF_ERR_DEVICE);
        snprintf(number, sizeof number, "device id %d", ids[i]);
        ck_assert_ptr_nonnull(strstr(err.message, number));
        ck_assert_ptr_null(device);
    }
    zfi_device_cpu.close(NULL);
    zfi_device_cpu.stream_destroy(NULL);
    open_with(&zfi_device_cpu, A_MINUTE_NS);
    zfi_stream_t *stream = one;
    ck_assert_int_eq(ops->stream_resolve(device, &given, "test", &stream, &err), ZF_ERR_DEVICE);
    ck_assert_ptr_null(stream);
    ck_assert_msg(strstr(err.message, "CPU device 2") != NULL, "%s", err.message);
    given = (zf_stream_t){.struct_size = sizeof given, .kind = ZF_STREAM_CUDA, .handle = 1};
    ck_assert_int_eq(ops->stream_resolve(device, &given, "test", &stream, &err), ZF_ERR_DEVICE);
    ck_assert_msg(strstr(err.message, "stream kind 3") != NULL, "%s", err.message);
}

/* ---- what the shuffling backend refuses -------------------------------------------------------------------------- */

static void copy_up_to_host_memory(void) { copy(one, ZFI_OP_UP, host, host + N_BYTES, N_BYTES); }
static void copy_up_from_device_memory(void) { copy(one, ZFI_OP_UP, memory, memory + 1000, 1000); }
static void copy_past_the_end(void) { copy(one, ZFI_OP_UP, memory + 1, host, N_BYTES); }
static void copy_down_to_device_memory(void) { copy(one, ZFI_OP_DOWN, memory, host, N_BYTES); }
static void fill_host_memory(void) { enqueue(one, zfi_op_fill(host, 1)); }

static void copy_down_from_pinned_memory(void) {
    int is_pageable;
    ck_assert_int_eq(ops->pin(device, host, N_BYTES, &is_pageable, NULL), ZF_OK);
    copy(one, ZFI_OP_DOWN, host + N_BYTES, host, N_BYTES);
}

static void copy_to_overlapping_ranges(void) {
    zfi_range_t ranges[] = {{memory, host, 100}, {memory + 99, host, 100}};
    enqueue(one, zfi_op_up(ranges, 2));
}

static void write_after_free(void) {
    ops->stream_destroy(one);
    ops->stream_destroy(other);
    ops->free(device, memory, N_BYTES);
    memory[17] = 1;
    ops->close(device);
}

static void (*const misuses[])(void) = {
    copy_up_to_host_memory,     copy_up_from_device_memory, copy_past_the_end,          copy_down_from_pinned_memory,
    copy_down_to_device_memory, fill_host_memory,           copy_to_overlapping_ranges, write_after_free};

ZT_TEST_OF(misuse_aborts, sizeof misuses / sizeof *misuses, SIGABRT) {
    open_with(backend_of(0), A_MINUTE_NS);
    misuses[_i]();
}

ZT_SUITE_WITH("backends", NULL, close_all)
