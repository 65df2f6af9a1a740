/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/nonfinite.h - whose gradient it was that made a step's sums not finite.
 *
 * The rank that sums a part sees what each rank sent (SUM_PARTS), and keeps one rank that sent Inf or NaN with the
 * step's row. Only where a step was found not to be finite, which all ranks know alike, they exchange what they kept,
 * and each says the lowest rank. Where the transport sums (nccl_native) nobody sees parts, and none is named. */
#pragma once

#include "instance/run.h"

/* SUM_PARTS' found_as, for a sum over the members of a group (the transport's number). */
static inline uint64_t zfi_nonfinite_of(uint32_t group) { return (group + 1ull) << 32; }

/* [control thread] Sets row->nonfinite_rank, once the step's scalars are there. Nothing on one rank, or where all was
 * finite. A failure has ended the instance. */
zf_status_t zfi_nonfinite_share(zfi_ranks_t *ranks, zfi_step_row_t *row);
