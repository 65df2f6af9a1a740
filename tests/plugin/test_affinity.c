/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_affinity.c - how cores are shared, on machines that the test makes up, and by real instances of one
 * and of two processes on such a machine: sched_getaffinity and pthread_setaffinity_np below stand for the system's. */
#define _GNU_SOURCE
#include "replay/affinity.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/cgroup.h"
#include "replay/workers.h"
#include "rig.h"
#include "suite.h"
#include "wrap.h"
#include "zf/ext/state.h"

enum { N_MADE_UP = 16, MAX_PINS = 64 };

/* ---- a system whose process has the last N_MADE_UP CPUs that there can be ---------------------------------------- */

static const int first_cpu = CPU_SETSIZE - N_MADE_UP; /* the real machine has none of them, so each is a core */
static int pins[MAX_PINS];                            /* in the order in which threads were pinned */
static uint32_t n_pins;
static pid_t test_id; /* cores have the names of this test alone: others run beside it */
static const char *pid_namespace = "pid:[4026531836]";

int sched_getaffinity(pid_t id, size_t nbytes, cpu_set_t *out) {
    (void)id;
    CPU_ZERO_S(nbytes, out);
    for (int i = 0; i < N_MADE_UP; i++)
        CPU_SET_S((size_t)(first_cpu + i), nbytes, out);
    return 0;
}

int pthread_setaffinity_np(pthread_t thread, size_t nbytes, const cpu_set_t *mask) {
    (void)thread;
    ck_assert_int_eq(CPU_COUNT_S(nbytes, mask), 1);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET_S((size_t)cpu, nbytes, mask))
            pins[n_pins++] = cpu;
    return 0;
}

ZT_WRAP(int, bind, int fd, const struct sockaddr *given, socklen_t nbytes) {
    struct sockaddr_un name;
    memcpy(&name, given, nbytes);
    ck_assert(name.sun_family == AF_UNIX && name.sun_path[0] == '\0'); /* no file */
    size_t used = nbytes - offsetof(struct sockaddr_un, sun_path);
    if (!test_id)
        test_id = getpid();
    int n = snprintf(name.sun_path + used, sizeof name.sun_path - used, " of %d", (int)test_id);
    return __real_bind(fd, (struct sockaddr *)&name, nbytes + (socklen_t)n);
}

ZT_WRAP(ssize_t, readlink, const char *path, char *out, size_t nbytes) {
    ck_assert_str_eq(path, "/proc/self/ns/pid");
    ck_assert_uint_ge(nbytes, strlen(pid_namespace));
    memcpy(out, pid_namespace, strlen(pid_namespace));
    return (ssize_t)strlen(pid_namespace);
}

static zf_cgroup_t groups = {.memory_limit = UINT64_MAX, .memory_left = UINT64_MAX, .quota_cpus = INFINITY};

ZT_WRAP(void, zf_cgroup_read, const char *root, zf_cgroup_t *out) {
    (void)root;
    *out = groups;
}

/* ---- machines for the choice alone ------------------------------------------------------------------------------- */

static const zfi_node_t alone = {.n_ranks = 1};

/* n CPUs of a machine of n_machine, each a core, or with the hyper-thread that lies n/2 above it. */
static zfi_cpus_t machine(int n, uint32_t n_machine, int has_threads) {
    zfi_cpus_t cpus = {.n_machine = n_machine, .quota = INFINITY};
    CPU_ZERO(&cpus.mask);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        cpus.first_sibling[cpu] = has_threads && cpu < n ? cpu % (n / 2) : cpu;
    for (int cpu = 0; cpu < n; cpu++)
        CPU_SET((size_t)cpu, &cpus.mask);
    return cpus;
}

static void expect(const zfi_cpus_t *cpus, const zfi_node_t *node, uint32_t n_threads, const int *want) {
    int got[CPU_SETSIZE];
    uint32_t n = zfi_affinity_choose(cpus, node, n_threads, got);
    ck_assert(want ? n >= n_threads : n == 0);
    for (uint32_t i = 0; i < n_threads && want; i++)
        ck_assert_msg(got[i] == want[i], "thread %u: CPU %d, not %d", i, got[i], want[i]);
}

ZT_TEST(one_process_takes_the_last_cores) {
    zfi_cpus_t eight = machine(8, 8, 0), twins = machine(16, 16, 1), three = machine(3, 3, 0);
    expect(&eight, &alone, 3, (const int[]){7, 6, 5});
    expect(&eight, &alone, 7, (const int[]){7, 6, 5, 4, 3, 2, 1});
    expect(&eight, &alone, 8, NULL);
    expect(&three, &alone, 1, NULL);
    expect(&twins, &alone, 2, (const int[]){7, 6});
    ck_assert_uint_eq(zfi_affinity_n_cores(&twins, &alone), 8);
    CPU_CLR(7, &twins.mask); /* of core 7 only its upper thread is left */
    expect(&twins, &alone, 2, (const int[]){15, 6});
}

ZT_TEST(ranks_divide_the_cores) {
    zfi_cpus_t cpus = machine(16, 16, 0);
    int seen[16] = {0}, chosen[16];
    for (uint32_t rank = 0; rank < 3; rank++) {
        zfi_node_t node = {.rank = rank, .n_ranks = 3};
        uint32_t n = zfi_affinity_n_cores(&cpus, &node);
        ck_assert_uint_eq(n, rank == 0 ? 5 : rank == 1 ? 5 : 6);
        ck_assert_uint_eq(zfi_affinity_choose(&cpus, &node, n - 1, chosen), n - 1); /* all but the first */
        for (uint32_t i = 0; i < n - 1; i++)
            ck_assert_int_eq(seen[chosen[i]]++, 0);
    }
    ck_assert(!seen[0] && !seen[5] && !seen[10]); /* for the three trainers */
    cpus = machine(2, 2, 0);
    for (uint32_t rank = 0; rank < 8; rank++)
        ck_assert_uint_eq(zfi_affinity_n_cores(&cpus, &(zfi_node_t){.rank = rank, .n_ranks = 8}), 1);
}

ZT_TEST(a_quota_is_shared_too) {
    zfi_cpus_t cpus = machine(16, 16, 0);
    cpus.quota = 6.9;
    ck_assert_uint_eq(zfi_affinity_n_cores(&cpus, &alone), 6);
    ck_assert_uint_eq(zfi_affinity_n_cores(&cpus, &(zfi_node_t){.n_ranks = 2}), 3);
    ck_assert_uint_eq(zfi_affinity_n_cores(&cpus, &(zfi_node_t){.n_ranks = 8}), 1);
    cpus.quota = 0.5;
    ck_assert_uint_eq(zfi_affinity_n_cores(&cpus, &alone), 1);
}

/* A mask that is a part of the machine: the launcher has divided already, or in part, or nobody knows how. */
ZT_TEST(what_the_launcher_divided_is_not_divided_again) {
    zfi_cpus_t own = machine(16, 64, 0), socket = machine(32, 64, 0), unknown = machine(16, 0, 0);
    zfi_node_t node = {.rank = 1, .n_ranks = 4};
    ck_assert_uint_eq(zfi_affinity_n_cores(&own, &node), 16);
    expect(&own, &node, 2, (const int[]){15, 14});
    ck_assert_uint_eq(zfi_affinity_n_cores(&socket, &node), 16); /* two ranks on each socket */
    expect(&socket, &node, 2, NULL);
    ck_assert_uint_eq(zfi_affinity_n_cores(&unknown, &node), 4); /* nothing says how large the machine is */
}

/* As torchrun does; NULL: no launcher. */
static void name_rank(const char *rank, const char *n_ranks) {
    ck_assert_int_eq(rank ? setenv("LOCAL_RANK", rank, 1) : unsetenv("LOCAL_RANK"), 0);
    ck_assert_int_eq(n_ranks ? setenv("LOCAL_WORLD_SIZE", n_ranks, 1) : unsetenv("LOCAL_WORLD_SIZE"), 0);
}

ZT_TEST(the_system_is_read) {
    zfi_cpus_t cpus;
    zfi_affinity_read(&cpus);
    ck_assert_int_eq(CPU_COUNT(&cpus.mask), N_MADE_UP);
    ck_assert_int_eq(cpus.first_sibling[first_cpu + 1], first_cpu + 1);
    ck_assert_uint_gt(cpus.n_machine, 0);
    ck_assert(isinf(cpus.quota));
    groups.quota_cpus = 0.5;
    groups.n_cpus = 12;
    zfi_affinity_read(&cpus);
    ck_assert(cpus.quota == 0.5);
    ck_assert_uint_eq(cpus.n_machine, 12);
    ck_assert_uint_eq(zfi_workers_count(&(zfi_config_t){0}), 1);
    groups.quota_cpus = 4.9;
    ck_assert_uint_eq(zfi_workers_count(&(zfi_config_t){0}), 3);
    name_rank("0", "2");
    ck_assert_uint_eq(zfi_workers_count(&(zfi_config_t){0}), 1);
    name_rank(NULL, NULL);
    ck_assert_uint_eq(zfi_workers_count(&(zfi_config_t){.threads = 7}), 7);
}

static void start(zt_rig_t *rig, const char *config) {
    static const zt_shape_t shapes[] = {{.rows = 48, .cols = 40}};
    zt_rig_make(rig, shapes, 1, config, 0);
}

static const int last_three[] = {CPU_SETSIZE - 1, CPU_SETSIZE - 2, CPU_SETSIZE - 3};

/* A core belongs to nobody that is to be seen from here: a container whose CPUs others use, too. */
ZT_TEST(a_container_pins_where_it_has_cpus_of_its_own) {
    zfi_cpus_t cpus;
    uint32_t n_online = zf_cpu_list_count("/sys/devices/system/cpu/online");
    zfi_affinity_read(&cpus);
    ck_assert(!cpus.is_contained);
    pid_namespace = "pid:[4026532199]";
    zfi_affinity_read(&cpus);
    ck_assert_int_eq(cpus.is_contained, N_MADE_UP >= n_online);
    cpus.is_contained = 0;
    expect(&cpus, &alone, 3, last_three);
    cpus.is_contained = 1;
    expect(&cpus, &alone, 3, NULL);
}

/* ---- instances --------------------------------------------------------------------------------------------------- */

/* Each pin so far is of another core, and none is the trainer's. */
static void check_pins(uint32_t n) {
    uint32_t n_of[CPU_SETSIZE] = {0};
    ck_assert_uint_eq(n_pins, n);
    for (uint32_t i = 0; i < n_pins; i++)
        ck_assert_int_eq(n_of[pins[i]]++, 0);
    ck_assert_uint_eq(n_of[first_cpu], 0);
}

/* Six instances of three workers each on sixteen cores, of which the first is the trainer's. */
ZT_TEST(instances_take_different_cores) {
    static zt_rig_t rigs[6];
    for (int i = 0; i < 6; i++)
        start(&rigs[i], "[host]\nthreads = 3\n");
    check_pins(15);
    zt_rig_end(&rigs[5]);
    zt_rig_end(&rigs[2]); /* its cores are free again */
    start(&rigs[2], "[host]\nthreads = 4\n");
    ck_assert_uint_eq(n_pins, 18);
    ck_assert_int_eq(memcmp(pins + 15, pins + 6, 3 * sizeof *pins), 0);
    for (int i = 0; i < 5; i++)
        zt_rig_end(&rigs[i]);
}

/* A run that is built beside another one, as a load does, is worked for by the same threads. */
ZT_TEST(the_cores_are_the_instance_s) {
    zt_rig_t rig;
    zf_state_args_t args = {.struct_size = sizeof args, .path = zt_path("checkpoint")};
    start(&rig, "[host]\nthreads = 3\n");
    check_pins(3);
    zt_rig_step(&rig);
    const zf_state_ext_t *state = rig.zf->get_extension(ZF_EXT_STATE);
    ck_assert_int_eq(state->save(rig.inst, &args, NULL, &rig.err), ZF_OK);
    ck_assert_int_eq(state->load(rig.inst, &args, NULL, &rig.err), ZF_OK);
    ck_assert_uint_eq(n_pins, 3);
    zt_rig_end(&rig);
}

/* Another job on this machine: a process that was started by itself, of which one is told which CPUs it took. */
ZT_TEST(processes_take_different_cores) {
    static zt_rig_t rig;
    int said[2], stay[2], others[3] = {0}, status;
    test_id = getpid();
    ck_assert(pipe(said) == 0 && pipe(stay) == 0);
    pid_t child = fork();
    if (child == 0) {
        start(&rig, "[host]\nthreads = 3\n");
        if (write(said[1], pins, sizeof others) == sizeof others && read(stay[0], &status, 1) == 1)
            abort(); /* it ends as no program means to */
        _exit(1);
    }
    ck_assert_int_eq(read(said[0], others, sizeof others), sizeof others);
    ck_assert_int_eq(memcmp(others, last_three, sizeof others), 0);
    start(&rig, "[host]\nthreads = 13\n"); /* one more than there are free ones */
    check_pins(12);
    for (uint32_t i = 0; i < n_pins; i++)
        ck_assert_int_eq(pins[i], first_cpu + 12 - (int)i);
    zt_rig_end(&rig);
    ck_assert_int_eq(write(stay[1], "", 1), 1);
    ck_assert(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    start(&rig, "[host]\nthreads = 3\n"); /* what it had is free */
    ck_assert_uint_eq(n_pins, 15);
    ck_assert_int_eq(memcmp(pins + 12, last_three, sizeof last_three), 0);
    zt_rig_end(&rig);
}

ZT_TEST(the_ranks_of_a_launcher_divide_the_cores) {
    static zt_rig_t rig;
    name_rank("2", "4");
    start(&rig, "");
    ck_assert_uint_eq(n_pins, 3);
    for (uint32_t i = 0; i < n_pins; i++)
        ck_assert_int_eq(pins[i], first_cpu + 11 - (int)i);
    name_rank(NULL, NULL);
    zt_rig_end(&rig);
}

ZT_SUITE("affinity")
