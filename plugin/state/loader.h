/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/loader.h - a load on its way: what load.c and load_own.c share. */
#pragma once

#include "state/state.h"

typedef struct zfi_loader {
    zfi_run_t **slot;
    zfi_run_t *run; /* the present one */
    zfi_store_t *store;
    zfi_together_t *together;
    zfi_saved_t saved;
    uint32_t *ids; /* [saved.n_params] of the run, ZF_NO_ID: none */
    uint32_t n_missing, n_extra;
    int is_in_place; /* every rank's run may be filled in place */
    int gives_up;    /* some rank has no room for two */
    uint32_t
        *crcs; /* [saved.n_params][ZFI_SAVED_ARRAYS] the index's, which those of a rank's ranges take the place of */
    uint8_t **selected; /* [saved.n_params] the tensor "selected", checked; NULL: none, or it is not needed */
    int continues;      /* the schedule goes on where it was; else it begins again, for this reason: */
    char why[256];
} zfi_loader_t;

/* ---- state/load_own.c: of tensors with a value per element the ranges that this rank keeps ----------------------- */

/* [control] Reads them of tensor `array` of parameter p, checks their values, and puts them into a run, or, with into =
 * NULL, nowhere. The tensor's checksum becomes that of the ranges, until zfi_own_agree. Where this rank has to read all
 * of it for its checksum, it does. A checksum that the index lacks becomes that of what is read first. */
zf_status_t zfi_own_read(zfi_loader_t *loader, uint32_t p, zfi_saved_array_t array, const zfi_state_t *into,
                         zf_error_t *err);

/* [control] Names them to the store, of all tensors. */
zf_status_t zfi_own_want(const zfi_loader_t *loader, zf_error_t *err);

/* [control] The ranks have read (st, err): whether, joined, it is what was saved. A meeting of all. */
zf_status_t zfi_own_agree(zfi_loader_t *loader, zf_status_t st, zf_error_t *err);
