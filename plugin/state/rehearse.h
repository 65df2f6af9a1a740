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

/* ---- a matrix's places in chunks --------------------------------------------------------------------------------- */

typedef struct zfi_piece_walk {
    const zfi_plan_t *plan;
    uint32_t matrix, ref, end_ref;
    uint64_t first, end;
} zfi_piece_walk_t;

typedef struct zfi_piece_place {
    uint32_t chunk;
    uint64_t chunk_offset; /* elements */
    uint64_t at;           /* elements after the walk's first */
    uint64_t n;
} zfi_piece_place_t;

/* Elements [first, first + n) of a matrix, chunk by chunk, in no order that matters. */
void zfi_piece_walk_start(zfi_piece_walk_t *walk, const zfi_device_side_t *side, uint32_t matrix, uint64_t first,
                          uint64_t n);
int zfi_piece_walk_next(zfi_piece_walk_t *walk, zfi_piece_place_t *out);
