/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/nonfinite.c - whose gradient was not finite (contract in nonfinite.h). */
#include "ranks/nonfinite.h"

#include "ranks/collective.h"

/* The rank of group 0 at this rank's place on its machine but for the place inside, which is given (nodes.h). */
static uint32_t rank_inside(const zfi_engine_t *engine, uint32_t inside) {
    const zfi_nodes_t *nodes = &engine->nodes;
    uint32_t rank = 0;
    while (nodes->part_of[rank] != inside * nodes->between.n_ranks + nodes->between.rank)
        rank++;
    return rank;
}

/* Its number in the norm group, from 1; 0: none was found. */
static uint64_t number_of(const zfi_engine_t *engine, uint64_t found) {
    uint32_t group = (uint32_t)(found >> 32) - 1, rank = (uint32_t)found;
    if (!found)
        return 0;
    if (engine->nodes.part_of && group == engine->nodes.inside_group) {
        rank = rank_inside(engine, rank);
        group = 0;
    }
    return 1ull + (engine->members[group] ? engine->members[group][rank] : rank);
}

zf_status_t zfi_nonfinite_share(zfi_ranks_t *ranks, zfi_step_row_t *row) {
    zfi_engine_t *engine = ranks->engine;
    uint64_t *all = ranks->reduction->nonfinite, lowest = UINT64_MAX;
    if (!zfi_has_peers(engine) || row->scalars.nonfinite_param == ZFI_NO_PARAM)
        return ZF_OK;
    zfi_member_t place = zfi_norm_member(engine);
    zfi_exchange_t what = {.purpose = ZF_COLLECTIVE_FOR_STEP,
                           .bucket = ZF_NO_ID,
                           .step = row->t,
                           .recv = all,
                           .nbytes = sizeof *all,
                           .lane = ZFI_LANE_ENTERING,
                           .group = engine->norm_index};
    all[place.rank] = number_of(engine, row->nonfinite_part);
    zf_status_t st = zfi_collective(engine, &what);
    for (uint32_t r = 0; r < place.n_ranks && !st; r++)
        lowest = all[r] && all[r] < lowest ? all[r] : lowest;
    if (!st && lowest != UINT64_MAX)
        row->nonfinite_rank = (uint32_t)lowest - 1;
    return st;
}
