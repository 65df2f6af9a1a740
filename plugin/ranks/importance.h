/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/importance.h - each rank has the sums of its own slices: how all come to choose the same channels.
 *
 * Model. A channel's sum of |gradient| belongs to a matrix, of which each rank has a slice. One rank counts a matrix's
 * records: of P ranks number m mod P those of matrix m.
 *
 * Ranks are those that hold the matrix (plan/bucket.h): experts' sums travel after those of all, among their own.
 *
 * - At every step each rank sends its sums of a matrix to the rank that counts it, which adds them by rising rank
 *   (join_record): at most 8 bytes for each channel of what has something to choose.
 * - Importance and the measure of automatic windows are thus those of one rank, on the rank that counts. They are
 *   gathered once per choice, and for a checkpoint (join, join_at_rest).
 *   They cannot wait for the choice: a record is rounded after it is that of all ranks. Importance of each rank's own
 *   part, added up then, would have other bits than one rank's where sums are exact but s is no power of two; and a
 *   checkpoint knows the sum alone, so a run that goes on from it would choose otherwise than one that was not saved.
 *   The cost is 8 bytes per channel of a block: of 1365 rows (7 G parameters) 0.3 % of gradients of 16 bits.
 * - update_interval = auto: each rank says at every step how many of its matrices are ready (join_ready).
 *
 * All of it but what is joined at rest is the control thread's, in the lane of entering channels. A failure has ended
 * the instance. */
#pragma once

#include "instance/run.h"

/* [control] Says which matrices this rank counts. ZF_ERR_MEMORY. free is legal after a failure. */
zf_status_t zfi_importance_new(zfi_ranks_t *ranks);
void zfi_importance_free(zfi_selection_t *sel);

/* [own threads: control] Part `part` of a step's record, in host memory, becomes that of all ranks where it is counted
 * here. */
zf_status_t zfi_importance_join_record(zfi_ranks_t *ranks, const zfi_step_row_t *row, uint32_t part);

/* [own threads: control] Importance of the cohorts that choose at a step, on every rank. */
zf_status_t zfi_importance_join(zfi_ranks_t *ranks, const zfi_step_row_t *row);

/* [own threads: control] sel.n_ready becomes the sum of all ranks'. */
zf_status_t zfi_importance_join_ready(zfi_ranks_t *ranks, uint64_t t);

/* [hook] While the run rests: all importance, and the measure of automatic windows, on every rank. */
zf_status_t zfi_importance_join_at_rest(zfi_ranks_t *ranks);
