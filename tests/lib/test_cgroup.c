/* SPDX-License-Identifier: Apache-2.0 */
/* tests/lib/test_cgroup.c - limits of control groups, on systems whose files the test makes up. */
#include "lib/cgroup.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "suite.h"

enum { MIB = 1 << 20 };

/* ---- systems ----------------------------------------------------------------------------------------------------- */

static void put(const char *folder, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    ck_assert_int_eq(zt_shell("mkdir -p '%s/%s'", zt_dir(), folder), 0);
    zt_write(path, text, strlen(text));
}

/* Files of a folder: name and text in turn, up to NULL. */
static void put_in(const char *folder, ...) {
    const char *name;
    va_list files;
    va_start(files, folder);
    while ((name = va_arg(files, const char *)) != NULL)
        put(folder, name, va_arg(files, const char *));
    va_end(files);
}

/* Files of a group, which lies below one of the mounts of /sys/fs/cgroup. */
#define GROUP(path, ...) put_in("sys/fs/cgroup" path, __VA_ARGS__, NULL)

static zf_cgroup_t read_system(void) {
    zf_cgroup_t out;
    zf_cgroup_read(zt_dir(), &out);
    return out;
}

#define NO_GROUPS "22 1 0:20 / /proc rw,relatime shared:5 - proc proc rw\nno mount\n"
#define V2_AT(root) "30 23 0:26 " root " /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1_AT(root)                                                                                                    \
    "31 30 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"                                   \
    "32 30 0:28 " root " /sys/fs/cgroup/memory rw,nosuid shared:6 - cgroup cgroup rw,memory\n"                         \
    "33 30 0:29 " root " /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"                               \
    "34 30 0:30 " root " /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"                                         \
    "35 30 0:31 " root " /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
#define V1_GROUPS(path)                                                                                                \
    "12:pids:" path "\n11:memory:" path "\n4:cpu,cpuacct:" path "\n3:cpuset:" path                                     \
    "\n1:name=systemd:/elsewhere\n0::/elsewhere\n"

/* What is mounted, and the groups that the process is in. */
static void system_has(const char *mounts, const char *groups) {
    put_in("proc/self", "mountinfo", mounts, "cgroup", groups, NULL);
}

/* ---- version 2 --------------------------------------------------------------------------------------------------- */

ZT_TEST(no_groups_no_limits) {
    zf_cgroup_t found = read_system(); /* there is not even a file */
    ck_assert(found.memory_limit == UINT64_MAX && isinf(found.quota_cpus) && found.n_cpus == 0);
    system_has(NO_GROUPS V2_AT("/"), "0::/\n");
    found = read_system();
    ck_assert(found.memory_limit == UINT64_MAX && found.memory_left == UINT64_MAX && isinf(found.quota_cpus));
    ck_assert(found.threads_limit == UINT64_MAX && found.threads_left == UINT64_MAX && found.n_cpus == 0);
}

/* A container of docker or podman with a namespace of its own, in which its group is the root. */
ZT_TEST(the_root_of_version_2) {
    system_has(NO_GROUPS V2_AT("/"), "0::/\n");
    GROUP("", "memory.max", "314572800\n", "memory.current", "104857600\n", "cpu.max", "50000 100000\n", "pids.max",
          "64\n", "pids.current", "60\n", "cpuset.cpus.effective", "0-3,8\n");
    zf_cgroup_t found = read_system();
    ck_assert_uint_eq(found.memory_limit, 300 * MIB);
    ck_assert_uint_eq(found.memory_left, 200 * MIB);
    ck_assert(found.quota_cpus == 0.5);
    ck_assert_uint_eq(found.threads_limit, 64);
    ck_assert_uint_eq(found.threads_left, 4);
    ck_assert_uint_eq(found.n_cpus, 5);
}

/* A unit of systemd, a step of Slurm: limits at levels between, each of which holds. */
ZT_TEST(every_level_of_version_2) {
    system_has(V2_AT("/"), "0::/system.slice/job_7/step_0/user\n");
    GROUP("/system.slice", "memory.max", "max\n");
    GROUP("/system.slice/job_7", "memory.max", "314572800\n", "memory.current", "10485760\n");
    GROUP("/system.slice/job_7/step_0", "memory.max", "524288000\n", "memory.current", "524288001\n");
    GROUP("/system.slice/job_7/step_0/user", "memory.max", "max\n");
    GROUP("/system.slice/job_7", "cpu.max", "250000 100000\n");
    GROUP("/system.slice/job_7/step_0/user", "cpu.max", "max 100000\n");
    GROUP("", "cpuset.cpus.effective", "0-63\n");
    GROUP("/system.slice/job_7", "cpuset.cpus.effective", "8-15\n");
    GROUP("/other", "memory.max", "1\n");
    zf_cgroup_t found = read_system();
    ck_assert_uint_eq(found.memory_limit, 300 * MIB);
    ck_assert_uint_eq(found.memory_left, 0); /* of the step's own limit, which is higher */
    ck_assert(found.quota_cpus == 2.5);
    ck_assert_uint_eq(found.n_cpus, 8);
}

/* What files leave in the page cache counts as used there, and is dropped for whoever needs memory. */
ZT_TEST(cached_files_take_no_memory) {
    system_has(V2_AT("/"), "0::/job\n");
    GROUP("/job", "memory.max", "314572800\n", "memory.current", "314572800\n", "memory.stat",
          "anon 104857600\nfile 209715200\ninactive_file 157286400\nactive_file 52428800\n");
    ck_assert_uint_eq(read_system().memory_left, 200 * MIB);
}

/* ---- version 1 --------------------------------------------------------------------------------------------------- */

/* Where a group has its files of a controller; until the next call. */
static const char *folder_of(const char *controller, const char *at) {
    static char folder[256];
    snprintf(folder, sizeof folder, "sys/fs/cgroup/%s%s", controller, at);
    return folder;
}

static void put_version_1(const char *at) {
    put_in(folder_of("memory", at), "memory.limit_in_bytes", "314572800\n", "memory.usage_in_bytes", "157286400\n",
           "memory.stat", "inactive_file 1\nactive_file 1\ntotal_inactive_file 52428800\ntotal_active_file 0\n", NULL);
    put_in(folder_of("cpu,cpuacct", at), "cpu.cfs_quota_us", "150000\n", "cpu.cfs_period_us", "100000\n", NULL);
    put_in(folder_of("cpuset", at), "cpuset.effective_cpus", "4-7\n", NULL);
    put_in(folder_of("pids", at), "pids.max", "100\n", "pids.current", "9\n", NULL);
}

static void expect_version_1(void) {
    zf_cgroup_t found = read_system();
    ck_assert_uint_eq(found.memory_limit, 300 * MIB);
    ck_assert_uint_eq(found.memory_left, 200 * MIB);
    ck_assert(found.quota_cpus == 1.5);
    ck_assert_uint_eq(found.n_cpus, 4);
    ck_assert_uint_eq(found.threads_limit, 100);
    ck_assert_uint_eq(found.threads_left, 91);
}

/* A group of the machine itself; the levels above say that they have no limit. */
ZT_TEST(every_level_of_version_1) {
    system_has(NO_GROUPS V1_AT("/"), V1_GROUPS("/slurm/job_7/step_0"));
    put_version_1("/slurm/job_7");
    GROUP("/memory", "memory.limit_in_bytes", "9223372036854771712\n");
    GROUP("/cpu,cpuacct/slurm/job_7/step_0", "cpu.cfs_quota_us", "-1\n", "cpu.cfs_period_us", "100000\n");
    GROUP("/pids", "pids.max", "max\n");
    expect_version_1();
}

/* docker: the file of groups names them as the machine does, and each hierarchy is mounted from the container's on. */
ZT_TEST(docker_with_version_1) {
    system_has(V1_AT("/docker/0123abcd"), V1_GROUPS("/docker/0123abcd"));
    put_version_1("");
    expect_version_1();
    system_has(V1_AT("/docker/0123abcd"), V1_GROUPS("/docker/0123abcd/inner/most"));
    expect_version_1();
    system_has(V1_AT("/docker/0123abcd"), V1_GROUPS("/docker/0123abcdef")); /* no group that is seen from here */
    expect_version_1();
}

/* Both versions: systemd's own hierarchy is of version 2, the controllers are of version 1. */
ZT_TEST(both_versions) {
    system_has(V1_AT("/") "41 30 0:37 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n", V1_GROUPS("/job"));
    put_version_1("/job");
    GROUP("/unified/elsewhere", "cpu.pressure", "some\n");
    expect_version_1();
}

/* ---- odd ones ---------------------------------------------------------------------------------------------------- */

ZT_TEST(paths_are_taken_as_they_are_meant) {
    system_has("30 23 0:26 / /sys/fs/c\\040group rw - cgroup2 cgroup2 rw\n", "0::/a b:c\n");
    put("sys/fs/c group/a b:c", "memory.max", "1048576\n");
    ck_assert_uint_eq(read_system().memory_limit, MIB);
    put("proc/self", "cgroup", "0::/../../outside\n"); /* entered from outside of the namespace */
    put("sys/outside", "memory.max", "1\n");
    put("sys/fs/c group", "memory.max", "2097152\n");
    ck_assert_uint_eq(read_system().memory_limit, 2 * MIB);
}

ZT_TEST(files_that_make_no_sense) {
    system_has(V2_AT("/"), "0::/job\nnonsense\n::\n");
    GROUP("/job", "memory.max", "\n", "cpu.max", "7\n", "pids.max", "", "cpuset.cpus.effective", "3-\n");
    zf_cgroup_t found = read_system();
    ck_assert(found.memory_limit == UINT64_MAX && isinf(found.quota_cpus) && found.threads_limit == UINT64_MAX);
    ck_assert_uint_eq(zf_cpu_list_count(zt_path("none")), 0);
    zf_cgroup_read("", &found); /* this machine's, whatever they are */
    ck_assert(found.memory_left <= found.memory_limit || found.memory_limit == UINT64_MAX);
}

ZT_SUITE("cgroup")
