/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/spread.h - a checkpoint that several ranks write, or read, each its share.
 *
 * Model. The files are those that one rank would write, byte for byte. Of an array with a value per element a rank has
 * its slice of each matrix. Everything else is rank 0's. The checksum of a tensor is made of those of all slices.
 *
 *   tensor "w/layer9.weight"   | rank 0 | rank 1 | rank 2 | rank 0 | rank 1 | rank 2 |      of two matrices
 *
 * At stage 0, where every rank keeps everything, the ranges are the same; with experts, whose checkpoints other ranks
 * write than those of group 0, all of it is rank 0's there.
 *
 * Experts from stage 1 on. Each checkpoint has what is beside the experts too, of which its ranks own some slices only.
 * So that is gathered over group 0, a matrix of an array at a time, and rank 0 of each checkpoint writes it: all of
 * group 0 meet, files are cut by elements, which are the same in all of them, and a failure is every rank's. A load
 * reads such a tensor whole, and keeps what it owns.
 *
 * A store of the host's is one rank's own. So all that others own is gathered for it; or, with ZF_STATE_OWN, it has the
 * rank's slices, and all that is not dealt. */
#pragma once

#include "state/saved.h"
#include "state/together.h"

/* Whether something is gathered, and read whole; and whether parameter `id` is. */
int zfi_spread_gathers(const zfi_ranks_t *ranks, const zfi_together_t *together);
int zfi_spread_is_gathered(const zfi_ranks_t *ranks, const zfi_together_t *together, uint32_t id);

/* [control] Values [*out_first, *out_end) of the n that a block (number `matrix` of the run) has of an array, which are
 * a rank's share. */
void zfi_spread_share(const zfi_ranks_t *ranks, zfi_saved_array_t array, uint64_t n, uint32_t matrix,
                      const zfi_together_t *together, uint64_t *out_first, uint64_t *out_end);

/* [any-thread] Bytes of a tensor, with behind_nbytes of it behind them, count in a checksum of this rank's shares. */
void zfi_spread_add(uint32_t *crc, const void *bytes, uint64_t nbytes, uint64_t behind_nbytes);
/* [control] The checksums of every tensor's shares (own: in tensor->crc) become those of the tensors. ids: the run's
 * numbers of the parameters. Collective, after a meeting. */
zf_status_t zfi_spread_join(zfi_ranks_t *ranks, const uint32_t *ids, zfi_together_t *together, zfi_saved_t *saved,
                            zf_error_t *err);
