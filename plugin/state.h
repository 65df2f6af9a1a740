/* plugin/state.h - zf.state/1 (contract in zf/ext/state.h): what its files share.
 *
 *   state.c           the extension's hooks                  state_table   what is saved, row by row
 *   state_save        writes a checkpoint                    state_index   its index, as a structure and as JSON
 *   state_check       every check of a checkpoint by itself  state_store   where its blobs live
 *   state_load        into an instance                       state_carry   w, m, v, n into another cut or schedule
 *   state_replace     the instance's parts exchanged for loaded ones, in one go that cannot fail
 */
#ifndef ZFI_STATE_H
#define ZFI_STATE_H

#include "state_index.h"

extern const zf_state_ext_t zfi_state_ext;

enum { ZFI_STATE_BLOCK = 1 << 20 }; /* bytes read, checked and copied at a time */

/* [control] The drained instance to an open store; commits. */
zf_status_t zfi_state_write(zf_instance_t *inst, int is_compact, const char *note, zfi_store_t *store,
                            zf_state_report_t *report, zf_error_t *err);

/* [any-thread] Reads the index, then everything that it names, and checks all of it; fills step_values. */
zf_status_t zfi_state_check(zfi_store_t *store, zfi_saved_t *out, zf_error_t *err);
/* [any-thread] The same of one parameter alone (and of what its slots need). */
zf_status_t zfi_state_check_param(zfi_store_t *store, const char *param, zfi_saved_t *out, zf_error_t *err);
void zfi_state_report(const zfi_saved_t *saved, const zfi_store_t *store, zf_state_report_t *out);

/* [any-thread] Calls fn with the tensor's bytes, block by block; checks them. */
typedef zf_status_t (*zfi_block_fn)(void *arg, uint64_t at, const void *block, uint64_t nbytes, zf_error_t *err);
zf_status_t zfi_state_stream(zfi_store_t *store, const zfi_saved_t *saved, const zfi_saved_tensor_t *tensor,
                             const char *name, zfi_block_fn fn, void *arg, zf_error_t *err);

/* [control] Loads into the drained instance. */
zf_status_t zfi_state_read_into(zf_instance_t *inst, zfi_store_t *store, uint32_t flags, zf_state_report_t *report,
                                zf_error_t *err);

/* ---- state_replace.c ----------------------------------------------------------------------------------------------
 */

/* A second set of the instance's bound parts, filled while the first stays as it is. */
typedef struct zfi_replacement {
    zf_instance_t *inst, *into; /* into = inst where nothing would be lost, else a twin */
    unsigned char **overlay;    /* [n_matrices] visible values that do not follow from the state; freed */
    uint32_t n_overlay;
    float **copies; /* [n_overlay][3] moments mode: the device's w, m, v by the matrix's elements; freed */
    void *grad;     /* scratch: the largest gradient of a matrix */
} zfi_replacement_t;

/* [control] params: the declarations of the new parts (taken over, also on failure), or NULL for the present ones. The
 * twin begins as after bind_params, with masters from the visible values where reads_visible. */
zf_status_t zfi_replace_begin(zf_instance_t *inst, zfi_param_t *params, uint32_t n_params, int reads_visible,
                              zfi_replacement_t *out, zf_error_t *err);
/* [control] Undoes everything. */
void zfi_replace_cancel(zfi_replacement_t *replacement);
/* [control] Takes the new parts: clocks, threads, device, visible values. Only a dead thread can make it fail, and that
 * ends the instance. */
zf_status_t zfi_replace_commit(zfi_replacement_t *replacement, zf_error_t *err);

/* ---- state_carry.c ------------------------------------------------------------------------------------------------
 */

/* [control] Elements [first, first + n) of a parameter, row-major, and the update count of each channel of the matrix
 * that they are of, into another cut. Where a matrix or channel gets several counts, the largest stays. */
typedef struct zfi_carried {
    const zfi_matrix_t *cut; /* rows, cols, channels, param_offset */
    const float *w, *m, *v;  /* [rows x cols] */
    const uint32_t *n;       /* [n_channels] */
} zfi_carried_t;
void zfi_carry(zf_instance_t *into, uint32_t param, const zfi_carried_t *from);

/* [control] A matrix of a checkpoint as FLUSH would leave it (with ZF_RULE_CALLBACK: callback, or NULL where the host's
 * rule is not at hand); arrays are malloc'd, to be freed by zfi_carried_free. */
typedef struct zfi_flushed {
    float *w, *m, *v;
    uint32_t *n;
} zfi_flushed_t;
zf_status_t zfi_state_flushed(zfi_store_t *store, const zfi_saved_t *saved, uint32_t param, uint32_t matrix,
                              const zfi_kernels_t *kernels, const zf_rule_callback_t *callback, zfi_flushed_t *out,
                              zf_error_t *err);
void zfi_flushed_free(zfi_flushed_t *flushed);

/* [control] The same for a matrix of a drained instance. */
zf_status_t zfi_instance_flushed(zf_instance_t *inst, zfi_rehearsal_t *rehearsal, uint32_t matrix, zfi_flushed_t *out,
                                 zf_error_t *err);

#endif
