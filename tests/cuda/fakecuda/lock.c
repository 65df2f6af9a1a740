/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakecuda/lock.c - calls during which a driver keeps other threads' calls waiting.
 *
 * Model. Some calls wait until everything that is enqueued is over, and hold the driver meanwhile: whoever frees
 * memory, page-locks it, makes a stream or loads code does, and a call that waits for room in a queue holds it, too.
 * Which other calls stand behind each of them differs from driver to driver, so it is a table: FAKECUDA_LOCKS. By
 * default all of them do, which is the strictest driver there can be. */
#include "fake.h"

#include <stdlib.h>

/* Kinds of calls that may have to stand behind another one. */
enum { QUERIES = 1, ORDERS = 2, COPIES = 4, LAUNCHES = 8, MEMORY = 16, ALL = 31 };

static const struct {
    const char *begin; /* of the function's name; the first row counts */
    unsigned kind;
} kinds[] = {
    {"cuCtxSynchronize", MEMORY},
    {"cuCtx", 0},
    {"cuThread", 0},
    {"cuDevice", 0},
    {"cuInit", 0},
    {"cuGet", 0},
    {"cuDriver", 0},
    {"cuStreamQuery", QUERIES},
    {"cuEventQuery", QUERIES},
    {"cuStreamIsCapturing", QUERIES},
    {"cuMemGet", QUERIES},
    {"cuMemHostGet", QUERIES},
    {"cuStreamGet", QUERIES},
    {"cuEventRecord", ORDERS},
    {"cuStreamWait", ORDERS},
    {"cuStreamWrite", ORDERS},
    {"cuMemcpy", COPIES},
    {"cuMemset", COPIES},
    {"cuLaunch", LAUNCHES},
    {"", MEMORY},
};

static const char *const callers[FC_N_CALLS] = {"free", "alloc", "pin", "stream", "load", "room"};

static unsigned stand[FC_N_CALLS]; /* kinds that stand behind a caller */
static uint32_t held_by;           /* 1 + the caller; 0: nobody */
static __thread int n_held;        /* by this thread */

/* FAKECUDA_LOCKS: callers, each with the kinds that stand behind it: "free:ql load:qoclm" (queries, orders, copies,
 * launches, memory and objects). Unset: all kinds behind all callers. "none": nobody holds the driver. */
void fc_locks_read(const char *text) {
    static const char letters[] = "qoclm";
    for (int i = 0; i < FC_N_CALLS; i++) {
        const char *at = text ? strstr(text, callers[i]) : NULL;
        unsigned behind = text ? 0 : ALL;
        at = at ? at + strlen(callers[i]) : NULL;
        if (at && *at != ':')
            behind = ALL;
        for (; at && *at && *at != ' '; at++)
            for (unsigned k = 0; k < sizeof letters - 1; k++)
                behind |= *at == letters[k] ? 1u << k : 0;
        stand[i] = behind;
    }
}

static unsigned kind_of(const char *function) {
    uint32_t i = 0;
    while (strncmp(function, kinds[i].begin, strlen(kinds[i].begin)) != 0)
        i++;
    return kinds[i].kind;
}

void fc_stand_behind(const char *function) {
    uint32_t now;
    if (n_held || !__atomic_load_n(&held_by, __ATOMIC_ACQUIRE))
        return;
    unsigned kind = kind_of(function);
    while ((now = __atomic_load_n(&held_by, __ATOMIC_ACQUIRE)) != 0 && (stand[now - 1] & kind))
        fc_sleep_on(&held_by, now);
}

void fc_hold(fc_call_t call) {
    uint32_t now = 0;
    if (!stand[call] || n_held++ > 0)
        return;
    while (!__atomic_compare_exchange_n(&held_by, &now, 1 + call, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        fc_sleep_on(&held_by, now);
        now = 0;
    }
}

void fc_let_go(fc_call_t call) {
    if (!stand[call] || --n_held > 0)
        return;
    __atomic_store_n(&held_by, 0, __ATOMIC_RELEASE);
    fc_wake(&held_by);
}

CUresult fc_drain(fc_call_t call) {
    if (!stand[call])
        return CUDA_SUCCESS;
    fc_hold(call);
    CUresult st = fc_synchronise_context(&fc_primary);
    fc_let_go(call);
    return st;
}
