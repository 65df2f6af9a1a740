/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/gradients.h - gradients on the device and on their way down to slots. */
#pragma once

#include "instance/run.h"

/* [hook] First program of step t. Takes over the maps of a choice made at the end of choice_step (0: none). */
void zfi_gradients_begin(zfi_engine_t *engine, const zfi_plan_t *plan, uint64_t t, uint64_t choice_step);

/* [hook] A batch, by its number: made contiguous, its statistics taken (signals shipped), copied into its slots
 * (signals batches). */
void zfi_gradients_ship(const zfi_device_side_t *side, const zfi_windows_t *windows, const zfi_batch_t *batch,
                        uint64_t number);
