/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_timeline.c - counters that only rise: deadlines, no lost wake-up. Poison is test_backends'. */
#define _GNU_SOURCE
#include "base/timeline.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/queue.h"
#include "suite.h"

enum { MINUTE_S = 60, N_VALUES = 20000 };
static const uint64_t a_minute = (uint64_t)MINUTE_S * 1000000000u;

static zfi_timeline_t timeline;

ZT_TEST(deadline) {
    uint64_t waited = 7, start = zfi_now_ns();
    zfi_timeline_init(&timeline, "t");
    ck_assert_int_eq(zfi_timeline_wait(&timeline, 1, 20000000, &waited), ZF_ERR_TIMEOUT);
    ck_assert_uint_ge(zfi_now_ns() - start, 20000000);
    ck_assert_uint_ge(waited, 20000007); /* increased, not set */
    waited = 7;
    zfi_timeline_signal(&timeline, 1);
    ck_assert_int_eq(zfi_timeline_wait(&timeline, 1, 0, &waited), ZF_OK);
    ck_assert_uint_eq(waited, 7);
    ck_assert_int_eq(zfi_timeline_wait(&timeline, 2, 0, NULL), ZF_ERR_TIMEOUT);
    zfi_timeline_free(&timeline);
}

/* One writer, many waiters for every value; what was written before the signal is seen after the wait. */
static uint64_t plain[N_VALUES + 1];

static void *follow(void *failed) {
    for (uint64_t v = 1; v <= N_VALUES; v++) {
        if (zfi_timeline_wait(&timeline, v, a_minute, NULL))
            *(int *)failed = 1;
        if (plain[v] != v * 3)
            *(int *)failed = 2;
    }
    return NULL;
}

ZT_TEST(no_wake_up_is_lost) {
    pthread_t threads[4];
    int failed[4] = {0};
    zfi_timeline_init(&timeline, "t");
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, follow, &failed[i]);
    for (uint64_t v = 1; v <= N_VALUES; v++) {
        plain[v] = v * 3;
        zfi_timeline_signal(&timeline, v);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_int_eq(failed[i], 0);
    }
    zfi_timeline_free(&timeline);
}

static void signal_when_told(void *arg) {
    char byte;
    if (read(*(int *)arg, &byte, 1) == 1)
        zfi_timeline_signal(&timeline, 1);
}

static void nothing(void *unused) { (void)unused; }

static void *push_within_two_seconds(void *queue) {
    zfi_queue_item_t item = {.fn = nothing};
    return zfi_queue_push_all(queue, 2000000000u, &item, 1, NULL) ? queue : NULL;
}

/* The child waits with a deadline of two seconds, and for room in a queue that is full; 0 where both came in time. */
static _Noreturn void wait_in_child(int said, int told) {
    zfi_queue_item_t item = {.fn = nothing};
    zfi_queue_t *queue;
    pthread_t thread;
    void *failed;
    zfi_timeline_init(&timeline, "t");
    if (zfi_queue_create(&queue, "test", NULL) || zfi_queue_push(queue, signal_when_told, &told, sizeof told, NULL))
        _exit(4);
    while (zfi_queue_push_all(queue, 100000000u, &item, 1, NULL) == ZF_OK) {
    }
    pthread_create(&thread, NULL, push_within_two_seconds, queue);
    usleep(100000); /* it waits */
    if (write(said, "w", 1) != 1)
        _exit(3);
    if (zfi_timeline_wait(&timeline, 1, 2000000000u, NULL) != ZF_OK)
        _exit(1);
    pthread_join(thread, &failed);
    _exit(failed ? 2 : 0);
}

/* It is stopped for longer than its deadline, and told a while after it goes on. */
ZT_TEST(a_stopped_process_has_its_time_left) {
    int said[2], told[2], status;
    char byte;
    ck_assert(pipe(said) == 0 && pipe(told) == 0);
    pid_t child = fork();
    if (child == 0)
        wait_in_child(said[1], told[0]);
    ck_assert_int_eq(read(said[0], &byte, 1), 1);
    ck_assert_int_eq(kill(child, SIGSTOP), 0);
    usleep(2500000);
    ck_assert_int_eq(kill(child, SIGCONT), 0);
    usleep(200000);
    ck_assert_int_eq(write(told[1], "t", 1), 1);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status 0x%x", (unsigned)status);
    for (int i = 0; i < 2; i++) {
        close(said[i]);
        close(told[i]);
    }
}

ZT_SUITE("timeline")
