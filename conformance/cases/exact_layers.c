/* SPDX-License-Identifier: Apache-2.0 */
/* exact_layers.c - a host that goes layer by layer (exact_run.h). */
#include "exact_run.h"

#include <stdlib.h>
#include <string.h>

/* Matrices of a parameter, or of what it is tied to, that may be named by ranges; 1: it is named whole. */
static uint32_t n_layers(const zx_run_t *run, uint32_t param) {
    const zx_param_t *p = &run->c->params[param];
    uint32_t owner = p->flags & ZF_PARAM_TIED ? p->tied_to : param;
    return run->host.shards && run->host.is_sharded[param] ? 1 : (uint32_t)zo_n_batch(&run->c->params[owner].decl);
}

uint32_t zx_run_draw_layers(zx_run_t *run, uint32_t param, uint32_t keeps, zf_param_item_t *out) {
    zx_rng_t *r = &run->layers;
    uint32_t n = n_layers(run, param), n_ranges = 0, step;
    out[0] = zx_host_item(&run->host, param);
    if (n < 2 || !keeps || !zx_chance(r, 40))
        return 1;
    step = zx_between(r, (n + ZX_MOST_RANGES - 1) / ZX_MOST_RANGES, n - 1);
    for (uint32_t first = 0; first < n; first += step) {
        uint32_t at = zx_below(r, n_ranges + 1);
        if (!zx_chance(r, keeps))
            continue;
        out[n_ranges] = out[at];
        out[at] = zx_host_item(&run->host, param);
        out[at].first_batch = first;
        out[at].n_batches = step < n - first ? step : n - first;
        n_ranges++;
    }
    zx_count_drawn(run->result, ZX_LAYERS, n_ranges);
    return n_ranges;
}

void zx_run_refuse_layers(zx_run_t *run) {
    zx_host_t *h = &run->host;
    for (uint32_t i = 0; i < run->c->n_params && !run->is_dry; i++) {
        uint32_t n = n_layers(run, i);
        const zo_range_t last = {.id = i, .first_batch = n - 1, .n_batches = 1};
        const zx_where_t where = {.law = 2,
                                  .what = "params_changed",
                                  .param = run->c->params[i].name,
                                  .step = h->step,
                                  .element = UINT64_MAX};
        if (n < 2 || !zx_is_trainable(&run->c->params[i]) || !zo_has_slots(run->oracle, &last))
            continue;
        zf_param_item_t item = zx_host_item(h, i);
        item.first_batch = last.first_batch;
        item.n_batches = 1;
        zf_status_t st = h->zf->params_changed(h->instance, &item, 1, sizeof item, 0, &h->err);
        if (st != ZF_ERR_STATE)
            zx_fails(run->result, &where, "status %d for one of its matrices while a window holds gradients for it",
                     st);
    }
}

/* The first stacked parameter from a drawn one on, or that itself. */
static uint32_t draw_stacked(const zx_run_t *run, zx_rng_t *r) {
    uint32_t n = run->c->n_params, first = zx_below(r, n), k = 0;
    while (k < n && (n_layers(run, (first + k) % n) < 2 || !zx_is_trainable(&run->c->params[(first + k) % n])))
        k++;
    return (first + k) % n;
}

/* A range at once, or in two items, the second first. */
static void say_changed(zx_run_t *run, const zo_range_t *range, uint32_t n_first, uint32_t flags) {
    zf_param_item_t items[2] = {zx_host_item(&run->host, range->id), zx_host_item(&run->host, range->id)};
    items[1].first_batch = range->first_batch;
    items[1].n_batches = n_first;
    items[0].first_batch = range->first_batch + n_first;
    items[0].n_batches = range->n_batches - n_first;
    int is_one = n_first == range->n_batches;
    zx_host_changed(&run->host, items + is_one, is_one ? 1 : 2, flags);
}

void zx_run_change_layers(zx_run_t *run) {
    zx_case_t *c = run->c;
    zx_rng_t *r = &run->ranges;
    uint32_t i = draw_stacked(run, r), n = n_layers(run, i);
    zo_range_t range = {.id = i};
    if (!c->p_changed || c->is_ask || c->params[i].away == ZX_LENT || n < 2 || !zx_is_trainable(&c->params[i]) ||
        !zx_chance(r, 20))
        return;
    range.first_batch = zx_below(r, n);
    range.n_batches = zx_between(r, 1, n - range.first_batch);
    if (zo_has_slots(run->oracle, &range))
        return;
    zx_rng_swap(&c->rng, r);
    zx_run_fetch_to_write(run, i);
    c->params[i].away = ZX_IN_PLACE;
    zx_rng_swap(&c->rng, r);
    uint64_t nbytes = zo_n_elems(run->oracle, i) / n * zo_dtype_nbytes(c->params[i].decl.dtype);
    unsigned char *drawn = zx_case_values(c, &c->params[i]);
    unsigned char *values = zx_alloc(n * nbytes);
    memcpy(values, zo_visible(run->oracle, i), n * nbytes);
    memcpy(values + range.first_batch * nbytes, drawn + range.first_batch * nbytes, range.n_batches * nbytes);
    int is_reset = zx_chance(r, 40);
    zx_host_sync(&run->host);
    zx_host_write(&run->host, c->params[i].array, values);
    say_changed(run, &range, zx_between(r, 1, range.n_batches), is_reset ? ZF_CHANGED_RESET : 0);
    zo_params_changed(run->oracle, &range, values, is_reset);
    zx_count_drawn(run->result, ZX_LAYERS, 1);
    free(values);
    free(drawn);
}
