/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/timeline.c - a counter that only rises, and waiting for it (contract in timeline.h).
 *
 * signal() stores the value and then looks for waiters; wait() announces itself and then looks at the value. Both pairs
 * are sequentially consistent, so one of the two always sees the other and no wake-up is lost. */
#include "base/timeline.h"

#include <time.h>

uint64_t zfi_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Absolute CLOCK_MONOTONIC time of now + timeout_ns. */
static void set_deadline(uint64_t timeout_ns, struct timespec *out) {
    uint64_t limit = (uint64_t)1 << 60; /* more than thirty years: cannot overflow */
    uint64_t at = zfi_now_ns() + (timeout_ns < limit ? timeout_ns : limit);
    out->tv_sec = (time_t)(at / 1000000000u);
    out->tv_nsec = (long)(at % 1000000000u);
}

void zfi_timeline_init(zfi_timeline_t *timeline, const char *name) {
    pthread_condattr_t attr;
    atomic_init(&timeline->value, 0);
    atomic_init(&timeline->n_waiters, 0);
    timeline->name = name;
    atomic_init(&timeline->mirror, NULL);
    atomic_init(&timeline->n_sets, 0);
    pthread_mutex_init(&timeline->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&timeline->changed, &attr);
    pthread_condattr_destroy(&attr);
}

void zfi_timeline_free(zfi_timeline_t *timeline) {
    pthread_cond_destroy(&timeline->changed);
    pthread_mutex_destroy(&timeline->lock);
}

static void wake(zfi_timeline_t *timeline) {
    if (atomic_load(&timeline->n_waiters) == 0)
        return;
    pthread_mutex_lock(&timeline->lock);
    pthread_cond_broadcast(&timeline->changed);
    pthread_mutex_unlock(&timeline->lock);
}

static void raise_word(_Atomic uint64_t *word, uint64_t value) {
    uint64_t old = atomic_load(word);
    while (old < value)
        if (atomic_compare_exchange_weak(word, &old, value))
            break;
}

static uint64_t mirrored(uint64_t value) { return value < ZFI_MIRROR_POISON ? value : ZFI_MIRROR_POISON; }

static void raise_mirror(zfi_timeline_t *timeline, uint64_t value) {
    _Atomic uint64_t *word = atomic_load(&timeline->mirror);
    if (word)
        raise_word(word, mirrored(value));
}

void zfi_timeline_set_mirror(zfi_timeline_t *timeline, _Atomic uint64_t *word) {
    atomic_store(&timeline->mirror, word);
    if (word)
        raise_word(word, mirrored(atomic_load(&timeline->value)));
}

void zfi_timeline_signal(zfi_timeline_t *timeline, uint64_t value) {
    raise_word(&timeline->value, value);
    raise_mirror(timeline, value);
    wake(timeline);
}

void zfi_timeline_set(zfi_timeline_t *timeline, uint64_t value) {
    uint64_t old = atomic_load(&timeline->value);
    _Atomic uint64_t *word = atomic_load(&timeline->mirror);
    while (old != ZFI_TIMELINE_POISON)
        if (atomic_compare_exchange_weak(&timeline->value, &old, value))
            break;
    atomic_fetch_add(&timeline->n_sets, 1);
    if (word)
        atomic_store(word, mirrored(atomic_load(&timeline->value)));
}

void zfi_timeline_poison(zfi_timeline_t *timeline) {
    atomic_store(&timeline->value, ZFI_TIMELINE_POISON);
    raise_mirror(timeline, ZFI_TIMELINE_POISON);
    wake(timeline);
}

zfi_run_clock_t zfi_run_clock(void) { return (zfi_run_clock_t){.last_ns = zfi_now_ns()}; }

uint64_t zfi_run_ns(zfi_run_clock_t *clock) {
    uint64_t now = zfi_now_ns(), elapsed = now - clock->last_ns, most = 2 * ZFI_SLICE_NS;
    clock->last_ns = now;
    clock->run_ns += elapsed < most ? elapsed : most;
    return clock->run_ns;
}

void zfi_sleep_once(pthread_cond_t *changed, pthread_mutex_t *lock, uint64_t *left_ns) {
    zfi_run_clock_t clock = zfi_run_clock();
    struct timespec deadline;
    set_deadline(*left_ns < ZFI_SLICE_NS || *left_ns == UINT64_MAX ? *left_ns : ZFI_SLICE_NS, &deadline);
    (void)pthread_cond_timedwait(changed, lock, &deadline);
    uint64_t passed = zfi_run_ns(&clock);
    if (*left_ns != UINT64_MAX)
        *left_ns -= passed < *left_ns ? passed : *left_ns;
}

/* A host's thread may be cancelled here; it must not go with the lock. */
static zf_status_t sleep_until(zfi_timeline_t *timeline, uint64_t value, uint64_t timeout_ns) {
    int cancel_state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    pthread_mutex_lock(&timeline->lock);
    atomic_fetch_add(&timeline->n_waiters, 1);
    while (atomic_load(&timeline->value) < value && timeout_ns)
        zfi_sleep_once(&timeline->changed, &timeline->lock, &timeout_ns);
    atomic_fetch_sub(&timeline->n_waiters, 1);
    pthread_mutex_unlock(&timeline->lock);
    pthread_setcancelstate(cancel_state, NULL);
    return zfi_timeline_now(timeline) < value ? ZF_ERR_TIMEOUT : ZF_OK;
}

zf_status_t zfi_timeline_wait(zfi_timeline_t *timeline, uint64_t value, uint64_t timeout_ns, uint64_t *waited_ns) {
    zf_status_t st = ZF_OK;
    if (zfi_timeline_now(timeline) < value) {
        uint64_t start = zfi_now_ns();
        st = sleep_until(timeline, value, timeout_ns);
        if (waited_ns)
            *waited_ns += zfi_now_ns() - start;
    }
    return zfi_timeline_now(timeline) == ZFI_TIMELINE_POISON ? ZF_ERR_POISONED : st;
}
