/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/resident.h - matrices whose state is the device's alone: every channel is updated there at every step,
 * from the gradient as it was delivered, and becomes visible at once. No window, slot, replay or publication has a part
 * in it. Where each rank keeps a part of the state, it updates its slices, and all ranks' values are shown with those
 * that are published in the step, or where they are fetched. Where no matrix is resident, zfi_resident_end signals all
 * the same and the others do nothing. */
#pragma once

#include "instance/run.h"

/* [hook] One launch of the update of matrices [first, end) at step t. */
void zfi_resident_update(const zfi_device_side_t *side, uint64_t t, uint32_t first, uint32_t end);
/* [hook] After the last launch of step t: the gradients, which stayed where they were delivered, have been read. */
void zfi_resident_end(zfi_engine_t *engine, uint64_t t);
/* [hook] The same as updater.h's `update`, where no channel is selected. */
void zfi_resident_alone(const zfi_device_side_t *side, uint64_t t, int is_warm_up, uint32_t first, uint32_t end);
/* [hook] Visible = round(w). */
void zfi_resident_show(zfi_publishing_t *publishing);
/* [hook] ZF_ERR_POISONED, and the instance ends, where an update left a weight Inf or NaN. */
zf_status_t zfi_resident_check(zfi_engine_t *engine, const zfi_param_t *params);
