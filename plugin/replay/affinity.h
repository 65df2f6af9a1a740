/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/affinity.h - which cores the workers may use.
 *
 * Cores are shared in two steps. The ranks of a machine divide the cores of the affinity mask into equal, contiguous
 * shares. Within its share a process takes the cores that the fewest threads are pinned to, whoever pinned them: the
 * workers of another instance, or a library. The system keeps that account itself (each thread's own mask), so that
 * nothing in this process has to be shared between instances. Two instances that start in the same millisecond may
 * still pick the same cores, which costs time and nothing else. */
#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdint.h>

#include "base/node.h"

typedef struct zfi_cpus {           /* what the system says, or a test */
    cpu_set_t mask;                 /* of this process */
    int first_sibling[CPU_SETSIZE]; /* lowest-numbered hyper-thread of the CPU's core */
    uint32_t n_pinned[CPU_SETSIZE]; /* threads of this process that may run on this CPU only */
    uint32_t n_machine;             /* CPUs of the machine, or of the control group that has a set of them */
    double quota;                   /* CPUs whose time the control groups give; INFINITY without a quota */
} zfi_cpus_t;

/* [control] Reads them from the system. */
void zfi_affinity_read(zfi_cpus_t *out);

/* [any-thread] Physical cores for this rank: its share of the mask, at most its share of the quota; at least 1. */
uint32_t zfi_affinity_n_cores(const zfi_cpus_t *cpus, const zfi_node_t *node);

/* [any-thread] One CPU for each of n_threads threads, the least used cores of the share first and of those the last;
 * the first core of the share is left to the trainer. Returns n_threads, or 0 where threads should stay unpinned
 * because the scheduler knows better: a share of fewer than four cores, no more cores than threads, or a mask whose
 * division among the ranks is not known. */
uint32_t zfi_affinity_choose(const zfi_cpus_t *cpus, const zfi_node_t *node, uint32_t n_threads, int *out_cpus);

/* [control] Pins the threads to what zfi_affinity_choose says. Failure is harmless and ignored. */
void zfi_affinity_pin(const zfi_node_t *node, const pthread_t *threads, uint32_t n);
