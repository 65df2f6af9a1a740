/* SPDX-License-Identifier: Apache-2.0 */
/* exact_store.h - where a saved run lies: drawn for each save, from numbers of its own, so that the case's other draws
 * do not depend on it.
 *
 *   a directory by its path, synced or not: what is to be synced must be; or blobs that the host keeps itself
 *   (zf_state_store_t), here files of a directory beside it
 *   one file for everything, or as many as there are parameters */
#pragma once

#include <stdint.h>

#include "harness/blobs.h"

typedef struct zx_store {
    int is_alone; /* no other rank writes parts of it */
    int is_host, is_synced, has_many_files;
    char path[4096]; /* the directory, or that of the host's blobs */
    blobs_t blobs;   /* is_host */
} zx_store_t;

/* Save number n of a case; the same in every process. The store must stay where it is. */
void zx_store_draw(zx_store_t *store, uint64_t seed, uint64_t index, uint32_t n, const char *state_path);
zf_status_t zx_store_save(const zx_store_t *store, const zf_state_ext_t *state, zf_instance_t *instance, uint32_t flags,
                          const char *note, zf_state_report_t *report, zf_error_t *err);
zf_status_t zx_store_load(const zx_store_t *store, const zf_state_ext_t *state, zf_instance_t *instance, uint32_t flags,
                          zf_state_report_t *report, zf_error_t *err);
/* Removes what the saves of a case left. */
void zx_store_remove(const char *state_path);
