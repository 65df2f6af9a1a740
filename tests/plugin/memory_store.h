/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/memory_store.h - a host's store of blobs in memory, which can be told to fail at its n-th call, or to be
 * slow. */
#pragma once

#include "zf/ext/state.h"

enum { ZT_MOST_BLOBS = 8, ZT_WANTED = 2 };

typedef struct zt_blob {
    char name[64];
    unsigned char *data, *is_there; /* [nbytes]; is_there: 0 where NULL was written, ZT_WANTED: and it is to be read */
    uint64_t nbytes, at;
} zt_blob_t;

typedef struct zt_memory_store {
    zf_state_store_t table;
    zt_blob_t blobs[ZT_MOST_BLOBS];
    int n_blobs, open;             /* open: blob being written, or -1 */
    int n_calls, fail_at;          /* call fail_at (from 1) fails; 0 = none */
    int pause_ms;                  /* of each call */
    struct zt_memory_store *other; /* reads after call other_from are of this one; NULL = none */
    int other_from;
    const struct zt_memory_store *pool; /* what is wanted and not there comes from it; NULL = it cannot */
    uint64_t n_fetched;                 /* bytes of that */
    int fails_to_want, n_told;          /* 1: a range, 2: all of them; n_told: how often all were */
} zt_memory_store_t;

void zt_memory_store_start(zt_memory_store_t *store);
/* Forgets what it holds; counts calls anew. */
void zt_memory_store_clear(zt_memory_store_t *store);
zt_blob_t *zt_memory_store_find(zt_memory_store_t *store, const char *name);
