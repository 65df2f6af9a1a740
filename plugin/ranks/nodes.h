/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/nodes.h - sums and gathers in two levels: sums inside a machine (node), then between machines.
 *
 * Model. The ranks of group 0 are N nodes of L ranks. The parts of a bucket lie by the place that their rank has in its
 * node, then by node; of two nodes with three ranks:
 *
 *   part_of   | 0, node 0 | 0, node 1 | 1, node 0 | 1, node 1 | 2, node 0 | 2, node 1 |
 *
 * Inside a node each rank gets the N parts of its place from the L ranks, and sums them by place. Between nodes, ranks
 * of one place exchange these, and each sums its own part by node. A rank sends (L-1)/L of a bucket inside its node and
 * (N-1)/N of an L-th of it to others, where one level sends (N-1)/N of all of it. Sums of a node are rounded to the
 * gradients' data type on their way.
 *
 * A gather goes the other way round (zfi_gather_parts): ranks of one place exchange their parts between nodes, and then
 * every rank passes on the N parts of its place inside its node. So go sums at stage 0, and from stage 1 on published
 * values, parameters, selected channels' sums, importance, entering state and what is gathered at rest.
 *
 * One level is left for what is small (the norm, agreements), for sums of |gradient| on their way to the rank that
 * counts them, which are added by rank (importance.h), and for groups other than 0. */
#ifndef ZFI_NODES_H
#define ZFI_NODES_H

#include "instance/engine.h"

/* [control] Asks the host for its nodes where the configuration wants two levels, and compares: a call of all ranks.
 * Every rank is refused alike where one of them has no such groups, or nodes differ in size. One level is left where
 * there is one node, or one rank in each. */
zf_status_t zfi_nodes_open(zfi_engine_t *engine, zf_error_t *err);

#endif
