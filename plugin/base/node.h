/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/node.h - the processes of one training job that share this machine, and the memory one of them may take.
 *
 * A launcher starts several ranks on a node and names them in the environment of each. */
#pragma once

#include <stdint.h>

typedef struct zfi_node {
    uint32_t rank, n_ranks; /* of this process among those of the job on this machine; n_ranks >= 1 */
} zfi_node_t;

/* [any-thread] Asks `get` (getenv, or a test's own function) what the launcher says. Read are
 * torchrun's variables, Open MPI's, those of MPICH and Intel MPI, and Slurm's. A pair that is not complete, or
 * contradicts itself, does not count. Without any: one rank. */
zfi_node_t zfi_node_find(char *(*get)(const char *name));

typedef struct zfi_room { /* bytes; UINT64_MAX where the system does not say */
    uint64_t available;   /* what may still be allocated: MemAvailable, or less where control groups leave less */
    uint64_t total;       /* of the machine, or the least limit of the control groups */
    uint64_t resident;    /* of `total`, held by this process alone */
    int is_of_cgroup;     /* control groups leave less than the machine has */
} zfi_room_t;

/* [any-thread] Reads them from the system. */
void zfi_room_read(zfi_room_t *out);

/* [any-thread] Bytes that one of n_ranks processes may allocate. That is never more than is available, less what is
 * promised to others of this process (arena.h). Among several ranks it is also at most an equal part of the total,
 * less what the process holds already: whichever binds first, each is given the same. */
uint64_t zfi_room_share(const zfi_room_t *room, uint64_t promised_nbytes, uint32_t n_ranks);
