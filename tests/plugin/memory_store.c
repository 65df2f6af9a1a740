/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/memory_store.c - see memory_store.h. */
#include "memory_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int fails(zt_memory_store_t *store) {
    nanosleep(&(struct timespec){.tv_nsec = store->pause_ms * 1000000L}, NULL);
    return ++store->n_calls == store->fail_at;
}

zt_blob_t *zt_memory_store_find(zt_memory_store_t *store, const char *name) {
    for (int i = 0; i < store->n_blobs; i++)
        if (strcmp(store->blobs[i].name, name) == 0)
            return &store->blobs[i];
    return NULL;
}

static int32_t begin(void *ctx, const char *name, uint64_t nbytes) {
    zt_memory_store_t *store = ctx;
    zt_blob_t *blob = zt_memory_store_find(store, name);
    if (fails(store) || store->open >= 0)
        return -5;
    if (!blob) {
        if (store->n_blobs == ZT_MOST_BLOBS)
            return -28;
        blob = &store->blobs[store->n_blobs++];
        *blob = (zt_blob_t){0};
        snprintf(blob->name, sizeof blob->name, "%s", name);
    }
    free(blob->data);
    free(blob->is_there);
    blob->data = malloc(nbytes + 1);
    blob->is_there = malloc(nbytes + 1);
    blob->nbytes = nbytes;
    blob->at = 0;
    store->open = (int)(blob - store->blobs);
    return 0;
}

static int32_t write_some(void *ctx, const void *data, uint64_t nbytes) {
    zt_memory_store_t *store = ctx;
    if (fails(store) || store->open < 0)
        return -28;
    zt_blob_t *blob = &store->blobs[store->open];
    if (nbytes > blob->nbytes - blob->at)
        return -27;
    memset(blob->is_there + blob->at, data != NULL, nbytes);
    if (data)
        memcpy(blob->data + blob->at, data, nbytes);
    blob->at += nbytes;
    return 0;
}

static int32_t end(void *ctx) {
    zt_memory_store_t *store = ctx;
    int is_whole = store->open >= 0 && store->blobs[store->open].at == store->blobs[store->open].nbytes;
    store->open = -1;
    return fails(store) || !is_whole ? -5 : 0;
}

static int32_t size(void *ctx, const char *name, uint64_t *out) {
    zt_memory_store_t *store = ctx;
    const zt_blob_t *blob = zt_memory_store_find(store, name);
    if (fails(store) || !blob)
        return -2;
    *out = blob->nbytes;
    return 0;
}

static int32_t read_some(void *ctx, const char *name, uint64_t offset, void *out, uint64_t nbytes) {
    zt_memory_store_t *store = ctx;
    int is_swapped = store->other && store->n_calls >= store->other_from;
    const zt_blob_t *blob = zt_memory_store_find(is_swapped ? store->other : store, name);
    if (fails(store) || !blob || offset > blob->nbytes || nbytes > blob->nbytes - offset)
        return -5;
    if (blob->is_there && nbytes && (blob->is_there[offset] != 1 || memchr(blob->is_there + offset, 0, nbytes)))
        return -6;
    memcpy(out, blob->data + offset, nbytes);
    return 0;
}

/* Bytes that are not there, or 0. */
static uint64_t fetch(zt_memory_store_t *store) {
    uint64_t n_missing = 0;
    for (int i = 0; i < store->n_blobs; i++)
        for (uint64_t at = 0; at < store->blobs[i].nbytes; at++) {
            if (store->blobs[i].is_there[at] != ZT_WANTED)
                continue;
            if (!store->pool || !store->pool->blobs[i].is_there[at]) {
                n_missing++;
                continue;
            }
            store->blobs[i].data[at] = store->pool->blobs[i].data[at];
            store->blobs[i].is_there[at] = 1;
            store->n_fetched++;
        }
    return n_missing;
}

static int32_t want(void *ctx, const char *name, uint64_t offset, uint64_t nbytes) {
    zt_memory_store_t *store = ctx;
    zt_blob_t *blob = name ? zt_memory_store_find(store, name) : NULL;
    store->n_told += !name;
    if (fails(store) || store->fails_to_want == (name ? 1 : 2))
        return -9;
    if (!name)
        return fetch(store) ? -7 : 0;
    if (!blob || offset > blob->nbytes || nbytes > blob->nbytes - offset)
        return -8;
    for (uint64_t at = offset; at < offset + nbytes; at++)
        blob->is_there[at] = blob->is_there[at] ? blob->is_there[at] : ZT_WANTED;
    return 0;
}

void zt_memory_store_start(zt_memory_store_t *store) {
    *store = (zt_memory_store_t){.table = {.struct_size = sizeof store->table,
                                           .ctx = store,
                                           .begin = begin,
                                           .write = write_some,
                                           .end = end,
                                           .size = size,
                                           .read = read_some,
                                           .want = want},
                                 .open = -1};
}

void zt_memory_store_clear(zt_memory_store_t *store) {
    for (int i = 0; i < store->n_blobs; i++) {
        free(store->blobs[i].data);
        free(store->blobs[i].is_there);
    }
    store->n_blobs = store->n_calls = store->fail_at = store->n_told = 0;
    store->open = -1;
}
