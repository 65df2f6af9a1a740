/* SPDX-License-Identifier: Apache-2.0 */
/* tests/device/test_backends.c - what device.h promises of every backend, on the CPU's and on the shuffling one; and
 * the checks of the latter, which must abort. */
#include <check.h>
#include <signal.h>
#include <string.h>

#include "device/cpu/cpu.h"
#include "suite.h"

enum { N_BYTES = 5000, N_ROUNDS = 40 };
#define A_MINUTE_NS 60000000000u

static const zfi_device_ops_t *ops; /* the backend under test */
static zfi_device_t *device;
static zfi_stream_t *one, *other;
static unsigned char *memory; /* [N_BYTES] of the device */
static unsigned char host[2 * N_BYTES];
static _Atomic int is_poisoned, n_timed_out, is_host_busy;
static uint64_t opened_ns;

static void timed_out(void *ctx, const zfi_timeline_t *timeline, uint64_t value) {
    (void)ctx;
    (void)timeline;
    (void)value;
    atomic_fetch_add(&n_timed_out, 1);
    atomic_store(&is_poisoned, 1);
}

static uint64_t host_busy_ns(void *ctx) {
    (void)ctx;
    return is_host_busy ? zfi_now_ns() - opened_ns : 0;
}

static void open_with(const zfi_device_ops_t *backend, uint64_t timeout_ns) {
    zfi_device_env_t env = {.kernels = zfi_kernels_of(zfi_isa_best()),
                            .timeout_ns = timeout_ns,
                            .is_poisoned = &is_poisoned,
                            .timed_out = timed_out,
                            .host_busy_ns = host_busy_ns};
    void *raw;
    ops = backend;
    opened_ns = zfi_now_ns();
    ck_assert_int_eq(ops->open(0, &env, &device, NULL), ZF_OK);
    ck_assert_int_eq(ops->alloc(device, N_BYTES, "a test", &raw, NULL), ZF_OK);
    memory = raw;
    ck_assert_int_eq(ops->stream_create(device, "one", &one, NULL), ZF_OK);
    ck_assert_int_eq(ops->stream_create(device, "other", &other, NULL), ZF_OK);
}

static void close_all(void) {
    ops->stream_destroy(one);
    ops->stream_destroy(other);
    ops->free(device, memory, N_BYTES);
    ops->close(device);
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
    close_all();
}

ON_BOTH(two_streams_are_ordered_by_order_and_timelines) {
    zfi_timeline_t line;
    open_with(backend_of(_i), A_MINUTE_NS);
    zfi_timeline_init(&line, "line");
    for (int round = 1; round <= N_ROUNDS; round++) {
        memset(host, round, N_BYTES);
        copy(one, ZFI_OP_UP, memory, host, N_BYTES);
        enqueue(one, zfi_op_signal(&line, (uint64_t)round));
        if (round % 2)
            enqueue(other, zfi_op_wait(&line, (uint64_t)round, NULL));
        else
            ck_assert_int_eq(ops->order(device, one, other), ZF_OK);
        copy(other, ZFI_OP_DOWN, host + N_BYTES, memory, N_BYTES);
        finish(other);
        ck_assert_mem_eq(host, host + N_BYTES, N_BYTES);
    }
    close_all();
    zfi_timeline_free(&line);
}

ON_BOTH(a_wait_for_the_host_stops_its_own_stream_only) {
    zfi_timeline_t gate;
    open_with(backend_of(_i), A_MINUTE_NS);
    zfi_timeline_init(&gate, "gate");
    memset(host, 7, N_BYTES);
    enqueue(one, zfi_op_wait_for_host(&gate, 1));
    copy(one, ZFI_OP_UP, memory, host, N_BYTES);
    copy(other, ZFI_OP_DOWN, host, memory, N_BYTES);
    finish(other);
    ck_assert_uint_eq(host[0], 0);
    ck_assert_int_eq(ops->synchronise(one, ops->mark(one), 1000000, NULL), ZF_ERR_TIMEOUT);
    zfi_timeline_signal(&gate, 1);
    finish(one);
    close_all();
    zfi_timeline_free(&gate);
}

ON_BOTH(a_late_wait_is_reported_and_poison_skips_what_follows) {
    zfi_timeline_t never, after;
    open_with(backend_of(_i), 20000000);
    zfi_timeline_init(&never, "never");
    zfi_timeline_init(&after, "after");
    memset(host, 7, N_BYTES);
    enqueue(one, zfi_op_wait(&never, 1, NULL));
    copy(one, ZFI_OP_UP, memory, host, N_BYTES);
    enqueue(one, zfi_op_signal(&after, 1));
    finish(one);
    ck_assert_int_eq(n_timed_out, 1);
    ck_assert_uint_eq(memory[0], 0);
    ck_assert_uint_eq(zfi_timeline_now(&after), 0);
    close_all();
    zfi_timeline_free(&never);
    zfi_timeline_free(&after);
}

ON_BOTH(a_deadline_does_not_count_the_hosts_own_work) {
    zfi_timeline_t gate;
    is_host_busy = 1;
    open_with(backend_of(_i), 100000000);
    zfi_timeline_init(&gate, "gate");
    enqueue(one, zfi_op_wait(&gate, 1, NULL));
    ck_assert_int_eq(ops->synchronise(one, ops->mark(one), 300000000, NULL), ZF_ERR_TIMEOUT);
    ck_assert_int_eq(n_timed_out, 0);
    zfi_timeline_signal(&gate, 1);
    finish(one);
    close_all();
    zfi_timeline_free(&gate);
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

ZT_SUITE("backends")
