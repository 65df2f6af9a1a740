/* SPDX-License-Identifier: Apache-2.0 */
/* exact_calls.h - a host's instance, its stream, and those calls that are the same wherever parameters live. Every
 * failure goes to the case's result; a dry host makes no call. */
#pragma once

#include <stdatomic.h>

#include "exact_case.h"
#include "exact_result.h"
#include "zf/ext/cpu.h"
#include "zf/ext/draft/digest.h"
#include "zf/ext/draft/inspect.h"
#include "zf/ext/draft/shards.h"
#include "zf_loader.h"

typedef struct zx_buffer zx_buffer_t;

typedef struct zx_host {
    zx_case_t *c;
    zx_result_t *result;
    const zf_loader_t *loader;
    const zf_plugin_t *zf;
    const zf_cpu_ext_t *cpu;         /* or NULL */
    const zf_inspect_ext_t *inspect; /* or NULL */
    const zf_digest_ext_t *digest;   /* or NULL */
    const zf_shards_ext_t *shards;   /* parameters live as shards (shard_fetch.h); or NULL */
    uint8_t is_sharded[ZX_MAX_PARAMS];
    zx_rng_t fetches;
    int finds_edits; /* weights written unannounced: on_overwrite is a key of the plugin */
    zf_host_t table;
    zf_instance_t *instance;
    zf_error_t err;        /* of the newest call; the host's thread only */
    zf_cpu_queue_t *queue; /* or NULL */
    int is_async;          /* the host computes on a queue, or on a GPU's stream */
    int is_on_gpu, is_dry;
    zf_stream_t stream;
    zx_buffer_t *free_buffers[ZX_MAX_PARAMS];
    zx_buffer_t *late_buffers;  /* done fence not waited for yet, or none asked for */
    int is_quiet;               /* nothing was submitted since a step that waited, or a quiesce */
    double unscale, clip_norm;  /* of this step */
    zx_rng_t buffer_rng;        /* apart: how many buffers there are may depend on the plugin */
    atomic_uint_least64_t step; /* for messages, also the queue's; relaxed would do */
} zx_host_t;

/* The status of a call, which had h->err for its record: negative fails the case, with the plugin's message. */
int zx_is_call_bad(zx_host_t *h, const char *call, zf_status_t status);
/* Runs fn(arg) on the queue after everything launched before, or at once on a host's thread. */
void zx_launch(zx_host_t *h, void (*fn)(void *arg), void *arg);
/* Waits until everything launched on the queue has run. */
void zx_host_sync(zx_host_t *h);
/* A parameter of the case, as calls name it. */
zf_param_item_t zx_host_item(const zx_host_t *h, uint32_t param);
/* Of n items (0: all), which a host's thread waits for; 0, or -1 where one failed. */
int zx_host_fetch_items(zx_host_t *h, const zf_param_item_t *items, uint32_t n);
int zx_host_release_items(zx_host_t *h, const zf_param_item_t *items, uint32_t n);
/* Writes an array while nothing uses it. */
void zx_host_write(zx_host_t *h, zx_array_t *array, const void *values);
/* params_changed of n items that were written. */
void zx_host_changed(zx_host_t *h, const zf_param_item_t *items, uint32_t n, uint32_t flags);
/* zf.digest/0: adopt, when its looks are over. Returns 0 where the plugin has none. */
int zx_host_adopt(zx_host_t *h, const uint32_t *params, uint32_t n);
void zx_host_quiesce(zx_host_t *h, int32_t mode);
