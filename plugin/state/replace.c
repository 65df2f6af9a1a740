/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/replace.c - one run exchanged for another (contract in state.h).
 *
 * A second run is filled while the first stays as it is; commit brings the threads to the second, and then the pointer
 * of the slot changes. A run that has not trained is filled in place instead, so that its memory is not needed twice:
 * undo is to begin again. One that has trained is freed first, where there is no room for two: then nothing can be
 * undone. The run is drained, so its threads wait in their queues; the only one that may be in the
 * middle of a command is `up`, before values whose publication was still due. Commit lets those go by unseen first. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "instance/device_memory.h"
#include "instance/memory.h"
#include "instance/tables.h"
#include "ranks/shards.h"
#include "ranks/values.h"
#include "replay/state_arrays.h"
#include "replay/workers.h"
#include "schedule/interval.h"
#include "schedule/window.h"
#include "state/make.h"
#include "state/state.h"
#include "step/exchange.h"
#include "step/guard.h"
#include "step/program.h"
#include "step/publish.h"
#include "step/publisher.h"

/* ---- begin, cancel ----------------------------------------------------------------------------------------------- */

static zfi_param_t *copy_params(const zfi_param_t *params, uint32_t n) {
    zfi_param_t *out = calloc(n, sizeof *out);
    if (!out)
        return NULL;
    for (uint32_t i = 0; i < n; i++) {
        out[i] = params[i];
        out[i].first_matrix = out[i].n_matrices = out[i].first_ref = out[i].n_refs = 0;
        out[i].col_offset = NULL;
    }
    for (uint32_t i = 0; i < n; i++) {
        size_t nbytes = out[i].cols * sizeof *out[i].col_offset;
        if (!params[i].col_offset)
            continue;
        out[i].col_offset = malloc(nbytes);
        if (!out[i].col_offset) {
            zfi_params_free(out, n);
            return NULL;
        }
        memcpy(out[i].col_offset, params[i].col_offset, nbytes);
    }
    return out;
}

/* What is to become the weights that are their own masters is kept apart from what the model reads until runs are
 * exchanged. It begins as that. */
static zf_status_t part(const zfi_state_t *state, zf_error_t *err) {
    const zfi_plan_t *plan = state->plan;
    zfi_arena_t *apart = &state->dev->apart;
    zf_status_t st = ZF_OK;
    zfi_arena_take(apart, plan->n_resident_elems - plan->n_resident_masters, sizeof(float));
    if (apart->used_nbytes)
        st = zfi_arena_map(apart, "weights of a load", err);
    for (uint32_t i = 0; i < plan->n_matrices && !st; i++) {
        const zfi_matrix_t *matrix = &plan->matrices[i];
        float *to = (float *)(void *)apart->base;
        if (zfi_is_own_master(matrix))
            st = zfi_state_get(state, ZFI_STATE_W, i, 0, matrix->own.n,
                               to + matrix->state_base - plan->n_resident_masters);
    }
    state->dev->is_apart = !st;
    if (st)
        *apart = (zfi_arena_t){0};
    return st;
}

static void join(const zfi_state_t *state) {
    state->dev->is_apart = 0;
    zfi_arena_free(&state->dev->apart);
}

/* A second run, which the statistics of the first go over to. */
static zf_status_t make_second(zfi_engine_t *engine, zfi_param_t *params, uint32_t n_params, int reads_visible,
                               zfi_run_t **out, zf_error_t *err) {
    zf_status_t st = zfi_run_new(engine, params, n_params, reads_visible, "state", out, err);
    if (st)
        return st;
    (*out)->clock.n_applied = engine->totals->n_applied;
    (*out)->clock.n_skipped = engine->totals->n_skipped;
    st = part(&(*out)->state, err);
    if (!st)
        return ZF_OK;
    zfi_run_free(*out);
    *out = NULL;
    return st;
}

int zfi_replace_is_lossless(const zfi_run_t *run) {
    const zfi_step_row_t *row = zfi_row(&run->rows, run->clock.t + 1);
    for (uint32_t i = 0; i < run->n_params; i++)
        if (row->present[i])
            return 0;
    return run->clock.t == 0 && !run->clock.has_loaded && !run->incoming.has_ranges;
}

/* Publishes that are due go through the device without being seen, so that nothing waits for the next step. */
static zf_status_t pass_due(zfi_publishing_t *publishing, const zfi_publisher_t *by) {
    zfi_publish_drop(publishing, 0, publishing->plan->n_matrices);
    zf_status_t st = by->drop(publishing, 0, publishing->plan->n_matrices);
    by->due(publishing);
    return st ? st : zfi_send(publishing->engine);
}

static void nothing(void *args) { (void)args; }

/* No work on any stream or thread refers to the run any more. Workers end: one whose last chunk another has counted may
 * still have to say what it counted, which would move the timelines of the run that comes. */
static zf_status_t leave(zfi_run_t *run) {
    zfi_engine_t *engine = run->engine;
    zfi_stream_t *streams[] = {engine->stream, engine->down_stream, engine->up_stream, engine->enter_stream};
    zf_status_t st = pass_due(&run->publishing, run->publisher);
    if (!st)
        st = zfi_serial_call(engine->control, nothing, NULL, 0);
    for (size_t i = 0; i < sizeof streams / sizeof *streams && !st; i++)
        st = engine->ops->synchronise(streams[i], engine->ops->mark(streams[i]), UINT64_MAX, NULL);
    if (!st) {
        zfi_workers_stop(run->workers);
        run->workers = NULL;
    }
    return !st && zfi_is_poisoned(engine) ? ZF_ERR_POISONED : st;
}

/* The instance has neither what was there nor what was to come. */
static void end_instance(zfi_engine_t *engine, const zf_error_t *why) {
    zf_error_t error = {.struct_size = sizeof error};
    zfi_error_scoped(&error, why ? why->status : ZF_ERR_MEMORY, ZF_SCOPE_INSTANCE, 0, "state",
                     "a load had no room beside what was there, gave that up, and failed: %.400s",
                     why ? why->message : "");
    zfi_poison(engine, &error);
}

/* The run that was there goes before the new one comes. */
static zf_status_t give_up(zfi_replacement_t *replacement) {
    zf_status_t st = leave(replacement->run);
    if (st)
        return st;
    zfi_run_free(replacement->run);
    *replacement->slot = NULL;
    replacement->has_given_up = 1;
    return ZF_OK;
}

zf_status_t zfi_replace_begin(zfi_run_t **slot, zfi_param_t *params, uint32_t n_params, zfi_begin_t how,
                              zfi_replacement_t *out, zf_error_t *err) {
    zfi_run_t *run = *slot;
    zfi_engine_t *engine = run->engine;
    zf_status_t st;
    *out = (zfi_replacement_t){.slot = slot, .run = run};
    if (!params) {
        n_params = run->n_params;
        params = copy_params(run->params, run->n_params);
    }
    if (!params)
        return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for %u parameter records", n_params);
    if (how == ZFI_BEGIN_INSTEAD && (st = give_up(out))) {
        zfi_params_free(params, n_params);
        return zfi_error(err, st, "state", "the device did not come to rest");
    }
    st = make_second(engine, params, n_params, how == ZFI_BEGIN_FROM_VISIBLE, &out->into, err);
    if (out->has_given_up)
        out->run = *slot = out->into;
    if (st && out->has_given_up)
        end_instance(engine, err);
    return st;
}

zf_status_t zfi_replace_begin_in_place(zfi_run_t **slot, zfi_replacement_t *out, zf_error_t *err) {
    *out = (zfi_replacement_t){.slot = slot, .run = *slot, .into = *slot};
    return part(&(*slot)->state, err);
}

/* A run filled in place begins again: what bind_params left. */
static void begin_again(zfi_run_t *run) {
    join(&run->state);
    for (uint32_t i = 0; i < run->plan.n_matrices; i++)
        (void)zfi_state_clear_moments(&run->state, i); /* what the device does not take ends the instance */
    memset(run->hs.n, 0, run->plan.n_counts * sizeof *run->hs.n);
    memset(run->sel.mask, 0, run->sel.n_masked);
    memset(run->sel.importance, 0, run->plan.n_sums * sizeof(double));
    memset(run->sel.n_enter, 0, run->plan.n_matrices * sizeof *run->sel.n_enter);
    memset(run->clock.last_choice, 0, run->plan.n_cohorts * sizeof *run->clock.last_choice);
    run->clock.t = run->clock.steps_before = run->clock.waiting_choice = run->clock.epoch_end = 0;
    run->clock.n_due = 0;
    run->clock.next_job = zfi_timeline_now(&run->engine->lines.jobs); /* the run is drained */
    zfi_publish_keep_all(&run->publishing);
    run->clock.n_applied = run->clock.n_skipped = 0;
    zfi_window_start(&run->windows);
    zfi_exchange_read_masters(&run->state);
}

void zfi_replace_cancel(zfi_replacement_t *replacement, const zf_error_t *err) {
    if (replacement->has_given_up)
        end_instance(replacement->run->engine, err);
    else if (replacement->into != replacement->run)
        zfi_run_free(replacement->into);
    else
        begin_again(replacement->run);
}

/* ---- commit ------------------------------------------------------------------------------------------------------ */

/* Timelines as if the run had come to step t by itself. */
static void set_timelines(zfi_run_t *run) {
    const zfi_clock_t *clock = &run->clock;
    zfi_timelines_t *lines = &run->engine->lines;
#define RESET_BY_STEP(line) zfi_timeline_set(line, clock->t)
#define RESET_BY_NEXT(line) zfi_timeline_set(line, clock->t + 1)
#define RESET_AHEAD(line) zfi_timeline_set(line, clock->t + 2)
#define RESET_BY_JOB(line) zfi_timeline_set(line, clock->next_job)
#define RESET_BY_RECORD(line) zfi_timeline_set(line, clock->t * run->plan.n_record_parts)
#define RESET_KEPT(line) (void)0
#define RESET(name, counts, writer, rule) RESET_##rule(&lines->name);
    ZFI_TIMELINES(RESET)
}

/* Timelines and threads follow the run's clocks. */
static void set_clocks(zfi_run_t *run) {
    zfi_clock_t *clock = &run->clock;
    zfi_counters_t *count = &run->engine->count;
    run->sel.last_choice = 0;
    for (uint32_t c = 0; c < run->plan.n_cohorts; c++)
        if (clock->last_choice[c] > run->sel.last_choice)
            run->sel.last_choice = clock->last_choice[c];
    run->sel.enter_block = zfi_timeline_now(&run->engine->lines.enter_done);
    zfi_interval_resume(&run->plan, &run->clock, &run->sel);
    set_timelines(run);
    zfi_workers_restart(run->workers, clock->next_job);
    clock->has_begun = 0;
    zfi_row(&run->rows, clock->t)->t = UINT64_MAX; /* nothing is reported of a step that was made elsewhere */
    atomic_store(&count->steps, clock->t + clock->steps_before);
    __atomic_store_n(&run->engine->totals->n_applied, clock->n_applied, __ATOMIC_RELAXED);
    __atomic_store_n(&run->engine->totals->n_skipped, clock->n_skipped, __ATOMIC_RELAXED);
    memset(run->dev.overwritten, 0, run->n_params);
    __atomic_store_n(&run->engine->totals->n_params_overwritten, 0, __ATOMIC_RELAXED);
    zfi_memory_bound(&run->ranks);
}

/* The device's maps, copies of selected channels and visible values, from the host's state. */
static zf_status_t fill_device(const zfi_state_t *state) {
    zf_status_t st = zfi_tables_place(state->side, NULL);
    if (!st)
        st = zfi_exchange_put_maps(state);
    if (!st)
        st = zfi_exchange_reload_selected(state, 0, state->plan->n_matrices);
    for (uint32_t i = 0; i < state->plan->n_matrices && !st; i++)
        st = zfi_exchange_put_visible(state, i);
    return st;
}

/* The new run goes on from where its clocks are. */
static zf_status_t resume(const zfi_replacement_t *replacement) {
    zfi_run_t *run = replacement->into;
    run->clock.has_loaded = 1;
    set_clocks(run);
    zf_status_t st = fill_device(&run->state);
    join(&run->state);
    zfi_shards_forget(&run->buckets, &run->shards);
    if (!st)
        st = zfi_publish_share_all(&run->ranks, 0);
    if (!st)
        st = zfi_guard_start(&run->side);
    if (!st)
        zfi_window_prepare(&run->windows);
    return st;
}

zf_status_t zfi_replace_commit(zfi_replacement_t *replacement, zf_error_t *err) {
    zfi_run_t *run = replacement->run, *into = replacement->into;
    zf_status_t st = into != run ? leave(run) : ZF_OK; /* filled in place: what is due is the new run's */
    zfi_run_t *over = st ? into : run;
    if (!st) {
        *replacement->slot = into;
        st = resume(replacement);
    }
    if (into != run)
        zfi_run_free(over);
    return st ? zfi_error(err, st, "state", "the device did not take the loaded state") : ZF_OK;
}
