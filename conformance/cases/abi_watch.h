/* SPDX-License-Identifier: Apache-2.0 */
/* abi_watch.h - a look at the process: what a plugin must leave as it was. */
#pragma once

#include <sched.h>
#include <signal.h>
#include <stdint.h>

typedef struct abi_watch {
    int n_threads, n_files;
    uint64_t environment; /* hash */
    uint64_t signals;     /* hash of every handler, and of the calling thread's mask */
    char locale[256];     /* of the process */
    const void *thread_locale;
    char directory[512];
    unsigned umask;
    cpu_set_t affinity; /* of the calling thread, as the next two */
    int policy, nice;
    int rounding;
    uint32_t fp_control; /* MXCSR or FPCR, without the sticky flags */
    uint16_t x87_control;
} abi_watch_t;

/* [any-thread] */
void abi_watch(abi_watch_t *out);

/* Waits up to a second until as few threads are left as `want`; returns the number. A thread that was joined may be
 * seen for a moment. */
int abi_watch_threads(int want);

/* Writable memory of this process, in bytes. */
double abi_data_nbytes(void);

/* Memory of this process that is not a file's and lies in the machine, in bytes. */
double abi_held_nbytes(void);

/* Bytes that are allocated, of all threads; 0 where the C library does not tell. */
double abi_heap_nbytes(void);
