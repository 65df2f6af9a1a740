/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/store.c - the host's own store, and what both kinds share (contract in state/store.h). */
#include "state/store.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/struct.h"

int zfi_store_is_name(const char *name) {
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return n > 0 && n < ZFI_BLOB_NAME && name[n] == '\0' && name[0] != '.';
}

/* ---- the host's -------------------------------------------------------------------------------------------------- */

static zf_status_t host_error(const char *what, const char *blob, int32_t rc, uint64_t offset, uint64_t nbytes,
                              zf_error_t *err) {
    return zfi_error_scoped(err, ZF_ERR_STORAGE, ZF_SCOPE_CALL, rc, "state",
                            "the host's store: %s of blob \"%s\" at byte %" PRIu64 " (%" PRIu64
                            " bytes) returned %d: mend the store and call again",
                            what, blob, offset, nbytes, rc);
}

static zf_status_t host_begin(zfi_store_t *store, zf_error_t *err) {
    int32_t rc = store->host.begin(store->host.ctx, store->blob, store->blob_nbytes);
    return rc ? host_error("begin", store->blob, rc, 0, store->blob_nbytes, err) : ZF_OK;
}

/* Passes over what others keep, before the offset. */
static zf_status_t host_skip(zfi_store_t *store, uint64_t offset, zf_error_t *err) {
    uint64_t nbytes = offset - store->at;
    int32_t rc = nbytes ? store->host.write(store->host.ctx, NULL, nbytes) : 0;
    return rc ? host_error("write", store->blob, rc, store->at, nbytes, err) : ZF_OK;
}

/* It takes bytes in their order alone. */
static zf_status_t host_write(zfi_store_t *store, uint64_t offset, const void *data, uint64_t nbytes, zf_error_t *err) {
    zf_status_t st = host_skip(store, offset, err);
    int32_t rc = st ? 0 : store->host.write(store->host.ctx, data, nbytes);
    return rc ? host_error("write", store->blob, rc, offset, nbytes, err) : st;
}

static zf_status_t host_end(zfi_store_t *store, zf_error_t *err) {
    zf_status_t st = host_skip(store, store->blob_nbytes, err);
    int32_t rc = st ? 0 : store->host.end(store->host.ctx);
    return rc ? host_error("end", store->blob, rc, store->at, 0, err) : st;
}

static zf_status_t host_commit(zfi_store_t *store, zf_error_t *err) {
    (void)store;
    (void)err;
    return ZF_OK;
}

static void host_nothing(zfi_store_t *store) { (void)store; }

static zf_status_t host_size(zfi_store_t *store, const char *name, uint64_t *out, zf_error_t *err) {
    int32_t rc = store->host.size(store->host.ctx, name, out);
    if (!rc)
        return ZF_OK;
    return zfi_error_scoped(err, ZF_ERR_STORAGE, ZF_SCOPE_CALL, rc, "state",
                            "the host's store has no blob \"%s\" (size returned %d)", name, rc);
}

static zf_status_t host_read(zfi_store_t *store, const char *name, uint64_t offset, void *out, uint64_t nbytes,
                             zf_error_t *err) {
    int32_t rc = store->host.read(store->host.ctx, name, offset, out, nbytes);
    return rc ? host_error("read", name, rc, offset, nbytes, err) : ZF_OK;
}

static const zfi_store_ops_t host_ops = {.begin = host_begin,
                                         .write = host_write,
                                         .end = host_end,
                                         .commit = host_commit,
                                         .cancel = host_nothing,
                                         .size = host_size,
                                         .read = host_read,
                                         .close = host_nothing};

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static zf_status_t open_host(const zf_state_args_t *args, int is_save, zfi_store_t *out, zf_error_t *err) {
    const zf_state_store_t *host = &out->host;
    zf_status_t st = ZFI_READ(&out->host, args->store, zf_state_store_t, err);
    if (!st)
        st = zfi_reserved_check(host->reserved0, "zf_state_store_t", err);
    if (st)
        return st;
    out->ops = &host_ops;
    if (!is_save && (args->flags & ZF_STATE_OWN) && !host->want)
        return zfi_error(err, ZF_ERR_ARGUMENT, "state",
                         "store: want must be given for a load with ZF_STATE_OWN; without that flag a store that has "
                         "all of the checkpoint does without it");
    if (is_save ? host->begin && host->write && host->end : host->size && host->read)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_ARGUMENT, "state", "store: %s must be given for %s",
                     is_save ? "begin, write and end" : "size and read", is_save ? "save" : "load");
}

static zf_status_t open_any(const zf_state_args_t *args, int is_save, zfi_store_t *out, zf_error_t *err) {
    *out = (zfi_store_t)ZFI_STORE_CLOSED;
    out->path = args->path;
    out->is_save = is_save;
    out->syncs = !(args->flags & ZF_STATE_NO_SYNC);
    if (!args->path == !args->store)
        return zfi_error(err, ZF_ERR_ARGUMENT, "state", "%s: give one of them",
                         args->path ? "both path and store are given" : "path and store are NULL");
    if (args->store)
        return open_host(args, is_save, out, err);
    if (!*args->path)
        return zfi_error(err, ZF_ERR_ARGUMENT, "state", "path is empty");
    out->ops = &zfi_store_directory;
    return ZF_OK;
}

zf_status_t zfi_store_open_save(const zf_state_args_t *args, zfi_store_t *out, zf_error_t *err) {
    zf_status_t st = open_any(args, 1, out, err);
    return st || args->store ? st : zfi_directory_open_save(out, err);
}

zf_status_t zfi_store_join_save(const zf_state_args_t *args, uint32_t number, zfi_store_t *out, zf_error_t *err) {
    zf_status_t st = open_any(args, 1, out, err);
    out->number = number;
    return st ? st : zfi_directory_join_save(out, err);
}

zf_status_t zfi_store_open_load(const zf_state_args_t *args, zfi_store_t *out, zf_error_t *err) {
    zf_status_t st = open_any(args, 0, out, err);
    return st || args->store ? st : zfi_directory_open_load(out, err);
}

/* ---- saving and loading ------------------------------------------------------------------------------------------ */

zf_status_t zfi_store_begin(zfi_store_t *store, const char *name, uint64_t nbytes, zf_error_t *err) {
    if (!zfi_store_is_name(name))
        return zfi_error(err, ZF_ERR_INTERNAL, "state", "\"%.64s\" is no name of a blob", name);
    memcpy(store->blob, name, strlen(name) + 1);
    store->blob_nbytes = nbytes;
    store->at = 0;
    return store->ops->begin(store, err);
}

static void tick(const zfi_store_t *store) {
    if (store->tick)
        store->tick(store->tick_arg);
}

zf_status_t zfi_store_write_at(zfi_store_t *store, uint64_t offset, const void *data, uint64_t nbytes,
                               zf_error_t *err) {
    zf_status_t st = nbytes ? store->ops->write(store, offset, data, nbytes, err) : ZF_OK;
    tick(store);
    if (st)
        return st;
    store->total_nbytes += nbytes;
    store->at = offset + nbytes;
    return ZF_OK;
}

zf_status_t zfi_store_write(zfi_store_t *store, const void *data, uint64_t nbytes, zf_error_t *err) {
    return zfi_store_write_at(store, store->at, data, nbytes, err);
}

zf_status_t zfi_store_end(zfi_store_t *store, zf_error_t *err) {
    tick(store);
    if (store->at != store->blob_nbytes && !store->is_shared)
        return zfi_error(err, ZF_ERR_INTERNAL, "state", "blob \"%s\" has %" PRIu64 " bytes, announced %" PRIu64,
                         store->blob, store->at, store->blob_nbytes);
    return store->ops->end(store, err);
}

zf_status_t zfi_store_commit(zfi_store_t *store, zf_error_t *err) { return store->ops->commit(store, err); }

void zfi_store_cancel(zfi_store_t *store) {
    if (store->ops)
        store->ops->cancel(store);
}

zf_status_t zfi_store_size(zfi_store_t *store, const char *name, uint64_t *out, zf_error_t *err) {
    return store->ops->size(store, name, out, err);
}

zf_status_t zfi_store_read(zfi_store_t *store, const char *name, uint64_t offset, void *out, uint64_t nbytes,
                           zf_error_t *err) {
    zf_status_t st = nbytes ? store->ops->read(store, name, offset, out, nbytes, err) : ZF_OK;
    tick(store);
    if (!st)
        store->total_nbytes += nbytes;
    return st;
}

zf_status_t zfi_store_hold(zfi_store_t *store, const char *name, zf_error_t *err) {
    return store->ops->hold ? store->ops->hold(store, name, err) : ZF_OK;
}

int zfi_store_begin_again(zfi_store_t *store) { return store->ops->begin_again && store->ops->begin_again(store); }

zf_status_t zfi_store_want(zfi_store_t *store, const char *name, uint64_t offset, uint64_t nbytes, zf_error_t *err) {
    int32_t rc = store->host.want(store->host.ctx, name, offset, nbytes);
    tick(store);
    return rc ? host_error("want", name ? name : "(the last)", rc, offset, nbytes, err) : ZF_OK;
}

void zfi_store_close(zfi_store_t *store) {
    if (store->ops)
        store->ops->close(store);
}
