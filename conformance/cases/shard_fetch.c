/* SPDX-License-Identifier: Apache-2.0 */
/* shard_fetch.c - a host whose parameters live as shards: it fetches what it looks at, reads where zf.shards/0 says,
 * and releases (model in shard_fetch.h). */
#include "shard_fetch.h"

#include <stdlib.h>
#include <string.h>

#include "exact_device.h"
#include "shard.h"

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static int call_of(zx_host_t *h, const uint32_t *params, uint32_t n,
                   int (*call)(zx_host_t *h, const zf_param_item_t *items, uint32_t n)) {
    zf_param_item_t items[ZX_MAX_PARAMS];
    for (uint32_t i = 0; i < n; i++)
        items[i] = zx_host_item(h, params[i]);
    return call(h, items, n);
}

static int fetch(zx_host_t *h, const uint32_t *params, uint32_t n) {
    return call_of(h, params, n, zx_host_fetch_items);
}

static int release(zx_host_t *h, const uint32_t *params, uint32_t n) {
    return call_of(h, params, n, zx_host_release_items);
}

static int place(zx_host_t *h, uint32_t param, zf_shard_place_t *out) {
    *out = (zf_shard_place_t){.struct_size = sizeof *out};
    return zx_is_call_bad(h, "place", h->shards->place(h->instance, h->c->params[param].id, out, &h->err)) ? -1 : 0;
}

/* ---- bound ------------------------------------------------------------------------------------------------------- */

/* The memory that was bound is the host's again: nothing is read or written there any more. */
static void spoil(zx_host_t *h, uint32_t param) {
    zx_array_t *array = h->c->params[param].array;
    uint64_t nbytes = array->n_elems * zo_dtype_nbytes(array->dtype);
    void *spoilt = zx_alloc(nbytes + 1);
    memset(spoilt, 0xFF, nbytes);
    zx_host_write(h, array, spoilt);
    free(spoilt);
}

void zs_fetch_bound(zx_host_t *h) {
    const zs_ranks_t *ranks = h->c->ranks;
    h->fetches = zx_rng(h->c->seed, 83, h->c->index); /* the same on every rank */
    for (uint32_t i = 0; i < h->c->n_params && h->shards; i++) {
        const zx_param_t *p = &h->c->params[i];
        h->is_sharded[i] = (uint8_t)zs_is_sharded(ranks, h->c, i);
        if (h->is_sharded[i] && !(p->flags & ZF_PARAM_TIED))
            spoil(h, i);
    }
}

/* ---- looking ----------------------------------------------------------------------------------------------------- */

typedef struct copy {
    zx_array_t *array;
    const void *from;
} copy_t;

static void copy_now(void *arg) {
    copy_t *copy = arg;
    zx_array_write(copy->array, copy->from);
    free(copy);
}

/* Where a parameter is that was fetched; NULL: it is whole, or something is wrong. */
static const void *find(zx_host_t *h, uint32_t param) {
    const zx_array_t *array = h->c->params[param].array;
    zf_shard_place_t found;
    if (!h->is_sharded[param] || place(h, param, &found))
        return NULL;
    if (!found.is_sharded || found.nbytes != array->n_elems * zo_dtype_nbytes(array->dtype)) {
        zx_where_t where = {.law = h->c->law, .what = "place", .step = h->step, .element = UINT64_MAX};
        zx_fails(h->result, &where, "is_sharded %d, %llu bytes", found.is_sharded, (unsigned long long)found.nbytes);
        return NULL;
    }
    return found.data;
}

/* Behind the fetch, in the order of the host's stream. */
static void copy_out(zx_host_t *h, uint32_t param, const void *from) {
    if (!from)
        return;
    if (h->is_on_gpu) {
        zx_device_take(h->c->params[param].array, from);
        return;
    }
    copy_t *copy = zx_alloc(sizeof *copy);
    *copy = (copy_t){h->c->params[param].array, from};
    zx_launch(h, copy_now, copy);
}

/* One after the other, `ahead` of them held at the same time; read at the last moment. */
static void copy_in_turn(zx_host_t *h, const uint32_t *params, uint32_t n, uint32_t ahead) {
    const void *from[ZX_MAX_PARAMS];
    for (uint32_t i = 0; i < n + ahead && !zx_is_bad(h->result); i++) {
        if (i < n) {
            if (fetch(h, &params[i], 1))
                return;
            from[i] = find(h, params[i]);
        }
        if (i < ahead)
            continue;
        copy_out(h, params[i - ahead], from[i - ahead]);
        if (release(h, &params[i - ahead], 1))
            return;
    }
}

/* The first of them is held meanwhile. */
static void copy_around_first(zx_host_t *h, const uint32_t *params, uint32_t n) {
    if (n == 0 || fetch(h, params, 1))
        return;
    const void *from = find(h, params[0]);
    copy_in_turn(h, params + 1, n - 1, 0);
    copy_out(h, params[0], from);
    release(h, params, 1);
}

void zs_look_for_errors(zx_host_t *h) {
    zf_step_report_t report = {.struct_size = sizeof report};
    if (!h->c->ranks || !h->c->ranks->has_fault || zx_is_bad(h->result))
        return;
    zx_host_sync(h);
    zx_is_call_bad(h, "poll", h->zf->poll(h->instance, &report, &h->err));
}

void zs_fetch_look(zx_host_t *h, const uint8_t *is_looked_at) {
    uint32_t params[ZX_MAX_PARAMS], n = 0, style = zx_below(&h->fetches, 5);
    for (uint32_t i = 0; i < h->c->n_params; i++)
        if (is_looked_at[i])
            params[n++] = i;
    if (style == 1)
        for (uint32_t i = 0; i < n / 2; i++) {
            uint32_t kept = params[i];
            params[i] = params[n - 1 - i];
            params[n - 1 - i] = kept;
        }
    if (style >= 3)
        zx_shuffle(&h->fetches, params, n);
    if (style < 4) {
        if (zx_chance(&h->fetches, 30))
            copy_around_first(h, params, n);
        else
            copy_in_turn(h, params, n, zx_below(&h->fetches, 3));
        return;
    }
    int is_all = zx_chance(&h->fetches, 50);
    if (n == 0 || fetch(h, params, is_all ? 0 : n))
        return;
    for (uint32_t i = 0; i < n; i++)
        copy_out(h, params[i], find(h, params[i]));
    release(h, params, is_all ? 0 : n);
}

/* What a host fetches and does not look at. */
void zs_fetch_some(zx_host_t *h, const zf_param_item_t *items, uint32_t n) {
    if (!zx_host_fetch_items(h, items, n))
        zx_host_release_items(h, items, n);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

void zs_fetch_overwrite(zx_host_t *h, uint32_t param, const void *values, int is_reset) {
    zf_param_item_t item = zx_host_item(h, param);
    zf_shard_place_t found;
    if (fetch(h, &param, 1) || place(h, param, &found))
        return;
    zx_host_sync(h); /* it is there */
    if (h->is_on_gpu) {
        zx_device_give(found.data, values, found.nbytes);
        zx_device_sync();
    } else {
        memcpy(found.data, values, found.nbytes);
    }
    zx_host_changed(h, &item, 1, is_reset ? ZF_CHANGED_RESET : 0);
    release(h, &param, 1);
}
