/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/comm/nccl_library.h - NCCL, found at run time: a table of its functions.
 *
 * The library is opened when the first instance with [shard] transport = nccl is created, and stays open. Nothing of it
 * is linked, and its header is not needed to build: what is declared here is what NCCL promises to keep (its binary
 * interface has had these functions, structs and numbers since 2.14, when communicators could first be made without
 * blocking). A library that the process has opened already, as PyTorch does, is the one that is found. */
#pragma once

#include <stddef.h>

#include "zf/types.h"

/* Codes of versions: 21403 is 2.14.3. */
enum { ZFI_NCCL_LEAST_VERSION = 21403 };
enum { ZFI_NCCL_SUCCESS = 0, ZFI_NCCL_IN_PROGRESS = 7 };                                        /* ncclResult_t */
enum { ZFI_NCCL_UINT8 = 1, ZFI_NCCL_FLOAT16 = 6, ZFI_NCCL_FLOAT32 = 7, ZFI_NCCL_BFLOAT16 = 9 }; /* ncclDataType_t */
enum { ZFI_NCCL_SUM = 0 };                                                                      /* ncclRedOp_t */

typedef struct zfi_nccl_comm *zfi_nccl_comm_t;
typedef struct zfi_nccl_id {
    char internal[128];
} zfi_nccl_id_t;

/* ncclConfig_t as 2.14 had it; newer libraries go by size and version, and take their own defaults for the rest. */
typedef struct zfi_nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
} zfi_nccl_config_t;

enum { ZFI_NCCL_CONFIG_VERSION = 21400 };
#define ZFI_NCCL_CONFIG_MAGIC 0xcafebeefu

typedef struct zfi_nccl {
    int (*ncclGetVersion)(int *out_version);
    int (*ncclGetUniqueId)(zfi_nccl_id_t *out);
    int (*ncclCommInitRankConfig)(zfi_nccl_comm_t *out, int n_ranks, zfi_nccl_id_t id, int rank,
                                  zfi_nccl_config_t *config);
    int (*ncclCommFinalize)(zfi_nccl_comm_t comm);
    int (*ncclCommDestroy)(zfi_nccl_comm_t comm);
    int (*ncclCommAbort)(zfi_nccl_comm_t comm);
    int (*ncclCommGetAsyncError)(zfi_nccl_comm_t comm, int *out);
    const char *(*ncclGetErrorString)(int result);
    const char *(*ncclGetLastError)(zfi_nccl_comm_t comm);
    int (*ncclAllGather)(const void *send, void *recv, size_t n_send, int type, zfi_nccl_comm_t comm, void *stream);
    int (*ncclReduceScatter)(const void *send, void *recv, size_t n_recv, int type, int op, zfi_nccl_comm_t comm,
                             void *stream);
    int (*ncclSend)(const void *send, size_t n, int type, int peer, zfi_nccl_comm_t comm, void *stream);
    int (*ncclRecv)(void *recv, size_t n, int type, int peer, zfi_nccl_comm_t comm, void *stream);
    int (*ncclGroupStart)(void);
    int (*ncclGroupEnd)(void);
} zfi_nccl_t;

/* [any-thread] The functions, and the library's version. ZF_ERR_RANKS with what is missing, or too old. */
zf_status_t zfi_nccl_library(const zfi_nccl_t **out, int *out_version, zf_error_t *err);
