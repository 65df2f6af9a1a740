/* SPDX-License-Identifier: Apache-2.0 */
/* exact_store.c - see exact_store.h. */
#include "exact_store.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "exact_rng.h"
#include "exact_synced.h"

static const char host_suffix[] = ".blobs";

void zx_store_draw(zx_store_t *store, uint64_t seed, uint64_t index, uint32_t n, const char *state_path) {
    zx_rng_t rng = zx_rng(seed, 97, index * 16 + n);
    *store = (zx_store_t){
        .is_host = zx_chance(&rng, 25), .is_synced = zx_chance(&rng, 10), .has_many_files = zx_chance(&rng, 40)};
    snprintf(store->path, sizeof store->path, "%s%s", state_path, store->is_host ? host_suffix : "");
    blobs_init(&store->blobs, store->path);
}

static zf_status_t check_synced(const char *path, zf_error_t *err) {
    const char *missing = zx_synced_missing(path);
    if (!missing)
        return ZF_OK;
    snprintf(err->message, sizeof err->message, "save without ZF_STATE_NO_SYNC has not synced %.200s of %.100s",
             missing, path);
    return ZF_ERR_STORAGE;
}

static void set_place(const zx_store_t *store, zf_state_args_t *args) {
    if (store->is_host)
        args->store = &store->blobs.table;
    else
        args->path = store->path;
}

zf_status_t zx_store_save(const zx_store_t *store, const zf_state_ext_t *state, zf_instance_t *instance, uint32_t flags,
                          const char *note, zf_state_report_t *report, zf_error_t *err) {
    zf_state_args_t args = {
        .struct_size = sizeof args, .flags = flags | (store->is_synced ? 0 : ZF_STATE_NO_SYNC), .note = note};
    int is_watched = store->is_synced && store->is_alone && !store->is_host;
    if (store->is_host)
        mkdir(store->path, 0777);
    set_place(store, &args);
    if (store->has_many_files)
        setenv("ZF_STATE_FILE_NBYTES", "4096", 1);
    if (is_watched)
        zx_synced_begin();
    zf_status_t st = state->save(instance, &args, report, err);
    if (st >= 0 && is_watched)
        st = check_synced(args.path, err);
    unsetenv("ZF_STATE_FILE_NBYTES");
    return st;
}

zf_status_t zx_store_load(const zx_store_t *store, const zf_state_ext_t *state, zf_instance_t *instance, uint32_t flags,
                          zf_state_report_t *report, zf_error_t *err) {
    zf_state_args_t args = {.struct_size = sizeof args, .flags = flags};
    set_place(store, &args);
    return state->load(instance, &args, report, err);
}

void zx_store_remove(const char *state_path) {
    char blobs[4200];
    snprintf(blobs, sizeof blobs, "%s%s", state_path, host_suffix);
    blobs_remove(state_path);
    blobs_remove(blobs);
}
