/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/lateness.h - the meter of lateness: how much loss it cost, to first order, that the model saw old
 * weights.
 *
 * With w the weights that AdamW without lateness would have shown at step t, and g the gradient that was taken at the
 * visible ones, the sum of unscale * g * (visible - round(w)) is f(visible) - f(w) to first order. A replay passes all
 * three: w before slot t, the slot, and what was published before. Counted are channels that were deferred in the
 * window, at applied steps, in windows after warm-up; in replay mode and with a built-in rule. Left out: slots before a
 * params_changed, and after it, a load or a second bind_params the parts of up to two windows whose visible values are
 * not known here. The gradient is the loss's: not clipped.
 *
 * A sample is measured: of every `every` blocks of ZFI_SAMPLED_BLOCK elements one, chosen by a hash of chunk, window
 * and place; what is found counts `every` times. The samples of a window are known two windows ahead, so what becomes
 * visible is kept for them alone: that costs 12 bytes per sampled element, and nothing else is kept. */
#pragma once

#include "replay/replay_view.h"

/* Of the engine's meter, for so many groups and cohorts. */
static inline zfi_meter_size_t zfi_lateness_size(const zfi_engine_t *engine, uint32_t n_groups, uint32_t n_cohorts) {
    return (zfi_meter_size_t){n_groups, n_cohorts, zfi_is_sharded(engine) ? zfi_n_ranks(engine) : 1};
}

/* [control] A run begins, or goes on from what was loaded into it; everything is idle. */
void zfi_lateness_start(const zfi_replays_t *replays, uint32_t n_params, uint32_t n_groups);

/* [own threads] Before the chunk's replay: adds what the window's steps cost to engine->meter. */
void zfi_lateness_measure(const zfi_replays_t *replays, const zfi_replay_view_t *view, const zfi_close_t *close,
                          uint32_t number);
/* [own threads] After it: keeps what becomes visible. target is the replay's. */
void zfi_lateness_keep(const zfi_plan_t *plan, zfi_sampled_t *sampled, const zfi_replay_view_t *view,
                       const zfi_close_t *close, uint32_t number, const zfi_replay_target_t *target);

/* [control] Everything is idle: what these matrices show is not what was published last. */
void zfi_lateness_forget(const zfi_plan_t *plan, zfi_sampled_t *sampled, uint32_t first_matrix, uint32_t n_matrices);
