/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/state.h - zf.state/1 (contract in zf/ext/state.h): what its files share.
 *
 *   save.c    writes a checkpoint                    table.c, clocks.c  what is saved, row by row
 *   check.c   every check of a checkpoint by itself  index.c, read.c    its index, written and read; json.c below
 *   load.c    into a run; load_exact.c, load_own.c   header.c           headers of its files against the index
 *   store.c   where its blobs live                   dir.c, beside.c    in a directory, and what lies beside it
 *   together.c, spread.c  several ranks agree, and write or read each its share
 *   carry.c   w, m, v, n into another cut or schedule
 *   replace.c one run exchanged for a loaded one, in one go that cannot fail
 * The hooks of zf.state/1 are in hooks/state.c. Everything here works on a drained run. */
#pragma once

#include "state/index.h"
#include "state/together.h"

enum { ZFI_STATE_BLOCK = 1 << 20 }; /* bytes read, checked and copied at a time */

typedef struct zfi_save_args {
    int is_compact;
    const char *note;
    uint64_t file_nbytes; /* zfi_state_file_nbytes(), the same on every rank */
    zfi_together_t *together;
} zfi_save_args_t;

/* [control] The drained run to an open store; commits. Several ranks, in one store, together: all succeed or none. */
zf_status_t zfi_state_write(zfi_run_t *run, const zfi_save_args_t *args, zfi_store_t *store, zf_state_report_t *report,
                            zf_error_t *err);
uint64_t zfi_state_file_nbytes(void);

/* [any-thread] Reads the index and checks it by itself, then the headers of its files; fills step_values. What it costs
 * is bounded by the index's own size. */
zf_status_t zfi_state_open(zfi_store_t *store, zfi_saved_t *out, zf_error_t *err);
/* [any-thread] What an index says by itself: its rule goes with its configuration, its clocks with each other. */
zf_status_t zfi_state_check_index(const zfi_saved_t *saved, zf_error_t *err);
/* [any-thread] Reads every tensor of a parameter and checks it; fills its parts. */
zf_status_t zfi_state_check_tensors(zfi_store_t *store, zfi_saved_t *saved, uint32_t param, zf_error_t *err);
/* [any-thread] Both. */
zf_status_t zfi_state_check(zfi_store_t *store, zfi_saved_t *out, zf_error_t *err);
/* [any-thread] The same of one parameter alone (and of what its slots need). */
zf_status_t zfi_state_check_param(zfi_store_t *store, const char *param, zfi_saved_t *out, zf_error_t *err);
void zfi_state_report(const zfi_saved_t *saved, const zfi_store_t *store, zf_state_report_t *out);

/* [any-thread] Calls fn with the tensor's bytes, block by block; checks them. */
typedef zf_status_t (*zfi_block_fn)(void *arg, uint64_t at, const void *block, uint64_t nbytes, zf_error_t *err);
zf_status_t zfi_state_stream(zfi_store_t *store, const zfi_saved_t *saved, const zfi_saved_tensor_t *tensor,
                             const char *name, zfi_block_fn fn, void *arg, zf_error_t *err);

/* A tensor's values as they are read, block by block from its first byte or from the first of matrix `at`. A load reads
 * everything twice, and the files may have been changed in between: what goes into an instance is checked again. */
typedef struct zfi_value_check {
    const zfi_saved_t *saved;
    const zfi_saved_param_t *param;
    const zfi_saved_tensor_t *tensor;
    uint32_t at;                    /* matrix that is being read: number in the tensor's list */
    uint64_t n_selected, in_matrix; /* "selected", "interval", "n": of that matrix */
    const uint8_t *late;            /* "n": which channels are not selected; NULL: not known */
    uint64_t n_counted;             /* "n": values that were read */
} zfi_value_check_t;

/* [any-thread] A zfi_block_fn: arg is a zfi_value_check_t; `at` is for the message. */
zf_status_t zfi_state_check_block(void *arg, uint64_t at, const void *block, uint64_t nbytes, zf_error_t *err);

/* [any-thread] Reads the values of one matrix of a checked tensor and checks values and checksum once more. Where
 * tensor is NULL or does not hold the matrix, `out` stays as it is. */
zf_status_t zfi_state_read_part(zfi_store_t *store, const zfi_saved_t *saved, const zfi_saved_param_t *param,
                                const zfi_saved_tensor_t *tensor, uint32_t matrix, void *out, zf_error_t *err);

/* [control] Directories of a model's parts are easily exchanged, and their parameters often have the same names and
 * shapes. Only the part that these ranks hold fits, unless flags has ZF_STATE_PARTIAL. */
zf_status_t zfi_state_check_part(const zfi_saved_t *saved, const zfi_together_t *together, uint32_t flags,
                                 zf_error_t *err);

/* [control] Loads into the drained run of the slot, which another may take the place of. Several ranks together: all
 * load, or none does. */
zf_status_t zfi_state_read_into(zfi_run_t **slot, zfi_store_t *store, uint32_t flags, zfi_together_t *together,
                                zf_state_report_t *report, zf_error_t *err);

/* ---- state/replace.c --------------------------------------------------------------------------------------------- */

/* A second run, filled while the first stays as it is; or the run itself, where nothing is lost by that. */
typedef struct zfi_replacement {
    zfi_run_t **slot;        /* where the run is held */
    zfi_run_t *run, *into;   /* into = run: in place */
    unsigned char **overlay; /* [n_matrices] visible values that do not follow from the state; freed */
    uint32_t n_overlay;
    void *grad;       /* scratch: the largest gradient of a matrix */
    int has_given_up; /* the run that was there before is gone */
} zfi_replacement_t;

typedef enum zfi_begin {
    ZFI_BEGIN_BESIDE,       /* without masters */
    ZFI_BEGIN_FROM_VISIBLE, /* with masters from the visible values */
    ZFI_BEGIN_INSTEAD       /* without; where there is no room for two the present run is freed first */
} zfi_begin_t;
/* [control] params: the declarations of the new run (taken over, also on failure), or NULL for the present ones. It
 * begins as after bind_params. INSTEAD: no way leads back, so cancel ends the instance; *slot is the new run, or NULL,
 * and the instance has ended, where that could not be made. */
zf_status_t zfi_replace_begin(zfi_run_t **slot, zfi_param_t *params, uint32_t n_params, zfi_begin_t how,
                              zfi_replacement_t *out, zf_error_t *err);
/* [control] Whether a run may be filled in place, for to begin again would be no loss: no step, no load, no gradient of
 * this rank on its way. Several ranks fill in place only if all of them may: a second run begins anew with what the
 * ranks compare at the next step. */
int zfi_replace_is_lossless(const zfi_run_t *run);
zf_status_t zfi_replace_begin_in_place(zfi_run_t **slot, zfi_replacement_t *out, zf_error_t *err);
/* [control] Undoes everything, after an error. */
void zfi_replace_cancel(zfi_replacement_t *replacement, const zf_error_t *err);
/* [control] Takes the new run: clocks, threads, device, visible values; then *slot is it, and the old one is freed.
 * Only a dead thread can make it fail, and that ends the instance. */
zf_status_t zfi_replace_commit(zfi_replacement_t *replacement, zf_error_t *err);

/* ---- state/carry.c ----------------------------------------------------------------------------------------------- */

/* What FLUSH would leave of a matrix: w, m, v (zfi_array_t) of [rows x cols], or NULL, which are not carried; and the
 * update count of each channel, or one. */
typedef struct zfi_flushed {
    float *arrays[ZFI_STATE_ARRAYS];
    uint32_t *n;
    int has_one_count; /* n[0] is of all channels */
} zfi_flushed_t;
void zfi_flushed_free(zfi_flushed_t *flushed);

/* [control] Into another cut of the parameter; from: rows, cols, channels and param_offset of the matrix. Where a
 * matrix or channel gets several counts, the largest stays. */
zf_status_t zfi_carry(const zfi_state_t *into, uint32_t param, const zfi_matrix_t *from, const zfi_flushed_t *flushed,
                      zf_error_t *err);

/* [control] Of a matrix of a checkpoint (rule: the instance's, or NULL where there is none); to be freed. */
zf_status_t zfi_state_flushed(zfi_store_t *store, const zfi_saved_t *saved, uint32_t param, uint32_t matrix,
                              const zfi_kernels_t *kernels, const zfi_group_rule_t *rule, zfi_flushed_t *out,
                              zf_error_t *err);

/* [control] The same for a matrix of a drained run. */
zf_status_t zfi_run_flushed(const zfi_plan_t *plan, const zfi_param_t *params, zfi_rehearsal_t *rehearsal,
                            uint32_t matrix, zfi_flushed_t *out, zf_error_t *err);
