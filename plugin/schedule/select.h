/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/schedule/select.h - which channels run ahead: importance records, the host's maps, and the state of channels
 * that enter. All of it runs on the control thread. */
#pragma once

#include "instance/run.h"

/* Whether this rank counts the records of a matrix: importance of others is what it was when it was gathered last. */
static inline int zfi_select_counts(const zfi_selection_t *sel, uint32_t matrix) {
    return !sel->is_counted || sel->is_counted[matrix];
}

/* [own threads: control] Part `part` of a step's importance record, which is in host memory, is counted. */
void zfi_select_add_record(const zfi_plan_t *plan, zfi_selection_t *sel, const zfi_step_row_t *row, uint32_t part);

/* [own threads: control] The host's maps follow a choice, once the windows that closed with it are replayed. */
void zfi_select_update_maps(const zfi_state_t *state);

/* Walks the state of a choice's entering channels in matrix order. */
typedef struct zfi_enter_walk {
    const zfi_state_t *state;
    int is_sharded; /* of these matrices, or of all others */
    uint32_t matrix;
    uint64_t a, b; /* next row and column, where the channel axis counts entering channels */
} zfi_enter_walk_t;

/* [own threads: control] The next block, as full as it gets: its rectangles and their values. Returns its elements; 0
 * when all have been handed out. */
uint32_t zfi_enter_walk_fill(zfi_enter_walk_t *walk, zfi_enter_block_t *block);
