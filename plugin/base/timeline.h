/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/timeline.h - a counter that only rises, and waiting for it: the plugin's only means of ordering threads.
 *
 * Each timeline has one writer at a time and any number of waiters. Everything that the writer did before signal(v) is
 * visible to a waiter that has seen a value >= v (release store, acquire load). Every wait has a deadline, and ends
 * early when the instance is poisoned; poison raises the counter to all ones, so that hosts that watch it are released
 * too. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "zf/types.h"

typedef struct zfi_timeline {
    _Atomic uint64_t value;     /* partner: every wait */
    _Atomic uint32_t n_waiters; /* written under lock; read by signal to skip the lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    const char *name; /* for time-out messages */
    /* A second word that follows the value, where a device waits for it; NULL: none. At most ZFI_MIRROR_POISON, since
     * devices compare cyclically. The one that sets it stores the value there afterwards; signal stores the value first
     * and then looks for the mirror, so that no value is missed. */
    _Atomic uint64_t *_Atomic mirror;
    _Atomic uint32_t n_sets; /* calls of zfi_timeline_set: the value may have fallen */
} zfi_timeline_t;

#define ZFI_TIMELINE_POISON UINT64_MAX
#define ZFI_MIRROR_POISON ((uint64_t)1 << 62)

void zfi_timeline_init(zfi_timeline_t *timeline, const char *name);
void zfi_timeline_free(zfi_timeline_t *timeline);

static inline uint64_t zfi_timeline_now(const zfi_timeline_t *timeline) {
    return atomic_load_explicit(&timeline->value, memory_order_acquire);
}

/* [any-thread] A word that follows the value from now on; NULL: no more. The word outlives its use. */
void zfi_timeline_set_mirror(zfi_timeline_t *timeline, _Atomic uint64_t *word);

/* [writer] value must be greater than the present one; ignored once poisoned. */
void zfi_timeline_signal(zfi_timeline_t *timeline, uint64_t value);

/* [control] Any value, while nobody waits and nobody signals: a loaded run's clocks. Ignored once poisoned. */
void zfi_timeline_set(zfi_timeline_t *timeline, uint64_t value);

/* [any-thread] Releases every waiter, now and later. */
void zfi_timeline_poison(zfi_timeline_t *timeline);

/* [any-thread] ZF_OK, ZF_ERR_POISONED, or ZF_ERR_TIMEOUT. Time in which the process was stopped (SIGSTOP, a debugger, a
 * machine that slept) is not part of timeout_ns: what it waits for stood still too. *waited_ns (may be NULL) is
 * increased by the time slept. */
zf_status_t zfi_timeline_wait(zfi_timeline_t *timeline, uint64_t value, uint64_t timeout_ns, uint64_t *waited_ns);

enum { ZFI_SLICE_NS = 50000000 }; /* a wait looks at the clock at least so often */

/* For a loop that waits: how long the process has run since the clock was made. */
typedef struct zfi_run_clock {
    uint64_t last_ns, run_ns;
} zfi_run_clock_t;

/* [any-thread] Begins now. */
zfi_run_clock_t zfi_run_clock(void);
/* [whose clock it is] The time so far. More than two slices between two calls count as two: the process did not run. */
uint64_t zfi_run_ns(zfi_run_clock_t *clock);
/* [lock held] Waits for a signal or for a slice of the time left, from which it takes what the process has run. */
void zfi_sleep_once(pthread_cond_t *changed, pthread_mutex_t *lock, uint64_t *left_ns);

/* Monotonic clock. */
uint64_t zfi_now_ns(void);
