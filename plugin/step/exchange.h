/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/exchange.h - what binding, checkpoints and params_changed read of and write to the device.
 *
 * All of it is [control]: everything else is idle, and each function returns when what it moves is there. Visible
 * values are bits in the parameter's type, row-major within a matrix. A status other than ZF_OK means that the device
 * did not take the work. Where each rank keeps a part of the state, reload_selected is an exchange, which all of them
 * make together. */
#pragma once

#include "instance/run.h"

/* Masters of all matrices := their visible values. */
zf_status_t zfi_exchange_read_masters(const zfi_state_t *state);
/* The same of a run that is being made: a value that is not finite is refused by the parameter's name,
 * ZF_ERR_NONFINITE. Another status has no record. */
zf_status_t zfi_exchange_first_masters(const zfi_state_t *state, const char *origin, zf_error_t *err);
/* Masters of matrices [first, end) := their visible values, by element, where those are not round(w). */
zf_status_t zfi_exchange_take_edits(const zfi_state_t *state, uint32_t first, uint32_t end);
/* Refuses, as above, what take_edits would make of them. Where the host has fetched a parameter that lives as shards,
 * it writes there. */
zf_status_t zfi_exchange_check_edits(const zfi_state_t *state, uint32_t first, uint32_t end, const char *origin,
                                     zf_error_t *err);
/* Compact state of matrices [first, end) := the host's; where nothing is deferred, their counts alone. */
zf_status_t zfi_exchange_reload_selected(const zfi_state_t *state, uint32_t first, uint32_t end);

/* Visible values of elements [first, first + n) of what is held of a matrix. */
zf_status_t zfi_exchange_get_visible(const zfi_state_t *state, uint32_t matrix, uint64_t first, uint64_t n, void *out);
/* Visible values of a matrix := round(w), where this rank owns them. */
zf_status_t zfi_exchange_put_visible(const zfi_state_t *state, uint32_t matrix);

/* The device's maps, its lists of entering channels and what it is told to drop := the host's. */
zf_status_t zfi_exchange_put_maps(const zfi_state_t *state);
