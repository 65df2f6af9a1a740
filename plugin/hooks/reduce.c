/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/reduce.c - gradients of several ranks (contract in reduce.h). */
#include "hooks/reduce.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/crc32.h"
#include "base/error.h"
#include "hooks/batch.h"
#include "instance/gradient_place.h"
#include "ranks/buffers.h"
#include "ranks/landing.h"
#include "ranks/ranks.h"
#include "replay/early.h"
#include "replay/workers.h"
#include "schedule/expect.h"
#include "schedule/window.h"
#include "state/together.h"
#include "step/gradients.h"

static zf_status_t reduce_bucket(zf_instance_t *inst, uint32_t bucket, uint64_t needs_job) {
    zf_status_t st = zfi_batch_flush(inst);
    zfi_gradients_begin(&inst->engine, &inst->run->plan, &inst->run->clock);
    return st ? st : zfi_ranks_reduce(&inst->run->ranks, bucket, inst->run->clock.t + 1, needs_job);
}

/* This rank has a gradient of all its parameters, so whatever the others have, the step has one. */
static zf_status_t land_bucket(zf_instance_t *inst, uint32_t number) {
    zfi_run_t *run = inst->run;
    const zfi_bucket_t *bucket = &run->buckets.all[number];
    uint64_t needs_job = 0;
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < bucket->n_params && !st; i++)
        st = zfi_window_slots(&run->windows, &run->params[run->buckets.params[bucket->first + i]], &needs_job);
    if (!st)
        st = reduce_bucket(inst, number, needs_job);
    if (st)
        return st;
    run->reduction.has_landed[number] = 1;
    for (uint32_t i = 0; i < bucket->n_params; i++)
        zfi_early_final(run->early, &run->params[run->buckets.params[bucket->first + i]]);
    if (zfi_early_sent(run->early, run->reduction.number[number]))
        zfi_workers_wake(run->workers);
    return ZF_OK;
}

zf_status_t zfi_reduce_check(const zf_instance_t *inst, uint32_t param, uint32_t flags, int goes_now, zf_error_t *err) {
    uint32_t bucket = inst->run->buckets.of_param[param];
    if (!(flags & ZF_GRAD_REPLACE) || bucket == ZF_NO_ID || (!goes_now && inst->run->reduction.number[bucket] == 0))
        return ZF_OK;
    return zfi_error_of(err, ZF_ERR_STATE, param, "grads_ready",
                        "gradient of \"%s\": REPLACE, but bucket %" PRIu32
                        " with it is on its way to the other ranks: deliver gradients that may change without LAST",
                        inst->run->params[param].name, bucket);
}

zf_status_t zfi_reduce_note(zf_instance_t *inst, uint32_t param, int is_final) {
    zfi_run_t *run = inst->run;
    zfi_reduction_t *reduction = &run->reduction;
    uint32_t bucket = run->buckets.of_param[param];
    zf_status_t st = ZF_OK;
    if (bucket == ZF_NO_ID)
        return ZF_OK;
    reduction->n_final[bucket] += (uint32_t)is_final - reduction->is_final[param]; /* REPLACE may open it again */
    reduction->is_final[param] = (uint8_t)is_final;
    while (reduction->next < run->buckets.n &&
           reduction->n_final[reduction->next] == run->buckets.all[reduction->next].n_params && !st)
        st = land_bucket(inst, reduction->next++);
    return st;
}

void zfi_reduce_reset(zfi_run_t *run) {
    zfi_reduction_t *reduction = &run->reduction;
    if (!zfi_is_reduced(run))
        return;
    reduction->next = 0;
    memset(reduction->n_final, 0, run->buckets.n * sizeof *reduction->n_final);
    memset(reduction->number, 0, run->buckets.n * sizeof *reduction->number);
    memset(reduction->has_landed, 0, run->buckets.n);
    memset(reduction->is_final, 0, run->n_params);
}

void zfi_reduce_event(zfi_run_t *run, uint32_t kind, const void *what, uint64_t nbytes) {
    uint32_t before = run->reduction.events;
    if (zfi_is_reduced(run))
        run->reduction.events = zfi_crc32(zfi_crc32(before, &kind, sizeof kind), what, nbytes);
}

void zfi_reduce_event_of(zfi_run_t *run, uint32_t param, const void *what, uint64_t nbytes) {
    zfi_group_lists_t *lists = &run->reduction.groups;
    for (uint32_t k = 0; k < lists->n; k++)
        for (uint32_t i = 0; i < lists->all[k].n; i++)
            if (lists->all[k].ids[i] == param)
                lists->all[k].events = zfi_crc32(zfi_crc32(lists->all[k].events, &i, sizeof i), what, nbytes);
}

void zfi_reduce_forget_events(zfi_run_t *run) {
    run->reduction.events = 0;
    for (uint32_t i = 0; i < run->reduction.groups.n; i++)
        run->reduction.groups.all[i].events = 0;
}

/* ---- agreement --------------------------------------------------------------------------------------------------- */

/* The ranks of one process group, and what each of them says in an agreement: models in one group may have other
 * numbers of parameters. */
typedef struct circle {
    uint32_t index, name; /* the process group: the transport's number, the host's */
    zfi_member_t place;
    uint64_t nbytes;              /* of what one rank says */
    uint32_t n;                   /* parameters of which it says whether they have a gradient */
    const zfi_group_list_t *list; /* which: those of the group; NULL: all, and others heed those of no other group */
} circle_t;

static zfi_agreement_t *agreement_of(const zfi_reduction_t *reduction, const circle_t *circle, uint32_t rank) {
    return (void *)(reduction->agreements + rank * circle->nbytes);
}

/* The host's own norm, where it is known here: on a stream the device reads it. */
static double known_norm(const zfi_step_row_t *row) {
    double norm = row->host_norm == &row->host_norm_now ? row->host_norm_now : 0;
    return isnan(norm) ? -1 : norm; /* one NaN is as good as another */
}

/* Digests what the hook was given for the coming step for all parameters, but what each rank may have of its own. */
static uint32_t digest_common(const zfi_ranks_t *ranks) {
    const zfi_step_row_t *row = zfi_row(ranks->rows, ranks->clock->t + 1);
    const double values[] = {row->unscale, row->clip_norm, known_norm(row), row->host_norm != NULL,
                             ranks->clock->epoch_end == ranks->clock->t + 1};
    return zfi_crc32(0, values, sizeof values);
}

/* Digests it together with what holds for each parameter group; list: with that of its parameters, in their order. */
static uint32_t digest_arguments(const zfi_ranks_t *ranks, const zfi_group_list_t *list) {
    const zfi_step_row_t *row = zfi_row(ranks->rows, ranks->clock->t + 1);
    uint32_t digest = digest_common(ranks);
    for (uint32_t i = 0; i < ranks->n_groups && !list; i++)
        digest = zfi_crc32(digest, &row->hyper[i], sizeof row->hyper[i]);
    for (uint32_t i = 0; list && i < list->n; i++)
        digest = zfi_crc32(digest, &row->hyper[ranks->params[list->ids[i]].group], sizeof row->hyper[0]);
    return digest;
}

static zf_status_t disagree(zf_instance_t *inst, const circle_t *circle, uint32_t rank, const char *what) {
    zf_error_t error = {.struct_size = sizeof error};
    char group[40] = "";
    if (circle->index)
        snprintf(group, sizeof group, " of process group %" PRIu32, circle->name);
    zf_status_t st = zfi_error_by(
        &error, ZF_ERR_RANKS, rank, "step",
        "rank %" PRIu32 " and rank 0%s differ at step %" PRIu64
        " in %s: every rank must make the same calls with the same arguments (this is rank %" PRIu32 " of %" PRIu32 ")",
        rank, group, inst->run->clock.t + 1, what, circle->place.rank, circle->place.n_ranks);
    zfi_poison(&inst->engine, &error);
    return st;
}

/* Compares what every rank must say alike. */
static zf_status_t check_agreements(zf_instance_t *inst, const circle_t *circle) {
    const zfi_agreement_t *first = agreement_of(&inst->run->reduction, circle, 0);
    for (uint32_t r = 1; r < circle->place.n_ranks; r++) {
        const zfi_agreement_t *other = agreement_of(&inst->run->reduction, circle, r);
        if (other->step != first->step)
            return disagree(inst, circle, r, "the number of steps");
        if (other->is_discarded != first->is_discarded)
            return disagree(inst, circle, r, "DISCARD");
        if (other->events != first->events)
            return disagree(inst, circle, r, "what was called between the steps (FLUSH, save, load, params_changed)");
        if (other->arguments != first->arguments && !first->is_discarded)
            return disagree(inst, circle, r,
                            "the arguments of step (hyper-parameters, unscale, clip_norm, host_norm, EPOCH_END)");
        if (other->update_interval != first->update_interval || other->publish_lag != first->publish_lag)
            return disagree(inst, circle, r, "update_interval or publish_lag");
    }
    return ZF_OK;
}

/* Behind a rank's agreement: a bit for each parameter of the circle. */
static uint8_t *present_on(const zfi_reduction_t *reduction, const circle_t *circle, uint32_t rank) {
    return (uint8_t *)(agreement_of(reduction, circle, rank) + 1);
}

static uint32_t id_of(const circle_t *circle, uint32_t i) { return circle->list ? circle->list->ids[i] : i; }

static void tell_present(zfi_run_t *run, const circle_t *circle) {
    const zfi_step_row_t *row = zfi_row(&run->rows, run->clock.t + 1);
    uint8_t *own = present_on(&run->reduction, circle, circle->place.rank);
    memset(own, 0, zfi_agreement_nbytes(circle->n) - sizeof(zfi_agreement_t));
    for (uint32_t i = 0; i < circle->n; i++)
        own[i / 8] |= (uint8_t)(row->present[id_of(circle, i)] << i % 8);
}

/* The row's `present` becomes what any rank has. */
static void take_present(zfi_run_t *run, const circle_t *circle) {
    zfi_step_row_t *row = zfi_row(&run->rows, run->clock.t + 1);
    uint8_t *any = present_on(&run->reduction, circle, 0);
    for (uint32_t r = 1; r < circle->place.n_ranks; r++)
        for (uint32_t i = 0; i < (circle->n + 7) / 8; i++)
            any[i] |= present_on(&run->reduction, circle, r)[i];
    for (uint32_t i = 0; i < circle->n; i++) {
        uint32_t id = id_of(circle, i);
        if (any[i / 8] >> i % 8 & 1 && (circle->list || run->params[id].group_index[0] == 0) &&
            !row->present[id]) /* an early replay may be reading what is 1 already */
            row->present[id] = 1;
    }
}

/* This rank's agreement becomes part of everyone's. */
static zf_status_t gather(zf_instance_t *inst, const circle_t *circle, const zfi_agreement_t *own) {
    zfi_run_t *run = inst->run;
    *agreement_of(&run->reduction, circle, circle->place.rank) = *own;
    tell_present(run, circle);
    zf_status_t st = zfi_ranks_gather(run->engine, circle->index, ZF_COLLECTIVE_FOR_STEP, own->step,
                                      run->reduction.agreements, circle->nbytes);
    if (!st)
        st = check_agreements(inst, circle);
    if (!st)
        take_present(run, circle);
    return st;
}

/* Group 0. */
static zf_status_t agree_on_data(zf_instance_t *inst, zfi_agreement_t *own) {
    zfi_run_t *run = inst->run;
    circle_t circle = {
        .place = zfi_member(run->engine, 0), .nbytes = run->reduction.agreement_nbytes, .n = run->n_params};
    own->arguments = digest_arguments(&run->ranks, NULL);
    own->events = run->reduction.events;
    own->update_interval = (uint16_t)inst->engine.policy.interval;
    own->publish_lag = (uint16_t)inst->engine.policy.lag;
    zf_status_t st = gather(inst, &circle, own);
    own->update_interval = own->publish_lag = 0; /* other models have windows of their own */
    return st;
}

static zf_status_t agree_on_list(zf_instance_t *inst, zfi_agreement_t *own, const zfi_group_list_t *list) {
    const zfi_clock_t *clock = &inst->run->clock;
    const uint64_t schedule[] = {clock->t, clock->base, clock->steps_before};
    own->arguments = digest_arguments(&inst->run->ranks, list);
    own->events = list->events;
    if (list->which == 0) /* it has windows, and another model may have come by other calls to this step */
        own->events = zfi_crc32(own->events, schedule, sizeof schedule);
    return gather(inst, &(circle_t){list->index, list->name, list->place, zfi_agreement_nbytes(list->n), list->n, list},
                  own);
}

/* All ranks that train the model together: what makes the norm and the factor. */
static zf_status_t agree_on_norm(zf_instance_t *inst, zfi_agreement_t *own) {
    zfi_engine_t *engine = &inst->engine;
    circle_t circle = {
        engine->norm_index, engine->norm_group, zfi_norm_member(engine), zfi_agreement_nbytes(0), 0, NULL};
    own->arguments = digest_common(&inst->run->ranks);
    own->events = 0;
    return gather(inst, &circle, own);
}

static zf_status_t agree(zf_instance_t *inst, int is_discarded) {
    zfi_run_t *run = inst->run;
    zfi_agreement_t own = {.step = run->clock.t + 1 + run->clock.steps_before, .is_discarded = (uint32_t)is_discarded};
    zf_status_t st = agree_on_data(inst, &own);
    own.step = 0; /* other models may have loaded another one (ZF_STATE_PARTIAL) */
    for (uint32_t i = 0; i < run->reduction.groups.n && !st; i++)
        st = agree_on_list(inst, &own, &run->reduction.groups.all[i]);
    if (!st && zfi_is_grouped(run->engine))
        st = agree_on_norm(inst, &own);
    return st;
}

/* ---- at step ----------------------------------------------------------------------------------------------------- */

/* A parameter of a bucket that is about to go: an open sum is rounded, nothing becomes zero. */
static zf_status_t complete_param(zf_instance_t *inst, uint32_t id, int is_here) {
    zfi_run_t *run = inst->run;
    zfi_list_t *device = &run->engine->to_device;
    const zfi_param_t *param = &run->params[id];
    if (is_here && (run->reduction.is_final[id] || !run->incoming.now[id].has_sum))
        return ZF_OK;
    if (is_here)
        return zfi_batch_append(inst, param, ZFI_GRADIENT_FROM_SUM | ZFI_GRADIENT_ROUND, NULL, NULL);
    zf_status_t st = zfi_batch_flush(inst); /* what was delivered before, and is void */
    zfi_list_add(device, zfi_op_wait(&run->engine->lines.batches, run->incoming.grads[id].staging_batch,
                                     &run->engine->count.stall_pool_ns));
    zfi_list_add(device, zfi_op_fill(zfi_gradient_staged(zfi_gradient_place(&run->ranks), id),
                                     param->n_elems * zfi_dtype_nbytes(param->grad_dtype)));
    return st;
}

static zf_status_t complete_bucket(zf_instance_t *inst, uint32_t number) {
    zfi_run_t *run = inst->run;
    const uint8_t *is_here = zfi_row(&run->rows, run->clock.t + 1)->present;
    const zfi_bucket_t *bucket = &run->buckets.all[number];
    zf_status_t st = zfi_buffers_open(run->engine, &run->reduction, number);
    for (uint32_t i = 0; i < bucket->n_params && !st; i++) {
        uint32_t id = run->buckets.params[bucket->first + i];
        st = complete_param(inst, id, is_here[id]);
    }
    return st ? st : reduce_bucket(inst, number, ZFI_NOT_LANDING);
}

/* All of them, also what no rank has a gradient of: whether others have is known afterwards only. */
static zf_status_t reduce_rest(zf_instance_t *inst) {
    zfi_reduction_t *reduction = &inst->run->reduction;
    zf_status_t st = ZF_OK;
    for (; reduction->next < inst->run->buckets.n && !st; reduction->next++)
        st = complete_bucket(inst, reduction->next);
    return st;
}

/* The sums of a bucket are shipped once they are there. */
static zf_status_t ship_bucket(zf_instance_t *inst, uint32_t number) {
    zfi_run_t *run = inst->run;
    const zfi_bucket_t *bucket = &run->buckets.all[number];
    const uint8_t *present = zfi_row(&run->rows, run->clock.t + 1)->present;
    uint32_t flags = ZFI_GRADIENT_SHIP | (run->reduction.has_landed[number] ? ZFI_GRADIENT_LANDED : 0u);
    zf_status_t st = ZF_OK;
    zfi_ranks_await_sums(&run->ranks, number);
    for (uint32_t i = 0; i < bucket->n_params && !st; i++) {
        uint32_t id = run->buckets.params[bucket->first + i];
        if (present[id])
            st = zfi_batch_append(inst, &run->params[id], flags,
                                  zfi_gradient_summed(zfi_gradient_place(&run->ranks), id), NULL);
    }
    return st ? st : zfi_batch_flush(inst);
}

zf_status_t zfi_reduce_finish(zf_instance_t *inst) {
    zfi_run_t *run = inst->run;
    zf_status_t st = zfi_batch_flush(inst);
    if (!st)
        st = reduce_rest(inst);
    run->reduction.former_number = run->engine->n_exchanged;
    if (!st)
        st = agree(inst, 0);
    if (st)
        return st;
    (void)zfi_expect_note(&run->incoming, run->n_params, zfi_row(&run->rows, run->clock.t + 1));
    for (uint32_t i = 0; i < run->buckets.n && !st; i++)
        st = ship_bucket(inst, i);
    return st;
}

/* Nobody waits for sums that are dropped, and the next gradients come where they lie: so they are over when this
 * returns, on a stream of the lane's own too. */
zf_status_t zfi_reduce_discard(zf_instance_t *inst) {
    zfi_engine_t *engine = &inst->engine;
    zf_status_t st = reduce_rest(inst);
    if (!st)
        st = agree(inst, 1);
    if (!st && zfi_ranks_selects(&inst->run->ranks, inst->run->clock.t + 1)) /* so the layout says what travels */
        st = zfi_ranks_select(&inst->run->ranks, inst->run->clock.t + 1);
    return st ? st : zfi_wait(engine, &engine->lines.exchanged, engine->n_exchanged, &engine->count.host_wait_ns);
}

/* Buckets of this step whose exchanges the device waits for before it does what comes next. */
static uint32_t count_awaited(const zfi_reduction_t *reduction, uint32_t n_buckets) {
    uint64_t first = reduction->opened ? reduction->number[0] : 0, n = 0;
    for (uint32_t i = 0; i < n_buckets && first; i++)
        if (reduction->opened[i].after >= first + n)
            n = reduction->opened[i].after - first + 1;
    return (uint32_t)n;
}

zf_status_t zfi_reduce_meet(zf_instance_t *inst, zf_status_t st, const char *origin, zf_error_t *err) {
    return inst->run->reduction.opened ? zfi_reduce_meet_always(inst, st, origin, err) : st;
}

zf_status_t zfi_reduce_meet_always(zf_instance_t *inst, zf_status_t st, const char *origin, zf_error_t *err) {
    const zfi_reduction_t *reduction = &inst->run->reduction;
    const circle_t circle = {.place = zfi_member(&inst->engine, 0),
                             .nbytes = reduction->agreement_nbytes}; /* a step's */
    zfi_agreement_t own = {.step = inst->run->clock.t + 1 + inst->run->clock.steps_before, .n_sent = reduction->next};
    uint32_t waits = 0, late = 0;
    if (!zfi_is_reduced(inst->run))
        return st;
    own.events = zfi_crc32(reduction->events, origin, strlen(origin)); /* no step's */
    own.n_awaited = count_awaited(reduction, inst->run->buckets.n);
    zf_status_t met = gather(inst, &circle, &own);
    if (met)
        return zfi_hook_failed(inst, met, origin, "the ranks could not agree", err);
    for (uint32_t r = 1; r < circle.place.n_ranks; r++) {
        const zfi_agreement_t *other = agreement_of(reduction, &circle, r);
        waits = other->n_awaited > agreement_of(reduction, &circle, waits)->n_awaited ? r : waits;
        late = other->n_sent < agreement_of(reduction, &circle, late)->n_sent ? r : late;
    }
    own.n_sent = agreement_of(reduction, &circle, late)->n_sent;
    if (st || agreement_of(reduction, &circle, waits)->n_awaited <= own.n_sent)
        return st;
    return zfi_error_by(err, ZF_ERR_STATE, late, origin,
                        "rank %" PRIu32 "'s device waits for the sums of bucket %" PRIu32 ", which rank %" PRIu32
                        " has not handed over, for want of a gradient: call this before the step's first delivery, or "
                        "after step or DISCARD",
                        waits, own.n_sent, late);
}

zf_status_t zfi_reduce_meet_all(zf_instance_t *inst, zf_status_t st, const char *origin, zf_error_t *err) {
    return zfi_reduce_agree(inst, zfi_reduce_meet(inst, st, origin, err), err);
}

zf_status_t zfi_reduce_agree(zf_instance_t *inst, zf_status_t st, zf_error_t *err) {
    if (!inst->run->reduction.opened || zfi_is_poisoned(&inst->engine))
        return st;
    return zfi_together_agree(&inst->engine, 0, st, err);
}

zf_status_t zfi_reduce_check_rest(const zf_instance_t *inst, const char *origin, zf_error_t *err) {
    if (!zfi_is_reduced(inst->run) || !inst->run->reduction.next)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_STATE, origin,
                     "gradients of this step are on their way to the other ranks: step first, or DISCARD");
}
