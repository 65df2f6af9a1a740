/* SPDX-License-Identifier: Apache-2.0 */
/* exact_between.c - see exact_between.h. */
#include "exact_between.h"

#include <stdlib.h>

#include "exact_carried.h"
#include "exact_change.h"
#include "exact_wide_calls.h"
#include "shard.h"

static void change_param(zx_run_t *run) {
    zx_case_t *c = run->c;
    uint32_t i = zx_below(&c->rng, c->n_params);
    int is_reset = zx_chance(&c->rng, 40);
    if (!zx_is_trainable(&c->params[i]) || c->params[i].away == ZX_LENT)
        return;
    void *values = zx_case_values(c, &c->params[i]);
    zx_run_fetch_to_write(run, i);
    c->params[i].away = ZX_IN_PLACE;
    zx_host_overwrite(&run->host, i, &(zo_range_t){.id = i}, values, is_reset);
    zo_params_changed(run->oracle, &(zo_range_t){.id = i}, values, is_reset);
    free(values);
}

void zx_run_flush(zx_run_t *run) {
    zx_host_sync(&run->host); /* looks that were launched must see the values before it */
    zo_flush(run->oracle);
    if (run->c->ranks)
        zs_count_values(run->c->ranks, run->c, run->oracle);
    zx_host_quiesce(&run->host, ZF_QUIESCE_FLUSH);
}

void zx_run_between(zx_run_t *run) {
    zx_case_t *c = run->c;
    if (zx_chance(&c->rng, c->p_export))
        zx_run_export(run);
    if (zx_chance(&c->rng, c->p_drain)) {
        zo_rest(run->oracle);
        zx_host_quiesce(&run->host, ZF_QUIESCE_DRAIN);
        zx_run_check_counters(run);
        zx_run_look(run, 1);
    }
    zx_run_refuse_layers(run);
    if (zx_chance(&c->rng, c->p_changed) && !zx_wide_change(run))
        change_param(run);
    zx_run_change_layers(run);
    if (zx_chance(&c->rng, c->p_flush)) {
        do
            zx_run_flush(run);
        while (zx_wide_again(run));
        if (zx_chance(&c->rng, 50))
            zx_run_look(run, 1);
    }
    if (zx_chance(&c->rng, c->p_inspect))
        zx_run_inspect(run);
    if (zx_chance(&c->rng, 15))
        zx_run_poll(run);
    if (zx_chance(&c->rng, 30))
        zx_run_fetch_some(run);
    if (c->law == 5 && zx_chance(&c->rng, 40))
        zx_run_look(run, 0);
    zx_run_ask_point(run);
    if (c->is_carrying)
        zx_carried_point(run);
    if (!c->ranks) /* whose gradients may be on their way to each other */
        zx_run_release_point(run);
    zx_run_rebind_point(run, 1);
}

void zx_run_mid_step(zx_run_t *run) {
    if (!zx_chance(&run->more, 15))
        return;
    switch (zx_below(&run->more, 5)) {
    case 0:
        zx_run_flush(run);
        break;
    case 1:
        zo_rest(run->oracle);
        zx_host_quiesce(&run->host, ZF_QUIESCE_DRAIN);
        break;
    case 2:
        zx_run_export(run);
        break;
    case 3:
        zx_run_fetch_some(run);
        break;
    default:
        zx_run_rebind_point(run, 1);
        break;
    }
}
