/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/store.h - where the blobs of a checkpoint live: a directory, or what the host keeps itself.
 *
 * Save: begin, write ..., end per blob, the index last; then commit, or cancel at any point. Load: size, read; then
 * close. Every failure names the blob, the place in it, and errno or what the host returned. */
#pragma once

#include <dirent.h>
#include <stdint.h>

#include "zf/ext/state.h"

enum { ZFI_BLOB_NAME = 64 };

typedef struct zfi_store {
    const struct zfi_store_ops *ops; /* NULL: closed */
    zf_state_store_t host;
    const char *path;   /* of a directory; NULL: a store of the host's */
    uint32_t number;    /* save: of all saves to the directory; 0 in a store of the host's */
    int is_save, syncs; /* syncs: what is written, before what comes after it */
    int lacks_dir_sync; /* the mount does not sync directories */
    int made_dir;       /* save: there was none */
    int dir_fd, blob_fd, claim_fd, index_fd, held_fd; /* state/dir.c: its "Locks" */
    DIR *entries;                                     /* save: of the directory */
    char blob[ZFI_BLOB_NAME];                         /* being written, or open for reading */
    uint64_t blob_nbytes, at;                         /* of it; at: behind what was written last */
    uint64_t total_nbytes;                            /* written or read */
    int is_shared;                                    /* save: of several ranks, each of which writes what is its own */
    void (*tick)(void *arg);                          /* called with every write and read, or NULL */
    void *tick_arg;
} zfi_store_t;

/* No store: what close takes, too. */
#define ZFI_STORE_CLOSED                                                                                               \
    { .dir_fd = -1, .blob_fd = -1, .claim_fd = -1, .index_fd = -1, .held_fd = -1 }

/* [control] args are checked: exactly one of path and store, a store with what the call needs. */
zf_status_t zfi_store_open_save(const zf_state_args_t *args, zfi_store_t *out, zf_error_t *err);
zf_status_t zfi_store_open_load(const zf_state_args_t *args, zfi_store_t *out, zf_error_t *err);

/* [control] Several ranks: one of them has opened a save to the same directory, whose number it is; what cancel
 * removes is that one's. The blobs of a shared store are written at offsets, and begun by every rank; each rank's of a
 * host in rising order. */
zf_status_t zfi_store_join_save(const zf_state_args_t *args, uint32_t number, zfi_store_t *out, zf_error_t *err);
zf_status_t zfi_store_write_at(zfi_store_t *store, uint64_t offset, const void *data, uint64_t nbytes, zf_error_t *err);

zf_status_t zfi_store_begin(zfi_store_t *store, const char *name, uint64_t nbytes, zf_error_t *err);
zf_status_t zfi_store_write(zfi_store_t *store, const void *data, uint64_t nbytes, zf_error_t *err);
zf_status_t zfi_store_end(zfi_store_t *store, zf_error_t *err);
zf_status_t zfi_store_commit(zfi_store_t *store, zf_error_t *err);
void zfi_store_cancel(zfi_store_t *store);

zf_status_t zfi_store_size(zfi_store_t *store, const char *name, uint64_t *out, zf_error_t *err);
zf_status_t zfi_store_read(zfi_store_t *store, const char *name, uint64_t offset, void *out, uint64_t nbytes,
                           zf_error_t *err);
void zfi_store_close(zfi_store_t *store);
/* Keeps the files of the index that was read, whose first this is, until close. */
zf_status_t zfi_store_hold(zfi_store_t *store, const char *name, zf_error_t *err);
/* Whether another checkpoint has come to the directory since the index was opened: then the next reads are of that. */
int zfi_store_begin_again(zfi_store_t *store);
/* A store of the host's that was opened with ZF_STATE_OWN: a range that will be read; NULL: that was all. */
zf_status_t zfi_store_want(zfi_store_t *store, const char *name, uint64_t offset, uint64_t nbytes, zf_error_t *err);

/* A plain file name of a checkpoint: [A-Za-z0-9_-][A-Za-z0-9._-]*, shorter than ZFI_BLOB_NAME. */
int zfi_store_is_name(const char *name);
/* The name of data file 1, 2, ... of a save. */
void zfi_store_file_name(uint32_t number, uint32_t file, char out[ZFI_BLOB_NAME]);

/* ---- for the two kinds ------------------------------------------------------------------------------------------- */

typedef struct zfi_store_ops {
    int reads_back; /* size and read may be called before commit */
    zf_status_t (*begin)(zfi_store_t *store, zf_error_t *err);
    zf_status_t (*write)(zfi_store_t *store, uint64_t offset, const void *data, uint64_t nbytes, zf_error_t *err);
    zf_status_t (*end)(zfi_store_t *store, zf_error_t *err);
    zf_status_t (*commit)(zfi_store_t *store, zf_error_t *err);
    void (*cancel)(zfi_store_t *store);
    zf_status_t (*hold)(zfi_store_t *store, const char *name, zf_error_t *err); /* these two may be NULL */
    int (*begin_again)(zfi_store_t *store);
    zf_status_t (*size)(zfi_store_t *store, const char *name, uint64_t *out, zf_error_t *err);
    zf_status_t (*read)(zfi_store_t *store, const char *name, uint64_t offset, void *out, uint64_t nbytes,
                        zf_error_t *err);
    void (*close)(zfi_store_t *store);
} zfi_store_ops_t;

extern const zfi_store_ops_t zfi_store_directory; /* state/dir.c; store->path is given */
zf_status_t zfi_directory_open_save(zfi_store_t *store, zf_error_t *err);
zf_status_t zfi_directory_join_save(zfi_store_t *store, zf_error_t *err);
zf_status_t zfi_directory_open_load(zfi_store_t *store, zf_error_t *err);
