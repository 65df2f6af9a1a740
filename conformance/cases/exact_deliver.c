/* SPDX-License-Identifier: Apache-2.0 */
/* exact_deliver.c - gradients on their way to the plugin: written, delivered, overwritten as soon as they may be.
 *
 * Model: a buffer is in one of three places: on its parameter's free list (the host may write it, on the queue in
 * stream order), in flight inside zx_host_deliver(), or on the late list (its done fence still to be waited for).
 * Whatever leaves the plugin's hands is filled with NaN first: a late read becomes a skipped step, which nobody
 * overlooks. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exact_device.h"
#include "exact_host.h"
#include "shard.h"

static const uint64_t wait_ns = 60u * 1000000000ull;

struct zx_buffer {
    zx_host_t *h;
    uint32_t param;
    zx_array_t array;
    zf_fence_t fence;
    int has_fence;
    zx_buffer_t *next;
};

typedef struct zx_write {
    zx_array_t *array;
    void *values;
    uint32_t delay_us;
} zx_write_t;

static zx_buffer_t *take_buffer(zx_host_t *h, uint32_t param) {
    zx_buffer_t *b = h->free_buffers[param];
    const zx_param_t *p = &h->c->params[param];
    if (b) {
        h->free_buffers[param] = b->next;
        return b;
    }
    b = zx_alloc(sizeof *b);
    b->h = h;
    b->param = param;
    zx_array_init(&b->array, &h->buffer_rng, &p->decl, p->decl.grad_dtype, p->is_grad_strided);
    zx_array_poison_gaps(&b->array);
    if (h->is_on_gpu)
        zx_device_adopt(&b->array);
    return b;
}

static void put_buffer(zx_buffer_t *b) {
    b->next = b->h->free_buffers[b->param];
    b->h->free_buffers[b->param] = b;
}

static void free_list(zx_buffer_t *b) {
    while (b) {
        zx_buffer_t *next = b->next;
        zx_device_free(&b->array);
        free(b);
        b = next;
    }
}

void zx_buffers_free(zx_host_t *h) {
    for (uint32_t i = 0; i < ZX_MAX_PARAMS; i++) {
        free_list(h->free_buffers[i]);
        h->free_buffers[i] = NULL;
    }
    free_list(h->late_buffers);
    h->late_buffers = NULL;
}

/* ---- work in stream order ---------------------------------------------------------------------------------------- */

static void write_now(void *arg) {
    zx_write_t *write = arg;
    if (write->delay_us)
        usleep(write->delay_us);
    zx_array_write(write->array, write->values);
    free(write->values);
    free(write);
}

typedef struct zx_scribble { /* owns what it needs: the buffer may be in use again, further down the queue */
    zx_host_t *h;
    zx_array_t *array;
    zf_fence_t fence; /* kind NONE: over */
} zx_scribble_t;

static void wait_for_fence(zx_host_t *h, const zf_fence_t *fence) {
    zf_error_t err = {.struct_size = sizeof err};
    zx_where_t where = {.law = h->c->law, .what = "done fence", .step = h->step, .element = UINT64_MAX};
    int has_fault = h->c->ranks && h->c->ranks->has_fault; /* then the next call says why, and who it was */
    if (fence->kind == ZF_FENCE_HOST_COUNTER && h->zf->fence_wait(h->instance, fence, wait_ns, &err) < 0 && !has_fault)
        zx_fails(h->result, &where, "%.*s", (int)sizeof err.message, err.message);
}

static void scribble_now(void *arg) {
    zx_scribble_t *s = arg;
    wait_for_fence(s->h, &s->fence);
    zx_array_scribble(s->array);
    free(s);
}

/* The plugin has finished with it, or will have when the queue comes here. On a GPU the host's thread waits: what ends
 * a wait in a stream might lie behind it in the queue that both share. */
static void give_back(zx_buffer_t *b) {
    zx_scribble_t *s;
    if (b->h->is_on_gpu) {
        if (b->has_fence)
            wait_for_fence(b->h, &b->fence);
        zx_device_scribble(&b->array);
    } else {
        s = zx_alloc(sizeof *s);
        *s = (zx_scribble_t){.h = b->h, .array = &b->array};
        if (b->has_fence)
            s->fence = b->fence;
        zx_launch(b->h, scribble_now, s);
    }
    put_buffer(b);
}

/* Whether the host's thread would wait for it, and had better not: the plugin may read it beside the steps to come.
 * Three fences in ten are waited for all the same. */
static int is_lent_on(zx_host_t *h, const zx_buffer_t *b) {
    return h->is_on_gpu && b->has_fence && h->instance && b->fence.kind == ZF_FENCE_HOST_COUNTER &&
           __atomic_load_n(b->fence.counter, __ATOMIC_ACQUIRE) < b->fence.value && b->fence.value % 10 >= 3;
}

void zx_host_settle(zx_host_t *h, int is_reported) {
    zx_buffer_t *b = h->late_buffers;
    h->late_buffers = NULL;
    while (b) {
        zx_buffer_t *next = b->next;
        if (!is_lent_on(h, b) && (is_reported || b->has_fence || !h->instance)) {
            b->has_fence &= h->instance != NULL; /* counters live as long as the instance */
            give_back(b);
        } else {
            b->next = h->late_buffers;
            h->late_buffers = b;
        }
        b = next;
    }
}

/* ---- grads_ready ------------------------------------------------------------------------------------------------- */

/* This rank's share of what is delivered, to be freed; NULL: another rank delivers it. */
static void *take_share(zx_host_t *h, const zx_delivery_t *d) {
    uint64_t nbytes = zx_n_elems(&h->c->params[d->param]) * zo_dtype_nbytes(h->c->params[d->param].decl.grad_dtype);
    void *values = zx_alloc(nbytes);
    memcpy(values, d->values, nbytes);
    if (!h->c->ranks || zs_share(h->c->ranks, h->c, d->param, h->step, values))
        return values;
    free(values);
    return NULL;
}

/* NULL: another rank delivers it. */
static zx_buffer_t *prepare_on_gpu(zx_host_t *h, const zx_delivery_t *d) {
    void *values = take_share(h, d);
    if (!values)
        return NULL;
    zx_buffer_t *b = take_buffer(h, d->param);
    zx_array_write(&b->array, values);
    zx_device_push(&b->array);
    free(values);
    return b;
}

/* Of a gradient that comes late on a queue. */
static uint32_t draw_delay(zx_host_t *h) {
    uint32_t us = !h->is_on_gpu && zx_chance(&h->c->rng, 8) && h->queue ? zx_below(&h->c->rng, 300) : 0;
    if (us)
        zx_count_drawn(h->result, ZX_LATE, 1);
    return us;
}

/* As prepare_on_gpu. */
static zx_buffer_t *prepare(zx_host_t *h, const zx_delivery_t *d, uint32_t delay_us) {
    zx_write_t *write = zx_alloc(sizeof *write);
    *write = (zx_write_t){.values = take_share(h, d), .delay_us = delay_us};
    if (!write->values) {
        free(write);
        return NULL;
    }
    zx_buffer_t *b = take_buffer(h, d->param);
    write->array = &b->array;
    zx_launch(h, write_now, write);
    return b;
}

/* Memory that carries, while it is the host's: the gradient is written where the value lies, and delivered there. */
static int is_in_place(zx_host_t *h, const zx_delivery_t *d, uint32_t delay_us, zf_grad_item_t *item,
                       zf_tensor_t *tensor) {
    zx_param_t *p = &h->c->params[d->param];
    int is_mine = p->away == ZX_IN_PLACE || p->away == ZX_SPOILT;
    uint64_t nbytes = zx_n_elems(p) * zo_dtype_nbytes(p->decl.dtype);
    if (!p->decl.is_carried)
        return 0;
    p->away = ZX_LENT;
    if (!is_mine || nbytes == 0 || !zx_chance(&h->buffer_rng, 60))
        return 0;
    zx_write_t *write = zx_alloc(sizeof *write);
    *write = (zx_write_t){.array = p->array, .values = take_share(h, d), .delay_us = delay_us};
    zx_launch(h, write_now, write);
    *tensor = p->array->tensor;
    tensor->dl.dtype = zx_dtype(p->decl.grad_dtype);
    item->flags |= ZF_GRAD_LENT;
    item->tensor = tensor;
    return 1;
}

/* When the host gets its memory back: now (in stream order), or after the step, which leaves it on the late list; on a
 * GPU that is so wherever a counter tells. */
static void after_call(zx_host_t *h, zx_buffer_t *b, int is_borrowed, const zf_fence_t *fence, int is_late) {
    b->has_fence = fence != NULL;
    if (fence)
        b->fence = *fence;
    if (!is_borrowed || (fence && !((is_late || b->h->is_on_gpu) && fence->kind == ZF_FENCE_HOST_COUNTER))) {
        b->has_fence &= is_borrowed;
        give_back(b);
        return;
    }
    b->next = h->late_buffers;
    h->late_buffers = b;
}

enum { MOST_RANGES = 3 };

/* Cuts a delivery into up to MOST_RANGES ranges that adjoin, from either end; returns their number. Drawn apart from
 * the case, whose result cannot depend on it. */
static uint32_t cut(zx_host_t *h, const zx_delivery_t *d, zf_grad_item_t *whole) {
    uint32_t n_all = zx_n_matrices(&h->c->params[d->param].decl), first = 0, n = 0;
    int is_upward = zx_chance(&h->buffer_rng, 50);
    zf_grad_item_t item = *whole;
    if (!d->is_only || n_all < 2 || zx_chance(&h->buffer_rng, 40))
        return 1;
    while (first < n_all) {
        uint32_t left = n_all - first, take = n + 1 < MOST_RANGES ? zx_between(&h->buffer_rng, 1, left) : left;
        item.first_batch = is_upward ? first : n_all - first - take;
        item.n_batches = take;
        whole[n++] = item;
        item.flags &= ~(uint32_t)ZF_GRAD_REPLACE; /* the first one makes void what came before */
        first += take;
    }
    return n;
}

void zx_host_deliver(zx_host_t *h, const zx_delivery_t *items, uint32_t n) {
    zf_fence_t fence = {.struct_size = sizeof fence};
    zf_grad_item_t *grads = zx_alloc(n * MOST_RANGES * sizeof *grads);
    zx_buffer_t **buffers = zx_alloc(n * sizeof *buffers);
    zf_tensor_t *in_place = zx_alloc(n * sizeof *in_place);
    int has_done = !zx_chance(&h->c->rng, h->c->p_late_done), is_late = zx_chance(&h->c->rng, 40);
    int *is_borrowed = zx_alloc(n * sizeof *is_borrowed);
    uint32_t n_grads = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t name = h->c->ranks ? items[i].param : zx_case_name_for(h->c, &h->buffer_rng, items[i].param);
        int is_async = !h->is_async && h->c->is_async_read && zx_chance(&h->c->rng, 80);
        int is_lent = (h->is_async || is_async) && has_done && is_late && zx_chance(&h->buffer_rng, 50);
        zf_grad_item_t item = {
            .struct_size = sizeof item, .id = h->c->params[items[i].param].id, .flags = items[i].flags};
        uint32_t delay_us = draw_delay(h);
        if (is_in_place(h, &items[i], delay_us, &item, &in_place[i])) {
            grads[n_grads++] = item;
            continue;
        }
        buffers[i] = h->is_on_gpu ? prepare_on_gpu(h, &items[i]) : prepare(h, &items[i], delay_us);
        is_borrowed[i] = h->is_async || is_async;
        if (!buffers[i])
            continue;
        grads[n_grads] = (zf_grad_item_t){.struct_size = sizeof *grads,
                                          .id = h->c->params[name].id,
                                          .flags = items[i].flags | (is_lent    ? ZF_GRAD_LENT
                                                                     : is_async ? ZF_GRAD_ASYNC_READ
                                                                                : 0),
                                          .tensor = &buffers[i]->array.tensor};
        n_grads += cut(h, &items[i], &grads[n_grads]);
    }
    if (h->c->ranks)
        zs_shuffle(h->c->ranks, grads, n_grads);
    if (n_grads > 0 && !h->is_dry)
        zx_is_call_bad(h, "grads_ready",
                       h->zf->grads_ready(h->instance, grads, n_grads, sizeof *grads, &h->stream,
                                          has_done ? &fence : NULL, &h->err));
    for (uint32_t i = 0; i < n; i++)
        if (buffers[i])
            after_call(h, buffers[i], is_borrowed[i], has_done ? &fence : NULL, is_late);
    free(grads);
    free(in_place);
    free(is_borrowed);
    free(buffers);
}
