/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/deferral.h - what becomes of a window's gradients: one table for each value of `deferred`, chosen when
 * a view is made (replay.h). All of it runs on workers. */
#pragma once

#include "replay/replay_slots.h"

typedef struct zfi_deferral {
    /* Replays segment `first`, and of those up to `end` that follow it as many as it can take along; slots are those of
     * `first`. Returns the segment that comes next. *out_bad: the first with a non-finite weight, or the same. */
    uint32_t (*replay)(const zfi_replay_view_t *view, const zfi_close_t *close, uint32_t first, uint32_t end,
                       zfi_segment_slots_t *slots, const zfi_replay_target_t *target, uint32_t *out_bad);
    /* How many updates of a channel a window counts that has n applied gradients of the matrix. */
    uint32_t (*count)(const zfi_replay_view_t *view, const zfi_close_t *close, const zfi_matrix_t *matrix,
                      uint32_t channel, uint32_t n);
    /* Floats of scratch that a chunk of n elements needs; NULL: none. */
    uint64_t (*scratch_elems)(uint64_t n_elems);
} zfi_deferral_t;

extern const zfi_deferral_t zfi_deferral_replay, zfi_deferral_mean;

/* ---- what the tables share --------------------------------------------------------------------------------------- */

/* A run of elements, at the same offset in the segment's slots and in the chunk, that share n and a way of updating. */
typedef struct zfi_stretch {
    uint32_t offset; /* from the segment's start */
    uint32_t n_elems;
    uint32_t n_before;
    uint64_t key;     /* of the close's rounding of moments */
    uint32_t predict; /* steps that what is published looks ahead; 0 = none */
} zfi_stretch_t;

/* Its call of the kernel, without scalars. grads: [slots->n], for as long as the call is made. */
zfi_replay_t zfi_replay_job(const zfi_replay_view_t *view, const zfi_segment_t *segment, const zfi_stretch_t *stretch,
                            const zfi_segment_slots_t *slots, const zfi_replay_target_t *target, const void **grads);
/* Makes the call, by a kernel or by the host's rule. Its updates are those of the slots from `first` on. Returns the
 * first element whose w is not finite, or UINT64_MAX. */
uint64_t zfi_replay_make(const zfi_replay_view_t *view, const zfi_segment_slots_t *slots, uint32_t first,
                         uint32_t n_before, const zfi_replay_t *job);
/* Every slot's update. Returns the same. */
uint64_t zfi_replay_stretch(const zfi_replay_view_t *view, const zfi_segment_t *segment, const zfi_stretch_t *stretch,
                            zfi_segment_slots_t *slots, const zfi_replay_target_t *target);
