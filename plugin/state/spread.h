/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/spread.h - a checkpoint that several ranks write, or read, each its share.
 *
 * Model. The files are those that one rank would write, byte for byte. Of an array with a value per element a rank has
 * the elements of its parts of the buckets: one range of each parameter, and so one range of each tensor. Everything
 * else is rank 0's. The checksum of a tensor is joined from those of its ranges, by rising rank.
 *
 *   tensor "w/layer9.weight"   | rank 0          | rank 1                  | rank 2 |
 *
 * At stage 0, where every rank keeps everything, the ranges are the same; with experts, whose buckets have other ranks
 * than the rest, all of it is rank 0's there. */
#ifndef ZFI_STATE_SPREAD_H
#define ZFI_STATE_SPREAD_H

#include "state/index.h"
#include "state/together.h"

/* [control] Values [*out_first, *out_end) of a matrix of a parameter that are a rank's share of an array. */
void zfi_spread_share(const zfi_ranks_t *ranks, const zfi_state_array_t *array, uint32_t id,
                      const zfi_state_shape_t *shape, const zfi_matrix_t *matrix, uint32_t rank, uint64_t *out_first,
                      uint64_t *out_end);

/* [control] The checksums of every tensor's shares (own: in tensor->crc) become those of the tensors; ids: the
 * parameters of the run, in the checkpoint's order. Collective, after a meeting. */
zf_status_t zfi_spread_join(const zfi_ranks_t *ranks, const uint32_t *ids, zfi_together_t *together, zfi_saved_t *saved,
                            zf_error_t *err);

/* [control] Which matrices show something else than their state on any rank: [n_matrices], to be freed with
 * zfi_together_drop. Collective, with a meeting. */
zf_status_t zfi_spread_find_visible(const zfi_state_t *state, zfi_together_t *together, uint8_t **out, zf_error_t *err);

#endif
