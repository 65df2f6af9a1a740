/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakecuda/sync.c - locks and sleeping by bare futexes, and edges that the thread sanitizer is told of. */
#define _GNU_SOURCE
#include "fake.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WEAK(name) extern void name(const void *) __attribute__((weak))
WEAK(__tsan_acquire);
WEAK(__tsan_release);

void fc_release(const void *at) {
    if (__tsan_release)
        __tsan_release(at);
}

void fc_acquire(const void *at) {
    if (__tsan_acquire)
        __tsan_acquire(at);
}

void fc_sleep_on(uint32_t *word, uint32_t value) {
    struct timespec most = {0, 50 * 1000 * 1000};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &most, NULL, 0);
}

void fc_wake(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0); }

/* 0: free, 1: held, 2: held and somebody sleeps. */
void fc_lock(fc_lock_t *lock) {
    uint32_t free_word = 0;
    if (__atomic_compare_exchange_n(&lock->word, &free_word, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return;
    while (__atomic_exchange_n(&lock->word, 2, __ATOMIC_ACQUIRE) != 0)
        fc_sleep_on(&lock->word, 2);
}

void fc_unlock(fc_lock_t *lock) {
    if (__atomic_exchange_n(&lock->word, 0, __ATOMIC_RELEASE) == 2)
        fc_wake(&lock->word);
}

void fc_pause_us(uint64_t us) {
    struct timespec t = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    syscall(SYS_nanosleep, &t, NULL);
}

uint64_t fc_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
