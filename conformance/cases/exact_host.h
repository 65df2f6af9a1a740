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

#include "exact_calls.h"

typedef struct zx_delivery {
    uint32_t param; /* index in the case */
    uint32_t flags; /* ZF_GRAD_... without ASYNC_READ */
    void *values;   /* [elements] of the gradient dtype; owned */
    int is_only;    /* LAST, and nothing before it counts: may be handed over by ranges of matrices */
} zx_delivery_t;

/* 0, or -1 where the instance could not be made (the result says why). is_dry: no hook is ever called. */
int zx_host_open(zx_host_t *h, zx_case_t *c, zx_result_t *result, const zf_loader_t *loader, int is_dry);
void zx_host_close(zx_host_t *h, uint32_t flags); /* ZF_DESTROY_... */
/* bind_params with what the case declares by now; is_other: another set, so no gradient is on its way any more. */
void zx_host_bind_again(zx_host_t *h, int is_other);
/* ... is refused, by this parameter's name. */
void zx_host_refuse_bind(zx_host_t *h, uint32_t param);

/* One call of grads_ready with n deliveries, in order; stacked ones at times by ranges of their matrices. */
void zx_host_deliver(zx_host_t *h, const zx_delivery_t *items, uint32_t n);
/* What the coming step is said to have; before its first gradient. */
void zx_host_announce(zx_host_t *h, const zo_hyper_t *groups);
/* Returns the status; host_norm NULL or the host's own norm. */
zf_status_t zx_host_step(zx_host_t *h, const zo_hyper_t *groups, uint32_t flags, const double *host_norm,
                         zf_step_report_t *out);
/* Compares the visible values of parameters with expected[param] ([elements]; NULL = leave out), in stream order. */
void zx_host_look(zx_host_t *h, const void *const *expected, int law);
/* Scribbles over late buffers: those with a done fence after it; those without where a step's own report has come since
 * (is_reported), or the instance is gone. */
void zx_host_settle(zx_host_t *h, int is_reported);
/* Nothing is read from them any more. */
void zx_buffers_free(zx_host_t *h);
/* Fetches n items (0: all). On a host's thread it waits for them. */
void zx_host_fetch(zx_host_t *h, const zf_param_item_t *items, uint32_t n);
/* With FETCH: whether what was not fetched may be read all the same. */
int zx_host_can_look_unfetched(const zx_host_t *h);
/* Waits until its looks are over, then overwrites a parameter's visible values, and says so of a range of them. With
 * FETCH: fetched, or all is quiet. */
void zx_host_overwrite(zx_host_t *h, uint32_t param, const zo_range_t *range, const void *values, int is_reset);
