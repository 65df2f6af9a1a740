/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/replay.h - one chunk of a closed window: its slots applied to w, m, v in one pass. */
#pragma once

#include "replay/replay_view.h"

/* [control] What a configuration says of replays. */
void zfi_replay_settings(const zfi_config_t *config, zfi_replay_view_t *out);
/* [control] Of a bound run, for as long as it lives. */
void zfi_replay_view(const zfi_replays_t *replays, zfi_replay_view_t *out);

/* Floats of scratch that the replay of a chunk of n elements needs; 0: none. */
uint64_t zfi_replay_scratch(const zfi_replay_view_t *view, uint64_t n_elems);

typedef struct zfi_replayed {
    uint64_t n_elems;          /* updates of elements */
    uint32_t nonfinite_matrix; /* with ZF_ERR_NONFINITE */
} zfi_replayed_t;

/* [own threads] Replays; slots and scalars of the window must be in host memory. ZF_ERR_NONFINITE where a weight ends
 * non-finite. Does not count updates: zfi_replay_count does. */
zf_status_t zfi_replay_chunk(const zfi_replay_view_t *view, const zfi_close_t *close, uint32_t chunk,
                             const zfi_replay_target_t *target, zfi_replayed_t *out);

/* [own threads] Adds the window's updates to n of the cohort's matrices; once per close, after its last chunk. */
void zfi_replay_count(const zfi_replay_view_t *view, const zfi_close_t *close);

/* [control] What n of a matrix's channel will be once this window is counted. */
uint32_t zfi_replay_count_of(const zfi_replay_view_t *view, const zfi_close_t *close, uint32_t matrix,
                             uint32_t channel);
