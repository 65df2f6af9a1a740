/* plugin/offload/affinity.c - which cores the workers may use (contract in affinity.h). */
#include "offload/affinity.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>

enum { FEWEST_CORES_TO_PIN = 4 };

/* The lowest-numbered hyper-thread of a CPU's core, or the CPU itself where the system does not say. */
static int first_sibling(int cpu) {
    char path[128];
    int first = cpu;
    FILE *file;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    file = fopen(path, "re");
    if (!file)
        return cpu;
    if (fscanf(file, "%d", &first) != 1)
        first = cpu;
    fclose(file);
    return first;
}

/* Physical cores of the mask, one CPU each, rising. */
static uint32_t list_cores(int *cpus, uint32_t capacity) {
    cpu_set_t mask;
    uint32_t n = 0;
    if (sched_getaffinity(0, sizeof mask, &mask))
        return 0;
    for (int cpu = 0; cpu < CPU_SETSIZE && n < capacity; cpu++) {
        int sibling;
        if (!CPU_ISSET((size_t)cpu, &mask))
            continue;
        sibling = first_sibling(cpu);
        if (sibling == cpu || !CPU_ISSET((size_t)sibling, &mask))
            cpus[n++] = cpu;
    }
    return n;
}

static uint32_t quota_cores(void) {
    uint64_t quota = 0, period = 0;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (!file)
        return UINT32_MAX;
    if (fscanf(file, "%" SCNu64 " %" SCNu64, &quota, &period) != 2)
        period = 0;
    fclose(file);
    if (period == 0 || quota / period >= UINT32_MAX)
        return UINT32_MAX;
    return quota < period ? 1 : (uint32_t)(quota / period);
}

uint32_t zfi_affinity_n_cores(void) {
    int cpus[CPU_SETSIZE];
    uint32_t n = list_cores(cpus, CPU_SETSIZE), quota = quota_cores();
    if (n > quota)
        n = quota;
    return n ? n : 1;
}

void zfi_affinity_pin(const pthread_t *threads, uint32_t n) {
    int cpus[CPU_SETSIZE];
    uint32_t n_cores = list_cores(cpus, CPU_SETSIZE);
    if (n_cores < FEWEST_CORES_TO_PIN || n >= n_cores)
        return;
    for (uint32_t i = 0; i < n; i++) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET((size_t)cpus[n_cores - 1 - i], &one);
        pthread_setaffinity_np(threads[i], sizeof one, &one);
    }
}
