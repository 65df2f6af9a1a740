/* SPDX-License-Identifier: Apache-2.0 */
/* shard_share.c - the case as law 4 needs it: shares of gradients that sum exactly, and what one rank does wrong. */
#include "shard.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *zs_fault_name(zs_fault_t fault) {
    static const char *const names[ZS_N_FAULTS] = {"none",   "kill",  "stop",    "late",  "config", "name",
                                                   "values", "hyper", "discard", "flush", "fetch"};
    return names[fault];
}

/* ---- the case ---------------------------------------------------------------------------------------------------- */

static uint32_t draw_bucket_bytes(const zx_case_t *c) {
    static const uint32_t sizes[] = {0, 1, 100, 512, 1000, 4096, 30000, 1000000};
    zx_rng_t rng = zx_rng(c->seed, 77, c->index);
    return sizes[zx_below(&rng, 8)];
}

/* P * G must be exact, and what one rank gives must not overflow. */
static void draw_average(const zs_ranks_t *ranks, zx_case_t *c) {
    zx_rng_t rng = zx_rng(c->seed, 78, c->index);
    int is_averaged = zx_chance(&rng, 50) && (ranks->size & (ranks->size - 1)) == 0 && !zs_moves(ranks);
    for (uint32_t i = 0; i < c->n_params && is_averaged; i++)
        if (c->params[i].decl.grad_dtype != ZO_F16 && !(c->params[i].flags & ZF_PARAM_TIED) && zx_chance(&rng, 60))
            c->params[i].flags |= ZF_PARAM_AVERAGE;
}

static void misbehave_early(zs_ranks_t *ranks, zx_case_t *c) {
    size_t n = strlen(c->config_text);
    if (ranks->fault == ZS_CONFIG)
        snprintf(c->config_text + n, sizeof c->config_text - n, "bucket_bytes = 12345\n");
    if (ranks->fault == ZS_NAME)
        c->params[0].name[0] = 'L';
    if (ranks->fault == ZS_VALUES)
        ((unsigned char *)c->params[0].array->tensor.dl.data)[c->params[0].array->tensor.dl.byte_offset] ^= 1;
}

/* A line of the configuration, of which `from` is the beginning, becomes another. */
static void replace_line(zx_case_t *c, const char *from, const char *key, uint32_t value) {
    char rest[sizeof c->config_text], *at = strstr(c->config_text, from);
    if (!at)
        return;
    snprintf(rest, sizeof rest, "%s", strchr(at, '\n'));
    size_t room = sizeof c->config_text - (size_t)(at - c->config_text);
    snprintf(at, room, "%s = %u%s", key, value, rest);
}

/* More hosts that fetch, and that publish then, than other laws need. */
static void draw_fetches(zx_case_t *c, zx_rng_t *rng) {
    char *lag = strstr(c->config_text, "publish_lag = 1\n");
    if (lag && zx_chance(rng, 60)) {
        lag[strlen("publish_lag = ")] = '0';
        c->config.publish_lag = 0;
    }
    if (c->config.publish_lag || strstr(c->config_text, "publish_lag = auto") || zx_chance(rng, 30))
        return;
    c->mode = (zx_mode_t)(c->mode | 1);
    c->config.can_fetch = 1;
}

/* At stage 3: small ones and vectors are whole on every rank. */
static int would_be_sharded(const zs_ranks_t *ranks, const zx_param_t *p) {
    return zx_is_trainable(p) && zx_n_elems(p) > 0 && p->array->ndim > p->decl.n_batch_axes + 1 &&
           zx_n_elems(p) * zo_dtype_nbytes(p->decl.dtype) > ranks->whole_bytes;
}

int zs_is_sharded(const zs_ranks_t *ranks, const zx_case_t *c, uint32_t param) {
    const zx_param_t *p = &c->params[param];
    if (p->flags & ZF_PARAM_TIED)
        return zs_is_sharded(ranks, c, p->tied_to);
    return zs_shards_params(ranks) && would_be_sharded(ranks, p);
}

/* Parameters that live as shards are fetched in every mode, and their values are published in the step. */
static void prepare_shards(zs_ranks_t *ranks, zx_case_t *c) {
    static const uint32_t wholes[] = {1, 1, 1, 1, 100, 1000}, buckets[] = {1, 1, 100, 512, 1000, 4096, 30000, 0};
    zx_rng_t rng = zx_rng(c->seed, 82, c->index);
    ranks->whole_bytes = wholes[zx_below(&rng, 6)];
    uint32_t bucket_bytes = buckets[zx_below(&rng, 8)];
    if (!zs_shards_params(ranks))
        return;
    ranks->bucket_bytes = bucket_bytes;
    if (ranks->has_fault) /* as many buckets as there are matrices */
        ranks->whole_bytes = 1, ranks->bucket_bytes = 1;
    replace_line(c, "publish_lag = auto", "publish_lag", (uint32_t)c->config.publish_lag);
    c->config.can_fetch = 0;
}

/* Stage 3 is not in every mode; what is not in this version is not asked for. */
static uint32_t stage_of(const zs_ranks_t *ranks, const zx_case_t *c, uint32_t stage, uint32_t size, int saves,
                         zx_rng_t *rng) {
    *rng = zx_rng(c->seed, 79, c->index + (zs_moves(ranks) ? 1000003 * (size + !saves) : 0));
    uint32_t drawn = zx_chance(rng, 65) ? zx_between(rng, 1, 3) : 0;

    if (stage > 3)
        stage = drawn;
    return stage == 3 && c->config.is_mean ? 2 : stage;
}

static void draw_stage(zs_ranks_t *ranks, zx_case_t *c, uint32_t stage) {
    zx_rng_t rng;
    ranks->stage = stage_of(ranks, c, stage, ranks->size, ranks->save_to != NULL, &rng);
    c->p_edit = 0; /* what one rank does by itself */
    if (ranks->stage == 0 || ranks->data_size == 1)
        return;
    if (!zs_moves(ranks) && !zs_shards_params(ranks))
        draw_fetches(c, &rng);
}

/* Ranks that hold the same have one checkpoint. */
static uint32_t number_of_part(const zs_ranks_t *ranks, const zx_case_t *c) {
    uint32_t has_experts = 0;
    for (uint32_t i = 0; i < c->n_params; i++)
        has_experts |= ranks->kinds[i] == ZS_EXPERT && !(c->params[i].flags & (ZF_PARAM_FROZEN | ZF_PARAM_TIED));
    return ranks->model * ranks->n_experts + has_experts * ranks->expert;
}

/* The same on every number of ranks, at every stage: what some of them lack is left out for all. */
static void prepare_move(zs_ranks_t *ranks, zx_case_t *c) {
    zx_rng_t rng = zx_rng(c->seed, 80, c->index);
    ranks->moves_at = 1 + zx_below(&rng, c->n_steps);
    ranks->keeps_open = zx_chance(&rng, 20);
    snprintf(ranks->moves_through, sizeof ranks->moves_through, "%s/case-%u-part-%u",
             ranks->save_to ? ranks->save_to : ranks->load_from, (unsigned)c->index, number_of_part(ranks, c));
    c->p_changed = c->p_export = c->p_edit = 0;
    replace_line(c, "publish_lag = auto", "publish_lag", (uint32_t)c->config.publish_lag);
}

/* ---- process groups ---------------------------------------------------------------------------------------------- */

/* A factor of gradients that tells models, and experts, apart. */
static float scale_of(zs_kind_t kind, uint32_t model, uint32_t expert) {
    return kind == ZS_OWN ? ldexpf(1.0f, (int)model) : kind == ZS_EXPERT ? ldexpf(1.0f, (int)(model + expert)) : 1.0f;
}

/* Where sums over a rank's part are summed over ranks, the order is another than one rank's, so they have to be exact:
 * gradients are up to 127 times ZX_QUANTUM. Then a unit's sums, of 1,024 squares at most in fp32, fit into its 24 bits,
 * and a sum of a million of them into the 53 bits of a double. */
static void draw_exact_sums(const zs_ranks_t *ranks, zx_case_t *c) {
    zx_rng_t rng = zx_rng(c->seed, 81, c->index);
    int are_exact = ranks->stage > 0 || zs_moves(ranks) || ranks->is_grouped || zs_has_two_levels(ranks);
    for (uint32_t i = 0; i < c->n_params && are_exact; i++) {
        zx_param_t *p = &c->params[i];
        p->grad_scale = zx_log_uniform(&rng, 0.25, 4.0);
        p->grad_style = p->grad_style < 3 ? p->grad_style : 0; /* denormals are below */
        p->grad_unit = ZX_QUANTUM * scale_of(ranks->kinds[i], ranks->model, ranks->expert);
    }
}

/* The squares of all that count, by those of this rank. */
static double norm_factor(const zs_ranks_t *ranks, zs_kind_t kind) {
    uint32_t n_models = kind == ZS_OWN || kind == ZS_EXPERT ? ranks->n_models : 1;
    uint32_t n_experts = kind == ZS_EXPERT ? ranks->n_experts : 1;
    double own = scale_of(kind, ranks->model, ranks->expert), all = 0;
    for (uint32_t m = 0; m < n_models; m++)
        for (uint32_t e = 0; e < n_experts; e++)
            all += (double)scale_of(kind, m, e) * (double)scale_of(kind, m, e);
    return all / (own * own);
}

static zs_kind_t draw_kind(const zs_ranks_t *ranks, const zx_param_t *p, zx_rng_t *rng) {
    uint32_t drawn = zx_below(rng, 10);
    if (!zx_is_trainable(p) || drawn < 4)
        return ZS_OWN;
    if (drawn < 6 && p->home != ZF_HOME_HOST)
        return ZS_SHARED;
    return drawn < 8 || ranks->n_experts == 1 ? ZS_DUPLICATE : ZS_EXPERT;
}

/* What the ranks of a model would decide from all of its gradients, experts would decide otherwise. */
static int decides_jointly(const zx_case_t *c) {
    return c->config.is_interval_auto || strstr(c->config_text, "select_strategy = auto");
}

static void draw_numbers(zs_ranks_t *ranks, const zx_case_t *c, zx_rng_t *rng) {
    while (ranks->size % (2 * ranks->n_models) == 0 && zx_chance(rng, 60))
        ranks->n_models *= 2;
    if (ranks->size / ranks->n_models % 2 == 0 && !decides_jointly(c) && zx_chance(rng, 60))
        ranks->n_experts = 2;
}

/* A parameter that models share is declared resident. */
static void draw_groups(zs_ranks_t *ranks, zx_case_t *c, uint32_t *stage) {
    zx_rng_t rng = zx_rng(c->seed, 85, c->index);
    ranks->is_grouped = ranks->draws_groups && zx_chance(&rng, 85);
    ranks->n_models = ranks->n_experts = 1;
    memset(ranks->kinds, 0, sizeof ranks->kinds);
    if (*stage > 3 && ranks->is_grouped)
        *stage = zx_chance(&rng, 50) ? 0 : zx_between(&rng, 1, 3);
    if (ranks->is_grouped)
        draw_numbers(ranks, c, &rng);
    if (ranks->draws_groups && zs_ranks_arrange(ranks) != 0)
        exit(2);
    for (uint32_t i = 0; i < c->n_params && ranks->is_grouped; i++) {
        zx_param_t *p = &c->params[i];
        ranks->kinds[i] = draw_kind(ranks, p, &rng);
        p->decl.norm_factor = norm_factor(ranks, ranks->kinds[i]);
        if (ranks->kinds[i] == ZS_SHARED)
            p->decl.is_always_selected = 1;
    }
}

void zs_declare(const zs_ranks_t *ranks, uint32_t param, zf_param_decl_t *decl) {
    zs_kind_t kind = ranks->kinds[param];
    decl->reduce_group = kind == ZS_EXPERT ? ZS_GROUP_EXPERT : 0;
    decl->reduce_group2 = kind == ZS_SHARED ? ZS_GROUP_MODELS : 0;
    if (kind == ZS_DUPLICATE && ranks->model > 0)
        decl->flags |= ZF_PARAM_NOT_IN_NORM;
}

/* Who keeps the state of a parameter together, and whether it lives as shards. */
static void set_owners(const zs_ranks_t *ranks, zx_case_t *c, uint32_t data_size, uint32_t stage) {
    c->config.n_owners = stage ? data_size : 1;
    c->config.sees_edits = 0;
    for (uint32_t i = 0; i < c->n_params; i++) {
        zo_decl_t *decl = &c->params[i].decl;
        decl->is_shared = ranks->kinds[i] == ZS_SHARED;
        decl->n_owners =
            stage && ranks->kinds[i] == ZS_EXPERT ? zs_group_size(ranks, ZS_GROUP_EXPERT) : c->config.n_owners;
    }
    for (uint32_t i = 0; i < c->n_params; i++)
        c->params[i].decl.is_sharded = stage == 3 && data_size > 1 && would_be_sharded(ranks, &c->params[i]);
}

void zs_take_over(const zs_ranks_t *ranks, zx_case_t *c) { set_owners(ranks, c, ranks->data_size, ranks->stage); }

/* state_mib = auto: the least of what ranks that hold the same have room for. One of them may have none, or less than
 * the others, of which each has another room. */
static void draw_room(const zs_ranks_t *ranks, zx_case_t *c) {
    zx_rng_t rng = zx_rng(c->seed, 86, c->index);
    uint32_t rank = c->is_auto && zx_chance(&rng, 60) ? zx_below(&rng, ranks->size) : ranks->size;
    c->is_some &= !ranks->is_grouped; /* which are not planned */
    c->is_short = rank < ranks->size && rank % ranks->n_models == ranks->model;
    zx_case_settle_share(c);
    if (!c->is_some && rank == ranks->rank)
        c->room_nbytes = 0;
    else if (c->is_some && rank < ranks->size && rank != ranks->rank)
        c->room_nbytes += (uint64_t)(ranks->rank + 1) << 20;
}

/* By how many ranks keep the state depends what of it fits on the device. Runs that are compared, or that move, have
 * only what is declared there, but for --split. */
static void take_homes(const zs_ranks_t *ranks, zx_case_t *c, uint32_t stage) {
    int is_one_split = (zs_moves(ranks) || getenv("ZF_AUDIT_DIR")) && !ranks->split_by;
    zx_rng_t rng;
    zs_take_over(ranks, c);
    if (ranks->load_from && ranks->split_by)
        set_owners(ranks, c, ranks->split_by, stage_of(ranks, c, stage, ranks->split_by, 1, &rng));
    if (c->resident_share < 1.5 && is_one_split) {
        replace_line(c, "state_mib = ", "state_mib", 0);
        c->resident_share = 0.0;
    }
    if (zs_moves(ranks)) {
        replace_line(c, "state_mib = auto", "state_mib", 1);
        c->is_auto = 0;
    }
    draw_room(ranks, c);
}

void zs_case_prepare(zs_ranks_t *ranks, zx_case_t *c, uint32_t stage) {
    ranks->rng = zx_rng(c->seed, 1000 + ranks->rank, c->index);
    ranks->bucket_bytes = draw_bucket_bytes(c);
    ranks->expected_nbytes = ranks->gradient_nbytes = 0;
    ranks->expected_value_nbytes = ranks->value_nbytes = 0;
    memset(ranks->order, 0, sizeof ranks->order);
    memset(ranks->n_started, 0, sizeof ranks->n_started);
    draw_average(ranks, c);
    draw_groups(ranks, c, &stage);
    draw_stage(ranks, c, stage);
    prepare_shards(ranks, c);
    take_homes(ranks, c, stage);
    draw_exact_sums(ranks, c);
    ranks->end_rng = zx_rng(c->seed, 86, c->index);
    ranks->dies_from = 2 + (c->n_steps > 2 ? zx_below(&ranks->end_rng, c->n_steps - 2) : 0);
    ranks->dies_after_us = zx_below(&ranks->end_rng, 3) * zx_below(&ranks->end_rng, 1000);
    ranks->moves_at = 0;
    if (zs_moves(ranks))
        prepare_move(ranks, c);
    size_t n = strlen(c->config_text);
    n += (size_t)snprintf(c->config_text + n, sizeof c->config_text - n, "[shard]\nstage = %u\ntransport = %s\n",
                          ranks->stage, ranks->transport ? ranks->transport : "host");
    if (ranks->bucket_bytes && ranks->fault != ZS_CONFIG)
        snprintf(c->config_text + n, sizeof c->config_text - n, "bucket_bytes = %u\n", ranks->bucket_bytes);
    misbehave_early(ranks, c);
}

/* ---- shares ------------------------------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t a, uint64_t b) {
    zx_rng_t rng = {.state = a * 0x9E3779B97F4A7C15u ^ b};
    return zx_rng_bits(&rng);
}

/* Whether a rank has a share of what this rank has of a parameter. */
static int has_share(const zs_ranks_t *ranks, uint32_t param, uint32_t r) {
    zs_kind_t kind = ranks->kinds[param];
    if (kind != ZS_SHARED && r % ranks->n_models != ranks->model)
        return 0;
    return kind != ZS_EXPERT || r / ranks->n_models % ranks->n_experts == ranks->expert;
}

/* The ranks that deliver a parameter at a step: all of them for the most part, at least one. */
static uint32_t deliverers(const zs_ranks_t *ranks, const zx_case_t *c, uint32_t param, uint64_t step,
                           uint32_t out[64]) {
    uint64_t bits = mix(mix(c->seed * 1000003 + c->index, step), param);
    uint32_t n = 0;
    for (uint32_t r = 0; r < ranks->size; r++)
        if (has_share(ranks, param, r) && (bits % 10 < 7 || (bits >> (8 + r)) & 1))
            out[n++] = r;
    for (uint32_t r = (uint32_t)(bits >> 40) % ranks->size; n == 0; r = (r + 1) % ranks->size)
        if (has_share(ranks, param, r))
            out[n++] = r;
    return n;
}

#define IS_SPLIT ((uint64_t)1 << 40)

/* Factor of this rank's share of an element: the factors of all ranks sum to 1, or to their number where they are
 * averaged, and every product with them is exact. What is not finite is not split: Inf - Inf would be NaN. */
static float factor_of(const zs_ranks_t *ranks, const zx_param_t *p, uint32_t group, uint64_t bits, const uint32_t *by,
                       uint32_t n) {
    uint32_t a = by[bits % n], b = by[(bits >> 20) % n];
    float all = p->flags & ZF_PARAM_AVERAGE ? (float)zs_group_size(ranks, group) : 1.0f;
    int is_split = a != b && p->decl.grad_dtype != ZO_F16 && (bits & IS_SPLIT) && p->grad_style < 3;
    if (!is_split)
        return ranks->rank == a ? all : 0.0f;
    if ((bits >> 41) % 2)
        return ranks->rank == a || ranks->rank == b ? all / 2 : 0.0f;
    return ranks->rank == a ? 2 * all : ranks->rank == b ? -all : 0.0f;
}

int zs_share(zs_ranks_t *ranks, const zx_case_t *c, uint32_t param, uint64_t step, void *values) {
    const zx_param_t *p = &c->params[param];
    uint64_t n_elems = zx_n_elems(p), key = mix(mix(c->seed, c->index), step * 64 + param);
    uint32_t by[64], n = deliverers(ranks, c, param, step, by);
    uint32_t group = ranks->kinds[param] == ZS_EXPERT ? ZS_GROUP_EXPERT : ZS_GROUP_DATA;
    int is_mine = 0;
    for (uint32_t i = 0; i < n; i++)
        is_mine |= by[i] == ranks->rank;
    for (uint64_t e = 0; e < n_elems && is_mine; e++) {
        float g = zo_widen(values, p->decl.grad_dtype, e);
        uint64_t bits = mix(key, e);
        float factor = factor_of(ranks, p, group, isfinite(g) ? bits : bits & ~IS_SPLIT, by, n);
        zo_narrow(values, p->decl.grad_dtype, e, factor == 0.0f ? 0.0f : factor * g);
    }
    return is_mine;
}

void zs_shuffle(zs_ranks_t *ranks, zf_grad_item_t *items, uint32_t n) {
    for (uint32_t i = 0; i + 1 < n; i++) {
        uint32_t pick = i + zx_below(&ranks->rng, n - i);
        for (uint32_t j = i; j < pick; j++)
            if (items[j].id == items[pick].id)
                pick = j; /* its first */
        zf_grad_item_t item = items[pick];
        memmove(items + i + 1, items + i, (pick - i) * sizeof *items);
        items[i] = item;
    }
}

/* ---- what goes wrong --------------------------------------------------------------------------------------------- */

/* A rank ends in one of as many exchanges as the step before had, at the latest in the first of the step after. */
static void approach_end(zs_ranks_t *ranks, uint64_t step) {
    uint32_t n = atomic_exchange(&ranks->n_exchanges, 0);
    if (step >= ranks->dies_from)
        ranks->dies_in = 1 + (step == ranks->dies_from && n ? zx_below(&ranks->end_rng, n) : 0);
}

zs_fault_t zs_misbehave(zs_ranks_t *ranks, uint64_t step, zf_group_hyper_t *hyper, uint32_t *flags) {
    if (ranks->fault == ZS_KILL)
        approach_end(ranks, step);
    if (ranks->fault == ZS_NO_FAULT || ranks->fault == ZS_KILL || step != ZS_FAULT_STEP)
        return ZS_NO_FAULT;
    if (ranks->fault == ZS_STOP)
        raise(SIGSTOP);
    if (ranks->fault == ZS_LATE)
        usleep(3 * ZS_DEADLINE_MS * 1000);
    if (ranks->fault == ZS_HYPER)
        hyper[0].lr += 1e-3;
    if (ranks->fault == ZS_DISCARD)
        *flags |= ZF_STEP_DISCARD;
    return ranks->fault;
}
