/* SPDX-License-Identifier: Apache-2.0 */
/* zf/host.h - what the host offers to the plugin: the host table, an argument of create().
 *
 * create() copies the table and its strings; only ctx, and the code of the functions, must outlive the instance. The
 * plugin calls it only inside hooks, on the calling thread, and holds no lock meanwhile. */
#ifndef ZF_HOST_H
#define ZF_HOST_H

#include "zf/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZF_LOG_ERROR 1
#define ZF_LOG_WARN 2
#define ZF_LOG_INFO 3
#define ZF_LOG_DEBUG 4

typedef struct zf_host {
    uint32_t struct_size;
    uint32_t reserved0;
    void *ctx;           /* passed back to every callback; the plugin never looks inside */
    const char *name;    /* e.g. "my-trainer"; UTF-8; several ranks: the same on each, and best one per instance */
    const char *version; /* e.g. "1.4.2" */
    /* Table of a host extension such as "zf.memory/1", or NULL. May be NULL itself: no extensions.
     * [callback] */
    const void *(*get_extension)(void *ctx, const char *id);
    /* One message, len bytes, not NUL-terminated by contract, without a line end. May be NULL: silent.
     * [callback] */
    void (*log)(void *ctx, int32_t level, const char *component, const char *file, int32_t line, const char *msg,
                uint64_t len);
} zf_host_t;

#ifdef __cplusplus
}
#endif
#endif
