/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/comm/nccl_library.c - opening NCCL (contract in nccl_library.h). */
#include "comm/nccl_library.h"

#include <dlfcn.h>
#include <pthread.h>

#include "base/error.h"

#define LIBRARY "libnccl.so.2"

/* Written once, under lock; then read by everybody. */
static struct opened {
    pthread_mutex_t lock;
    int version; /* 0: it is not open */
    zfi_nccl_t nccl;
} opened = {.lock = PTHREAD_MUTEX_INITIALIZER};

static zf_status_t find_functions(void *library, zfi_nccl_t *out, zf_error_t *err) {
    const struct function {
        const char *name;
        void *at; /* where its address goes */
    } functions[] = {
#define ROW(name) {#name, &out->name}
        ROW(ncclGetVersion),   ROW(ncclGetUniqueId), ROW(ncclCommInitRankConfig), ROW(ncclCommFinalize),
        ROW(ncclCommDestroy),  ROW(ncclCommAbort),   ROW(ncclCommGetAsyncError),  ROW(ncclGetErrorString),
        ROW(ncclGetLastError), ROW(ncclAllGather),   ROW(ncclReduceScatter),      ROW(ncclSend),
        ROW(ncclRecv),         ROW(ncclGroupStart),  ROW(ncclGroupEnd),
#undef ROW
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(library, functions[i].name);
        if (!found)
            return zfi_error(err, ZF_ERR_RANKS, "create", LIBRARY " has no %s: NCCL 2.14.3 or newer is needed",
                             functions[i].name);
        *(void **)functions[i].at = found;
    }
    return ZF_OK;
}

static zf_status_t open_library(zfi_nccl_t *out, int *out_version, zf_error_t *err) {
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return zfi_error(err, ZF_ERR_RANKS, "create", LIBRARY " cannot be opened (%s): install NCCL", dlerror());
    zf_status_t st = find_functions(library, out, err);
    if (st)
        return st;
    int rc = out->ncclGetVersion(out_version);
    if (rc)
        return zfi_error(err, ZF_ERR_RANKS, "create", LIBRARY " does not say its version: %s",
                         out->ncclGetErrorString(rc));
    if (*out_version < ZFI_NCCL_LEAST_VERSION)
        return zfi_error(err, ZF_ERR_RANKS, "create", LIBRARY " is of version %d.%d.%d; NCCL 2.14.3 or newer is needed",
                         *out_version / 10000, *out_version / 100 % 100, *out_version % 100);
    return ZF_OK;
}

zf_status_t zfi_nccl_library(const zfi_nccl_t **out, int *out_version, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    int version = 0;
    pthread_mutex_lock(&opened.lock);
    if (!opened.version) {
        st = open_library(&opened.nccl, &version, err);
        opened.version = st ? 0 : version;
    }
    *out_version = opened.version;
    pthread_mutex_unlock(&opened.lock);
    if (!st)
        *out = &opened.nccl;
    return st;
}
