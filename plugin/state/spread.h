/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/spread.h - a checkpoint that several ranks write, or read, each its share.
 *
 * Model. The files are those that one rank would write, byte for byte. Of an array with a value per element a rank has
 * its slice of each matrix. Everything else is rank 0's. The checksum of a tensor is made of those of all slices.
 *
 *   tensor "w/layer9.weight"   | rank 0 | rank 1 | rank 2 | rank 0 | rank 1 | rank 2 |      of two matrices
 *
 * At stage 0, where every rank keeps everything, the ranges are the same; with experts, whose buckets have other ranks
 * than the rest, all of it is rank 0's there. */
#ifndef ZFI_STATE_SPREAD_H
#define ZFI_STATE_SPREAD_H

#include "state/index.h"
#include "state/together.h"

/* [control] Values [*out_first, *out_end) of a matrix (number `matrix` of the run, `saved` as it is saved) that are a
 * rank's share of an array. */
void zfi_spread_share(const zfi_ranks_t *ranks, const zfi_state_array_t *array, const zfi_state_shape_t *shape,
                      const zfi_matrix_t *saved, uint32_t matrix, uint32_t rank, uint64_t *out_first,
                      uint64_t *out_end);

/* [any-thread] Bytes of a tensor, with so many of it behind them, count in a checksum of this rank's shares. */
void zfi_spread_add(uint32_t *crc, const void *bytes, uint64_t nbytes, uint64_t behind_nbytes);
/* [control] The checksums of every tensor's shares (own: in tensor->crc) become those of the tensors. Collective, after
 * a meeting. */
zf_status_t zfi_spread_join(zfi_together_t *together, zfi_saved_t *saved, zf_error_t *err);

/* [control] Which matrices show something else than their state on any rank: [n_matrices], to be freed with
 * zfi_together_drop. Collective, with a meeting. */
zf_status_t zfi_spread_find_visible(const zfi_state_t *state, zfi_together_t *together, uint8_t **out, zf_error_t *err);

#endif
