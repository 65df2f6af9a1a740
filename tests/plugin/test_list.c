/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_list.c - device/list.h over a table of devices that only writes down what is enqueued. */
#include "device/list.h"

#include <check.h>
#include <string.h>

#include "suite.h"

struct zfi_stream {
    char name;
    uint64_t n_ops;
};

enum { MOST = 512 };

static struct zfi_stream streams[] = {{'a', 0}, {'b', 0}, {'c', 0}};
static struct written {
    char stream;
    zfi_op_t op;
    unsigned char args[ZFI_LAUNCH_ARGS];
    zfi_range_t ranges[ZFI_LIST_RANGES];
} written[MOST];
static uint32_t n_written, n_calls, fails_from; /* the call of that number fails, and those after it; 0: none */

static zf_status_t enqueue(zfi_device_t *device, zfi_stream_t *stream, const zfi_op_t *ops, uint32_t n) {
    (void)device;
    n_calls++;
    if (fails_from && n_calls >= fails_from)
        return ZF_ERR_TIMEOUT;
    for (uint32_t i = 0; i < n; i++) {
        struct written *to = &written[n_written++];
        ck_assert_uint_le(n_written, MOST);
        to->stream = stream->name;
        to->op = ops[i];
        if (ops[i].args)
            memcpy(to->args, ops[i].args, ops[i].nbytes);
        if (ops[i].n_ranges)
            memcpy(to->ranges, ops[i].ranges, ops[i].n_ranges * sizeof *ops[i].ranges);
    }
    stream->n_ops += n;
    return ZF_OK;
}

static uint64_t mark(zfi_stream_t *stream) { return stream->n_ops; }

static const zfi_device_ops_t table = {.name = "written down", .enqueue = enqueue, .mark = mark};
static zfi_list_t lists[3];
static zfi_stream_t *at[3] = {&streams[0], &streams[1], &streams[2]};
static zfi_timeline_t line;

static void start(void) {
    n_written = n_calls = fails_from = 0;
    for (int i = 0; i < 3; i++) {
        streams[i].n_ops = 0;
        at[i] = &streams[i];
        zfi_list_init(&lists[i], &table, NULL, &at[i]);
    }
    zfi_list_join(&lists[0], &lists[1]);
    zfi_list_join(&lists[1], &lists[2]);
}

static void add_signals(int list, uint64_t first, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        zfi_list_add(&lists[list], zfi_op_signal(&line, first + i));
}

/* ---- sending ----------------------------------------------------------------------------------------------------- */

START_TEST(every_stream_is_given_its_list_once) {
    start();
    add_signals(1, 10, 2);
    add_signals(0, 0, 3);
    ck_assert_uint_eq(n_calls, 0);
    ck_assert_int_eq(zfi_list_send(&lists[2]), ZF_OK); /* whichever of them */
    ck_assert_uint_eq(n_calls, 2);
    ck_assert_uint_eq(streams[0].n_ops, 3);
    ck_assert_uint_eq(streams[1].n_ops, 2);
    ck_assert_uint_eq(streams[2].n_ops, 0);
    for (int i = 0; i < 3; i++)
        ck_assert(zfi_list_is_empty(&lists[i]));
    ck_assert_int_eq(zfi_list_send(&lists[0]), ZF_OK);
    ck_assert_uint_eq(n_calls, 2);
}
END_TEST

/* The first stream may be the host's, where nothing can be put off: what its waits are for goes before, whichever list
 * is full. */
START_TEST(the_first_goes_last) {
    for (int full = 0; full < 3; full++) {
        start();
        for (int i = 0; i < 3; i++)
            add_signals(i, 0, 1);
        add_signals(full, 1, ZFI_LIST_OPS);
        ck_assert_uint_ge(n_written, 3);
        ck_assert_int_ne(written[0].stream, 'a');
        ck_assert_int_ne(written[n_written - streams[0].n_ops - 1].stream, 'a');
        ck_assert_int_eq(written[n_written - 1].stream, 'a');
    }
}
END_TEST

/* A wait in the full list may be for what another has collected before: that goes with it. */
START_TEST(a_full_list_sends_all) {
    start();
    add_signals(1, 100, 1);
    add_signals(0, 0, ZFI_LIST_OPS);
    ck_assert_uint_eq(n_calls, 0);
    add_signals(0, ZFI_LIST_OPS, 1);
    ck_assert_uint_eq(streams[0].n_ops, ZFI_LIST_OPS);
    ck_assert_uint_eq(streams[1].n_ops, 1);
    ck_assert_int_eq(zfi_list_send(&lists[0]), ZF_OK);
    ck_assert_uint_eq(streams[0].n_ops, ZFI_LIST_OPS + 1);
}
END_TEST

START_TEST(the_stream_is_that_of_the_moment) {
    start();
    add_signals(0, 0, 1);
    at[0] = &streams[2];
    ck_assert_int_eq(zfi_list_send(&lists[0]), ZF_OK);
    ck_assert_int_eq(written[0].stream, 'c');
}
END_TEST

START_TEST(a_failure_stays) {
    start();
    fails_from = 2;
    add_signals(0, 0, 1);
    add_signals(1, 0, 1);
    add_signals(2, 0, 1);
    ck_assert_int_eq(zfi_list_send(&lists[0]), ZF_ERR_TIMEOUT);
    fails_from = 0;
    add_signals(2, 1, 1);
    ck_assert_int_eq(zfi_list_send(&lists[0]), ZF_ERR_TIMEOUT);
    ck_assert_uint_eq(streams[1].n_ops, 1); /* the first list goes last, */
    ck_assert_uint_eq(streams[2].n_ops, 0); /* and this failed before it: nothing of it, nothing later */
    ck_assert(zfi_list_is_empty(&lists[2]));
    start();
    zfi_list_fail(&lists[2], ZF_ERR_INTERNAL);
    zfi_list_fail(&lists[2], ZF_ERR_TIMEOUT);
    ck_assert_int_eq(zfi_list_send(&lists[0]), ZF_ERR_INTERNAL); /* the first one */
}
END_TEST

/* ---- what is added ----------------------------------------------------------------------------------------------- */

START_TEST(arguments_are_taken_over) {
    unsigned char args[ZFI_LAUNCH_ARGS];
    start();
    for (int i = 0; i < 2; i++) {
        memset(args, 'x' + i, sizeof args);
        zfi_list_add(&lists[0], zfi_op_launch(ZFI_KERNEL_REPORT, args, sizeof args));
    }
    memset(args, 0, sizeof args);
    ck_assert_int_eq(zfi_list_send(&lists[0]), ZF_OK);
    ck_assert_int_eq(written[0].args[ZFI_LAUNCH_ARGS - 1], 'x');
    ck_assert_int_eq(written[1].args[0], 'y');
}
END_TEST

START_TEST(ranges_join_one_copy) {
    char from[8], to[8];
    start();
    zfi_list_copy(&lists[0], ZFI_OP_UP, to, from, 1);
    zfi_list_copy(&lists[0], ZFI_OP_UP, to + 1, from + 2, 2);
    zfi_list_copy(&lists[0], ZFI_OP_DOWN, to + 3, from + 3, 1); /* another kind */
    zfi_list_end_copy(&lists[0]);
    zfi_list_copy(&lists[0], ZFI_OP_DOWN, to + 3, from + 4, 1); /* the same place again */
    add_signals(0, 1, 1);
    zfi_list_copy(&lists[0], ZFI_OP_DOWN, to + 5, from + 5, 1); /* after something else */
    ck_assert_int_eq(zfi_list_send(&lists[0]), ZF_OK);
    ck_assert_uint_eq(n_written, 5);
    ck_assert_uint_eq(written[0].op.n_ranges, 2);
    ck_assert_ptr_eq(written[0].ranges[1].to, to + 1);
    ck_assert_uint_eq(written[0].ranges[1].nbytes, 2);
    ck_assert_int_eq(written[1].op.kind, ZFI_OP_DOWN);
    ck_assert_uint_eq(written[1].op.n_ranges, 1);
    ck_assert_ptr_eq(written[2].ranges[0].from, from + 4);
    ck_assert_int_eq(written[3].op.kind, ZFI_OP_SIGNAL);
    ck_assert_ptr_eq(written[4].ranges[0].to, to + 5);
}
END_TEST

START_TEST(neighbours_are_one_range) {
    char from[8], to[8];
    start();
    zfi_list_copy(&lists[0], ZFI_OP_UP, to, from, 2);
    zfi_list_copy(&lists[0], ZFI_OP_UP, to + 2, from + 2, 1);
    zfi_list_copy(&lists[0], ZFI_OP_UP, to + 3, from + 4, 1);   /* not side by side here, ... */
    zfi_list_copy(&lists[0], ZFI_OP_UP, to + 5, from + 5, 1);   /* ... nor there */
    zfi_list_copy(&lists[0], ZFI_OP_DOWN, to + 6, from + 6, 1); /* another kind */
    zfi_list_end_copy(&lists[0]);
    zfi_list_copy(&lists[0], ZFI_OP_DOWN, to + 7, from + 7, 1);
    ck_assert_int_eq(zfi_list_send(&lists[0]), ZF_OK);
    ck_assert_uint_eq(n_written, 3);
    ck_assert_uint_eq(written[0].op.n_ranges, 3);
    ck_assert_uint_eq(written[0].ranges[0].nbytes, 3);
    ck_assert_uint_eq(written[0].ranges[1].nbytes, 1);
    ck_assert_uint_eq(written[1].op.n_ranges, 1);
    ck_assert_uint_eq(written[1].ranges[0].nbytes, 1);
}
END_TEST

START_TEST(more_ranges_than_a_list_holds) {
    static char from[2 * ZFI_LIST_RANGES + 1], to[2 * ZFI_LIST_RANGES + 1];
    uint32_t n = 0;
    start();
    add_signals(1, 0, 1);
    for (uint32_t i = 0; i <= 2 * ZFI_LIST_RANGES; i++)
        zfi_list_copy(&lists[0], ZFI_OP_UP, to + i, from + 2 * ZFI_LIST_RANGES - i, 1);
    ck_assert_uint_eq(streams[1].n_ops, 1);
    ck_assert_int_eq(zfi_list_send(&lists[0]), ZF_OK);
    for (uint32_t k = 0; k < n_written; k++)
        for (uint32_t i = 0; i < written[k].op.n_ranges; i++)
            ck_assert_ptr_eq(written[k].ranges[i].to, to + n++);
    ck_assert_uint_eq(n, 2 * ZFI_LIST_RANGES + 1);
}
END_TEST

START_TEST(marks_come_with_the_sending) {
    uint64_t first = 0, second = 0, many[ZFI_LIST_OPS + 1] = {0};
    start();
    add_signals(0, 0, 2);
    zfi_list_mark(&lists[0], &first);
    add_signals(0, 2, 1);
    ck_assert_uint_eq(first, 0);
    ck_assert_int_eq(zfi_list_send(&lists[0]), ZF_OK);
    ck_assert_uint_eq(first, 3); /* or one behind it */
    zfi_list_mark(&lists[0], &second);
    ck_assert(!zfi_list_is_empty(&lists[0]));
    ck_assert_int_eq(zfi_list_send(&lists[0]), ZF_OK);
    ck_assert_uint_eq(second, 3);
    for (uint32_t i = 0; i <= ZFI_LIST_OPS; i++)
        zfi_list_mark(&lists[0], &many[i]);
    ck_assert_int_eq(zfi_list_send(&lists[0]), ZF_OK);
    for (uint32_t i = 0; i <= ZFI_LIST_OPS; i++)
        ck_assert_uint_eq(many[i], 3);
}
END_TEST

ZT_MAIN("list", every_stream_is_given_its_list_once, the_first_goes_last, a_full_list_sends_all,
        the_stream_is_that_of_the_moment, a_failure_stays, arguments_are_taken_over, ranges_join_one_copy,
        neighbours_are_one_range, more_ranges_than_a_list_holds, marks_come_with_the_sending)
