/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/node.c - the ranks of a machine and their memory (contract in node.h). */
#include "base/node.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cgroup.h"

enum { MAX_RANKS = 4096 };

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

static const struct variables {
    const char *rank, *n_ranks;
} launchers[] = {
    {"LOCAL_RANK", "LOCAL_WORLD_SIZE"},                           /* torchrun, Accelerate, DeepSpeed */
    {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}, /* Open MPI */
    {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},                       /* MPICH, Intel MPI */
    {"SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"},               /* srun; set in the processes of a step only */
};

/* A decimal number below MAX_RANKS + 1. Slurm writes "4(x2)" for four ranks on each of two nodes; a list of nodes that
 * differ does not say which of them this is, so it is no number. */
static int read_count(const char *text, uint32_t *out) {
    uint32_t n = 0;
    const char *s = text;
    if (!text)
        return 0;
    for (; *s >= '0' && *s <= '9' && n <= MAX_RANKS; s++)
        n = 10 * n + (uint32_t)(*s - '0');
    if (s == text || n > MAX_RANKS || (*s && *s != '(') || strchr(s, ','))
        return 0;
    *out = n;
    return 1;
}

zfi_node_t zfi_node_find(char *(*get)(const char *name)) {
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        zfi_node_t node = {0};
        if (read_count(get(launchers[i].rank), &node.rank) && read_count(get(launchers[i].n_ranks), &node.n_ranks) &&
            node.rank < node.n_ranks)
            return node;
    }
    return (zfi_node_t){.n_ranks = 1};
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Bytes that a line of /proc/meminfo says, or UINT64_MAX. */
static uint64_t read_kib(const char *key) {
    char line[256];
    uint64_t kib = UINT64_MAX;
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file)
        return UINT64_MAX;
    while (kib == UINT64_MAX && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%" SCNu64, &kib) != 1)
            kib = UINT64_MAX;
    fclose(file);
    return kib > UINT64_MAX / 1024 ? UINT64_MAX : kib * 1024;
}

/* Resident pages that are not shared with a file or another process. */
static uint64_t read_resident(void) {
    uint64_t resident = 0, shared = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file)
        return 0;
    if (fscanf(file, "%*u %" SCNu64 " %" SCNu64, &resident, &shared) != 2 || shared > resident)
        resident = shared = 0;
    fclose(file);
    return (resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }
static uint64_t lower(uint64_t a, uint64_t b) { return a < b ? a : b; }

void zfi_room_read(zfi_room_t *out) {
    zf_cgroup_t cgroup;
    zf_cgroup_read("", &cgroup);
    out->available = read_kib("MemAvailable:");
    out->is_of_cgroup = cgroup.memory_left < out->available;
    out->available = lower(out->available, cgroup.memory_left);
    out->total = lower(read_kib("MemTotal:"), cgroup.memory_limit);
    out->resident = read_resident();
}

uint64_t zfi_room_share(const zfi_room_t *room, uint64_t promised_nbytes, uint32_t n_ranks) {
    uint64_t share = room->available == UINT64_MAX ? UINT64_MAX : less(room->available, promised_nbytes);
    if (n_ranks > 1 && room->total != UINT64_MAX)
        share = lower(share, less(less(room->total / n_ranks, room->resident), promised_nbytes));
    return share;
}
