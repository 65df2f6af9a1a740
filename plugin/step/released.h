/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/released.h - visible values while the device's memory is released (zf.residency/1): no kernel can run, so
 * they are copied from the host's parameters run by run, and their digests are made by the host's threads. */
#pragma once

#include "instance/run.h"

/* [control] Visible values of elements [first, first + n) of what is held of a matrix. */
zf_status_t zfi_released_get_visible(const zfi_state_t *state, uint32_t matrix, uint64_t first, uint64_t n, void *out);
/* [control] Whether a matrix shows something else than the plugin wrote there last, by its digest. */
zf_status_t zfi_released_differs(const zfi_state_t *state, uint32_t matrix, int *out);
/* [control] As zfi_guard_forget. */
void zfi_released_forget(const zfi_state_t *state, uint32_t param);
/* [control] As zfi_guard_check: parameters that the host wrote unannounced are foreign, once memory is there again
 * too. */
zf_status_t zfi_released_check(const zfi_state_t *state);
