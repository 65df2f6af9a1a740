/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/groups.h - process groups: which ranks sum the gradient of a parameter.
 *
 * Model. A model may be spread over more instances than hold the same parameters. Group 0 of an instance are the ranks
 * that hold what it holds, data parallel. The norm group are all ranks that train the model together; every other group
 * lies in it. A parameter may have a group of its own in place of group 0 (an expert's), and a second one: what its
 * first group has summed is then added up over that, so all of it hold the same (a LayerNorm under sequence
 * parallelism, an embedding tied over two pipeline stages). Each gradient counts once in the norm: sharded, by the rank
 * that keeps it; else by the first rank of its group; and of a second group by the first rank.
 *
 * What ranks of a second group show has to be the same at every step, though their windows may not be, so such
 * parameters are resident. */
#pragma once

#include "instance/run.h"

/* [control] Opens the groups that the declarations name, and says of each parameter which it has and whether it counts
 * here. What is not in this version is refused by name. */
zf_status_t zfi_groups_join(zfi_engine_t *engine, const zfi_config_t *config, zfi_param_t *params, uint32_t n,
                            zf_error_t *err);

/* [control] The parameters with state that have a group of their own, group by group: first those that are a
 * parameter's first, then second ones, in the order of the host's numbers, which is the same on every rank. */
zf_status_t zfi_groups_list(const zfi_engine_t *engine, const zfi_param_t *params, uint32_t n, zfi_group_lists_t *out);
void zfi_groups_free(zfi_group_lists_t *lists);

/* Whether parameters of this run have a group in place of group 0: experts, which other ranks of it have others of. */
static inline int zfi_has_experts(const zfi_reduction_t *reduction) {
    return reduction->groups.n > 0 && reduction->groups.all[0].which == 0;
}

/* The most ranks that agree on anything. */
uint32_t zfi_groups_most_ranks(const zfi_engine_t *engine, const zfi_group_lists_t *lists);
