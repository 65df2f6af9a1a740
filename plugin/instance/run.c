/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/run.c - how a run is put together (contract in run.h). */
#include "instance/run.h"

#include <stdlib.h>

/* SCHEDULE.md's constants of a configuration. */
static zfi_pace_t pace_of(const zfi_config_t *config) {
    return (zfi_pace_t){.selects = zfi_config_selects(config),
                        .warm_up = zfi_config_warm_up(config),
                        .interval = config->update_interval,
                        .choose_every =
                            config->select_strategy == ZFI_SELECT_EPOCH ? 0 : zfi_config_select_interval(config),
                        .is_auto = config->is_interval_auto,
                        .keeps_sets = config->select_strategy == ZFI_SELECT_AUTO};
}

static void make_views(zfi_run_t *run) {
    run->windows = (zfi_windows_t){&run->plan, &run->clock, &run->rows, &run->slots};
    run->replays = (zfi_replays_t){.engine = run->engine,
                                   .params = run->params,
                                   .plan = &run->plan,
                                   .windows = &run->windows,
                                   .sel = &run->sel,
                                   .host = &run->hs,
                                   .n_moments = run->n_moments};
    run->ranks = (zfi_ranks_t){.engine = run->engine,
                               .params = run->params,
                               .n_params = run->n_params,
                               .n_groups = run->n_groups,
                               .n_moments = run->n_moments,
                               .plan = &run->plan,
                               .buckets = &run->buckets,
                               .reduction = &run->reduction,
                               .shards = &run->shards,
                               .mem = &run->mem,
                               .dev = &run->dev,
                               .sel = &run->sel,
                               .rows = &run->rows,
                               .slots = &run->slots,
                               .clock = &run->clock};
    run->side = (zfi_device_side_t){run->engine, run->params, run->n_params, &run->plan, &run->dev};
    run->publishing = (zfi_publishing_t){.engine = run->engine,
                                         .plan = &run->plan,
                                         .dev = &run->dev,
                                         .side = &run->side,
                                         .clock = &run->clock,
                                         .host = &run->hs,
                                         .writes = &run->writes,
                                         .unfetched = &run->unfetched,
                                         .ranks = &run->ranks};
    run->state = (zfi_state_t){.engine = run->engine,
                               .plan = &run->plan,
                               .dev = &run->dev,
                               .side = &run->side,
                               .windows = &run->windows,
                               .host = &run->hs,
                               .sel = &run->sel,
                               .ranks = &run->ranks,
                               .n_moments = run->n_moments};
}

zfi_run_t *zfi_run_make(zfi_engine_t *engine, zfi_param_t *params, uint32_t n_params) {
    zfi_run_t *run = calloc(1, sizeof *run);
    const zfi_config_t *config = &engine->config;
    if (!run)
        return NULL;
    run->engine = engine;
    run->params = params;
    run->n_params = n_params;
    run->n_groups = zfi_params_n_groups(params, n_params);
    run->n_moments = zfi_params_n_moments(params, n_params);
    run->clock.pace = pace_of(config);
    run->slots.interval = config->update_interval;
    run->slots.peak = &engine->count.slots_peak;
    run->mem.limit_mib = config->memory_limit_mib;
    run->mem.node = zfi_node_find(getenv);
    run->dev.enter_block_nbytes =
        sizeof(zfi_enter_block_t) + (uint64_t)zfi_enter_arrays(run->n_moments) * ZFI_ENTER_ELEMS * sizeof(float);
    run->dev.head.moments = zfi_config_element_moments(config);
    run->dev.head.run_moments = (zfi_moments_t)config->moments;
    run->dev.head.counts_per_channel = config->deferred == ZFI_DEFERRED_MEAN;
    make_views(run);
    return run;
}
