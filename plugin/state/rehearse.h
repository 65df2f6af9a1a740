/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/rehearse.h - w, m, v and n as FLUSH would leave them, read piece by piece; the run is drained and not
 * changed. Chunks are replayed into copies, one kept per cohort, because neighbours are asked for in turn. */
#pragma once

#include "instance/run.h"
#include "replay/replay.h"
#include "replay/state_arrays.h"

typedef struct zfi_rehearsal zfi_rehearsal_t;

/* [control] NULL without memory. The values stay true as long as the run rests. */
zfi_rehearsal_t *zfi_rehearsal_new(const zfi_state_t *state, const zfi_replays_t *replays);
void zfi_rehearsal_free(zfi_rehearsal_t *rehearsal);

/* [control] Elements [first, first + n) of a matrix. ZF_ERR_NONFINITE where a weight would end as Inf or NaN. The
 * caller's floating-point mode is as before. */
zf_status_t zfi_rehearsal_read(zfi_rehearsal_t *rehearsal, zfi_array_t what, uint32_t matrix, uint64_t first,
                               uint64_t n, float *out);

/* [control] Update count of a matrix's channel after its open window. */
uint32_t zfi_rehearsal_count(zfi_rehearsal_t *rehearsal, uint32_t matrix, uint32_t channel);
