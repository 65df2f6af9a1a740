/* SPDX-License-Identifier: Apache-2.0 */
/* lib/cgroup.c - the limits that control groups set to this process (contract in cgroup.h).
 *
 * /proc/self/mountinfo says where each hierarchy is mounted, and which group of it is the mount's root.
 * /proc/self/cgroup names the process's group in each hierarchy. Version 1 has a hierarchy for each controller or a few
 * of them, version 2 has one. A level that lacks a file has no such limit. */
#include "cgroup.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char separators[] = " \n";

typedef struct version {
    const char *type; /* of its file system */
    const char *memory_limit, *memory_used, *cached[2], *cpus;
} version_t;

static const version_t versions[] = {
    {"cgroup",
     "memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file ", "total_active_file "},
     "cpuset.effective_cpus"},
    {"cgroup2", "memory.max", "memory.current", {"inactive_file ", "active_file "}, "cpuset.cpus.effective"},
};

typedef struct mount {
    const version_t *version;
    const char *root, *point, *options;
} mount_t;

/* ---- one level --------------------------------------------------------------------------------------------------- */

static FILE *open_in(const char *folder, const char *name) {
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    return n < (int)sizeof path ? fopen(path, "re") : NULL;
}

/* The number behind `key` at the begin of a line; `otherwise` where there is none, or a word like "max". */
static uint64_t read_number(const char *folder, const char *name, const char *key, uint64_t otherwise) {
    char line[256];
    uint64_t value = otherwise;
    FILE *file = open_in(folder, name);
    if (!file)
        return otherwise;
    while (fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0) {
            if (sscanf(line + strlen(key), "%" SCNu64, &value) != 1)
                value = otherwise;
            break;
        }
    fclose(file);
    return value;
}

static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

static void read_memory(const char *folder, const version_t *version, zf_cgroup_t *out) {
    const uint64_t unlimited = UINT64_C(1) << 60; /* what version 1 says then is a little below 2^63 */
    uint64_t limit = read_number(folder, version->memory_limit, "", UINT64_MAX), used;
    if (limit >= unlimited)
        return;
    used = read_number(folder, version->memory_used, "", 0);
    for (int i = 0; i < 2; i++)
        used = less(used, read_number(folder, "memory.stat", version->cached[i], 0));
    if (limit < out->memory_limit)
        out->memory_limit = limit;
    if (less(limit, used) < out->memory_left)
        out->memory_left = less(limit, used);
}

static void read_quota(const char *folder, zf_cgroup_t *out) {
    int64_t quota = -1, period = 0;
    FILE *file = open_in(folder, "cpu.max");
    if (file) { /* version 2 */
        if (fscanf(file, "%" SCNd64 " %" SCNd64, &quota, &period) != 2)
            period = 0;
        fclose(file);
    } else {
        quota = (int64_t)read_number(folder, "cpu.cfs_quota_us", "", 0); /* "-1" without one */
        period = (int64_t)read_number(folder, "cpu.cfs_period_us", "", 0);
    }
    if (quota > 0 && period > 0 && (double)quota / (double)period < out->quota_cpus)
        out->quota_cpus = (double)quota / (double)period;
}

static void read_threads(const char *folder, zf_cgroup_t *out) {
    uint64_t limit = read_number(folder, "pids.max", "", UINT64_MAX);
    uint64_t left = less(limit, read_number(folder, "pids.current", "", 0));
    if (limit == UINT64_MAX || left >= out->threads_left)
        return;
    out->threads_limit = limit;
    out->threads_left = left;
}

uint32_t zf_cpu_list_count(const char *path) {
    uint32_t n = 0, first, last;
    char sign = ',';
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    while (sign == ',' && fscanf(file, "%" SCNu32, &first) == 1) {
        last = first;
        if (fscanf(file, "%c", &sign) == 1 && sign == '-' && fscanf(file, "%" SCNu32 "%c", &last, &sign) < 2)
            sign = '\0';
        n += last >= first ? last - first + 1 : 0;
    }
    fclose(file);
    return n;
}

static void read_cpus(const char *folder, const version_t *version, zf_cgroup_t *out) {
    char path[PATH_MAX];
    if (out->n_cpus == 0 && snprintf(path, sizeof path, "%s/%s", folder, version->cpus) < (int)sizeof path)
        out->n_cpus = zf_cpu_list_count(path);
}

/* ---- all levels of a hierarchy ----------------------------------------------------------------------------------- */

/* The group's path below the mount's root. A group that is not there, of a namespace or a container that was entered
 * from outside, is taken for the root itself: no other is to be seen. */
static const char *path_below(const char *root, const char *path) {
    size_t n = strcmp(root, "/") == 0 ? 0 : strlen(root);
    int is_below = strncmp(path, root, n) == 0 && (path[n] == '/' || path[n] == '\0');
    return is_below && !strstr(path, "/..") ? path + n : "";
}

static void read_levels(const char *root, const mount_t *mount, const char *path, zf_cgroup_t *out) {
    char folder[PATH_MAX];
    size_t n_least = strlen(root) + strlen(mount->point);
    int n = snprintf(folder, sizeof folder, "%s%s%s", root, mount->point, path_below(mount->root, path));
    if (n < 0 || n >= (int)sizeof folder)
        return;
    for (size_t i = (size_t)n; i >= n_least; i--) {
        if (i > n_least && folder[i] != '/' && folder[i] != '\0')
            continue;
        folder[i] = '\0';
        read_memory(folder, mount->version, out);
        read_quota(folder, out);
        read_threads(folder, out);
        read_cpus(folder, mount->version, out);
    }
}

/* ---- the hierarchies --------------------------------------------------------------------------------------------- */

static int has_word(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, n) == 0 && (at[n] == ',' || at[n] == '\0'))
            return 1;
    }
    return 0;
}

/* A line of /proc/self/cgroup, "4:cpu,cpuacct:/path" or "0::/path", is of the hierarchy that is mounted there. */
static int is_of(const mount_t *mount, const char *number, char *controllers) {
    if (strcmp(mount->version->type, "cgroup2") == 0)
        return strcmp(number, "0") == 0;
    controllers[strcspn(controllers, ",")] = '\0'; /* one names the hierarchy */
    return *controllers && has_word(mount->options, controllers);
}

static void read_hierarchy(const char *root, const mount_t *mount, zf_cgroup_t *out) {
    char *line = NULL;
    size_t size = 0;
    FILE *file = open_in(root, "proc/self/cgroup");
    while (file && getline(&line, &size, file) > 0) {
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *controllers++ = *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        if (is_of(mount, line, controllers))
            read_levels(root, mount, path, out);
    }
    free(line);
    if (file)
        fclose(file);
}

/* Spaces and the like stand as three octal digits behind a backslash. */
static void unescape(char *text) {
    char *to = text;
    for (const char *at = text; *at; at++) {
        unsigned octal;
        if (*at == '\\' && strspn(at + 1, "01234567") >= 3 && sscanf(at + 1, "%3o", &octal) == 1) {
            *to++ = (char)octal;
            at += 3;
        } else {
            *to++ = *at;
        }
    }
    *to = '\0';
}

/* A line of /proc/self/mountinfo: "35 31 0:32 ROOT POINT options [more ...] - TYPE source OPTIONS". */
static int parse_mount(char *line, mount_t *out) {
    char *rest = strstr(line, " - "), *save = NULL, *word[5], *type;
    if (!rest)
        return 0;
    *rest = '\0';
    for (int i = 0; i < 5; i++)
        if (!(word[i] = strtok_r(i ? NULL : line, separators, &save)))
            return 0;
    type = strtok_r(rest + 3, separators, &save);
    (void)strtok_r(NULL, separators, &save);
    *out = (mount_t){.root = word[3], .point = word[4], .options = strtok_r(NULL, separators, &save)};
    for (size_t i = 0; type && i < sizeof versions / sizeof *versions; i++)
        if (strcmp(type, versions[i].type) == 0)
            out->version = &versions[i];
    unescape(word[3]);
    unescape(word[4]);
    return out->version && out->options;
}

void zf_cgroup_read(const char *root, zf_cgroup_t *out) {
    char *line = NULL;
    size_t size = 0;
    FILE *file = open_in(root, "proc/self/mountinfo");
    *out = (zf_cgroup_t){.memory_limit = UINT64_MAX,
                         .memory_left = UINT64_MAX,
                         .quota_cpus = INFINITY,
                         .threads_limit = UINT64_MAX,
                         .threads_left = UINT64_MAX};
    while (file && getline(&line, &size, file) > 0) {
        mount_t mount;
        if (parse_mount(line, &mount))
            read_hierarchy(root, &mount, out);
    }
    free(line);
    if (file)
        fclose(file);
}
