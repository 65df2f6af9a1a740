/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/parts.c - whose checkpoint is whose (contract in parts.h). */
#include "hooks/parts.h"

#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "base/error.h"
#include "ranks/groups.h"
#include "ranks/ranks.h"
#include "state/state.h"

/* Group 0, or that of the experts. */
static uint32_t group_of(const zfi_reduction_t *reduction) {
    return zfi_has_experts(reduction) ? reduction->groups.all[0].index : 0;
}

void zfi_parts_open(const zfi_run_t *run, zfi_together_t *out) {
    uint32_t group = group_of(&run->reduction);
    int are_all = run->buckets.is_owner; /* of group 0: each keeps something of what is saved */
    zfi_together_open(run->engine, group, are_all ? 0 : group, out);
}

/* Memory for what ranks compare, of the transport's, so that no rank can lack it while the others wait for it: at rest
 * nobody agrees on a step. Zeros. */
static void *room(const zfi_run_t *run, uint32_t n, uint64_t nbytes) {
    memset(run->reduction.agreements, 0, n * nbytes);
    return run->reduction.agreements;
}

/* all[n] of nbytes each, the own one filled, over a group. */
static zf_status_t gather(zf_instance_t *inst, uint32_t group, void *all, uint64_t nbytes, zf_error_t *err) {
    zf_status_t st = zfi_ranks_gather(&inst->engine, group, ZF_COLLECTIVE_FOR_STATE, 0, all, nbytes);
    return st ? zfi_hook_failed(inst, st, "state", "the ranks could not be compared", err) : ZF_OK;
}

/* ---- which part -------------------------------------------------------------------------------------------------- */

/* The path and the part of a rank: the lowest ranks of its group 0 and its part. status: it cannot. */
typedef struct claim {
    uint32_t path_crc, model, part;
    int32_t status;
} claim_t;
_Static_assert(sizeof(claim_t) <= sizeof(zfi_agreement_t), "there is room for an agreement of each rank");

static zf_status_t compare_claims(const claim_t *all, uint32_t n, const char *path, zf_error_t *err) {
    for (uint32_t r = 0; r < n; r++)
        if (all[r].status)
            return zfi_error_by(
                err, all[r].status, r, "state",
                "rank %" PRIu32
                " of the norm group refused, before anything was saved or loaded on any rank; that rank says why",
                r);
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t k = 0; k < r; k++)
            if (all[r].path_crc && all[r].path_crc == all[k].path_crc && all[r].part != all[k].part)
                return zfi_error(err, ZF_ERR_ARGUMENT, "state",
                                 "ranks %" PRIu32 " and %" PRIu32
                                 " of the norm group have other parameters, but one directory (%.200s): each group of "
                                 "ranks that hold the same parameters has a checkpoint of its own",
                                 k, r, path ? path : "another rank's");
            else if (all[r].part == all[k].part && all[r].model != all[k].model)
                return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "state",
                                 "ranks %" PRIu32 " and %" PRIu32
                                 " of the norm group have the same experts, but other parameters beside them: such a "
                                 "model cannot be saved by parts in this version",
                                 k, r);
    return ZF_OK;
}

/* Parts have different lowest ranks. */
static zfi_part_t find_part(const claim_t *all, uint32_t n, uint32_t own) {
    zfi_part_t out = {0};
    for (uint32_t r = 0; r < n; r++) {
        out.n += all[r].part == r;
        out.number += all[r].part == r && r < own;
    }
    return out;
}

static zf_status_t check_experts(const zfi_run_t *run, zf_error_t *err) {
    const zfi_group_lists_t *lists = &run->reduction.groups;
    if (!zfi_has_experts(&run->reduction) || lists->n < 2 || lists->all[1].which != 0)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "state",
                     "\"%s\" has reduce_group = %" PRIu32 ", \"%s\" has %" PRIu32
                     ": checkpoints of ranks with two groups in place of group 0 are not in this version",
                     run->params[lists->all[0].ids[0]].name, lists->all[0].name, run->params[lists->all[1].ids[0]].name,
                     lists->all[1].name);
}

/* The checksum of the place that a path leads to, by whatever links; of what is not there, as far as its parent goes.
 */
static uint32_t crc_of_path(const char *path) {
    char *place = path ? realpath(path, NULL) : NULL, *first = path ? strdup(path) : NULL;
    char *second = path ? strdup(path) : NULL, *parent = first && !place ? realpath(dirname(first), NULL) : NULL;
    if (parent && second && asprintf(&place, "%s/%s", parent, basename(second)) < 0)
        place = NULL;
    uint32_t crc = path ? zfi_crc32(0, place ? place : path, strlen(place ? place : path)) : 0;
    free(place);
    free(first);
    free(second);
    free(parent);
    return crc;
}

zf_status_t zfi_parts_meet(zf_instance_t *inst, const char *path, zfi_together_t *together, zf_status_t st,
                           zf_error_t *err) {
    zfi_engine_t *engine = &inst->engine;
    zfi_member_t place = zfi_norm_member(engine);
    uint32_t first = engine->firsts[group_of(&inst->run->reduction)];
    if (!zfi_is_grouped(engine))
        return st;
    if (!st)
        st = check_experts(inst->run, err);
    claim_t *all = room(inst->run, place.n_ranks, sizeof *all);
    all[place.rank] = (claim_t){crc_of_path(path), engine->firsts[0], first, st};
    zf_status_t met = gather(inst, engine->norm_index, all, sizeof *all, err);
    if (met)
        return met;
    if (!st)
        st = compare_claims(all, place.n_ranks, path, err);
    together->part = find_part(all, place.n_ranks, first);
    return st;
}

/* ---- what is loaded ---------------------------------------------------------------------------------------------- */

/* A checkpoint as far as parts have to have it alike. */
typedef struct look {
    uint64_t step;
    int32_t status;
    uint32_t model, shared_crc, is_partial;
} look_t;
_Static_assert(sizeof(look_t) <= sizeof(zfi_agreement_t), "there is room for an agreement of each rank");

static uint32_t crc_of(uint32_t crc, uint64_t x) { return zfi_crc32(crc, &x, sizeof x); }

/* Digests a parameter that all of group 0 have: its cut and its values. i: its number in the run. */
static uint32_t digest_param(uint32_t crc, uint32_t i, const zfi_saved_param_t *param) {
    crc = crc_of(crc_of(crc, i), param->n_blocks);
    for (int a = 0; a < ZFI_SAVED_ARRAYS; a++)
        crc = crc_of(crc, param->tensors[a].crc);
    return crc;
}

/* The schedule, and each parameter that all of group 0 have. They mostly follow each other as in the run, so each is
 * looked for from the one before it on. */
static uint32_t digest_shared(const zfi_run_t *run, const zfi_saved_t *saved) {
    uint32_t crc = crc_of((uint32_t)saved->is_mean, saved->step), at = 0;
    crc = crc_of(crc_of(crc_of(crc, saved->n_applied), saved->n_skipped), saved->epoch_end);
    crc = zfi_crc32(crc, saved->last_choice, saved->n_cohorts * sizeof *saved->last_choice);
    for (uint32_t i = 0; i < run->n_params; i++)
        for (uint32_t n = 0; n < saved->n_params && run->params[i].group_index[0] == 0; n++) {
            const zfi_saved_param_t *param = &saved->params[at];
            at = (at + 1) % saved->n_params;
            if (strcmp(param->name, run->params[i].name) != 0)
                continue;
            crc = digest_param(crc, i, param);
            break;
        }
    return crc;
}

static zf_status_t look_at(const zfi_run_t *run, const zf_state_args_t *args, zfi_together_t *together, look_t *out,
                           zf_error_t *err) {
    zfi_store_t store = ZFI_STORE_CLOSED;
    zfi_saved_t saved;
    zf_status_t st = zfi_store_open_load(args, &store, err);
    if (st)
        return st;
    st = zfi_index_read(&store, &saved, err);
    zfi_store_close(&store);
    if (st)
        return st;
    out->step = saved.n_submitted;
    together->looked_crc = saved.index_crc;
    out->shared_crc = digest_shared(run, &saved);
    st = zfi_state_check_part(&saved, together, args->flags, err);
    zfi_saved_free(&saved);
    return st;
}

static zf_status_t compare_looks(const look_t *all, uint32_t n, zf_error_t *err) {
    for (uint32_t r = 0; r < n; r++)
        if (all[r].status)
            return zfi_error_by(err, all[r].status, r, "state",
                                "rank %" PRIu32 " of the norm group cannot load its part of the model: nothing was "
                                "loaded on any rank; that rank says why",
                                r);
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t k = 0; k < r; k++) {
            int is_partial = all[r].is_partial || all[k].is_partial, is_beside = all[r].model == all[k].model;
            if (all[r].step != all[k].step && (is_beside || !is_partial))
                return zfi_error(err, ZF_ERR_RANKS, "state",
                                 "ranks %" PRIu32 " and %" PRIu32 " of the norm group would load other steps: %" PRIu64
                                 " and %" PRIu64 "; every part of a model has to come from the same step%s",
                                 k, r, all[k].step, all[r].step, is_beside ? "" : " (or ZF_STATE_PARTIAL)");
            if (is_beside && !is_partial && all[r].shared_crc != all[k].shared_crc)
                return zfi_error(err, ZF_ERR_RANKS, "state",
                                 "ranks %" PRIu32 " and %" PRIu32
                                 " of the norm group would load other weights, or another schedule, of what both have "
                                 "beside their experts: their checkpoints are not of one run (or ZF_STATE_PARTIAL)",
                                 k, r);
        }
    return ZF_OK;
}

zf_status_t zfi_parts_compare(zf_instance_t *inst, const zf_state_args_t *args, zfi_together_t *together,
                              zf_status_t st, zf_error_t *err) {
    zfi_engine_t *engine = &inst->engine;
    zfi_member_t place = zfi_norm_member(engine);
    look_t *all, *own;
    if (!zfi_is_grouped(engine) || st)
        return st;
    all = room(inst->run, place.n_ranks, sizeof *all);
    own = &all[place.rank];
    own->status = st = look_at(inst->run, args, together, own, err);
    own->model = engine->firsts[0];
    own->is_partial = (args->flags & ZF_STATE_PARTIAL) != 0;
    zf_status_t met = gather(inst, engine->norm_index, all, sizeof *all, err);
    if (met || st)
        return met ? met : st;
    return compare_looks(all, place.n_ranks, err);
}
