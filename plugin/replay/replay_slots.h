/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/replay_slots.h - the slots of a window as the replay of a segment takes them. */
#pragma once

#include "replay/replay_view.h"

enum { ZFI_MOST_SLOTS = 64 };

/* The slots of one segment that count: pointers to its gradients and the scalars of each update. Scalars are kept from
 * one segment to the next while nothing they depend on has changed, which is the common case with many small
 * parameters. Begins as {.group = UINT32_MAX}. */
typedef struct zfi_segment_slots {
    const unsigned char *carried; /* the chunk's gradients, where they lie in no slot; else NULL */
    uint32_t n;
    const void *grads[ZFI_MOST_SLOTS];
    const zfi_step_row_t *rows[ZFI_MOST_SLOTS];
    zfi_scalars_t scalars[ZFI_MOST_SLOTS], mean_scalars;
    float s[ZFI_MOST_SLOTS];
    uint64_t pattern; /* which slots of the window these are */
    uint32_t group;
    const zfi_group_rule_t *rule;     /* the group's */
    uint32_t n_before, n_before_mean; /* updates before the window that scalars were made for */
    int has_scalars, has_mean;
} zfi_segment_slots_t;

/* [own threads] */
void zfi_replay_find_slots(const zfi_replay_view_t *view, const zfi_close_t *close, const zfi_segment_t *segment,
                           zfi_segment_slots_t *slots);

/* [own threads] Whether this segment takes the slots and scalars that were found for another of its chunk. */
int zfi_replay_is_alike(const zfi_replay_view_t *view, const zfi_close_t *close, const zfi_segment_slots_t *slots,
                        uint32_t n_before, const zfi_segment_t *segment);

/* [own threads] Of each slot, where n_before updates came before the window. */
const zfi_scalars_t *zfi_replay_scalars(zfi_segment_slots_t *slots, uint32_t n_before);
