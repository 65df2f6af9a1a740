/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/affinity.c - which cores the workers may use (contract in affinity.h). */
#include "replay/affinity.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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

/* A process of a container sees neither the names nor the threads of other jobs on the machine. */
static int is_in_container(void) {
    static const char machines[] = "pid:[4026531836]"; /* the namespace that every Linux begins with */
    char own[64];
    ssize_t n = readlink("/proc/self/ns/pid", own, sizeof own);
    return n >= 0 && (n != sizeof machines - 1 || memcmp(own, machines, sizeof machines - 1) != 0);
}

void zfi_affinity_read(zfi_cpus_t *out) {
    zf_cgroup_t cgroup;
    uint32_t n_online = zf_cpu_list_count("/sys/devices/system/cpu/online");
    memset(out, 0, sizeof *out);
    if (sched_getaffinity(0, sizeof out->mask, &out->mask))
        CPU_ZERO(&out->mask);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        out->first_sibling[cpu] = CPU_ISSET((size_t)cpu, &out->mask) ? read_first_sibling(cpu) : cpu;
    zf_cgroup_read("", &cgroup);
    out->n_machine = cgroup.n_cpus ? cgroup.n_cpus : n_online;
    out->quota = cgroup.quota_cpus;
    out->is_contained = (uint32_t)CPU_COUNT(&out->mask) >= n_online && is_in_container();
}

/* ---- what follows from it ---------------------------------------------------------------------------------------- */

/* Physical cores, each by its lowest CPU of the mask, rising. */
static uint32_t list_cores(const zfi_cpus_t *cpus, int *out_cpus) {
    uint8_t is_listed[CPU_SETSIZE] = {0}; /* a core, by its first sibling */
    uint32_t n = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, &cpus->mask) && !is_listed[cpus->first_sibling[cpu]]++)
            out_cpus[n++] = cpu;
    return n;
}

/* Ranks that share the mask. A launcher says how many ranks the machine has; where it has
 * given each a mask of its own, all masks together are no larger than the machine. */
static uint32_t count_sharers(const zfi_cpus_t *cpus, const zfi_node_t *node) {
    uint64_t all = (uint64_t)CPU_COUNT(&cpus->mask) * node->n_ranks, n;
    if (cpus->n_machine == 0)
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
    uint32_t begin, end = find_share(list_cores(cpus, list), count_sharers(cpus, node), node->rank, &begin);
    uint32_t n = end - begin;
    if (cpus->quota / node->n_ranks < n)
        n = (uint32_t)(cpus->quota / node->n_ranks);
    return n ? n : 1;
}

uint32_t zfi_affinity_choose(const zfi_cpus_t *cpus, const zfi_node_t *node, uint32_t n_threads, int *out_cpus) {
    int list[CPU_SETSIZE];
    uint32_t n = 0, begin, n_sharers = count_sharers(cpus, node);
    uint32_t end = find_share(list_cores(cpus, list), n_sharers, node->rank, &begin);
    int is_division_known = n_sharers == 1 || n_sharers == node->n_ranks;
    if (!is_division_known || cpus->is_contained || end - begin < FEWEST_CORES_TO_PIN || n_threads >= end - begin)
        return 0;
    for (uint32_t core = end - 1; core > begin; core--)
        out_cpus[n++] = list[core];
    return n;
}

/* ---- cores that an instance has ---------------------------------------------------------------------------------- */

typedef struct zfi_cores {
    uint32_t n;
    struct taken {
        int cpu, socket;
    } of[];
} zfi_cores_t;

/* A socket of the core's name, or -1 where another one has it. */
static int take_core(int first_sibling) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int n = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "zfplugin core %d", first_sibling);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 ||
        bind(fd, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) == 0)
        return fd;
    close(fd);
    return -1;
}

zfi_cores_t *zfi_affinity_take(const zfi_node_t *node, uint32_t n_threads) {
    zfi_cpus_t cpus;
    int chosen[CPU_SETSIZE];
    zfi_affinity_read(&cpus);
    uint32_t n = zfi_affinity_choose(&cpus, node, n_threads, chosen);
    zfi_cores_t *cores = n ? malloc(sizeof *cores + n_threads * sizeof *cores->of) : NULL;
    if (!cores)
        return NULL;
    cores->n = 0;
    for (uint32_t i = 0; i < n && cores->n < n_threads; i++) {
        int fd = take_core(cpus.first_sibling[chosen[i]]);
        if (fd >= 0)
            cores->of[cores->n++] = (struct taken){chosen[i], fd};
    }
    return cores;
}

void zfi_affinity_pin(const zfi_cores_t *cores, const pthread_t *threads, uint32_t n) {
    for (uint32_t i = 0; cores && i < cores->n && i < n; i++) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET((size_t)cores->of[i].cpu, &one);
        pthread_setaffinity_np(threads[i], sizeof one, &one);
    }
}

void zfi_affinity_give(zfi_cores_t *cores) {
    for (uint32_t i = 0; cores && i < cores->n; i++)
        close(cores->of[i].socket);
    free(cores);
}
