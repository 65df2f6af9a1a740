/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/make.c - how a run is made and freed (contract in make.h). */
#include "state/make.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "instance/memory.h"
#include "instance/tables.h"
#include "ranks/buffers.h"
#include "ranks/ranks.h"
#include "ranks/shards.h"
#include "replay/early.h"
#include "replay/state_arrays.h"
#include "replay/workers.h"
#include "schedule/window.h"
#include "step/exchange.h"
#include "step/guard.h"
#include "step/updater.h"

/* Inf and NaN are refused where they come from; in training they would only be noticed as a diverged loss. */
static zf_status_t read_masters(zfi_run_t *run, const char *origin, zf_error_t *err) {
    zf_status_t st = zfi_exchange_first_masters(&run->state, origin, err);
    return st && st != ZF_ERR_NONFINITE ? zfi_error(err, st, origin, "cannot read the parameters") : st;
}

/* The least of any rank that trains the model: some may hold the same though they are not of one group 0. */
static zf_status_t take_least(zfi_engine_t *engine, uint64_t *nbytes, zf_error_t *err) {
    uint32_t n_ranks = zfi_norm_member(engine).n_ranks;
    uint64_t own = *nbytes, *all;
    zf_status_t st;
    if (n_ranks == 1)
        return ZF_OK;
    all = zfi_ranks_collect(engine, engine->norm_index, &own, sizeof own, &st);
    if (!all)
        return zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory to compare %u ranks", n_ranks);
    for (uint32_t r = 0; r < n_ranks; r++)
        *nbytes = all[r] < *nbytes ? all[r] : *nbytes;
    zfi_ranks_drop(engine, all);
    return st ? zfi_error(err, st, "bind_params", "ranks could not agree on [device] state_mib") : ZF_OK;
}

zf_status_t zfi_run_plan(zfi_ranks_t *ranks, zf_error_t *err) {
    zf_status_t st;
    zfi_plan_free(ranks->plan);
    st = zfi_plan_build(&ranks->engine->config, ranks->params, ranks->n_params, ranks->buckets, ranks->plan, err);
    if (!st && (zfi_buffers_plan(ranks) || zfi_shards_plan(ranks)))
        st = zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory for a plan of %u buckets", ranks->buckets->n);
    return st;
}

/* With state_mib = auto twice, the first time: it takes what a plan without leaves. */
static zf_status_t plan(zfi_run_t *run, zf_error_t *err) {
    zfi_config_t *config = &run->engine->config;
    zf_status_t st = zfi_run_plan(&run->ranks, err);
    if (st || !config->is_auto_resident)
        return st;
    config->resident_nbytes = zfi_memory_left(run);
    config->is_auto_resident = 0;
    st = take_least(run->engine, &config->resident_nbytes, err);
    if (st)
        return st;
    zfi_log(run->engine, ZF_LOG_INFO, "bind",
            "[device] state_mib = auto is %" PRIu64 " here: write the number to keep it",
            config->resident_nbytes >> 20);
    return zfi_run_plan(&run->ranks, err);
}

/* Sharded parameters have moved, so the tables follow. */
static zf_status_t keep_shards(zfi_run_t *run) {
    zf_status_t st = run->shards.all ? zfi_shards_keep(&run->ranks) : ZF_OK;
    return st || !run->shards.all ? st : zfi_tables_place(&run->side, NULL);
}

/* ctx: where the run's workers are; they start last, and until then the caller is alone. */
static void share(void *ctx, uint32_t n, zfi_part_fn fn, void *arg) {
    struct zfi_workers *workers = *(struct zfi_workers **)ctx;
    if (workers)
        zfi_workers_share(workers, n, fn, arg);
    for (uint32_t i = 0; i < n && !workers; i++)
        fn(arg, i);
}

static zf_status_t fill(zfi_run_t *run, int reads_visible, const char *origin, zf_error_t *err) {
    zf_status_t st = zfi_ranks_plan(&run->ranks, err);
    if (!st)
        st = plan(run, err);
    if (!st)
        zfi_ranks_plan_room(&run->ranks);
    if (!st)
        st = zfi_memory_bind(run, err);
    if (!st)
        st = zfi_ranks_new(&run->ranks, err);
    if (!st)
        st = zfi_shards_new(&run->ranks, err);
    zfi_step_bind(run);
    if (run->engine->config.sees_edits) {
        run->dev.head.share = share;
        run->dev.head.share_ctx = &run->workers;
        run->hs.shows = run->plan.shown_by_workers ? run->dev.data : NULL;
    }
    if (!st)
        zfi_window_start(&run->windows);
    if (!st && (st = zfi_tables_upload(&run->side)))
        zfi_error(err, st, origin, "the device did not take its tables");
    if (!st && reads_visible)
        st = read_masters(run, origin, err);
    if (!st && (st = keep_shards(run)))
        zfi_error(err, st, origin, "cannot read the parameters");
    if (!st && (st = zfi_guard_start(&run->side)))
        zfi_error(err, st, origin, "cannot read the parameters");
    if (!st && (st = zfi_early_new(&run->replays, &run->early)))
        zfi_error(err, st, origin, "no memory for early replays");
    return st ? st : zfi_workers_start(&run->replays, run->early, run->engine->n_workers, &run->workers, err);
}

static zf_status_t try(zfi_engine_t *engine, zfi_param_t *params, uint32_t n_params, int reads_visible,
                       const char *origin, zfi_run_t **out, zf_error_t *err) {
    zfi_run_t *run = zfi_run_make(engine, params, n_params);
    if (!run)
        return zfi_error(err, ZF_ERR_MEMORY, origin, "no memory for a run of %u parameters", n_params);
    zf_status_t st = fill(run, reads_visible, origin, err);
    if (st) {
        run->params = NULL; /* for another attempt */
        zfi_run_free(run);
    } else {
        *out = run;
    }
    return st;
}

zf_status_t zfi_run_new(zfi_engine_t *engine, zfi_param_t *params, uint32_t n_params, int reads_visible,
                        const char *origin, zfi_run_t **out, zf_error_t *err) {
    zf_status_t st = try(engine, params, n_params, reads_visible, origin, out, err);
    if (st)
        zfi_params_free(params, n_params);
    return st;
}

void zfi_run_free(zfi_run_t *run) {
    if (!run)
        return;
    zfi_workers_stop(run->workers);
    zfi_early_free(run->early);
    zfi_memory_free(run);
    zfi_ranks_free(&run->ranks);
    zfi_shards_free(&run->ranks);
    zfi_plan_free(&run->plan);
    zfi_params_free(run->params, run->n_params);
    free(run);
}
