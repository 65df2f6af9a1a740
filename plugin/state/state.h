/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/state.h - zf.state/1 (contract in zf/ext/state.h): what its files share.
 *
 *   saved.c   what a checkpoint holds          index.c, text.c      its index and headers, as text and back
 *   save.c    writes one                       check.c              reads one and checks it by itself
 *   load.c    into a run                       values.c             w, m, v, n: from files, or from another run
 *   store.c   where its blobs live             dir.c, beside.c      in a directory, and what lies beside it
 *   together.c, spread.c  several ranks agree, and write or read each its share
 *   replace.c one run exchanged for a loaded one, in one go that cannot fail
 * The hooks of zf.state/1 are in hooks/state.c. Everything here works on a drained run. */
#pragma once

#include "state/saved.h"
#include "state/together.h"
#include "state/values.h"

enum { ZFI_STATE_BLOCK = 1 << 20 }; /* bytes read, checked and copied at a time */

typedef struct zfi_save_args {
    const char *note;
    uint64_t file_nbytes; /* zfi_state_file_nbytes(), the same on every rank */
    zfi_together_t *together;
} zfi_save_args_t;

/* [control] The drained run to an open store, as FLUSH would leave it; commits. Several ranks, in one store, together:
 * all succeed or none. */
zf_status_t zfi_state_write(zfi_run_t *run, const zfi_save_args_t *args, zfi_store_t *store, zf_state_report_t *report,
                            zf_error_t *err);
uint64_t zfi_state_file_nbytes(void);

/* ---- state/check.c ----------------------------------------------------------------------------------------------- */

/* [any-thread] Reads the index and the headers of its files, and checks them. What it costs is bounded by the index's
 * own size. */
zf_status_t zfi_state_open(zfi_store_t *store, zfi_saved_t *out, zf_error_t *err);
/* [any-thread] Reads a tensor into out, and checks bytes and values. */
zf_status_t zfi_state_read_all(zfi_store_t *store, const zfi_saved_t *saved, const zfi_saved_param_t *param,
                               zfi_saved_array_t array, void *out, zf_error_t *err);
/* [any-thread] Reads values [first, first + n) of a tensor, block by block: checks that they are such as training
 * leaves, adds their bytes to the checksum of a share (spread.h), and calls fn, unless NULL. */
typedef struct zfi_tensor_range {
    const zfi_saved_param_t *param;
    zfi_saved_array_t array;
    uint64_t first, n;
} zfi_tensor_range_t;
typedef zf_status_t (*zfi_values_fn)(void *arg, uint64_t first, const void *values, uint64_t n, zf_error_t *err);
zf_status_t zfi_state_read(zfi_store_t *store, const zfi_saved_t *saved, const zfi_tensor_range_t *of, zfi_values_fn fn,
                           void *arg, uint32_t *io_crc, zf_error_t *err);
/* [any-thread] Every tensor of a parameter; index, headers and all tensors. */
zf_status_t zfi_state_check_param(zfi_store_t *store, const zfi_saved_t *saved, const zfi_saved_param_t *param,
                                  zf_error_t *err);
zf_status_t zfi_state_check(zfi_store_t *store, zfi_saved_t *out, zf_error_t *err);
void zfi_state_report(const zfi_saved_t *saved, const zfi_store_t *store, zf_state_report_t *out);

/* ---- state/load.c ------------------------------------------------------------------------------------------------ */

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
    zfi_run_t **slot;      /* where the run is held */
    zfi_run_t *run, *into; /* into = run: in place */
    int has_given_up;      /* the run that was there before is gone */
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
 * this rank on its way. Several ranks fill in place only if all of them may: a second run begins with what the ranks
 * compare at the next step. */
int zfi_replace_is_lossless(const zfi_run_t *run);
zf_status_t zfi_replace_begin_in_place(zfi_run_t **slot, zfi_replacement_t *out, zf_error_t *err);
/* [control] Undoes everything, after an error. */
void zfi_replace_cancel(zfi_replacement_t *replacement, const zf_error_t *err);
/* [control] Takes the new run: clocks, threads, device, visible values; then *slot is it, and the old one is freed.
 * Only a dead thread can make it fail, and that ends the instance. */
zf_status_t zfi_replace_commit(zfi_replacement_t *replacement, zf_error_t *err);
