/* tests/plugin/test_queue.c - commands of many pushers run in order on one thread; a full queue waits; the end drains.
 */
#define _GNU_SOURCE
#include "queue.h"

#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

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

START_TEST(many_pushers) { /* more than the queue holds: pushers wait */
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
END_TEST

/* ---- a queue that stands still ----------------------------------------------------------------------------------- */

static zfi_timeline_t gate;
static _Atomic uint32_t n_pushed;

static void wait_at_gate(void *unused) {
    (void)unused;
    zfi_timeline_wait(&gate, 1, a_minute, NULL);
}

static void count(void *unused) {
    (void)unused;
    n_run++;
}

static void *push_over_the_brim(void *unused) {
    (void)unused;
    for (uint32_t i = 0; i < ZFI_QUEUE_LENGTH + 100; i++) {
        zfi_queue_push(queue, count, NULL, 0, NULL);
        atomic_fetch_add(&n_pushed, 1);
    }
    return NULL;
}

START_TEST(full) {
    pthread_t pusher;
    uint64_t seq;
    zfi_timeline_init(&gate, "gate");
    create();
    ck_assert_int_eq(zfi_queue_push(queue, wait_at_gate, NULL, 0, &seq), ZF_OK);
    ck_assert_uint_eq(seq, 1);
    pthread_create(&pusher, NULL, push_over_the_brim, NULL);
    while (atomic_load(&n_pushed) < ZFI_QUEUE_LENGTH - 1)
        sched_yield();
    ck_assert_uint_le(atomic_load(&n_pushed),
                      ZFI_QUEUE_LENGTH); /* the command at the gate is taken: its place is free */
    ck_assert_uint_eq(zfi_timeline_now(&queue->executed), 0);
    ck_assert_int_eq(zfi_timeline_wait(&queue->executed, 1, 1000000, NULL), ZF_ERR_TIMEOUT);
    zfi_timeline_signal(&gate, 1);
    pthread_join(pusher, NULL);
    sync_queue();
    ck_assert_uint_eq(n_run, ZFI_QUEUE_LENGTH + 100);
    zfi_queue_destroy(queue);
    zfi_timeline_free(&gate);
}
END_TEST

START_TEST(destroy_runs_what_was_pushed) {
    create();
    for (int i = 0; i < 500; i++)
        zfi_queue_push(queue, count, NULL, 0, NULL);
    zfi_queue_destroy(queue);
    ck_assert_uint_eq(n_run, 500);
    zfi_queue_destroy(NULL);
}
END_TEST

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static unsigned char seen[ZFI_QUEUE_ARGS];

static void copy_args(void *raw) { memcpy(seen, raw, sizeof seen); }

START_TEST(arguments_are_copied) {
    unsigned char args[ZFI_QUEUE_ARGS + 1];
    for (size_t i = 0; i < sizeof args; i++)
        args[i] = (unsigned char)(i * 7 + 1);
    create();
    ck_assert_int_eq(zfi_queue_push(queue, copy_args, args, sizeof args, NULL), ZF_ERR_INTERNAL);
    ck_assert_uint_eq(zfi_queue_newest(queue), 0);
    ck_assert_int_eq(zfi_queue_push(queue, copy_args, args, ZFI_QUEUE_ARGS, NULL), ZF_OK);
    memset(args, 0, sizeof args);
    sync_queue();
    for (size_t i = 0; i < sizeof seen; i++)
        ck_assert_uint_eq(seen[i], (unsigned char)(i * 7 + 1));
    zfi_queue_destroy(queue);
}
END_TEST

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static char thread_name[32];
static int n_blocked;

static void look_at_thread(void *unused) {
    sigset_t blocked;
    (void)unused;
    pthread_getname_np(pthread_self(), thread_name, sizeof thread_name);
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    n_blocked = sigismember(&blocked, SIGTERM) + sigismember(&blocked, SIGINT) + sigismember(&blocked, SIGUSR1);
}

START_TEST(thread_is_named_and_takes_no_signals) {
    sigset_t mine;
    create();
    pthread_sigmask(SIG_SETMASK, NULL, &mine);
    ck_assert_int_eq(sigismember(&mine, SIGTERM), 0); /* the creator's mask is as it was */
    zfi_queue_push(queue, look_at_thread, NULL, 0, NULL);
    sync_queue();
    ck_assert_int_eq(n_blocked, 3);
    ck_assert_str_eq(thread_name, "test");
    zfi_queue_destroy(queue);
}
END_TEST

ZT_MAIN("queue", many_pushers, full, destroy_runs_what_was_pushed, arguments_are_copied,
        thread_is_named_and_takes_no_signals)
