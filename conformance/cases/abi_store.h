/* SPDX-License-Identifier: Apache-2.0 */
/* abi_store.h - a host's store of checkpoint blobs in memory, for calls of zf.state/1. */
#pragma once

#include "zf/ext/state.h"

enum { ABI_STORE_BLOBS = 4, ABI_STORE_NBYTES = 1 << 18 };

typedef struct abi_store {
    zf_state_store_t table;
    int n_blobs, open;
    struct {
        char name[64];
        uint64_t nbytes, at;
        unsigned char data[ABI_STORE_NBYTES];
    } blobs[ABI_STORE_BLOBS];
} abi_store_t;

/* Empty. */
void abi_store_start(abi_store_t *store);
