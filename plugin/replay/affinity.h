/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/affinity.h - which cores the workers may use.
 *
 * Cores are shared in two steps. The ranks of a machine divide the cores of the affinity mask into equal, contiguous
 * shares. Within its share an instance takes cores that no other instance has, whichever process and user it is of. It
 * takes a core by a socket whose name has the core's number: the system lets one socket have a name. The name belongs
 * to no file and goes with the process, however that ends; a forked child keeps it while it runs. Names are seen within
 * a network namespace. A container sees none of other containers, so no thread is pinned there, unless the container
 * has CPUs of its own. */
#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdint.h>

#include "base/node.h"

typedef struct zfi_cpus {           /* what the system says, or a test */
    cpu_set_t mask;                 /* of this process */
    int first_sibling[CPU_SETSIZE]; /* lowest-numbered hyper-thread of the CPU's core */
    uint32_t n_machine;             /* CPUs of the machine, or of the control group that has a set of them */
    double quota;                   /* CPUs whose time the control groups give; INFINITY without a quota */
    int is_contained;               /* others may use these CPUs, and are not to be seen from here */
} zfi_cpus_t;

/* [control] Reads them from the system. */
void zfi_affinity_read(zfi_cpus_t *out);

/* [any-thread] Physical cores for this rank: its share of the mask, at most its share of the quota; at least 1. */
uint32_t zfi_affinity_n_cores(const zfi_cpus_t *cpus, const zfi_node_t *node);

/* [any-thread] The cores of the share by a CPU of each, in the order in which n_threads threads should take them: the
 * last one first, all but the first, which is left to the trainer. Returns their number; 0 where threads should stay
 * unpinned because the scheduler knows better: a share of fewer than four cores, no more cores than threads, a
 * container, or a mask whose division among the ranks is not known. */
uint32_t zfi_affinity_choose(const zfi_cpus_t *cpus, const zfi_node_t *node, uint32_t n_threads, int *out_cpus);

/* [control] Takes a core for each of n threads, or for as many as there are free ones. NULL: for none. */
struct zfi_cores *zfi_affinity_take(const zfi_node_t *node, uint32_t n_threads);
/* [control] Pins one thread to each core that was taken; threads beyond stay unpinned. Failure is harmless and ignored.
 * NULL is legal. */
void zfi_affinity_pin(const struct zfi_cores *cores, const pthread_t *threads, uint32_t n);
/* [control] Others may take them. NULL is legal. */
void zfi_affinity_give(struct zfi_cores *cores);
