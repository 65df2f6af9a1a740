/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/gradients.h - gradients on the device and on their way down to slots. */
#pragma once

#include "instance/run.h"

/* [hook] First of a step, before its gradients and what is made of them: the device's lists follow what was chosen
 * last, and the memory that gradients are counted in is free. Done once, however often it is called. */
void zfi_gradients_begin(zfi_engine_t *engine, const zfi_plan_t *plan, zfi_clock_t *clock);

/* [hook] A batch, by its number: made contiguous, its statistics taken (signals shipped), copied into its slots
 * (signals batches). */
void zfi_gradients_ship(const zfi_device_side_t *side, const zfi_windows_t *windows, const zfi_batch_t *batch,
                        uint64_t number);
