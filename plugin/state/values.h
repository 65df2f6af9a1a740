/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/values.h - the training state of a run at rest, by ranges of an array: read, as it is or as FLUSH would
 * leave it, and write. Save, export, inspect, a second bind_params and loads have no other way to it; audit reads
 * digests of it in place (replay/state_arrays.h). */
#pragma once

#include "state/saved.h"

typedef struct zfi_reader {
    const zfi_state_t *state;
    const char *origin;              /* of errors */
    struct zfi_rehearsal *rehearsal; /* windows are open, and what FLUSH would leave is read; else NULL */
} zfi_reader_t;

/* [control] Opens a reader of a run, which rests until it is closed. is_flushed: values are as FLUSH would leave them.
 */
zf_status_t zfi_reader_open(const zfi_run_t *run, int is_flushed, const char *origin, zfi_reader_t *out,
                            zf_error_t *err);
void zfi_reader_close(zfi_reader_t *reader);
/* [control] Values [first, first + n) of an array of a block, all of which this rank has. ZF_ERR_NONFINITE where a
 * weight would end as Inf or NaN. */
zf_status_t zfi_reader_get(const zfi_reader_t *reader, zfi_saved_array_t array, uint32_t matrix, uint64_t first,
                           uint64_t n, void *out, zf_error_t *err);

/* [control] Writes w, m or v of elements [first, first + n) of a parameter, as far as this rank owns them. The run may
 * cut the parameter in any way. */
zf_status_t zfi_values_put(const zfi_state_t *into, zfi_saved_array_t array, uint32_t param, uint64_t first, uint64_t n,
                           const float *values, zf_error_t *err);
/* [control] Writes counts of updates of a block of another cut, one for each of its channels or one for all. Where a
 * matrix or channel gets several, the largest stays. */
void zfi_values_put_counts(const zfi_state_t *into, uint32_t param, const zfi_matrix_t *from, const uint32_t *n,
                           int has_one_count);
/* [control] Carries what a reader has of a block over into a parameter of another run. join, unless NULL, is called in
 * any case, with how reading went (st, err): it makes values [ZFI_STATE_ARRAYS][elements of the block], of which this
 * rank has its slice, whole. */
typedef zf_status_t (*zfi_join_fn)(void *arg, uint32_t matrix, zf_status_t st, float *values, zf_error_t *err);
zf_status_t zfi_values_carry(const zfi_reader_t *from, uint32_t matrix, const zfi_state_t *into, uint32_t param,
                             zfi_join_fn join, void *arg, zf_error_t *err);
