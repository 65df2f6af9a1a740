/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/loader.h - a load on its way: what load.c and load_exact.c share. */
#ifndef ZFI_STATE_LOADER_H
#define ZFI_STATE_LOADER_H

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
    char why[256];   /* not exact */
} zfi_loader_t;

/* [control] What is loaded into. */
zf_status_t zfi_loader_begin(zfi_loader_t *loader, zfi_replacement_t *out, zf_error_t *err);

/* [control] state/load_exact.c: arrays and clocks as they were saved. Several ranks together. */
zf_status_t zfi_load_exact(zfi_loader_t *loader, zf_error_t *err);

#endif
