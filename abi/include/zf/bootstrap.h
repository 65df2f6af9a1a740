/* SPDX-License-Identifier: Apache-2.0 */
/* zf/bootstrap.h - the entry of libzfplugin and the only frozen header: nothing in this file may ever change.
 *
 * Model: a host fills a zf_bootstrap_t with the ABIs it serves and calls the one exported symbol,
 * zf_plugin_negotiate(). The plugin chooses an ABI and hands back a table of functions (zf_plugin_t in zf/plugin.h for
 * every major so far). Everything else is reached through that table; no other symbol is exported.
 *
 * An ABI number is (major << 16) | minor. The host lists one entry per major it serves, newest first, with the newest
 * minor of that major it knows. The plugin takes the first listed major that it knows too, and the smaller of both
 * minors. Hence a newer minor on either side is never an error:
 *   host newer than plugin: the host gets a shorter table; a slot past struct_size, or a NULL slot, does not exist.
 *   plugin newer than host: the host reads only the slots that it knows.
 * Major 0 is the young ABI: its minor must match exactly. */
#ifndef ZF_BOOTSTRAP_H
#define ZF_BOOTSTRAP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ZF_BOOTSTRAP_MAGIC 0x4247465Au /* the bytes "ZFGB" in little-endian memory order */
#define ZF_ABI_NUMBER(major, minor) (((uint32_t)(major) << 16) | (uint32_t)(minor))
#define ZF_ABI_MAJOR(abi) ((uint32_t)(abi) >> 16)
#define ZF_ABI_MINOR(abi) ((uint32_t)(abi)&0xFFFFu)

/* Scope of an error: what is affected by it. */
#define ZF_SCOPE_CALL 0     /* this call only; nothing has changed */
#define ZF_SCOPE_PARAM 1    /* one parameter, named in the message */
#define ZF_SCOPE_INSTANCE 2 /* the instance is unusable: destroy it */
#define ZF_SCOPE_PROCESS 3  /* every instance of this process */

/* Caller-owned error record, always 512 bytes. The caller sets struct_size; the plugin writes the rest only when the
 * call returns a negative status. Both strings are NUL-terminated UTF-8. */
typedef struct zf_error {
    uint32_t struct_size;
    int32_t status;      /* same value as the call returned */
    int32_t scope;       /* ZF_SCOPE_... */
    int32_t retryable;   /* 1: the same call may succeed later */
    int64_t native_code; /* errno, CUresult, ncclResult_t; 0 where none */
    char origin[48];     /* who noticed: "bind_params", "worker 2", ... */
    char message[440];   /* one sentence or a list: what, where, have/need, what to do */
} zf_error_t;

typedef struct zf_bootstrap {
    uint32_t struct_size; /* in: sizeof(zf_bootstrap_t) = 64 */
    uint32_t magic;       /* in: ZF_BOOTSTRAP_MAGIC */
    const uint32_t *abis; /* in: ABIs the host serves, one per major, newest first */
    uint32_t n_abis;      /* in: their number, 1..64 */
    uint32_t chosen_abi;  /* out */
    const void *plugin;   /* out: const zf_plugin_t *, valid as long as the library stays loaded */
    zf_error_t *error;    /* in: may be NULL */
    uint64_t reserved0;   /* must be 0 */
    uint64_t reserved1;   /* must be 0 */
    uint64_t reserved2;   /* must be 0 */
} zf_bootstrap_t;

/* The only exported symbol. [any-thread] Idempotent; starts no thread, touches no device, reads no file.
 * Returns 0, or a negative status with the error record filled: ZF_ERR_ABI (no common ABI; names both lists),
 * ZF_ERR_ARGUMENT (NULL, wrong magic, wrong size). Outputs are written only on success. */
int32_t zf_plugin_negotiate(zf_bootstrap_t *bootstrap);
typedef int32_t (*zf_plugin_negotiate_fn)(zf_bootstrap_t *bootstrap);
#define ZF_PLUGIN_NEGOTIATE_SYMBOL "zf_plugin_negotiate"

#ifdef __cplusplus
}
#endif
#endif
