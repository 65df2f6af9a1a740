/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakecuda/queue.c - the hardware's queues, which run what streams are given.
 *
 * Model. A queue is a thread that takes operations from one list in the order in which they were enqueued. Streams
 * share CUDA_DEVICE_MAX_CONNECTIONS of them, by default 8: an operation also waits for earlier ones of other streams,
 * which CUDA allows and programs must survive. FAKECUDA_DEAL says which queue a new stream gets: the next one (turn),
 * the next one among those of its priority, as each priority has queues of its own (priority), or any (chance). With 0
 * every stream has its own, which the thread sanitizer needs: it takes a shared queue for an order.
 *
 * Copies between host and device stand in a second line: each direction has CUDA_DEVICE_MAX_COPY_CONNECTIONS of them. A
 * copy joins its line when it is enqueued, and runs when those before it in the line are over.
 *
 * Room. A queue takes FAKECUDA_DEPTH commands, or about a thousand, another number for each; a call that brings one
 * more waits until one is over. What the double adds for its own ends (synchronisation, queries, order with the legacy
 * stream) takes no room. */
#define _GNU_SOURCE
#include "fake.h"

#include <fenv.h>
#include <pthread.h>
#include <stdlib.h>

enum { MAX_QUEUES = 16, N_PRIORITIES = 8 };

struct fc_queue {
    pthread_t thread;
    fc_lock_t lock;
    fc_op_t *head, *tail;
    uint32_t n_enqueued; /* what the thread sleeps on */
    uint32_t n_streams;  /* written under fc_global_lock */
    uint64_t depth;      /* 0: any number */
    uint32_t n_commands; /* that take room, enqueued and not over; at most `depth` */
    uint32_t n_hindered; /* calls that wait for room */
    int is_closing;
    uint64_t random;
};

/* A line of copies: the next number, and the number that may run. */
typedef struct copy_line {
    uint32_t n_joined, n_over;
} copy_line_t;

static fc_queue_t *shared_queues[N_PRIORITIES][MAX_QUEUES];
static uint64_t n_dealt[N_PRIORITIES], n_made;
static copy_line_t copy_lines[2][MAX_QUEUES];
static fc_lock_t copy_lock;      /* a copy takes its number and its place in a queue together */
static uint32_t n_waiting_calls; /* in all queues */

uint32_t fakecuda_n_waiting_calls(void) { return __atomic_load_n(&n_waiting_calls, __ATOMIC_SEQ_CST); }

static uint64_t at_most(uint64_t n, uint64_t most) { return n < most ? n : most; }

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* NULL: the operation is no copy between host and device, or streams have queues of their own. */
static copy_line_t *copy_line_of(const fc_op_t *op) {
    uint64_t n = at_most(fc_config.n_copy_queues, MAX_QUEUES);
    if (op->direction == FC_NO_COPY || fc_config.n_queues == 0 || n == 0)
        return NULL;
    return &copy_lines[op->direction == FC_COPY_UP][op->stream->id % n];
}

static void await_copy(const fc_op_t *op) {
    copy_line_t *line = copy_line_of(op);
    for (uint32_t n; line && (n = __atomic_load_n(&line->n_over, __ATOMIC_ACQUIRE)) != op->copy_number;)
        fc_sleep_on(&line->n_over, n);
}

static void end_copy(copy_line_t *line) {
    if (line == NULL)
        return;
    __atomic_add_fetch(&line->n_over, 1, __ATOMIC_RELEASE);
    fc_wake(&line->n_over);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void pause_sometimes(fc_queue_t *q) {
    if (fc_config.delay_us == 0)
        return;
    uint64_t r = fc_mix(q->random++);
    if (r % 4 == 0)
        fc_pause_us((r >> 8) % fc_config.delay_us);
}

static fc_op_t *take(fc_queue_t *q) {
    for (;;) {
        uint32_t seen = __atomic_load_n(&q->n_enqueued, __ATOMIC_ACQUIRE);
        fc_lock(&q->lock);
        fc_op_t *op = q->head;
        if (op) {
            q->head = op->next;
            q->tail = q->head ? q->tail : NULL;
        }
        int is_over = op == NULL && q->is_closing;
        fc_unlock(&q->lock);
        if (op || is_over)
            return op;
        fc_sleep_on(&q->n_enqueued, seen);
    }
}

static void give_room(fc_queue_t *q) {
    __atomic_sub_fetch(&q->n_commands, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&q->n_hindered, __ATOMIC_SEQ_CST))
        fc_wake(&q->n_commands);
}

/* After a sticky error work is dropped, but whoever waits goes on. */
static void run(fc_queue_t *q, fc_op_t *op) {
    copy_line_t *line = copy_line_of(op);
    fc_acquire(op);
    pause_sometimes(q);
    if (op->takes_room && op->tells)
        give_room(q);
    await_copy(op);
    if (op->is_order || !__atomic_load_n(&op->stream->context->sticky, __ATOMIC_RELAXED))
        op->run(op);
    end_copy(line);
    if (op->takes_room && !op->tells)
        give_room(q);
    fc_marker_drop(op->marker);
    free(op->params);
    free(op);
}

static void *queue_main(void *raw) {
    fc_queue_t *q = raw;
    fesetenv(FE_DFL_ENV); /* the creator's rounding is not the device's */
    for (fc_op_t *op = take(q); op; op = take(q))
        run(q, op);
    emu_end_thread();
    return NULL;
}

static void put(fc_queue_t *q, fc_op_t *op) {
    fc_lock(&q->lock);
    if (q->tail)
        q->tail->next = op;
    else
        q->head = op;
    q->tail = op;
    fc_unlock(&q->lock);
    __atomic_add_fetch(&q->n_enqueued, 1, __ATOMIC_RELEASE);
    fc_wake(&q->n_enqueued);
}

void fc_queue_append(CUstream s, const fc_op_t *given) {
    fc_op_t *op = emu_zeros(1, sizeof *op);
    *op = *given;
    op->stream = s;
    op->next = NULL;
    copy_line_t *line = copy_line_of(op);
    fc_release(op);
    if (line) {
        fc_lock(&copy_lock);
        op->copy_number = line->n_joined++;
    }
    put(s->queue, op);
    if (line)
        fc_unlock(&copy_lock);
}

/* ---- room -------------------------------------------------------------------------------------------------------- */

static int has_taken_room(fc_queue_t *q) {
    uint32_t n = __atomic_load_n(&q->n_commands, __ATOMIC_RELAXED);
    while (q->depth == 0 || n < q->depth)
        if (__atomic_compare_exchange_n(&q->n_commands, &n, n + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return 1;
    return 0;
}

/* libzfplugin knows what it has in flight: a stream of its own, alone on its queue, never makes it wait. */
void fc_queue_take_room(CUstream s) {
    fc_queue_t *q = s->queue;
    if (has_taken_room(q))
        return;
    if (s->is_plugin && q->n_streams == 1)
        fc_finding("a call of libzfplugin waits for room: more than %llu commands are in flight in a stream of its own",
                   (unsigned long long)q->depth);
    fc_hold(FC_CALL_ROOM);
    __atomic_add_fetch(&n_waiting_calls, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&q->n_hindered, 1, __ATOMIC_SEQ_CST);
    while (!has_taken_room(q))
        fc_sleep_on(&q->n_commands, (uint32_t)q->depth);
    __atomic_sub_fetch(&q->n_hindered, 1, __ATOMIC_SEQ_CST);
    __atomic_sub_fetch(&n_waiting_calls, 1, __ATOMIC_SEQ_CST);
    fc_let_go(FC_CALL_ROOM);
}

/* ---- dealing [fc_global_lock] ------------------------------------------------------------------------------------ */

static fc_queue_t *queue_new(void) {
    fc_queue_t *q = emu_zeros(1, sizeof *q);
    q->random = fc_config.seed * 1000003 + n_made++;
    q->depth = fc_config.depth == FC_DRAWN ? 900 + fc_mix(q->random) % 200 : fc_config.depth;
    if (pthread_create(&q->thread, NULL, queue_main, q) != 0) {
        free(q);
        return NULL;
    }
    return q;
}

/* Where the queue of a new stream stands, which may not be made yet. */
static fc_queue_t **place_for(int priority) {
    uint64_t n = at_most(fc_config.n_queues, MAX_QUEUES);
    uint64_t class = fc_config.deal == FC_DEAL_PRIORITY ? (uint64_t)(priority < 0 ? -priority : 0) % N_PRIORITIES : 0;
    return &shared_queues[class][(fc_config.deal == FC_DEAL_CHANCE ? fc_random() : n_dealt[class]++) % n];
}

fc_queue_t *fc_queue_for(int priority) {
    fc_queue_t *own = NULL, **place = fc_config.n_queues == 0 ? &own : place_for(priority);
    if (*place == NULL)
        *place = queue_new();
    if (*place)
        (*place)->n_streams++;
    return *place;
}

int fc_queue_leave(fc_queue_t *q) {
    if (--q->n_streams > 0)
        return 0;
    for (uint32_t i = 0; i < N_PRIORITIES * MAX_QUEUES; i++) /* no new stream gets it */
        if (shared_queues[i / MAX_QUEUES][i % MAX_QUEUES] == q)
            shared_queues[i / MAX_QUEUES][i % MAX_QUEUES] = NULL;
    return 1;
}

int fc_queue_has_own_work(const fc_queue_t *q) {
    return q->n_streams == 1 && __atomic_load_n(&q->n_commands, __ATOMIC_ACQUIRE) != 0;
}

void fc_queue_end(fc_queue_t *q) {
    fc_lock(&q->lock);
    q->is_closing = 1;
    fc_unlock(&q->lock);
    __atomic_add_fetch(&q->n_enqueued, 1, __ATOMIC_RELEASE);
    fc_wake(&q->n_enqueued);
    pthread_join(q->thread, NULL);
    free(q);
}
