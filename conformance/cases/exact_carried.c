/* SPDX-License-Identifier: Apache-2.0 */
/* exact_carried.c - see exact_carried.h. */
#include "exact_carried.h"

#include <stdlib.h>

void zx_carried_brought(zx_case_t *c) {
    for (uint32_t i = 0; i < c->n_params; i++)
        c->params[i].away = ZX_IN_PLACE;
}

void zx_carried_fetched(zx_case_t *c, uint32_t param) {
    zx_away_t *away = &c->params[param].away;
    *away = *away == ZX_UNFETCHED ? ZX_IN_PLACE : *away == ZX_SPOILT_UNFETCHED ? ZX_SPOILT : *away;
}

static void make_good(zx_run_t *run, uint32_t i) {
    zx_host_write(&run->host, run->c->params[i].array, zo_visible(run->oracle, i));
    run->c->params[i].away = ZX_IN_PLACE;
}

void zx_carried_restore(zx_run_t *run, int may_fetch) {
    zx_case_t *c = run->c;
    int n_unfetched = 0;
    for (uint32_t i = 0; i < c->n_params; i++)
        n_unfetched += c->params[i].away == ZX_UNFETCHED || c->params[i].away == ZX_SPOILT_UNFETCHED;
    if (n_unfetched && may_fetch)
        zx_run_fetch(run, NULL, 0);
    if (may_fetch)
        zx_host_sync(&run->host);
    for (uint32_t i = 0; i < c->n_params; i++)
        if (c->params[i].away != ZX_IN_PLACE)
            make_good(run, i);
}

void zx_carried_point(zx_run_t *run) {
    zx_case_t *c = run->c;
    uint32_t i = zx_below(&run->more, c->n_params);
    zx_param_t *p = &c->params[i];
    if (!p->decl.is_carried || !zx_is_trainable(p) || !zx_chance(&run->more, 25))
        return;
    zx_host_sync(&run->host);
    if (p->away == ZX_SPOILT) {
        make_good(run, i);
    } else if (p->away == ZX_IN_PLACE) {
        zx_rng_swap(&c->rng, &run->more);
        void *values = zx_case_values(c, p);
        zx_rng_swap(&c->rng, &run->more);
        zx_host_write(&run->host, p->array, values);
        p->away = ZX_SPOILT;
        free(values);
    }
}
