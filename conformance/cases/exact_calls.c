/* SPDX-License-Identifier: Apache-2.0 */
/* exact_calls.c - see exact_calls.h. */
#include "exact_calls.h"

#include <string.h>

#include "exact_device.h"

static const uint64_t wait_ns = 60u * 1000000000ull;

int zx_is_call_bad(zx_host_t *h, const char *call, zf_status_t status) {
    zx_where_t where = {.law = h->c->law, .what = call, .step = h->step, .element = UINT64_MAX};
    if (status >= 0)
        return 0;
    zx_fails(h->result, &where, "status %d: %.*s", status, (int)sizeof h->err.message, h->err.message);
    return 1;
}

void zx_launch(zx_host_t *h, void (*fn)(void *arg), void *arg) {
    if (h->is_on_gpu)
        zx_device_launch(fn, arg);
    else if (!h->queue)
        fn(arg);
    else
        zx_is_call_bad(h, "queue_launch", h->cpu->queue_launch(h->queue, fn, arg, &h->err));
}

void zx_host_sync(zx_host_t *h) {
    if (h->is_on_gpu)
        zx_device_sync();
    if (h->queue)
        zx_is_call_bad(h, "queue_sync", h->cpu->queue_sync(h->queue, wait_ns, &h->err));
}

zf_param_item_t zx_host_item(const zx_host_t *h, uint32_t param) {
    return (zf_param_item_t){.struct_size = sizeof(zf_param_item_t), .id = h->c->params[param].id};
}

int zx_host_fetch_items(zx_host_t *h, const zf_param_item_t *items, uint32_t n) {
    zf_fence_t fence = {.struct_size = sizeof fence};
    if (h->is_dry)
        return 0;
    if (zx_is_call_bad(
            h, "param_fetch",
            h->zf->param_fetch(h->instance, n ? items : NULL, n, sizeof *items, &h->stream, &fence, &h->err)))
        return -1;
    if (h->is_async)
        return 0;
    return -zx_is_call_bad(h, "param_fetch fence", h->zf->fence_wait(h->instance, &fence, wait_ns, &h->err));
}

int zx_host_release_items(zx_host_t *h, const zf_param_item_t *items, uint32_t n) {
    const zf_shards_ext_t *shards = h->zf->get_extension(ZF_EXT_SHARDS);
    if (h->is_dry || !shards)
        return 0;
    return -zx_is_call_bad(h, "param_release",
                           shards->param_release(h->instance, n ? items : NULL, n, sizeof *items, &h->stream, &h->err));
}

void zx_host_write(zx_host_t *h, zx_array_t *array, const void *values) {
    zx_array_write(array, values);
    if (!h->is_on_gpu || array->device_mem == 0) /* not there yet: it goes up with its contents */
        return;
    zx_device_push(array);
    zx_device_sync();
}

void zx_host_changed(zx_host_t *h, const zf_param_item_t *items, uint32_t n, uint32_t flags) {
    if (!h->is_dry)
        zx_is_call_bad(h, "params_changed",
                       h->zf->params_changed(h->instance, items, n, sizeof *items, flags, &h->err));
}

int zx_host_adopt(zx_host_t *h, const uint32_t *params, uint32_t n) {
    const zf_digest_ext_t *digest = h->digest;
    uint32_t ids[ZX_MAX_PARAMS];
    if (digest->struct_size < offsetof(zf_digest_ext_t, adopt) + sizeof digest->adopt || !digest->adopt)
        return 0;
    for (uint32_t i = 0; i < n; i++)
        ids[i] = h->c->params[params[i]].id;
    zx_host_sync(h);
    zx_is_call_bad(h, "adopt", digest->adopt(h->instance, ids, n, &h->err));
    return 1;
}

void zx_host_quiesce(zx_host_t *h, int32_t mode) {
    zf_quiesce_args_t args = {.struct_size = sizeof args, .mode = mode};
    if (!h->c->ranks && zx_chance(&h->buffer_rng, 40))
        args.deadline_ms = zx_between(&h->buffer_rng, 60000, 90000);
    if (!h->is_dry)
        zx_is_call_bad(h, mode == ZF_QUIESCE_DRAIN ? "quiesce(DRAIN)" : "quiesce(FLUSH)",
                       h->zf->quiesce(h->instance, &args, &h->err));
    h->is_quiet = 1;
}
