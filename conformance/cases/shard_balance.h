/* SPDX-License-Identifier: Apache-2.0 */
/* shard_balance.h - zf-conform shard --balance: is the work of replays even over ranks and steps?
 *
 * Model. A step ends one cohort's windows, and replays on every rank what that rank owns of the cohort: a rank that
 * owns more keeps all others waiting. Each rank's run is made by itself, one after the other, as one among its images
 * (shard_mirror.h): a transformer's shapes in bfloat16, stage 1, windows of S steps, nothing selected. After each step
 * everything under way ends, and the plugin's counter of replayed elements has grown by that step's work. So what is
 * counted is what ran.
 *
 * Imbalance is the most that one rank does of a cohort, over what it would be if every rank and step did the same: 1.05
 * at most, for each rank has its share of every matrix (plugin/SCHEDULE.md, "The cut"). */
#ifndef ZF_CONFORMANCE_SHARD_BALANCE_H
#define ZF_CONFORMANCE_SHARD_BALANCE_H

#include <stdint.h>

#include "zf_loader.h"

/* Prints a table: a row per cohort, a column per rank. 0: within the bound; 1: not. */
int zs_balance(const zf_loader_t *loader, uint32_t n_ranks, double millions);

#endif
