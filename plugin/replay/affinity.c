/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/affinity.c - which cores the workers may use (contract in affinity.h). */
#include "replay/affinity.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cgroup.h"

enum { FEWEST_CORES_TO_PIN = 4 };

/* ---- what the system says ---------------------------------------------------------------------------------------- */

static int read_first_sibling(int cpu) {
    char path[128];
    int first = cpu;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *file = fopen(path, "re");
    if (!file)
        return cpu;
    if (fscanf(file, "%d", &first) != 1 || first < 0 || first >= CPU_SETSIZE)
        first = cpu;
    fclose(file);
    return first;
}

/* Counts the threads of this process that one CPU alone may run. A thread that ends meanwhile does not count. */
static void read_pinned(uint32_t *n_pinned) {
    DIR *dir = opendir("/proc/self/task");
    const struct dirent *entry;
    if (!dir)
        return;
    while ((entry = readdir(dir)) != NULL) {
        cpu_set_t mask;
        pid_t id = (pid_t)strtol(entry->d_name, NULL, 10);
        if (id <= 0 || sched_getaffinity(id, sizeof mask, &mask) || CPU_COUNT(&mask) != 1)
            continue;
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET((size_t)cpu, &mask))
                n_pinned[cpu]++;
    }
    closedir(dir);
}

void zfi_affinity_read(zfi_cpus_t *out) {
    zf_cgroup_t cgroup;
    memset(out, 0, sizeof *out);
    if (sched_getaffinity(0, sizeof out->mask, &out->mask))
        CPU_ZERO(&out->mask);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        out->first_sibling[cpu] = CPU_ISSET((size_t)cpu, &out->mask) ? read_first_sibling(cpu) : cpu;
    zf_cgroup_read("", &cgroup);
    out->n_machine = cgroup.n_cpus ? cgroup.n_cpus : zf_cpu_list_count("/sys/devices/system/cpu/online");
    out->quota = cgroup.quota_cpus;
    read_pinned(out->n_pinned);
}

/* ---- what follows from it ---------------------------------------------------------------------------------------- */

/* Physical cores, each by its lowest CPU of the mask, rising. The account of a core is that of all its CPUs. */
static uint32_t list_cores(const zfi_cpus_t *cpus, int *out_cpus, uint32_t *out_n_pinned) {
    int place[CPU_SETSIZE]; /* of a core, by its first sibling */
    uint32_t n = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        place[cpu] = -1;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        int first = cpus->first_sibling[cpu];
        if (!CPU_ISSET((size_t)cpu, &cpus->mask))
            continue;
        if (place[first] < 0) {
            out_cpus[n] = cpu;
            out_n_pinned[n] = 0;
            place[first] = (int)n++;
        }
        out_n_pinned[place[first]] += cpus->n_pinned[cpu];
    }
    return n;
}

/* Ranks that share the mask. The configuration says so. A launcher says how many ranks the machine has; where it has
 * given each a mask of its own, all masks together are no larger than the machine. */
static uint32_t count_sharers(const zfi_cpus_t *cpus, const zfi_node_t *node) {
    uint64_t all = (uint64_t)CPU_COUNT(&cpus->mask) * node->n_ranks, n;
    if (node->is_given || cpus->n_machine == 0)
        return node->n_ranks;
    n = (all + cpus->n_machine / 2) / cpus->n_machine;
    return n < 1 ? 1 : n > node->n_ranks ? node->n_ranks : (uint32_t)n;
}

/* Cores [*out_begin, end) of n are this rank's; returns end. Where ranks are more than cores, they share some. */
static uint32_t find_share(uint32_t n, uint32_t n_sharers, uint32_t rank, uint32_t *out_begin) {
    *out_begin = (uint32_t)((uint64_t)n * (rank % n_sharers) / n_sharers);
    return (uint32_t)((uint64_t)n * (rank % n_sharers + 1) / n_sharers);
}

uint32_t zfi_affinity_n_cores(const zfi_cpus_t *cpus, const zfi_node_t *node) {
    int list[CPU_SETSIZE];
    uint32_t n_pinned[CPU_SETSIZE], begin;
    uint32_t end = find_share(list_cores(cpus, list, n_pinned), count_sharers(cpus, node), node->rank, &begin);
    uint32_t n = end - begin;
    if (cpus->quota / node->n_ranks < n)
        n = (uint32_t)(cpus->quota / node->n_ranks);
    return n ? n : 1;
}

uint32_t zfi_affinity_choose(const zfi_cpus_t *cpus, const zfi_node_t *node, uint32_t n_threads, int *out_cpus) {
    int list[CPU_SETSIZE];
    uint32_t n_pinned[CPU_SETSIZE], begin, n_sharers = count_sharers(cpus, node);
    uint32_t end = find_share(list_cores(cpus, list, n_pinned), n_sharers, node->rank, &begin);
    int is_division_known = n_sharers == 1 || n_sharers == node->n_ranks;
    if (!is_division_known || end - begin < FEWEST_CORES_TO_PIN || n_threads >= end - begin)
        return 0;
    for (uint32_t i = 0; i < n_threads; i++) {
        uint32_t best = end - 1;
        for (uint32_t core = end - 1; core > begin; core--)
            if (n_pinned[core] < n_pinned[best])
                best = core;
        out_cpus[i] = list[best];
        n_pinned[best]++;
    }
    return n_threads;
}

void zfi_affinity_pin(const zfi_node_t *node, const pthread_t *threads, uint32_t n) {
    zfi_cpus_t cpus;
    int chosen[CPU_SETSIZE];
    if (n > CPU_SETSIZE)
        return;
    zfi_affinity_read(&cpus);
    n = zfi_affinity_choose(&cpus, node, n, chosen);
    for (uint32_t i = 0; i < n; i++) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET((size_t)chosen[i], &one);
        pthread_setaffinity_np(threads[i], sizeof one, &one);
    }
}
