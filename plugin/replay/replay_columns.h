/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/replay_columns.h - mean mode where columns are channels: one segment whose columns differ in their
 * update counts or in the way they are updated. */
#pragma once

#include "replay/replay_view.h"

typedef struct zfi_replay_columns {
    const zfi_replay_view_t *view;
    const zfi_close_t *close;
    const zfi_segment_t *segment;
    const zfi_group_rule_t *rule;
    const void *const *grads; /* [n_slots] of the segment, those that count */
    const zfi_hyper_t *hyper; /* [n_slots] */
    const float *s;           /* [n_slots] */
    uint32_t n_slots;         /* >= 1 */
    const zfi_replay_target_t *target;
} zfi_replay_columns_t;

/* Floats of scratch that a segment of n elements needs. */
uint64_t zfi_replay_columns_scratch(uint64_t n_elems);

/* [own threads] Selected columns: every slot's update; others: one update from the mean. Each with its own column's n,
 * which it does not count. Returns the segment's first element whose w is not finite, or UINT64_MAX. */
uint64_t zfi_replay_columns(const zfi_replay_columns_t *job);
