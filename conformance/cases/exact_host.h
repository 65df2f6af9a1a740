/* SPDX-License-Identifier: Apache-2.0 */
/* exact_host.h - a host that trains through the ABI as a case says: creates and binds, hands gradients over on its
 * stream, steps, looks at visible values, and misbehaves wherever the contract lets it (memory is overwritten the
 * moment its done fence allows).
 *
 * Model: two kinds of stream. On the host's thread everything happens at once. On a zf.cpu/1 queue the host only
 * launches: writing gradients, scribbling over them, looking at parameters are work on the queue, and what a look must
 * see is fixed when it is launched. No call here waits but where its comment says so. Every failure goes to the case's
 * result. */
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
    double clip_norm;           /* of this step */
    zx_rng_t buffer_rng;        /* apart: how many buffers there are may depend on the plugin */
    atomic_uint_least64_t step; /* for messages, also the queue's; relaxed would do */
} zx_host_t;

typedef struct zx_delivery {
    uint32_t param; /* index in the case */
    uint32_t flags; /* ZF_GRAD_... without ASYNC_READ */
    void *values;   /* [elements] of the gradient dtype; owned */
    int is_only;    /* LAST, and nothing before it counts: may be handed over by ranges of matrices */
} zx_delivery_t;

/* 0, or -1 where the instance could not be made (the result says why). is_dry: no hook is ever called. */
int zx_host_open(zx_host_t *h, zx_case_t *c, zx_result_t *result, const zf_loader_t *loader, int is_dry);
void zx_host_close(zx_host_t *h);
/* bind_params with what the case declares by now; is_other: another set, so no gradient is on its way any more. */
void zx_host_bind_again(zx_host_t *h, int is_other);

/* One call of grads_ready with n deliveries, in order; stacked ones at times by ranges of their matrices. */
void zx_host_deliver(zx_host_t *h, const zx_delivery_t *items, uint32_t n);
/* Returns the status; host_norm NULL or the host's own norm. */
zf_status_t zx_host_step(zx_host_t *h, const zo_hyper_t *groups, uint32_t flags, const double *host_norm,
                         zf_step_report_t *out);
/* Compares the visible values of parameters with expected[param] ([elements]; NULL = leave out), in stream order. */
void zx_host_look(zx_host_t *h, const void *const *expected, int law);
/* Waits until everything launched on the queue has run. */
void zx_host_sync(zx_host_t *h);
/* Scribbles over late buffers: those with a done fence after it; those without where a step's own report has come since
 * (is_reported), or the instance is gone. */
void zx_host_settle(zx_host_t *h, int is_reported);
/* A parameter of the case, as calls name it. */
zf_param_item_t zx_host_item(const zx_host_t *h, uint32_t param);
/* Fetches n items (0: all). On a host's thread it waits for them. */
void zx_host_fetch(zx_host_t *h, const zf_param_item_t *items, uint32_t n);
/* The calls themselves, n = 0: all. 0, or -1 where one failed. */
int zx_host_fetch_items(zx_host_t *h, const zf_param_item_t *items, uint32_t n);
int zx_host_release_items(zx_host_t *h, const zf_param_item_t *items, uint32_t n);
/* With FETCH: whether what was not fetched may be read all the same. */
int zx_host_can_look_unfetched(const zx_host_t *h);
/* Writes an array while nothing uses it. */
void zx_host_write(zx_host_t *h, zx_array_t *array, const void *values);
/* Waits until its looks are over, then overwrites a parameter's visible values, and says so of a range of them. With
 * FETCH: fetched, or all is quiet. */
void zx_host_overwrite(zx_host_t *h, uint32_t param, const zo_range_t *range, const void *values, int is_reset);
/* Says so alone: what was written already. */
void zx_host_changed(zx_host_t *h, const zf_param_item_t *item, uint32_t flags);
/* zf.digest/0: adopt, when its looks are over. Returns 0 where the plugin has none. */
int zx_host_adopt(zx_host_t *h, const uint32_t *params, uint32_t n);
void zx_host_quiesce(zx_host_t *h, int32_t mode);
/* The status of a call, which had h->err for its record: negative fails the case, with the plugin's message. */
int zx_is_call_bad(zx_host_t *h, const char *call, zf_status_t status);
