/* SPDX-License-Identifier: Apache-2.0 */
/* abi_store.c - see abi_store.h. */
#include "abi_store.h"

#include <stdio.h>
#include <string.h>

static int find(const abi_store_t *store, const char *name) {
    for (int i = 0; i < store->n_blobs; i++)
        if (strcmp(store->blobs[i].name, name) == 0)
            return i;
    return -1;
}

static int32_t begin(void *ctx, const char *name, uint64_t nbytes) {
    abi_store_t *store = ctx;
    int i = find(store, name);
    if (nbytes > ABI_STORE_NBYTES || (i < 0 && store->n_blobs == ABI_STORE_BLOBS))
        return -28;
    if (i < 0)
        i = store->n_blobs++;
    snprintf(store->blobs[i].name, sizeof store->blobs[i].name, "%s", name);
    store->blobs[i].nbytes = nbytes;
    store->blobs[i].at = 0;
    store->open = i;
    return 0;
}

static int32_t write_some(void *ctx, const void *data, uint64_t nbytes) {
    abi_store_t *store = ctx;
    if (nbytes > store->blobs[store->open].nbytes - store->blobs[store->open].at)
        return -27;
    memcpy(store->blobs[store->open].data + store->blobs[store->open].at, data, nbytes);
    store->blobs[store->open].at += nbytes;
    return 0;
}

static int32_t end(void *ctx) {
    const abi_store_t *store = ctx;
    return store->blobs[store->open].at == store->blobs[store->open].nbytes ? 0 : -5;
}

static int32_t size(void *ctx, const char *name, uint64_t *out) {
    const abi_store_t *store = ctx;
    int i = find(store, name);
    if (i < 0)
        return -2;
    *out = store->blobs[i].nbytes;
    return 0;
}

static int32_t read_some(void *ctx, const char *name, uint64_t offset, void *out, uint64_t nbytes) {
    const abi_store_t *store = ctx;
    int i = find(store, name);
    if (i < 0 || offset > store->blobs[i].nbytes || nbytes > store->blobs[i].nbytes - offset)
        return -5;
    memcpy(out, store->blobs[i].data + offset, nbytes);
    return 0;
}

void abi_store_start(abi_store_t *store) {
    store->n_blobs = store->open = 0;
    store->table = (zf_state_store_t){.struct_size = sizeof store->table,
                                      .ctx = store,
                                      .begin = begin,
                                      .write = write_some,
                                      .end = end,
                                      .size = size,
                                      .read = read_some};
}
