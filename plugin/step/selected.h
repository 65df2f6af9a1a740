/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/selected.h - selected channels on the device: their update at every step, and what entered last. */
#pragma once

#include "instance/run.h"

/* [hook] One launch of run-ahead for matrices [first, end) of step t; counts_only: in warm-up nothing is selected. */
void zfi_selected_run_ahead(const zfi_device_side_t *side, uint64_t t, int counts_only, uint32_t first, uint32_t end);

/* [hook] Channels chosen at choice_step become visible; signals shown = choice_step + 1. */
void zfi_selected_show_entered(zfi_engine_t *engine, zfi_device_state_t *dev, uint64_t choice_step);

/* [hook] Moments of the selected channels of a closing cohort are rounded as its replay rounds the host's. */
void zfi_selected_round_moments(const zfi_device_side_t *side, const zfi_close_t *close);

/* The lists of entering channels in device memory. */
static inline zfi_entering_t zfi_device_entering(const zfi_device_state_t *dev) {
    return (zfi_entering_t){dev->enter_n, dev->enter_position, dev->enter_channel, dev->enter_count};
}
