/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_node.c - the ranks that a launcher names, and the memory that each of them may take. */
#include "base/node.h"

#include <stdio.h>
#include <string.h>

#include "lib/cgroup.h"
#include "suite.h"
#include "wrap.h"

/* The environment of a test: "NAME=value" texts. */
static const char *const *variables;

static char *get(const char *name) {
    static char value[64];
    for (const char *const *v = variables; *v; v++)
        if (strncmp(*v, name, strlen(name)) == 0 && (*v)[strlen(name)] == '=') {
            snprintf(value, sizeof value, "%s", *v + strlen(name) + 1);
            return value;
        }
    return NULL;
}

static void expect(const char *const *environment, uint32_t rank, uint32_t n_ranks) {
    variables = environment;
    zfi_node_t node = zfi_node_find(get);
    ck_assert_msg(node.rank == rank && node.n_ranks == n_ranks, "%s: rank %u of %u",
                  environment[0] ? environment[0] : "nothing", node.rank, node.n_ranks);
}

ZT_TEST(launchers_are_read) {
    expect((const char *const[]){NULL}, 0, 1);
    expect((const char *const[]){"LOCAL_RANK=3", "LOCAL_WORLD_SIZE=8", NULL}, 3, 8);
    expect((const char *const[]){"OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=2", NULL}, 1, 2);
    expect((const char *const[]){"MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=4", NULL}, 1, 4);
    expect((const char *const[]){"SLURM_LOCALID=2", "SLURM_STEP_TASKS_PER_NODE=4(x2)", NULL}, 2, 4);
    expect((const char *const[]){"SLURM_LOCALID=2", "SLURM_STEP_TASKS_PER_NODE=4", NULL}, 2, 4);
}

ZT_TEST(what_is_no_pair_does_not_count) {
    expect((const char *const[]){"LOCAL_RANK=3", NULL}, 0, 1);
    expect((const char *const[]){"LOCAL_WORLD_SIZE=8", NULL}, 0, 1);
    expect((const char *const[]){"LOCAL_RANK=8", "LOCAL_WORLD_SIZE=8", NULL}, 0, 1);
    expect((const char *const[]){"LOCAL_RANK=0", "LOCAL_WORLD_SIZE=0", NULL}, 0, 1);
    expect((const char *const[]){"LOCAL_RANK=-1", "LOCAL_WORLD_SIZE=8", NULL}, 0, 1);
    expect((const char *const[]){"LOCAL_RANK=", "LOCAL_WORLD_SIZE=8", NULL}, 0, 1);
    expect((const char *const[]){"LOCAL_RANK=1", "LOCAL_WORLD_SIZE=99999999999", NULL}, 0, 1);
    expect((const char *const[]){"LOCAL_RANK=1", "LOCAL_WORLD_SIZE=5000", NULL}, 0, 1);
    expect((const char *const[]){"LOCAL_RANK=1", "LOCAL_WORLD_SIZE=8x", NULL}, 0, 1);
    expect((const char *const[]){"SLURM_LOCALID=1", "SLURM_STEP_TASKS_PER_NODE=4(x2),3", NULL}, 0, 1);
    expect((const char *const[]){"LOCAL_RANK=9", "LOCAL_WORLD_SIZE=8", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=4", NULL},
           1, 4);
}

ZT_TEST(memory_of_one_process) {
    zfi_room_t room = {.available = 100, .total = 400, .resident = 50};
    ck_assert_uint_eq(zfi_room_share(&room, 0, 1), 100);
    ck_assert_uint_eq(zfi_room_share(&room, 30, 1), 70);
    ck_assert_uint_eq(zfi_room_share(&room, 130, 1), 0);
    room.available = UINT64_MAX;
    ck_assert_uint_eq(zfi_room_share(&room, 30, 1), UINT64_MAX);
}

/* What control groups leave, which are made up here. */
static zf_cgroup_t made_up;

ZT_WRAP(void, zf_cgroup_read, const char *root, zf_cgroup_t *out) {
    ck_assert_str_eq(root, "");
    *out = made_up;
}

ZT_TEST(control_groups_limit_memory) {
    zfi_room_t room;
    made_up = (zf_cgroup_t){.memory_limit = 3 << 20, .memory_left = 1 << 20};
    zfi_room_read(&room);
    ck_assert_uint_eq(room.available, 1 << 20);
    ck_assert_uint_eq(room.total, 3 << 20);
    ck_assert(room.is_of_cgroup);
    made_up = (zf_cgroup_t){.memory_limit = UINT64_MAX, .memory_left = UINT64_MAX};
    zfi_room_read(&room);
    ck_assert(room.available > 1 << 20 && room.available <= room.total && room.total < UINT64_MAX);
    ck_assert(!room.is_of_cgroup);
}

/* Four ranks of 100 each, whichever comes first, and never more than there is. */
ZT_TEST(memory_of_several_ranks) {
    zfi_room_t first = {.available = 390, .total = 400, .resident = 10};
    zfi_room_t last = {.available = 95, .total = 400, .resident = 10};
    zfi_room_t late = {.available = 40, .total = 400, .resident = 10};
    ck_assert_uint_eq(zfi_room_share(&first, 0, 4), 90);
    ck_assert_uint_eq(zfi_room_share(&last, 0, 4), 90);
    ck_assert_uint_eq(zfi_room_share(&late, 0, 4), 40);
    ck_assert_uint_eq(zfi_room_share(&first, 20, 4), 70); /* another instance of this rank */
    first.resident = 120;
    ck_assert_uint_eq(zfi_room_share(&first, 0, 4), 0);
    first.total = UINT64_MAX;
    ck_assert_uint_eq(zfi_room_share(&first, 0, 4), 390);
}

ZT_SUITE("node")
