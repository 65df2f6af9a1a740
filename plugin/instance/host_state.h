/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/host_state.h - the host's weights and moments by a matrix's elements, wherever its tiles lie. */
#ifndef ZFI_HOST_STATE_H
#define ZFI_HOST_STATE_H

#include "instance/run.h"

typedef enum { ZFI_STATE_W, ZFI_STATE_M, ZFI_STATE_V } zfi_host_array_t;

/* [control] Elements [first, first + n) of a matrix, row-major, all of which this rank owns; moments as zfi_moments_get
 * and zfi_moments_put have them: zeros where the rule has none. */
void zfi_state_get(const zfi_run_t *run, zfi_host_array_t array, uint32_t matrix, uint64_t first, uint64_t n,
                   float *out);
void zfi_state_put(zfi_run_t *run, zfi_host_array_t array, uint32_t matrix, uint64_t first, uint64_t n,
                   const float *values);

#endif
