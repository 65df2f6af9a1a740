/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/nodes.c - which ranks share a machine (contract in nodes.h). */
#include "ranks/nodes.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "ranks/ranks.h"

/* A rank's place. Its host has no such groups: 0 ranks. */
typedef struct at {
    zfi_member_t inside, between;
} at_t;

static zf_status_t refuse(zf_error_t *err, uint32_t rank, const char *why) {
    return zfi_error_by(err, ZF_ERR_RANKS, rank, "bind_params",
                        "[shard] transport = ..._two_level: rank %" PRIu32
                        " %s; set transport = host or nccl, which sum in one level",
                        rank, why);
}

static zf_status_t check(const at_t *all, uint32_t n_ranks, zf_error_t *err) {
    for (uint32_t r = 0; r < n_ranks; r++) {
        if (all[r].inside.n_ranks == 0)
            return refuse(err, r, "does not know its machine: its host's collectives have no group ZF_GROUP_NODE");
        if (all[r].inside.n_ranks != all[0].inside.n_ranks)
            return refuse(err, r, "is on a machine that has not as many ranks as rank 0's");
        if ((uint64_t)all[r].inside.n_ranks * all[r].between.n_ranks != n_ranks)
            return refuse(err, r, "has groups ZF_GROUP_NODE and ZF_GROUP_ACROSS that do not make up group 0");
        for (uint32_t before = 0; before < r; before++)
            if (all[before].inside.rank == all[r].inside.rank && all[before].between.rank == all[r].between.rank)
                return refuse(err, r, "has the place of another one in its groups ZF_GROUP_NODE and ZF_GROUP_ACROSS");
    }
    return ZF_OK;
}

static at_t find_self(zfi_engine_t *engine) {
    zfi_nodes_t *nodes = &engine->nodes;
    zf_error_t why = {.struct_size = sizeof why};
    if (engine->comm_ops->join(engine->comm, ZF_GROUP_NODE, &nodes->inside_group, &why) ||
        engine->comm_ops->join(engine->comm, ZF_GROUP_ACROSS, &nodes->between_group, &why))
        return (at_t){0};
    nodes->inside = zfi_member(engine, nodes->inside_group);
    nodes->between = zfi_member(engine, nodes->between_group);
    return (at_t){nodes->inside, nodes->between};
}

static zf_status_t place_parts(zfi_engine_t *engine, const at_t *all, zf_error_t *err) {
    uint32_t n_ranks = zfi_n_ranks(engine), n_nodes = all[0].between.n_ranks;
    zf_status_t st = check(all, n_ranks, err);
    if (st || n_nodes == 1 || n_nodes == n_ranks)
        return st;
    engine->nodes.part_of = calloc(n_ranks, sizeof *engine->nodes.part_of);
    if (!engine->nodes.part_of)
        return zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory for the places of %" PRIu32 " ranks", n_ranks);
    for (uint32_t r = 0; r < n_ranks; r++)
        engine->nodes.part_of[r] = all[r].inside.rank * n_nodes + all[r].between.rank;
    return ZF_OK;
}

zf_status_t zfi_nodes_open(zfi_engine_t *engine, zf_error_t *err) {
    uint32_t n_ranks = zfi_n_ranks(engine);
    zf_status_t st;
    if (!zfi_wants_two_levels(engine) || n_ranks == 1 || engine->nodes.part_of)
        return ZF_OK;
    at_t own = find_self(engine);
    at_t *all = zfi_ranks_collect(engine, 0, &own, sizeof own, &st);
    if (!all)
        return zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory for the places of %" PRIu32 " ranks", n_ranks);
    st = st ? zfi_poisoned(engine, err) : place_parts(engine, all, err);
    zfi_ranks_drop(engine, all);
    return st;
}
