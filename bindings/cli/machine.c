/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/machine.c - CPU, memory and limits of this process (contract in machine.h). */
#include "machine.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { LINE_NBYTES = 512, MOST_CPUS = 4096, MOST_NODES = 1024 };

/* The text behind `key` in the first line of a small file that begins with it, without blanks and colon; 0: none. */
static int read_text(const char *path, const char *key, char *out, size_t nbytes) {
    char line[LINE_NBYTES];
    int is_found = 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    while (!is_found && fgets(line, sizeof line, file)) {
        const char *at = line + strlen(key);
        if (strncmp(line, key, strlen(key)) != 0)
            continue;
        at += strspn(at, " \t:");
        snprintf(out, nbytes, "%.*s", (int)strcspn(at, "\n"), at);
        is_found = 1;
    }
    fclose(file);
    return is_found;
}

static int read_u64(const char *path, const char *key, uint64_t *out) {
    char text[LINE_NBYTES];
    return read_text(path, key, text, sizeof text) && sscanf(text, "%" SCNu64, out) == 1;
}

static json_t *number_or_null(int is_known, uint64_t n) { return is_known ? json_integer((json_int_t)n) : json_null(); }

/* ---- cgroups ----------------------------------------------------------------------------------------------------- */

/* Calls `look` with the folder of this process's cgroup (version 2) and each one above it. */
static void for_each_cgroup(void (*look)(const char *dir, void *ctx), void *ctx) {
    char own[LINE_NBYTES], dir[LINE_NBYTES + 32];
    if (!read_text("/proc/self/cgroup", "0::", own, sizeof own))
        own[0] = '\0';
    for (;;) {
        char *slash = strrchr(own, '/');
        snprintf(dir, sizeof dir, "/sys/fs/cgroup%s", strcmp(own, "/") == 0 ? "" : own);
        look(dir, ctx);
        if (!slash || own[0] == '\0')
            return;
        *slash = '\0';
    }
}

static void look_for_memory(const char *dir, void *ctx) {
    uint64_t *least = ctx, limit;
    char path[LINE_NBYTES + 64];
    snprintf(path, sizeof path, "%s/memory.max", dir); /* "max" where there is none */
    if (read_u64(path, "", &limit) && limit < *least)
        *least = limit;
}

static void look_for_quota(const char *dir, void *ctx) {
    double *least = ctx, quota, period;
    char path[LINE_NBYTES + 64], text[LINE_NBYTES];
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    if (read_text(path, "", text, sizeof text) && sscanf(text, "%lf %lf", &quota, &period) == 2 && period > 0 &&
        quota / period < *least)
        *least = quota / period;
}

static uint64_t cgroup_memory(void) {
    uint64_t least = UINT64_MAX, old;
    for_each_cgroup(look_for_memory, &least);
    if (read_u64("/sys/fs/cgroup/memory/memory.limit_in_bytes", "", &old) && old < least)
        least = old;
    return least < (uint64_t)1 << 60 ? least : UINT64_MAX;
}

static double cgroup_quota(void) {
    double least = 1e9;
    uint64_t quota, period;
    for_each_cgroup(look_for_quota, &least);
    if (read_u64("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "", &quota) && quota < (uint64_t)1 << 40 &&
        read_u64("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "", &period) && period > 0 &&
        (double)quota / (double)period < least)
        least = (double)quota / (double)period;
    return least;
}

/* ---- CPU --------------------------------------------------------------------------------------------------------- */

/* A core is counted at the first of its threads that is in the mask. */
static uint32_t count_cores(const cpu_set_t *mask, size_t nbytes) {
    uint32_t n = 0;
    for (size_t cpu = 0; cpu < MOST_CPUS; cpu++) {
        char path[128], list[LINE_NBYTES];
        int is_first = 1;
        if (!CPU_ISSET_S(cpu, nbytes, mask))
            continue;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%zu/topology/thread_siblings_list", cpu);
        if (!read_text(path, "", list, sizeof list))
            list[0] = '\0';
        for (char *at = list; *at && is_first; at += strspn(at, ",")) {
            long first = strtol(at, &at, 10), last = first;
            if (*at == '-')
                last = strtol(at + 1, &at, 10);
            for (long sibling = first; sibling <= last && sibling < (long)cpu; sibling++)
                if (sibling >= 0 && CPU_ISSET_S((size_t)sibling, nbytes, mask))
                    is_first = 0;
            if (*at != ',')
                break;
        }
        n += (uint32_t)is_first;
    }
    return n;
}

static uint32_t count_nodes(void) {
    uint32_t n = 0;
    for (int node = 0; node < MOST_NODES; node++) {
        char path[64];
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d", node);
        n += access(path, F_OK) == 0;
    }
    return n ? n : 1;
}

json_t *zf_machine_cpu(void) {
    char model[LINE_NBYTES] = "unknown";
    size_t nbytes = CPU_ALLOC_SIZE(MOST_CPUS);
    cpu_set_t *mask = CPU_ALLOC(MOST_CPUS);
    double quota = cgroup_quota();
    int n_cpus = 0, n_cores = 0;
    if (mask && sched_getaffinity(0, nbytes, mask) == 0) {
        n_cpus = CPU_COUNT_S(nbytes, mask);
        n_cores = (int)count_cores(mask, nbytes);
    }
    if (mask)
        CPU_FREE(mask);
    if (!read_text("/proc/cpuinfo", "model name", model, sizeof model))
        read_text("/proc/cpuinfo", "CPU part", model, sizeof model);
    return json_pack("{s:s#, s:i, s:i, s:o, s:i}", "model", model, (int)strnlen(model, 120), "cpus",
                     n_cpus ? n_cpus : (int)sysconf(_SC_NPROCESSORS_ONLN), "cores", n_cores ? n_cores : 1, "quota_cpus",
                     quota < 1e9 ? json_real(quota) : json_null(), "numa_nodes", (int)count_nodes());
}

uint32_t zf_machine_n_threads(const json_t *cpu) {
    double n = (double)json_integer_value(json_object_get(cpu, "cores"));
    const json_t *quota = json_object_get(cpu, "quota_cpus");
    if (json_is_real(quota) && json_real_value(quota) < n)
        n = json_real_value(quota);
    return n < 1 ? 1 : n > 256 ? 256 : (uint32_t)n;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

json_t *zf_machine_memory(void) {
    uint64_t total = 0, available = 0, pages = 0, limit = cgroup_memory();
    char modes[LINE_NBYTES] = "", *mode = NULL;
    struct rlimit lock = {RLIM_INFINITY, RLIM_INFINITY};
    int has_total = read_u64("/proc/meminfo", "MemTotal:", &total);
    int has_available = read_u64("/proc/meminfo", "MemAvailable:", &available);
    int has_pages = read_u64("/proc/meminfo", "HugePages_Total:", &pages);
    getrlimit(RLIMIT_MEMLOCK, &lock);
    if (read_text("/sys/kernel/mm/transparent_hugepage/enabled", "", modes, sizeof modes) && strchr(modes, '[')) {
        mode = strchr(modes, '[') + 1; /* "always [madvise] never" */
        mode[strcspn(mode, "]")] = '\0';
    }
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "total_nbytes", number_or_null(has_total, total * 1024),
                     "available_nbytes", number_or_null(has_available, available * 1024), "cgroup_limit_nbytes",
                     number_or_null(limit != UINT64_MAX, limit), "memlock_nbytes",
                     number_or_null(lock.rlim_cur != RLIM_INFINITY, lock.rlim_cur), "transparent_huge_pages",
                     mode ? json_string(mode) : json_null(), "huge_pages", number_or_null(has_pages, pages));
}
