/* SPDX-License-Identifier: Apache-2.0 */
/* exact_wide_calls.c - see exact_wide_calls.h. */
#include "exact_wide_calls.h"

#include <stdlib.h>

static void announce(zx_run_t *run) {
    zx_case_t *c = run->c;
    zo_hyper_t groups[ZX_MAX_GROUPS];
    int is_near = c->n_hyper > 0 && zx_chance(&run->wide, 50);
    for (uint32_t i = 0; i < c->n_groups; i++)
        groups[i] = is_near ? c->last[i] : zx_chance(&run->wide, 30) ? c->base[i] : zx_wide_hyper(&run->wide);
    if (is_near && zx_chance(&run->wide, 70)) /* but for one number of one group */
        zx_change_hyper(&run->wide, &groups[zx_below(&run->wide, c->n_groups)]);
    zx_host_announce(&run->host, groups);
}

void zx_wide_announce(zx_run_t *run) {
    if (!zx_is_wide(run->c) && !zx_is_early(run->c))
        return;
    if (zx_chance(&run->wide, 33))
        announce(run);
    if (zx_chance(&run->wide, 4)) /* none, which counts as 1, or some again */
        run->c->unscale = run->c->unscale > 0.0 ? 0.0 : zx_log_uniform(&run->wide, 0x1p-24, 0x1p4);
    else if (run->c->unscale > 0.0 && zx_chance(&run->wide, 15))
        run->c->unscale = zx_log_uniform(&run->wide, 0x1p-24, 0x1p4);
    else if (run->c->unscale > 0.0 && zx_chance(&run->wide, 25)) /* a little */
        run->c->unscale *= 1.0 + zx_log_uniform(&run->wide, 0x1p-22, 0x1p-7);
}

int zx_wide_again(zx_run_t *run) { return zx_is_wide(run->c) && zx_chance(&run->wide, 40); }

static void write_one(zx_run_t *run, uint32_t i, int is_new, int is_reset) {
    zx_case_t *c = run->c;
    zx_rng_swap(&c->rng, &run->wide);
    zx_run_fetch_to_write(run, i);
    c->params[i].away = ZX_IN_PLACE;
    void *values = is_new ? zx_case_values(c, &c->params[i]) : zx_run_draw_sound(run, i);
    zx_rng_swap(&c->rng, &run->wide);
    zx_host_sync(&run->host);
    zx_host_write(&run->host, c->params[i].array, values);
    zo_params_changed(run->oracle, &(zo_range_t){.id = i}, values, is_reset);
    free(values);
}

/* Of a list of all, which names none, what the host did not write goes on from what it shows. */
int zx_wide_change(zx_run_t *run) {
    zx_case_t *c = run->c;
    zf_param_item_t items[ZX_MAX_PARAMS];
    uint32_t list[ZX_MAX_PARAMS], n = 0;
    int n_lent = 0;
    for (uint32_t i = 0; i < c->n_params; i++)
        n_lent += c->params[i].away == ZX_LENT;
    if (!zx_is_wide(c) || c->ranks || zx_chance(&run->wide, 30) || n_lent)
        return 0;
    int is_reset = zx_chance(&run->wide, 40), is_all = zx_chance(&run->wide, 30);
    for (uint32_t i = 0; i < c->n_params; i++)
        if (zx_is_trainable(&c->params[i]) && (is_all || zx_chance(&run->wide, 60)))
            list[n++] = i;
    zx_shuffle(&run->wide, list, n);
    for (uint32_t i = 0; i < n; i++)
        write_one(run, list[i], !is_all || zx_chance(&run->wide, 60), is_reset);
    for (uint32_t i = 0; i < n; i++)
        items[i] = zx_host_item(&run->host, zx_case_name_for(c, &run->wide, list[i]));
    if (n > 0)
        zx_host_changed(&run->host, is_all ? NULL : items, is_all ? 0 : n, is_reset ? ZF_CHANGED_RESET : 0);
    return 1;
}
