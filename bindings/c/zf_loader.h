/* SPDX-License-Identifier: Apache-2.0 */
/* zf_loader.h - opens a libzfplugin in a C host: C99, libc and libdl only, no link to the plugin.
 *
 * Model: zf_loader_open() finds the file, opens it, makes sure that the entry really is that file's own, negotiates the
 * ABI and checks the table of functions; after that zf_loader_plugin() is all a host needs. Every failure says which
 * file, what is wrong with it and what to do, so a host may print err.message as it is.
 *
 *     zf_error_t err = {0};
 *     err.struct_size = sizeof err;
 *     zf_loader_t *loader = NULL;
 *     if (zf_loader_open(NULL, &loader, &err) < 0)
 *         return fprintf(stderr, "%s\n", err.message), 1;
 *     const zf_plugin_t *zf = zf_loader_plugin(loader);
 *     ... zf->create(), bind_params(), and per step grads_ready(), step(), param_fetch() ...
 *     zf_loader_close(loader);
 *
 * zf_trainer.h needs fewer lines for a trainer of float arrays; bindings/examples/first.c does without. Statuses are
 * those of zf/types.h and the two below. Every zf_error_t * may be NULL; otherwise its struct_size is set by the
 * caller and the rest is written on failure only. The loader keeps no global state, starts no thread and prints nothing
 * but through zf_host_stderr(). */
#ifndef ZF_LOADER_H
#define ZF_LOADER_H

#include <stddef.h>

#include "zf/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZF_LOADER_ERR_FILE (-1001)   /* missing, unreadable, not a shared library for this machine, cannot be linked */
#define ZF_LOADER_ERR_SYMBOL (-1002) /* the library has no entry of its own: it is not a plugin */

typedef struct zf_loader zf_loader_t; /* opaque */

/* Opens a plugin. path NULL: the file named by the environment variable ZFPLUGIN_PATH, else "libzfplugin.so.0" in the
 * dynamic linker's directories. A path without a slash is searched in those directories too. The library is mapped with
 * RTLD_NOW | RTLD_LOCAL. [any-thread] *out_loader is written on success only.
 * Errors: ZF_LOADER_ERR_FILE, ZF_LOADER_ERR_SYMBOL, ZF_ERR_ABI (no common ABI, or a table that breaks it),
 * ZF_ERR_MEMORY, and whatever zf_plugin_negotiate() returns. */
zf_status_t zf_loader_open(const char *path, zf_loader_t **out_loader, zf_error_t *err);

/* Frees the handle. Instances must be destroyed before. The library itself stays mapped: its tables and strings remain
 * valid. NULL is legal. */
void zf_loader_close(zf_loader_t *loader);

/* The negotiated table. Valid as long as the process; every slot of the chosen ABI was checked to be there. */
const zf_plugin_t *zf_loader_plugin(const zf_loader_t *loader);

/* The opened file as the dynamic linker names it. Valid until close. */
const char *zf_loader_file(const zf_loader_t *loader);

/* The value of the counter of "zf.stats/1" that has this name (docs/counters.md). [any-thread] *out_value is written on
 * success only. Errors: ZF_ERR_ARGUMENT where the plugin has no such counter; whatever its function returns. */
zf_status_t zf_counter_value(const zf_plugin_t *plugin, zf_instance_t *instance, const char *name, uint64_t *out_value,
                             zf_error_t *err);

/* ---- what every C host fills in ---------------------------------------------------------------------------------- */

/* Describes a dense row-major array in CPU memory: shape [ndim], in elements, is borrowed like data. ndim 0 = a scalar,
 * shape may be NULL. Only describes: whether shape and dtype are legal is the plugin's to say. */
void zf_tensor_contiguous(void *data, zf_dtype_t dtype, int32_t ndim, const int64_t *shape, zf_tensor_t *out_tensor);

/* The element types of parameters and gradients. */
zf_dtype_t zf_dtype_float32(void);
zf_dtype_t zf_dtype_bfloat16(void);
zf_dtype_t zf_dtype_float16(void);

/* The stream of a host that computes on the calling thread. */
void zf_stream_host_thread(zf_stream_t *out_stream);

/* A host table without extensions that writes messages up to max_level (ZF_LOG_WARN ...) to stderr, one line each.
 * name and version are borrowed until create() has copied them. */
void zf_host_stderr(const char *name, const char *version, int32_t max_level, zf_host_t *out_host);

#ifdef __cplusplus
}
#endif
#endif
