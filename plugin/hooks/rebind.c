/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/rebind.c - bind_params on an instance that has parameters already (contract in zf/plugin.h).
 *
 * The same set: only the memory that the model reads has moved; everything goes on. Another set: what is trained in
 * both keeps w, m, v and n as FLUSH would leave them, by name and row-major index, and the schedule begins again. All
 * of it is made beside the present run and exchanged at the end (state/replace.c), so a failure changes nothing. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "hooks/changed.h"
#include "hooks/claims.h"
#include "hooks/drain.h"
#include "hooks/hooks.h"
#include "hooks/reduce.h"
#include "hooks/stream.h"
#include "instance/rules.h"
#include "instance/tables.h"
#include "ranks/gathering.h"
#include "ranks/groups.h"
#include "ranks/shards.h"
#include "state/state.h"
#include "step/exchange.h"

static int is_same_param(const zfi_param_t *a, const zfi_param_t *b) {
    return strcmp(a->name, b->name) == 0 && a->flags == b->flags && a->owner == b->owner &&
           a->has_state == b->has_state && a->dtype == b->dtype && a->grad_dtype == b->grad_dtype &&
           a->group == b->group && a->home == b->home &&
           memcmp(a->reduce_group, b->reduce_group, sizeof a->reduce_group) == 0 &&
           a->n_batch_axes == b->n_batch_axes && a->channels_are_rows == b->channels_are_rows &&
           zfi_param_has_shape(a, b->ndim, b->shape);
}

static int is_same_set(const zfi_run_t *run, const zfi_param_t *params, uint32_t n) {
    for (uint32_t i = 0; i < n && n == run->n_params; i++)
        if (!is_same_param(&run->params[i], &params[i]))
            return 0;
    return n == run->n_params;
}

/* ---- the same set ------------------------------------------------------------------------------------------------ */

/* Exchanges what says where the visible values lie. */
static void exchange_storage(zfi_param_t *a, zfi_param_t *b) {
    zfi_param_t was = *a;
    if (a->is_sharded) /* the memory is the plugin's */
        return;
    a->visible = b->visible;
    a->is_contiguous = b->is_contiguous;
    a->row_stride = b->row_stride;
    a->col_offset = b->col_offset;
    memcpy(a->strides, b->strides, sizeof a->strides);
    b->visible = was.visible;
    b->is_contiguous = was.is_contiguous;
    b->row_stride = was.row_stride;
    b->col_offset = was.col_offset;
    memcpy(b->strides, was.strides, sizeof b->strides);
}

/* A gradient of the coming step would be left behind in the memory that carries it. */
static zf_status_t check_carried(const zfi_device_side_t *side, const zfi_incoming_t *incoming,
                                 const zfi_param_t *params, zf_error_t *err) {
    for (uint32_t i = 0; i < side->n_params; i++)
        if (params[i].carries && incoming->now[i].delivered && side->params[i].visible != params[i].visible)
            return zfi_error_of(
                err, ZF_ERR_STATE, i, "bind_params",
                "\"%s\" was given other memory, and a gradient was delivered that its own carries: call step, "
                "or drop the gradient with DISCARD",
                params[i].name);
    return ZF_OK;
}

/* Shows values in the memory that parameters were given in place of what carried (ZF_PARAM_CARRIES). */
static zf_status_t show_carried(const zfi_state_t *state, const zfi_param_t *before, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < state->plan->n_matrices && !st; i++) {
        uint32_t id = state->plan->matrices[i].param;
        if (before[id].carries && state->side->params[id].visible != before[id].visible)
            st = zfi_exchange_put_visible(state, i);
    }
    return st ? zfi_error(err, st, "bind_params", "the device did not take the values") : st;
}

static zf_status_t exchange_all(zfi_run_t *run, zfi_param_t *params, zf_error_t *err) {
    for (uint32_t i = 0; i < run->n_params; i++)
        exchange_storage(&run->params[i], &params[i]);
    zfi_plan_place(&run->plan, run->params);
    return zfi_tables_place(&run->side, err);
}

static zf_status_t move_storage(zfi_run_t *run, zfi_param_t *params, zf_error_t *err) {
    zf_status_t st = check_carried(&run->side, &run->incoming, params, err);
    if (!st && (st = exchange_all(run, params, err)))
        (void)exchange_all(run, params, NULL); /* back; what was there before needs no new memory */
    if (!st)
        st = show_carried(&run->state, params, err);
    zfi_params_free(params, run->n_params);
    return st;
}

/* ---- another set ------------------------------------------------------------------------------------------------- */

/* The parameter of the new set as which an old one goes on; NULL: it is not there, or has another shape. */
static const zfi_param_t *find(const zfi_run_t *into, const zfi_param_t *const *by_name, const zfi_param_t *old) {
    const zfi_param_t *param = zfi_params_find(by_name, into->n_params, old->name);
    return param && param->has_state && zfi_param_has_shape(param, old->ndim, old->shape) ? param : NULL;
}

/* A block of the old set, and its arrays. */
typedef struct left {
    zfi_run_t *run;
    zfi_together_t *together;
    uint32_t matrix;
    float *values;
} left_t;

static void walk_left(zfi_gathering_t *gathering, uint32_t rank) {
    const left_t *left = gathering->arg;
    const zfi_matrix_t *matrix = &gathering->ranks->plan->matrices[left->matrix];
    zfi_slice_t slice = zfi_gathering_slice(gathering, matrix, rank);
    for (uint64_t i = 0; i < ZFI_STATE_ARRAYS; i++)
        zfi_gathering_pass(gathering, left->values + i * matrix->rows * matrix->cols + slice.first,
                           slice.n * sizeof(float));
}

/* Where each rank has its own elements of a block: all of them, on every rank. All exchange, or none does. */
static zf_status_t join(void *arg, uint32_t number, zf_status_t st, float *values, zf_error_t *err) {
    left_t *left = arg;
    zfi_gathering_t gathering = {.ranks = &left->run->ranks, .walk = walk_left, .arg = left};
    left->matrix = number;
    left->values = values;
    st = zfi_together_meet(left->together, st, err);
    if (st || !(st = zfi_gathering_at_rest(&gathering)))
        return st;
    return zfi_error(err, st, "bind_params", "the ranks' state could not be joined");
}

/* Moments of one rule mean nothing to another. */
static zf_status_t check_rule(const zfi_param_t *old, const zfi_param_t *new, zf_error_t *err) {
    if (zfi_rule_is_alike(old->rule, new->rule))
        return ZF_OK;
    return zfi_error(err, ZF_ERR_PARAM, "bind_params",
                     "parameter \"%s\" comes from group %u (\"%s\") to group %u (\"%s\"): its moments mean nothing "
                     "there; bind it in a new instance",
                     new->name, old->group, old->rule->name, new->group, new->rule->name);
}

static zf_status_t carry_all(zfi_run_t *run, zfi_run_t *into, const zfi_param_t *const *by_name,
                             zfi_together_t *together, zf_error_t *err) {
    left_t left = {.run = run, .together = together};
    zfi_reader_t reader;
    zf_status_t st = zfi_together_meet(together, zfi_reader_open(run, 1, "bind_params", &reader, err), err);
    if (!st && (st = zfi_gathering_counts(&run->ranks, run->hs.n)))
        zfi_error(err, st, "bind_params", "the ranks' counts of updates could not be joined");
    for (uint32_t i = 0; i < run->plan.n_matrices && !st; i++) {
        const zfi_param_t *old = &run->params[run->plan.matrices[i].param];
        const zfi_param_t *new = find(into, by_name, old);
        if (new)
            st = check_rule(old, new, err);
        if (new && !st)
            st = zfi_values_carry(&reader, i, &into->state, new->id, zfi_is_sharded(run->engine) ? join : NULL, &left,
                                  err);
    }
    zfi_reader_close(&reader);
    return st;
}

/* Several ranks: what fails on one of them fails on all. */
static zf_status_t fill_set(zfi_run_t *run, zfi_replacement_t *replacement, zf_status_t begun, zf_error_t *err) {
    zfi_together_t together;
    zf_status_t st = begun;
    const zfi_param_t **by_name =
        st ? NULL : zfi_params_by_name(replacement->into->params, replacement->into->n_params);
    if (!st && !by_name)
        st = zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory to compare parameters");
    zfi_together_open(run->engine, 0, 0, &together);
    st = zfi_together_meet(&together, st, err);
    if (!st)
        st = carry_all(run, replacement->into, by_name, &together, err);
    st = zfi_together_meet(&together, st, err);
    free(by_name);
    return st;
}

static zf_status_t change_set(zf_instance_t *inst, zfi_param_t *params, uint32_t n, zf_error_t *err) {
    zfi_replacement_t replacement;
    zf_status_t begun = zfi_replace_begin(&inst->run, params, n, ZFI_BEGIN_FROM_VISIBLE, &replacement, err);
    zf_status_t st = fill_set(inst->run, &replacement, begun, err);
    if (st) {
        if (!begun)
            zfi_replace_cancel(&replacement, err);
        return st;
    }
    replacement.into->clock.steps_before = inst->run->clock.t + inst->run->clock.steps_before;
    st = zfi_replace_commit(&replacement, err);
    if (!st)
        zfi_stream_settle(inst);
    return st;
}

/* Before anything is changed. */
static zf_status_t check_set(zf_instance_t *inst, const zf_bind_args_t *args, zfi_param_t *params, zfi_rules_t *rules,
                             zf_error_t *err) {
    zf_status_t st = zfi_groups_join(&inst->engine, &inst->engine.config, params, args->n_decls, err);
    if (st)
        return st;
    zfi_shards_mark(&inst->engine, inst->engine.config.whole_nbytes, params, args->n_decls);
    st = zfi_rules_take(&inst->engine, &inst->engine.config, args, params, rules, err);
    if (st || !zfi_shards_params(&inst->engine) || is_same_set(inst->run, params, args->n_decls))
        return st;
    return zfi_error(err, ZF_ERR_STATE, "bind_params",
                     "another set of parameters while they are sharded ([shard] stage = 3): save, and load into a "
                     "new instance that binds all of them");
}

/* The parameters are the run's, or freed, when this returns. */
static zf_status_t exchange(zf_instance_t *inst, zfi_param_t *params, uint32_t n, zf_error_t *err) {
    zfi_claims_t *claims = NULL;
    int is_same = is_same_set(inst->run, params, n);
    /* what waits to be fetched comes to the new memory, which holds what the old one showed */
    zf_status_t st = (is_same ? zfi_drain_but_unfetched : zfi_drain)(inst, err);
    if (!st)
        st = zfi_claims_take(inst, inst->alive, params, n, &claims, err);
    if (!st && !is_same) /* masters are carried over, so what the host wrote would be lost */
        st = zfi_overwritten_look(inst, "bind_params", err);
    if (!is_same)
        st = zfi_together_agree(&inst->engine, 0, st, err);
    if (st) {
        zfi_claims_drop(claims);
        zfi_params_free(params, n);
        return st;
    }
    st = is_same ? move_storage(inst->run, params, err) : change_set(inst, params, n, err);
    zfi_claims_drop(st ? claims : inst->claims);
    if (!st)
        inst->claims = claims;
    return st;
}

zf_status_t zfi_rebind(zf_instance_t *inst, const zf_bind_args_t *args, zf_error_t *err) {
    zfi_param_t *params = NULL;
    zfi_rules_t rules = {0};
    zf_status_t st =
        zfi_params_build(args->decls, args->n_decls, args->decl_size, inst->engine.device_type, &params, err);
    if (!st)
        st = check_set(inst, args, params, &rules, err);
    st = zfi_reduce_compare(inst, params, args->n_decls, st, err);
    if (st)
        zfi_params_free(params, args->n_decls);
    else
        st = exchange(inst, params, args->n_decls, err);
    if (st)
        zfi_rules_drop(&inst->engine, &rules);
    else
        zfi_rules_keep(&inst->engine, &rules);
    return st;
}
