/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_affinity.c - how cores are shared, on machines that the test makes up, and by two real instances of
 * this process on such a machine: sched_getaffinity and pthread_setaffinity_np below stand for the system's. */
#define _GNU_SOURCE
#include "replay/affinity.h"

#include <math.h>

#include "lib/cgroup.h"
#include "replay/workers.h"
#include "rig.h"
#include "suite.h"
#include "wrap.h"

enum { N_MADE_UP = 16, MAX_PINS = 64 };

/* ---- a system whose process has the last N_MADE_UP CPUs that there can be ---------------------------------------- */

static const int first_cpu = CPU_SETSIZE - N_MADE_UP; /* the real machine has none of them, so each is a core */
static int pins[MAX_PINS];                            /* in the order in which threads were pinned */
static uint32_t n_pins, n_asked;
static int is_made_up;

int sched_getaffinity(pid_t id, size_t nbytes, cpu_set_t *out) {
    CPU_ZERO_S(nbytes, out);
    if (id == 0)
        n_asked = 0;
    if (is_made_up && id && n_asked < n_pins) { /* which thread it is does not matter, how many there are does */
        CPU_SET_S((size_t)pins[n_asked++], nbytes, out);
        return 0;
    }
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
    ck_assert_uint_eq(n, want ? n_threads : 0);
    for (uint32_t i = 0; i < n; i++)
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

ZT_TEST(taken_cores_come_last) {
    zfi_cpus_t eight = machine(8, 8, 0), twins = machine(16, 16, 1);
    eight.n_pinned[7] = eight.n_pinned[6] = eight.n_pinned[5] = 1;
    expect(&eight, &alone, 3, (const int[]){4, 3, 2});
    expect(&eight, &alone, 6, (const int[]){4, 3, 2, 1, 7, 6});
    twins.n_pinned[15] = 1; /* the other hyper-thread of core 7 */
    expect(&twins, &alone, 2, (const int[]){6, 5});
}

ZT_TEST(ranks_divide_the_cores) {
    zfi_cpus_t cpus = machine(16, 16, 0);
    int seen[16] = {0}, chosen[16];
    for (uint32_t rank = 0; rank < 3; rank++) {
        zfi_node_t node = {.rank = rank, .n_ranks = 3};
        uint32_t n = zfi_affinity_n_cores(&cpus, &node);
        ck_assert_uint_eq(n, rank == 0 ? 5 : rank == 1 ? 5 : 6);
        ck_assert_uint_eq(zfi_affinity_choose(&cpus, &node, n - 1, chosen), n - 1);
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
    zfi_node_t node = {.rank = 1, .n_ranks = 4}, given = {.rank = 1, .n_ranks = 4, .is_given = 1};
    ck_assert_uint_eq(zfi_affinity_n_cores(&own, &node), 16);
    expect(&own, &node, 2, (const int[]){15, 14});
    ck_assert_uint_eq(zfi_affinity_n_cores(&own, &given), 4);
    expect(&own, &given, 2, (const int[]){7, 6});
    ck_assert_uint_eq(zfi_affinity_n_cores(&socket, &node), 16); /* two ranks on each socket */
    expect(&socket, &node, 2, NULL);
    ck_assert_uint_eq(zfi_affinity_n_cores(&unknown, &node), 4); /* nothing says how large the machine is */
}

ZT_TEST(the_system_is_read) {
    zfi_cpus_t cpus;
    is_made_up = 1;
    pins[0] = pins[1] = first_cpu + 2;
    n_pins = 1; /* this process has at least one thread */
    zfi_affinity_read(&cpus);
    ck_assert_int_eq(CPU_COUNT(&cpus.mask), N_MADE_UP);
    ck_assert_int_eq(cpus.first_sibling[first_cpu + 1], first_cpu + 1);
    ck_assert_uint_eq(cpus.n_pinned[first_cpu + 2], 1);
    ck_assert_uint_eq(cpus.n_pinned[first_cpu + 1], 0);
    ck_assert_uint_gt(cpus.n_machine, 0);
    ck_assert(isinf(cpus.quota));
    groups.quota_cpus = 0.5;
    groups.n_cpus = 12;
    zfi_affinity_read(&cpus);
    ck_assert(cpus.quota == 0.5);
    ck_assert_uint_eq(cpus.n_machine, 12);
    ck_assert_uint_eq(zfi_workers_count(&(zfi_config_t){.local_ranks = 1}), 1);
    groups.quota_cpus = 4.9;
    ck_assert_uint_eq(zfi_workers_count(&(zfi_config_t){.local_ranks = 1}), 3);
    ck_assert_uint_eq(zfi_workers_count(&(zfi_config_t){.local_ranks = 2}), 1);
    ck_assert_uint_eq(zfi_workers_count(&(zfi_config_t){.local_ranks = 1, .threads = 7}), 7);
}

static void start(zt_rig_t *rig, const char *config) {
    static const zt_shape_t shapes[] = {{.rows = 48, .cols = 40}};
    zt_rig_make(rig, shapes, 1, config, 0);
}

/* Four instances of three workers each on sixteen cores, of which the first is the trainer's. */
ZT_TEST(instances_take_different_cores) {
    static zt_rig_t rigs[4];
    uint32_t n[CPU_SETSIZE] = {0};
    is_made_up = 1;
    for (int i = 0; i < 4; i++)
        start(&rigs[i], "[host]\nthreads = 3\nlocal_rank = 0/1\n");
    ck_assert_uint_eq(n_pins, 12);
    for (uint32_t i = 0; i < n_pins; i++)
        ck_assert_int_eq(n[pins[i]]++, 0);
    ck_assert_uint_eq(n[first_cpu], 0);
    for (int i = 0; i < 4; i++)
        zt_rig_end(&rigs[i]);
}

ZT_TEST(the_keys_divide_the_cores) {
    static zt_rig_t rigs[2];
    is_made_up = 1;
    start(&rigs[0], "[host]\nlocal_rank = 2/4\n");
    ck_assert_uint_eq(n_pins, 3);
    for (uint32_t i = 0; i < n_pins; i++)
        ck_assert_int_eq(pins[i], first_cpu + 11 - (int)i);
    start(&rigs[1], "[host]\nlocal_rank = 2/4\naffinity = none\n");
    ck_assert_uint_eq(n_pins, 3);
    zt_rig_end(&rigs[0]);
    zt_rig_end(&rigs[1]);
}

ZT_SUITE("affinity")
