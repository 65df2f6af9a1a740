/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/groups.c - process groups of parameters (contract in groups.h). */
#include "ranks/groups.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"

/* ---- what is declared -------------------------------------------------------------------------------------------- */

/* Decisions that are made from the gradients of all parameters would differ where ranks of group 0 have other ones. */
static const char *find_joint_decision(const zfi_config_t *config) {
    if (config->is_interval_auto)
        return "update_interval = auto";
    return config->select_strategy == ZFI_SELECT_AUTO ? "select_strategy = auto" : NULL;
}

static zf_status_t check_first(const zfi_config_t *config, const zfi_param_t *param, zf_error_t *err) {
    const char *joint = find_joint_decision(config);
    if (param->reduce_group[0] == 0 || !joint)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_CONFIG, "bind_params",
                     "parameter \"%s\": reduce_group = %" PRIu32
                     " with [zenflow] %s: ranks with other parameters would "
                     "decide otherwise for those they share; set a value",
                     param->name, param->reduce_group[0], joint);
}

static zf_status_t check_groups(const zfi_engine_t *engine, const zfi_config_t *config, const zfi_param_t *param,
                                zf_error_t *err) {
    if (!zfi_is_grouped(engine))
        return zfi_error(err, ZF_ERR_PARAM, "bind_params",
                         "parameter \"%s\": reduce groups %" PRIu32 " and %" PRIu32
                         " need zf_create_args_t.norm_group: the process group of all ranks that train the model "
                         "together, or their norm would be of this rank's parameters alone",
                         param->name, param->reduce_group[0], param->reduce_group[1]);
    if (param->reduce_group[1] && param->home == ZF_HOME_HOST)
        return zfi_error(err, ZF_ERR_PARAM, "bind_params",
                         "parameter \"%s\": reduce_group2 = %" PRIu32
                         " and home = 2 (host): what several instances hold "
                         "is resident, so that all of them show the same at every step",
                         param->name, param->reduce_group[1]);
    return check_first(config, param, err);
}

static zf_status_t join(zfi_engine_t *engine, zfi_param_t *param, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    for (int k = 0; k < 2 && !st; k++)
        if (param->reduce_group[k])
            st = engine->comm_ops->join(engine->comm, param->reduce_group[k], &param->group_index[k], err);
    return st;
}

zf_status_t zfi_groups_join(zfi_engine_t *engine, const zfi_config_t *config, zfi_param_t *params, uint32_t n,
                            zf_error_t *err) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < n && !st; i++) {
        zfi_param_t *param = &params[i];
        if (!param->has_state)
            continue;
        if (param->reduce_group[0] || param->reduce_group[1])
            st = check_groups(engine, config, param, err);
        if (!st)
            st = join(engine, param, err);
        if (st)
            break;
        if (param->group_index[1])
            param->home = ZF_HOME_RESIDENT;
        if (zfi_is_grouped(engine) && !zfi_is_sharded(engine) && zfi_member(engine, param->group_index[0]).rank)
            param->counts_in_norm = 0;
        if (param->group_index[1] && zfi_member(engine, param->group_index[1]).rank)
            param->counts_in_norm = 0;
    }
    return st;
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

static int by_turn_and_name(const void *a, const void *b) {
    const zfi_group_list_t *x = a, *y = b;
    if (x->which != y->which)
        return x->which - y->which;
    return x->name < y->name ? -1 : x->name > y->name;
}

static zfi_group_list_t *find_list(zfi_group_lists_t *lists, const zfi_param_t *param, int which) {
    uint32_t i = 0;
    while (i < lists->n && (lists->all[i].which != which || lists->all[i].name != param->reduce_group[which]))
        i++;
    if (i == lists->n) {
        lists->all[lists->n++] =
            (zfi_group_list_t){.which = which, .name = param->reduce_group[which], .index = param->group_index[which]};
    }
    return &lists->all[i];
}

zf_status_t zfi_groups_list(const zfi_engine_t *engine, const zfi_param_t *params, uint32_t n, zfi_group_lists_t *out) {
    *out = (zfi_group_lists_t){.ids = calloc(2 * (uint64_t)n + 1, sizeof *out->ids)};
    if (!out->ids)
        return ZF_ERR_MEMORY;
    for (uint32_t i = 0; i < n; i++)
        for (int k = 0; k < 2 && params[i].has_state; k++)
            if (params[i].reduce_group[k])
                find_list(out, &params[i], k)->n++;
    qsort(out->all, out->n, sizeof *out->all, by_turn_and_name);
    uint32_t *next = out->ids;
    for (uint32_t i = 0; i < out->n; i++) {
        zfi_group_list_t *list = &out->all[i];
        list->place = zfi_member(engine, list->index);
        list->ids = next;
        for (uint32_t p = 0; p < n; p++)
            if (params[p].has_state && params[p].reduce_group[list->which] == list->name)
                *next++ = p;
    }
    return ZF_OK;
}

void zfi_groups_free(zfi_group_lists_t *lists) {
    free(lists->ids);
    *lists = (zfi_group_lists_t){0};
}

uint32_t zfi_groups_most_ranks(const zfi_engine_t *engine, const zfi_group_lists_t *lists) {
    uint32_t most = zfi_n_ranks(engine);
    if (zfi_norm_member(engine).n_ranks > most)
        most = zfi_norm_member(engine).n_ranks;
    for (uint32_t i = 0; i < lists->n; i++)
        most = lists->all[i].place.n_ranks > most ? lists->all[i].place.n_ranks : most;
    return most;
}
