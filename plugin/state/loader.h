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
    int is_in_place;     /* every rank's run may be filled in place */
    zfi_config_t before; /* the configuration, which a fitted update_interval of the checkpoint may change */
    char why[256];       /* not exact */
} zfi_loader_t;

/* The configuration as it was before the load. */
void zfi_loader_give_back_fit(zfi_loader_t *loader);
/* The run's cohorts are not those of the configuration yet. */
int zfi_loader_is_dealt_otherwise(const zfi_loader_t *loader);

/* [control] What is loaded into. */
zf_status_t zfi_loader_begin(const zfi_loader_t *loader, zfi_replacement_t *out, zf_error_t *err);

/* [control] state/load_exact.c: arrays and clocks as they were saved. Several ranks together. */
zf_status_t zfi_load_exact(zfi_loader_t *loader, zf_error_t *err);

#endif
