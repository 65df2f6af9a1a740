/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/entering.h - the state of channels that enter, of which each rank has the elements that it owns.
 *
 * Model. Blocks (zfi_enter_block_t) are filled as on one rank, as many as reduction.blocks holds. Of their elements
 * each rank sends those that it owns, all blocks together, and no others; then they go up one by one. What is sharded
 * (stage 3) is in none of them: the owner of a selected element updates it. */
#pragma once

#include "instance/run.h"

static inline zfi_enter_block_t *zfi_entering_block(const zfi_reduction_t *reduction, uint32_t i) {
    return (void *)(reduction->blocks + i * reduction->block_nbytes);
}

/* [own threads: control] The first n blocks become those of all ranks. A failure has ended the instance. */
zf_status_t zfi_entering_join(zfi_ranks_t *ranks, uint32_t n, uint64_t step);
