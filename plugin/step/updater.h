/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/updater.h - what a step updates on the device, and what becomes of the rest: one table for each way,
 * chosen at bind.
 *
 *   windows  the selected channels, and resident matrices; other gradients are kept in slots until a window closes
 *            (windows.c)
 *   exact    resident matrices; other gradients are kept in slots until the step's end, when all of them are replayed:
 *            no channel is selected (windows.c)
 *   carried  as exact; a gradient stays in the memory of its values until these are written there, and FLUSH writes
 *            none (windows.c)
 *   whole    resident matrices: there are no others (resident.c) */
#pragma once

#include "instance/run.h"

typedef struct zfi_updater {
    /* All [hook]. One launch of the update of matrices [first, end) at step t, which becomes visible at once. */
    void (*update)(const zfi_device_side_t *side, uint64_t t, int is_warm_up, uint32_t first, uint32_t end);
    /* After the last launch of step t: windows, publications and choices. */
    void (*end)(zfi_run_t *run, uint64_t t);
    /* Behind the step: its record of importance is counted, channels are chosen (control.h). */
    zf_status_t (*choose)(const zfi_state_t *state, uint64_t t);
    /* FLUSH: what is due and what is open becomes visible. */
    void (*flush)(zfi_run_t *run);
    /* A batch of deliveries is closed when it holds this many gradient bytes: few, where each is to travel while the
     * next is filled; many, where a batch is one sharing of work among threads. */
    uint64_t batch_nbytes;
} zfi_updater_t;

extern const zfi_updater_t zfi_updater_windows, zfi_updater_exact, zfi_updater_carried, zfi_updater_whole;

/* [control] The updater and the publisher of a run, as its configuration says, and whether the host's thread has a part
 * of its steps. */
void zfi_step_bind(zfi_run_t *run);
