/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/state_arrays.h - weights, moments and counts by a matrix's elements, wherever they live: in the host's
 * memory, or on the device. Both lie in the order of matrices (plan.h).
 *
 * All of it is [control]: the run rests, and each function returns when what it moves is there. A status other than
 * ZF_OK means that the device did not take the work. */
#pragma once

#include "instance/run.h"

typedef enum { ZFI_STATE_W, ZFI_STATE_M, ZFI_STATE_V, ZFI_STATE_ARRAYS } zfi_array_t;

/* The rule of edits, by element: w = visible, where that is not round(w), since the host wrote it then. visible: n
 * elements of dtype, one behind the other. */
void zfi_state_edit(const zfi_kernels_t *kernels, zfi_dtype_t dtype, const void *visible, uint64_t n, float *w);

/* Elements [first, first + n) of a matrix, row-major, all of which this rank owns; moments as zfi_moments_get and
 * zfi_moments_put have them: zeros where the rule has none. */
zf_status_t zfi_state_get(const zfi_state_t *state, zfi_array_t array, uint32_t matrix, uint64_t first, uint64_t n,
                          float *out);
zf_status_t zfi_state_put(const zfi_state_t *state, zfi_array_t array, uint32_t matrix, uint64_t first, uint64_t n,
                          const float *values);

/* Elements [first, first + n) of a matrix that has masters of its own and whose updates see edits: w := what the host
 * wrote, where what the model reads is not round(w). */
void zfi_state_take_edits(const zfi_state_t *state, const zfi_matrix_t *matrix, uint64_t first, uint64_t n, float *w);

/* How an array's elements lie; those of runs are widened. */
zfi_dtype_t zfi_state_dtype(const zfi_matrix_t *matrix, zfi_array_t array);

/* [any-thread] The digest of elements that lie one behind the other, from element `index` of a parameter on
 * (kernels/digest.h). */
uint64_t zfi_param_digest(const zfi_kernels_t *kernels, const void *bits, zfi_dtype_t dtype, uint64_t n,
                          uint64_t index);

/* The moments of a matrix := 0. */
zf_status_t zfi_state_clear_moments(const zfi_state_t *state, uint32_t matrix);

/* hs.n := the device's counts, of resident matrices. */
zf_status_t zfi_state_take_counts(const zfi_state_t *state);
