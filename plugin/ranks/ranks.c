/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/ranks.c - the communication thread (contract in ranks.h). */
#include "ranks/ranks.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/timeline.h"
#include "instance/device_memory.h"
#include "instance/gradient_place.h"
#include "instance/memory.h"
#include "ranks/buffers.h"
#include "ranks/collective.h"
#include "ranks/groups.h"
#include "ranks/importance.h"
#include "ranks/landing.h"
#include "ranks/mirror.h"
#include "ranks/selected_sums.h"
#include "ranks/sums.h"
#include "ranks/value_pieces.h"

enum { ROOM_NBYTES = 8 << 20, LEAST_ROOM = 1 << 13, ROOM_ALIGN = 64 };

/* ---- what lives as long as the run ------------------------------------------------------------------------------- */

zf_status_t zfi_ranks_plan(zfi_ranks_t *ranks, zf_error_t *err) {
    zfi_engine_t *engine = ranks->engine;
    zfi_member_t places[ZFI_MAX_GROUPS];
    if (!zfi_has_peers(engine))
        return ZF_OK;
    if (zfi_n_ranks(engine) > UINT16_MAX) /* of zfi_placed_t */
        return zfi_error(err, ZF_ERR_RANKS, "bind_params", "%u ranks: this version has room for %u",
                         zfi_n_ranks(engine), UINT16_MAX);
    for (uint32_t i = 0; i < ZFI_MAX_GROUPS; i++)
        places[i] = zfi_member(engine, i);
    if (zfi_buckets_build(ranks->params, ranks->n_params, engine->config.bucket_bytes, places, ranks->buckets))
        return zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory for the buckets of %u parameters",
                         ranks->n_params);
    if (zfi_groups_list(engine, ranks->params, ranks->n_params, &ranks->reduction->groups))
        return zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory for the groups of %u parameters",
                         ranks->n_params);
    ranks->buckets->is_owner = zfi_is_sharded(engine);
    if (!zfi_gathers_behind(engine) && ranks->buckets->n > ZFI_LEAST_BUFFERS)
        ranks->buckets->n_value_places = ZFI_LEAST_BUFFERS; /* what is shown in the step makes room */
    ranks->buckets->values_wait = zfi_gathers_behind(engine) && zfi_has_mirrors(engine);
    return ZF_OK;
}

/* Blocks that all selected channels would fill: those of what is sharded stay apart, and are few. */
static uint64_t count_blocks(const zfi_plan_t *plan) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < plan->n_matrices; i++)
        n += plan->matrices[i].k * zfi_channel_elems(&plan->matrices[i]);
    return n / ZFI_ENTER_ELEMS + plan->n_matrices / ZFI_ENTER_RECTS + 1;
}

/* What is gathered in host memory takes so much of all ranks together, no more than the whole state has, and something
 * of each. Entering state waits in as many blocks as one exchange takes. */
static void size_room(zfi_engine_t *engine, const zfi_plan_t *plan, uint32_t n_moments, uint32_t n_ranks,
                      zfi_reduction_t *reduction) {
    uint64_t all = plan->n_elems * zfi_enter_arrays(n_moments) * sizeof(float);
    uint64_t each = (all < ROOM_NBYTES ? all : ROOM_NBYTES) / n_ranks / ROOM_ALIGN * ROOM_ALIGN;
    uint64_t n_full = count_blocks(plan);
    if (!zfi_is_sharded(engine))
        return;
    reduction->room_nbytes = each > LEAST_ROOM ? each : LEAST_ROOM;
    if (!engine->policy.selects)
        return;
    reduction->n_blocks = (uint32_t)(n_full < ZFI_MOST_BLOCKS ? n_full : ZFI_MOST_BLOCKS);
}

/* Lays out what a transport reads and writes besides buckets. */
static void lay_out(zfi_engine_t *engine, uint32_t n_ranks, zfi_reduction_t *reduction) {
    zfi_arena_t *arena = &reduction->arena;
    uint32_t most_ranks = zfi_groups_most_ranks(engine, &reduction->groups);
    reduction->agreements = zfi_arena_take(arena, most_ranks, reduction->agreement_nbytes);
    reduction->nonfinite = zfi_arena_take(arena, most_ranks, sizeof *reduction->nonfinite);
    reduction->to_send = zfi_arena_take(arena, n_ranks, reduction->room_nbytes);
    reduction->room = zfi_arena_take(arena, n_ranks, reduction->room_nbytes);
    reduction->blocks = zfi_arena_take(arena, reduction->n_blocks, reduction->block_nbytes);
}

void zfi_ranks_plan_room(zfi_ranks_t *ranks) {
    zfi_reduction_t *reduction = ranks->reduction;
    if (!zfi_has_peers(ranks->engine))
        return;
    reduction->arena = (zfi_arena_t){0};
    reduction->agreement_nbytes = zfi_agreement_nbytes(ranks->n_params);
    reduction->block_nbytes = ranks->dev->enter_block_nbytes;
    size_room(ranks->engine, ranks->plan, ranks->n_moments, ranks->buckets->most_ranks, reduction);
    lay_out(ranks->engine, ranks->buckets->most_ranks, reduction);
    ranks->mem->room_nbytes = zfi_arena_mapped_nbytes(&reduction->arena);
}

static zf_status_t map_staging_mirror(zfi_ranks_t *ranks, zf_error_t *err) {
    zfi_mirror_t *mirror = &ranks->mem->staging_mirror;
    if (zfi_exchanges_on_device(ranks->engine) &&
        zfi_is_grouped(ranks->engine)) /* the norm alone: run_norm() looks into it */
        return zfi_mirror_map_always(ranks, mirror, zfi_norm_parts(ranks), zfi_norm_nbytes(ranks->engine), err);
    return zfi_mirror_map(ranks, mirror, ranks->mem->staging_arena.base, ranks->mem->staging_arena.total_nbytes, err);
}

zf_status_t zfi_ranks_new(zfi_ranks_t *ranks, zf_error_t *err) {
    zfi_reduction_t *reduction = ranks->reduction;
    if (!zfi_has_peers(ranks->engine))
        return ZF_OK;
    reduction->n_final = calloc(ranks->n_params, sizeof *reduction->n_final);
    reduction->is_final = calloc(ranks->n_params, 1);
    reduction->has_landed = calloc(ranks->n_params, 1);
    reduction->number = calloc(ranks->n_params, sizeof *reduction->number);
    reduction->value_number = calloc(ranks->n_params, sizeof *reduction->value_number);
    reduction->value_nbytes = calloc(ranks->n_params, sizeof *reduction->value_nbytes);
    if (!reduction->n_final || !reduction->is_final || !reduction->has_landed || !reduction->number ||
        !reduction->value_number || !reduction->value_nbytes || zfi_importance_new(ranks))
        return zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory to exchange %u parameters", ranks->n_params);
    zf_status_t st = zfi_arena_map(&reduction->arena, "what ranks agree on", err);
    if (st)
        return st;
    lay_out(ranks->engine, ranks->buckets->most_ranks, reduction);
    ranks->mem->extra_host_nbytes += reduction->arena.total_nbytes;
    st = zfi_memory_need_staging(ranks, err);
    if (!st && !zfi_is_sharded(ranks->engine) &&
        ranks->engine->ops->has_own_memory) /* what lies between parameters is summed with them */
        st = zfi_device_clear(ranks->engine, ranks->mem->staging_arena.base, ranks->buckets->nbytes);
    if (!st)
        st = map_staging_mirror(ranks, err);
    if (!st && zfi_is_sharded(ranks->engine) && ranks->engine->policy.selects)
        st = zfi_selected_sums_map(ranks, err);
    if (!st && zfi_is_sharded(ranks->engine))
        st = zfi_sums_map_cut(ranks, err);
    if (!st && zfi_is_sharded(ranks->engine))
        st = zfi_value_pieces_new(ranks, err);
    if (!st && ranks->buckets->values_wait)
        st = zfi_memory_map_pinned(ranks, &ranks->mem->values.arena, ranks->buckets->values_nbytes,
                                   "values that wait to be fetched", err);
    return st ? st : zfi_buffers_need(ranks, 0, err);
}

static void free_mirrors(zfi_ranks_t *ranks) {
    zfi_mirror_free(ranks->engine, ranks->mem, &ranks->mem->staging_mirror);
    zfi_mirror_free(ranks->engine, ranks->mem, &ranks->mem->selected_mirror);
    zfi_mirror_free(ranks->engine, ranks->mem, &ranks->mem->moves);
    zfi_mirror_free(ranks->engine, ranks->mem, &ranks->mem->cut);
    zfi_mirror_free(ranks->engine, ranks->mem, &ranks->mem->pieces);
    zfi_mirror_free(ranks->engine, ranks->mem, &ranks->mem->values);
    for (uint32_t i = 0; i < ranks->reduction->n_buffers; i++)
        zfi_mirror_free(ranks->engine, ranks->mem, &ranks->reduction->buffers[i].mirror);
}

void zfi_ranks_free(zfi_ranks_t *ranks) {
    zfi_reduction_t *reduction = ranks->reduction;
    zfi_buckets_free(ranks->buckets);
    free(reduction->n_final);
    free(reduction->is_final);
    free(reduction->has_landed);
    free(reduction->number);
    free(reduction->value_number);
    free(reduction->value_nbytes);
    free(reduction->listed);
    free(reduction->first_listed);
    zfi_groups_free(&reduction->groups);
    zfi_importance_free(ranks->sel);
    if (!zfi_ranks_holds_memory(ranks->engine)) { /* else it is left to the transport that was given up */
        free_mirrors(ranks);
        zfi_arena_free(&reduction->arena);
    }
    zfi_buffers_free(ranks->reduction);
}

/* ---- exchanges, on the communication thread ---------------------------------------------------------------------- */

/* The stream of a lane that exchanges the device's memory; NULL: the lane's thread works, on the host's. */
static zfi_stream_t *stream_of(const zfi_engine_t *engine, uint32_t lane) {
    return lane == ZFI_LANE_VALUES ? engine->values_stream : engine->ranks_stream;
}

/* Ends a lane's piece of work: on its stream, behind what that was given, or at once. */
static void say(zfi_engine_t *engine, uint32_t lane, zfi_timeline_t *timeline, uint64_t number) {
    zfi_op_t op = zfi_op_signal(timeline, number);
    if (stream_of(engine, lane))
        (void)zfi_enqueue(engine, stream_of(engine, lane), &op, 1); /* a failure has ended the instance */
    else
        zfi_timeline_signal(timeline, number);
}

typedef struct reduce_args {
    zfi_ranks_t *ranks;
    uint32_t bucket;
    int32_t purpose;       /* of values */
    uint64_t step, number; /* of `collected` and `exchanged`, or of `packed` and `shared` */
    uint64_t nbytes;       /* of values that each rank sends */
    unsigned char *flat;   /* what is exchanged, where the host finds it */
    uint64_t needs_job;    /* of sums that land; else ZFI_NOT_LANDING */
    int selects;           /* the selected channels' gradient follows */
} reduce_args_t;

static void run_reduce(void *raw) {
    const reduce_args_t *args = raw;
    zfi_engine_t *engine = args->ranks->engine;
    zfi_fp_mode_ieee();
    if (zfi_wait(engine, &engine->lines.collected, args->number, NULL) ||
        zfi_sum_bucket(args->ranks, args->bucket, args->step, args->flat))
        return;
    if (args->needs_job != ZFI_NOT_LANDING && zfi_landing(args->ranks, args->bucket, args->step, args->needs_job))
        return;
    if (args->selects && zfi_selected_sums_gather(args->ranks, args->bucket, args->step))
        return;
    say(engine, ZFI_LANE_GRADIENTS, &engine->lines.exchanged, args->number);
}

/* Who holds a parameter: the lowest of them. */
static int64_t first_holder(const zfi_ranks_t *ranks, int64_t param) {
    return ranks->engine->firsts[ranks->params[param].group_index[0]];
}

/* Parameters that this instance does not hold have numbers that say nothing here. Nor do others' where each finds what
 * is not finite by itself. */
static void hide_numbers(const zfi_ranks_t *ranks, zfi_norm_part_t *parts) {
    zfi_member_t place = zfi_norm_member(ranks->engine);
    for (uint32_t r = 0; r < place.n_ranks; r++) {
        int64_t found = parts[r].nonfinite_param, id = found & UINT32_MAX;
        int is_known = r == place.rank || (zfi_is_sharded(ranks->engine) && id < ranks->n_params &&
                                           found >> 32 == first_holder(ranks, id));
        if (found != ZFI_NO_PARAM)
            parts[r].nonfinite_param = is_known ? id : ZF_NO_ID;
    }
}

static void run_norm(void *raw) {
    const reduce_args_t *args = raw;
    zfi_engine_t *engine = args->ranks->engine;
    zfi_exchange_t parts = {.purpose = ZF_COLLECTIVE_FOR_NORM,
                            .bucket = ZF_NO_ID,
                            .step = args->step,
                            .recv = zfi_mirrored(args->ranks, zfi_norm_parts(args->ranks)),
                            .nbytes = sizeof(zfi_norm_part_t),
                            .group = engine->norm_index,
                            .stream = zfi_is_grouped(engine) ? NULL : engine->ranks_stream}; /* it is looked into */
    zfi_norm_part_t *own = (zfi_norm_part_t *)parts.recv + zfi_norm_member(engine).rank;
    if (zfi_wait(engine, &engine->lines.collected, args->number, NULL))
        return;
    if (zfi_is_grouped(engine) && own->nonfinite_param != ZFI_NO_PARAM)
        own->nonfinite_param |= first_holder(args->ranks, own->nonfinite_param) << 32;
    if (zfi_collective(engine, &parts))
        return;
    if (zfi_is_grouped(engine))
        hide_numbers(args->ranks, parts.recv);
    say(engine, ZFI_LANE_GRADIENTS, &engine->lines.exchanged, args->number);
}

static void run_selected(void *raw) {
    const reduce_args_t *args = raw;
    zfi_engine_t *engine = args->ranks->engine;
    if (!zfi_wait(engine, &engine->lines.collected, args->number, NULL) &&
        !zfi_selected_sums_gather(args->ranks, args->bucket, args->step))
        say(engine, ZFI_LANE_GRADIENTS, &engine->lines.exchanged, args->number);
}

/* Values of a bucket, or a bucket of parameters. */
static void run_values(void *raw) {
    const reduce_args_t *args = raw;
    zfi_engine_t *engine = args->ranks->engine;
    zfi_exchange_t values = {.purpose = args->purpose,
                             .bucket = args->bucket,
                             .step = args->step,
                             .recv = args->flat,
                             .nbytes = args->nbytes,
                             .lane = ZFI_LANE_VALUES,
                             .group = args->ranks->buckets->all[args->bucket].group,
                             .stream = engine->values_stream};
    if (!zfi_wait(engine, &engine->lines.packed, args->number, NULL) && !zfi_gather_parts(engine, &values))
        say(engine, ZFI_LANE_VALUES, &engine->lines.shared, args->number);
}

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

/* Work of the lane of gradients, once the device stream has done what is enqueued so far. */
static zf_status_t start(zfi_ranks_t *ranks, void (*fn)(void *raw), reduce_args_t *args, uint64_t *out_number) {
    zfi_engine_t *engine = ranks->engine;
    args->ranks = ranks;
    args->number = *out_number = ++engine->n_exchanged;
    zfi_list_add(&engine->to_device, zfi_op_signal(&engine->lines.collected, args->number));
    zf_status_t st = zfi_send(engine);
    return st ? st : zfi_serial_start(engine->ranks, fn, args, sizeof *args);
}

zf_status_t zfi_ranks_reduce(zfi_ranks_t *ranks, uint32_t bucket, uint64_t step, uint64_t needs_job) {
    const zfi_bucket_t *of = &ranks->buckets->all[bucket];
    unsigned char *flat = zfi_gradient_bucket(zfi_gradient_place(ranks), bucket);
    int selects = zfi_ranks_selects(ranks, step);
    reduce_args_t args = {.bucket = bucket,
                          .step = step,
                          .flat = zfi_mirrored(ranks, flat),
                          .needs_job = needs_job,
                          .selects = selects && bucket != ranks->buckets->n - 1};
    if (selects && bucket == 0)
        zfi_selected_sums_down(ranks);
    zfi_mirror_down(ranks, &ranks->engine->to_device, flat, of->n_elems * zfi_dtype_nbytes(of->dtype));
    zfi_buffers_close(ranks->reduction, bucket, ranks->engine->n_exchanged + 1);
    return start(ranks, run_reduce, &args, &ranks->reduction->number[bucket]);
}

void zfi_ranks_await_sums(zfi_ranks_t *ranks, uint32_t bucket) {
    zfi_engine_t *engine = ranks->engine;
    const zfi_bucket_t *all = &ranks->buckets->all[bucket];
    zfi_list_add(&engine->to_device, zfi_op_wait(&engine->lines.exchanged, ranks->reduction->number[bucket],
                                                 &engine->count.stall_ranks_ns));
    if (ranks->reduction->opened)
        zfi_mirror_up(ranks, zfi_own_sums(ranks, bucket), zfi_part_nbytes(all));
    else
        zfi_mirror_up(ranks, zfi_gradient_bucket(zfi_gradient_place(ranks), bucket),
                      all->place.n_ranks * zfi_part_nbytes(all));
}

zf_status_t zfi_ranks_norm(zfi_ranks_t *ranks, uint64_t step, uint64_t *out_number) {
    zfi_mirror_down(ranks, &ranks->engine->to_device, zfi_norm_parts(ranks) + zfi_norm_member(ranks->engine).rank,
                    sizeof(zfi_norm_part_t));
    return start(ranks, run_norm, &(reduce_args_t){.step = step}, out_number);
}

void zfi_ranks_await_norm(zfi_ranks_t *ranks, uint64_t number) {
    zfi_engine_t *engine = ranks->engine;
    zfi_list_add(&engine->to_device, zfi_op_wait(&engine->lines.exchanged, number, &engine->count.stall_ranks_ns));
    zfi_mirror_up(ranks, zfi_norm_parts(ranks), zfi_norm_member(engine).n_ranks * sizeof(zfi_norm_part_t));
}

zf_status_t zfi_ranks_select(zfi_ranks_t *ranks, uint64_t step) {
    reduce_args_t args = {.bucket = ranks->buckets->n - 1, .step = step};
    return start(ranks, run_selected, &args, &ranks->reduction->selected_number);
}

void zfi_ranks_await_selected(zfi_ranks_t *ranks, uint32_t first, uint32_t end) {
    zfi_engine_t *engine = ranks->engine;
    const zfi_matrix_t *matrices = ranks->plan->matrices;
    uint64_t from = matrices[first].grad_base, number = 0;
    uint64_t to = end < ranks->plan->n_matrices ? matrices[end].grad_base : ranks->plan->n_sel_grad_nbytes;
    for (uint32_t i = first; i < end && !number; i++)
        if (ranks->buckets->of_param[matrices[i].param] == ranks->buckets->n - 1)
            number = ranks->reduction->selected_number;
    if (number) /* else the statistics have waited for them */
        zfi_list_add(&engine->to_device, zfi_op_wait(&engine->lines.exchanged, number, &engine->count.stall_ranks_ns));
    zfi_mirror_up(ranks, ranks->dev->head.grad + from, to - from);
}

/* Work of the lane of values, [ranks][nbytes]; this rank's part is there once what is collected `by` has run. */
static zf_status_t start_values(zfi_ranks_t *ranks, zfi_list_t *by, reduce_args_t *args, unsigned char *all,
                                uint64_t *out_number) {
    zfi_engine_t *engine = ranks->engine;
    const zfi_bucket_t *bucket = &ranks->buckets->all[args->bucket];
    args->ranks = ranks;
    args->number = *out_number = ++engine->n_shared;
    args->flat = zfi_mirrored(ranks, all);
    zfi_mirror_down(ranks, by, all + zfi_own_part(engine, bucket) * args->nbytes, args->nbytes);
    zfi_list_add(by, zfi_op_signal(&engine->lines.packed, args->number));
    zf_status_t st = zfi_send(engine);
    return st ? st : zfi_serial_start(engine->values, run_values, args, sizeof *args);
}

zf_status_t zfi_ranks_share(zfi_ranks_t *ranks, zfi_list_t *by, uint32_t bucket, uint64_t step, uint64_t nbytes,
                            uint64_t *out_number) {
    reduce_args_t args = {.purpose = ZF_COLLECTIVE_FOR_VALUES, .bucket = bucket, .step = step, .nbytes = nbytes};
    return start_values(ranks, by, &args, zfi_values(ranks, bucket), out_number);
}

zf_status_t zfi_ranks_fetch(zfi_ranks_t *ranks, uint32_t bucket, unsigned char *whole, uint64_t *out_number) {
    const zfi_bucket_t *of = &ranks->buckets->all[bucket];
    reduce_args_t args = {.purpose = ZF_COLLECTIVE_FOR_PARAMETERS,
                          .bucket = bucket,
                          .step = ranks->clock->t,
                          .nbytes = of->part_elems * zfi_dtype_nbytes(of->value_dtype)};
    return start_values(ranks, &ranks->engine->to_device, &args, whole, out_number);
}

void zfi_ranks_await_fetched(zfi_ranks_t *ranks, uint32_t bucket, unsigned char *whole, uint64_t number) {
    zfi_engine_t *engine = ranks->engine;
    const zfi_bucket_t *of = &ranks->buckets->all[bucket];
    zfi_list_add(&engine->to_device, zfi_op_wait(&engine->lines.shared, number, &engine->count.stall_ranks_ns));
    zfi_mirror_up(ranks, whole, of->place.n_ranks * of->part_elems * zfi_dtype_nbytes(of->value_dtype));
}

void zfi_ranks_await_values(zfi_ranks_t *ranks, uint32_t bucket) {
    zfi_engine_t *engine = ranks->engine;
    uint64_t number = ranks->reduction->value_number[bucket];
    zfi_list_add(&engine->to_device, zfi_op_wait(&engine->lines.shared, number, &engine->count.stall_ranks_ns));
    zfi_mirror_up(ranks, zfi_values(ranks, bucket),
                  ranks->buckets->all[bucket].place.n_ranks * ranks->reduction->value_nbytes[bucket]);
}

zf_status_t zfi_ranks_gather(zfi_engine_t *engine, uint32_t group, int32_t purpose, uint64_t step, void *all,
                             uint64_t nbytes) {
    zfi_exchange_t what = {.purpose = purpose,
                           .bucket = ZF_NO_ID,
                           .step = step,
                           .recv = all,
                           .nbytes = nbytes,
                           .lane = ZFI_LANE_STEPS,
                           .group = group};
    return zfi_collective_call(engine, engine->steps, zfi_collective, &what);
}

void *zfi_ranks_collect(zfi_engine_t *engine, uint32_t group, const void *own, uint64_t nbytes, zf_status_t *out_st) {
    zfi_member_t place = zfi_member(engine, group);
    unsigned char *all = calloc(place.n_ranks, nbytes);
    *out_st = ZF_ERR_MEMORY;
    if (!all)
        return NULL;
    memcpy(all + place.rank * nbytes, own, nbytes);
    *out_st = zfi_ranks_gather(engine, group, ZF_COLLECTIVE_FOR_BIND, 0, all, nbytes);
    return all;
}

/* Frees it, but memory that a failed transport may still write to is left to it. */
void zfi_ranks_drop(const zfi_engine_t *engine, void *all) {
    if (!zfi_ranks_holds_memory(engine))
        free(all);
}
