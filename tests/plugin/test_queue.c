/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_queue.c - commands of many pushers run in order on one thread; several at once; the ring's cells; a
 * full queue waits, or gives up at its deadline; the end drains. */
#define _GNU_SOURCE
#include "base/queue.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "suite.h"

enum { N_PUSHERS = 6, N_PER_PUSHER = 3000 };
static const uint64_t a_minute = 60000000000u;

typedef struct numbered {
    uint32_t pusher, number;
} numbered_t;

static zfi_queue_t *queue;
static uint32_t next_of[N_PUSHERS];
static int n_out_of_order;
static uint64_t n_run;

static void create(void) { ck_assert_int_eq(zfi_queue_create(&queue, "test", NULL), ZF_OK); }

static void sync_queue(void) {
    ck_assert_int_eq(zfi_timeline_wait(&queue->executed, zfi_queue_newest(queue), a_minute, NULL), ZF_OK);
}

static void check_number(void *raw) {
    const numbered_t *args = raw;
    if (next_of[args->pusher]++ != args->number)
        n_out_of_order++;
    n_run++;
}

static void *push_many(void *raw) {
    uint32_t pusher = *(uint32_t *)raw;
    for (uint32_t i = 0; i < N_PER_PUSHER; i++) {
        numbered_t args = {pusher, i};
        if (zfi_queue_push(queue, check_number, &args, sizeof args, NULL))
            return raw;
    }
    return NULL;
}

ZT_TEST(many_pushers) { /* more than the queue holds: pushers wait */
    pthread_t threads[N_PUSHERS];
    uint32_t ids[N_PUSHERS];
    void *failed;
    create();
    for (uint32_t i = 0; i < N_PUSHERS; i++) {
        ids[i] = i;
        pthread_create(&threads[i], NULL, push_many, &ids[i]);
    }
    for (int i = 0; i < N_PUSHERS; i++) {
        pthread_join(threads[i], &failed);
        ck_assert_ptr_null(failed);
    }
    sync_queue();
    ck_assert_int_eq(n_out_of_order, 0);
    ck_assert_uint_eq(n_run, (uint64_t)N_PUSHERS * N_PER_PUSHER);
    ck_assert_uint_eq(zfi_timeline_now(&queue->executed), n_run);
    zfi_queue_destroy(queue);
}

/* ---- a queue that stands still ----------------------------------------------------------------------------------- */

static const uint64_t a_moment = 30000000; /* ns */
static zfi_timeline_t gate;

/* Stands still until the gate reaches what the arguments say. */
static void wait_at_gate(void *value) { zfi_timeline_wait(&gate, *(uint64_t *)value, a_minute, NULL); }

static void push_gate(uint64_t value, uint64_t *out_seq) {
    ck_assert_int_eq(zfi_queue_push(queue, wait_at_gate, &value, sizeof value, out_seq), ZF_OK);
}

static void count(void *unused) {
    (void)unused;
    n_run++;
}

static void push_counts(uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        ck_assert_int_eq(zfi_queue_push(queue, count, NULL, 0, NULL), ZF_OK);
}

static void start_still(void) {
    zfi_timeline_init(&gate, "gate");
    create();
    push_gate(1, NULL);
}

static void end_still(void) {
    zfi_queue_destroy(queue);
    zfi_timeline_free(&gate);
}

/* Cells in use, and the first of them. */
static uint32_t cells(uint32_t *out_first) {
    pthread_mutex_lock(&queue->lock);
    uint32_t n = queue->n_cells;
    *out_first = queue->first_cell;
    pthread_mutex_unlock(&queue->lock);
    return n;
}

/* Until the last command's cells are given back, which is after executed has counted it. */
static void rest(void) {
    uint32_t first;
    sync_queue();
    while (cells(&first) != 0)
        sched_yield();
    ck_assert_uint_eq(first, 0);
}

ZT_TEST(a_full_queue_gives_up) { /* all of a push or nothing of it */
    zfi_queue_item_t items[3] = {{.fn = count}, {.fn = count}, {.fn = count}};
    uint64_t seq = 77, newest, start = zfi_now_ns();
    start_still();
    push_counts(ZFI_QUEUE_CELLS - 3); /* two cells are left */
    newest = zfi_queue_newest(queue);
    ck_assert_int_eq(zfi_queue_push_all(queue, a_moment, items, 3, &seq), ZF_ERR_TIMEOUT);
    ck_assert_uint_ge(zfi_now_ns() - start, a_moment);
    ck_assert_uint_eq(seq, 77);
    ck_assert_uint_eq(zfi_queue_newest(queue), newest);
    ck_assert_int_eq(zfi_queue_push_all(queue, a_moment, items, 2, &seq), ZF_OK);
    ck_assert_uint_eq(seq, newest + 2);
    ck_assert_int_eq(zfi_queue_push_all(queue, 0, items, 1, &seq), ZF_ERR_TIMEOUT);
    zfi_timeline_signal(&gate, 1);
    sync_queue();
    ck_assert_uint_eq(n_run, ZFI_QUEUE_CELLS - 1);
    ck_assert_uint_eq(zfi_timeline_now(&queue->executed), ZFI_QUEUE_CELLS);
    ck_assert_int_eq(zfi_queue_push_all(queue, a_minute, items, 3, &seq), ZF_OK); /* it goes on */
    end_still();
    ck_assert_uint_eq(n_run, ZFI_QUEUE_CELLS + 2);
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

enum { HEAD = 16 }; /* bytes of a cell that the queue takes for itself, once per command */

/* Arguments of any size: the size, and bytes that follow from it and a number. */
typedef struct payload {
    uint32_t nbytes, number;
    unsigned char bytes[ZFI_QUEUE_ARGS - 8];
} payload_t;

static unsigned char byte_of(const payload_t *payload, size_t i) {
    return (unsigned char)(i * 7 + payload->nbytes + payload->number * 3);
}

static payload_t payload_of(size_t nbytes, uint32_t number) {
    payload_t payload = {.nbytes = (uint32_t)nbytes, .number = number};
    for (size_t i = 0; i < sizeof payload.bytes; i++)
        payload.bytes[i] = byte_of(&payload, i);
    return payload;
}

static uint32_t n_payloads, n_wrong;

/* Payloads are numbered from 0 in the order of their pushes. */
static void check_payload(void *raw) {
    const payload_t *payload = raw;
    n_wrong += payload->number != n_payloads++;
    n_wrong += (uintptr_t)raw % 16 != 0;
    for (size_t i = 0; i + 8 < payload->nbytes; i++)
        n_wrong += payload->bytes[i] != byte_of(payload, i);
}

static zfi_queue_item_t item_of(const payload_t *payload) {
    return (zfi_queue_item_t){.fn = check_payload, .args = payload, .nbytes = payload->nbytes};
}

static void push_payload(size_t nbytes, uint32_t number) {
    payload_t payload = payload_of(nbytes, number);
    ck_assert_int_eq(zfi_queue_push(queue, check_payload, &payload, nbytes, NULL), ZF_OK);
    memset(&payload, 0, sizeof payload);
}

/* ---- the ring ---------------------------------------------------------------------------------------------------- */

/* A queue that stands still at a command in cell `at`; the cells before it are free, those behind it too. */
static void stand_at(uint32_t at) {
    uint32_t first;
    start_still();
    push_counts(at - 1);
    push_gate(2, NULL);
    zfi_timeline_signal(&gate, 1);
    ck_assert_int_eq(zfi_timeline_wait(&queue->executed, at, a_minute, NULL), ZF_OK);
    do
        sched_yield();
    while (cells(&first) != 1);
    ck_assert_uint_eq(first, at);
}

static size_t of_cells(uint32_t n) { return n * (size_t)ZFI_QUEUE_CELL - HEAD; }

/* All that stands still runs: n payloads, and so many commands in all. */
static void run_still(uint32_t n, uint64_t n_commands) {
    zfi_timeline_signal(&gate, 2);
    rest();
    ck_assert_uint_eq(n_payloads, n);
    ck_assert_uint_eq(n_wrong, 0);
    ck_assert_uint_eq(zfi_timeline_now(&queue->executed), n_commands);
    end_still();
}

ZT_TEST(what_is_left_over_is_not_taken_in_vain) { /* three cells at the end, five at the start: neither holds six */
    enum { AT = 5, FILL = ZFI_QUEUE_CELLS - AT - 1 - 3 };
    payload_t six = payload_of(of_cells(6), 0);
    zfi_queue_item_t item = item_of(&six);
    uint32_t first;
    stand_at(AT);
    push_counts(FILL);
    ck_assert_int_eq(zfi_queue_push_all(queue, a_moment, &item, 1, NULL), ZF_ERR_TIMEOUT);
    ck_assert_uint_eq(cells(&first), 1 + FILL);
    push_payload(of_cells(3), 0);
    push_payload(of_cells(5), 1);
    ck_assert_uint_eq(cells(&first), ZFI_QUEUE_CELLS);
    ck_assert_int_eq(zfi_queue_push_all(queue, a_moment, &(zfi_queue_item_t){.fn = count}, 1, NULL), ZF_ERR_TIMEOUT);
    run_still(2, AT + 1 + FILL + 2);
    ck_assert_uint_eq(n_run, AT - 1 + FILL);
}

ZT_TEST(several_wrap_together) { /* a push that does not fit before the end begins as a whole at the start */
    enum { AT = ZFI_QUEUE_CELLS - 4 };
    payload_t payloads[] = {payload_of(8, 0), payload_of(of_cells(2), 1), payload_of(8, 2)};
    zfi_queue_item_t items[] = {item_of(&payloads[0]), item_of(&payloads[1]), item_of(&payloads[2])};
    uint64_t seq;
    uint32_t first;
    stand_at(AT);
    ck_assert_int_eq(zfi_queue_push_all(queue, a_minute, items, 3, &seq), ZF_OK);
    ck_assert_uint_eq(seq, AT + 1 + 3);
    ck_assert_uint_eq(cells(&first), 1 + 3 + 4);
    run_still(3, AT + 1 + 3);
}

ZT_SUITE("queue")
