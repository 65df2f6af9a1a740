/* SPDX-License-Identifier: Apache-2.0 */
/* lib/cgroup.h - the limits that control groups set to this process.
 *
 * A limit of any level holds for all below it, so every level is read from the process's own group up to the highest
 * one that is mounted here, in version 1, version 2 and both side by side. A container that sees less than the whole
 * tree has its own group where the tree is mounted. */
#pragma once

#include <stdint.h>

typedef struct zf_cgroup {
    uint64_t memory_limit; /* bytes, the lowest of all levels; UINT64_MAX without one */
    uint64_t memory_left;  /* bytes that may be taken before a level meets its limit; pages of cached files, which the
                              system drops for them, are free */
    double quota_cpus;     /* CPUs whose time may be used, the least of all levels; INFINITY without a quota */
    uint32_t n_cpus;       /* CPUs of the nearest group with a set of them; 0 without one */
    uint64_t threads_limit, threads_left; /* of the level that leaves the fewest; UINT64_MAX without one */
} zf_cgroup_t;

/* [any-thread] Reads them from the files of a system below `root`: "" is this machine's. */
void zf_cgroup_read(const char *root, zf_cgroup_t *out);

/* [any-thread] CPUs of a file with a list like "0-3,8"; 0 where there is no such file. */
uint32_t zf_cpu_list_count(const char *path);
