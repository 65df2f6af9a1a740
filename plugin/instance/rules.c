/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/rules.c - the update rules of the optimizer groups (contract in rules.h). */
#include "instance/rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/struct.h"
#include "base/utf8.h"
#include "instance/support.h"

enum { MAX_GROUPS = 65536 };

/* ---- the host's table -------------------------------------------------------------------------------------------- */

static zf_status_t check_name(const char *name, uint32_t group, zf_error_t *err) {
    enum { MOST = sizeof((zfi_group_rule_t *)0)->name };
    size_t length = name ? strnlen(name, MOST) : 0;
    if (length == 0 || length == MOST)
        return zfi_error(err, ZF_ERR_ARGUMENT, "bind_params", "group %u: callback: name is %s; need 1..%d bytes", group,
                         !name    ? "NULL"
                         : length ? "too long"
                                  : "empty",
                         MOST - 1);
    if (!zfi_utf8_is_name(name, length)) /* a checkpoint could not hold it, or a message would end there */
        return zfi_error(err, ZF_ERR_ARGUMENT, "bind_params",
                         "group %u: callback: name is not UTF-8, or has a control character", group);
    return ZF_OK;
}

static zf_status_t read_callback(const zf_rule_callback_t *given, uint32_t group, zfi_group_rule_t *out,
                                 zf_error_t *err) {
    zf_rule_callback_t *callback = &out->callback;
    zf_status_t st = ZFI_READ(callback, given, zf_rule_callback_t, err);
    if (st)
        return st;
    if (!callback->update && !out->matrices.update)
        return zfi_error(err, ZF_ERR_ARGUMENT, "bind_params",
                         "group %u: callback: update is NULL, and no struct of %s in next names another one", group,
                         ZF_EXT_MATRIX);
    if (callback->update)
        out->matrices = (zf_matrix_rules_t){0};
    if (callback->n_moments > 2)
        return zfi_error(err, ZF_ERR_ARGUMENT, "bind_params", "group %u: callback: n_moments = %u; allowed: 0, 1, 2",
                         group, callback->n_moments);
    st = check_name(callback->name, group, err);
    if (st)
        return st;
    out->n_moments = callback->n_moments;
    snprintf(out->name, sizeof out->name, "%s", callback->name);
    callback->name = NULL; /* the host's memory */
    return ZF_OK;
}

/* The function of whole matrices that the chain names; all zero: none. */
static zf_status_t read_matrices(const zf_bind_args_t *args, zf_matrix_rules_t *out, zf_error_t *err) {
    const void *given = zfi_chain_find(args->next, ZF_EXT_MATRIX);
    *out = (zf_matrix_rules_t){0};
    zf_status_t st = given ? ZFI_READ(out, given, zf_matrix_rules_t, err) : ZF_OK;
    if (!st && given && !out->update)
        return zfi_error(err, ZF_ERR_ARGUMENT, "bind_params", "%s: update is NULL", ZF_EXT_MATRIX);
    out->id = NULL; /* the host's memory */
    out->next = NULL;
    return st;
}

/* Group `group` as the table has it; a built-in rule's record is a copy. */
static zf_status_t read_group(const zf_bind_args_t *args, uint32_t group, zfi_group_rule_t *out, zf_error_t *err) {
    zf_group_decl_t decl;
    zf_status_t st = ZFI_READ_ITEM(&decl, args->groups, group, args->group_size, zf_group_decl_t, err);
    if (st)
        return st;
    if (decl.rule > ZF_RULE_CALLBACK)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "bind_params",
                         "group %u: rule = %u; allowed: 0 (AdamW) .. 5 (callback)", group, decl.rule);
    if ((decl.rule == ZF_RULE_CALLBACK) != (decl.callback != NULL))
        return zfi_error(err, ZF_ERR_ARGUMENT, "bind_params", "group %u: rule = %u, but callback is %s", group,
                         decl.rule, decl.callback ? "given: it needs rule = 5" : "NULL");
    if (decl.rule != ZF_RULE_CALLBACK)
        return *out = *zfi_rule_builtin(decl.rule), ZF_OK;
    *out = (zfi_group_rule_t){.number = ZF_RULE_CALLBACK, .group = group};
    st = read_matrices(args, &out->matrices, err);
    return st ? st : read_callback(decl.callback, group, out, err);
}

/* ---- the groups of a binding ------------------------------------------------------------------------------------- */

static int is_same_callback(const zfi_group_rule_t *a, const zfi_group_rule_t *b) {
    return a->callback.update == b->callback.update && a->callback.ctx == b->callback.ctx &&
           a->matrices.update == b->matrices.update && a->matrices.ctx == b->matrices.ctx;
}

static zf_status_t check_kept(const zfi_group_rule_t *was, const zfi_group_rule_t *is, uint32_t group,
                              zf_error_t *err) {
    if (!zfi_rule_is_alike(was, is))
        return zfi_error(err, ZF_ERR_PARAM, "bind_params",
                         "group %u: its rule is \"%s\" (%u moments), not \"%s\" (%u): a group keeps its rule; give the "
                         "new one to a new group",
                         group, was->name, was->n_moments, is->name, is->n_moments);
    if (!is_same_callback(was, is))
        return zfi_error(err, ZF_ERR_PARAM, "bind_params",
                         "group %u: callback \"%s\" has another function or ctx: a group keeps its rule", group,
                         was->name);
    return ZF_OK;
}

/* The record of a rule that no group has yet. */
static const zfi_group_rule_t *record(zfi_engine_t *engine, const zfi_group_rule_t *rule) {
    if (rule->number != ZF_RULE_CALLBACK)
        return zfi_rule_builtin(rule->number);
    zfi_group_rule_t *out = malloc(sizeof *out);
    if (!out)
        return NULL;
    *out = *rule;
    out->engine = engine;
    return out;
}

/* A group's rule, by the table or without one. */
static zf_status_t take_group(zfi_engine_t *engine, const zf_bind_args_t *args, uint32_t group, zfi_rules_t *out,
                              zf_error_t *err) {
    const zfi_group_rule_t *was = group < engine->rules.n ? engine->rules.of[group] : NULL;
    zfi_group_rule_t rule = *zfi_rule_builtin(ZF_RULE_ADAMW);
    zf_status_t st = args->n_groups ? read_group(args, group, &rule, err) : ZF_OK;
    if (!st && was)
        st = check_kept(was, &rule, group, err);
    if (st)
        return st;
    out->of[group] = was ? was : record(engine, &rule);
    return out->of[group] ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory for a rule");
}

static zf_status_t take_groups(zfi_engine_t *engine, const zf_bind_args_t *args, uint32_t n_used, zfi_rules_t *out,
                               zf_error_t *err) {
    uint32_t n = args->n_groups ? args->n_groups : n_used;
    zf_status_t st = ZF_OK;
    *out = (zfi_rules_t){.n = n > engine->rules.n ? n : engine->rules.n};
    out->of = calloc(out->n, sizeof *out->of);
    if (!out->of) {
        st = zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory for %u groups", out->n);
        *out = (zfi_rules_t){0};
        return st;
    }
    for (uint32_t i = 0; i < n && !st; i++)
        st = take_group(engine, args, i, out, err);
    for (uint32_t i = n; i < out->n; i++) /* nobody asks for them any more */
        out->of[i] = engine->rules.of[i];
    if (st)
        zfi_rules_drop(engine, out);
    return st;
}

/* ---- their parameters -------------------------------------------------------------------------------------------- */

static zf_status_t give(const zfi_engine_t *engine, const zfi_config_t *config, const zf_bind_args_t *args,
                        const zfi_rules_t *rules, zfi_param_t *param, zf_error_t *err) {
    if (!param->has_state)
        return ZF_OK;
    if (args->n_groups && param->group >= args->n_groups)
        return zfi_error_of(err, ZF_ERR_PARAM, param->id, "bind_params",
                            "parameter \"%s\": group = %u, but the table of groups has %u: declare every group's rule",
                            param->name, param->group, args->n_groups);
    param->rule = rules->of[param->group];
    return zfi_support_param(engine, config, param, err);
}

static zf_status_t check_table(const zf_bind_args_t *args, zf_error_t *err) {
    if (!args->n_groups && args->groups)
        return zfi_error(err, ZF_ERR_ARGUMENT, "bind_params", "groups is given with n_groups = 0");
    if (args->n_groups > MAX_GROUPS)
        return zfi_error(err, ZF_ERR_ARGUMENT, "bind_params", "n_groups = %u, at most %d", args->n_groups, MAX_GROUPS);
    return ZFI_CHECK_ARRAY(args->groups, args->n_groups, 0, args->group_size, zf_group_decl_t, "groups", err);
}

zf_status_t zfi_rules_take(zfi_engine_t *engine, const zfi_config_t *config, const zf_bind_args_t *args,
                           zfi_param_t *params, zfi_rules_t *out, zf_error_t *err) {
    zf_status_t st = zfi_support_config(engine, config, err);
    if (!st)
        st = check_table(args, err);
    if (!st)
        st = take_groups(engine, args, zfi_params_n_groups(params, args->n_decls), out, err);
    if (st)
        return st;
    for (uint32_t i = 0; i < args->n_decls && !st; i++)
        st = give(engine, config, args, out, &params[i], err);
    if (st)
        zfi_rules_drop(engine, out);
    return st;
}

/* ---- keeping ----------------------------------------------------------------------------------------------------- */

void zfi_rules_keep(zfi_engine_t *engine, zfi_rules_t *rules) {
    free(engine->rules.of); /* the records are in the new table as well */
    engine->rules = *rules;
}

void zfi_rules_drop(const zfi_engine_t *engine, zfi_rules_t *rules) {
    for (uint32_t i = 0; i < rules->n; i++)
        if (rules->of[i] && rules->of[i]->number == ZF_RULE_CALLBACK && i >= engine->rules.n)
            free((void *)(uintptr_t)rules->of[i]);
    free(rules->of);
    *rules = (zfi_rules_t){0};
}

void zfi_rules_free(zfi_engine_t *engine) {
    zfi_rules_t rules = engine->rules;
    engine->rules = (zfi_rules_t){0};
    zfi_rules_drop(engine, &rules);
}

void zfi_rules_text(const zfi_rules_t *rules, char *out, size_t nbytes) {
    uint32_t seen = 0;
    size_t at = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < rules->n && at < nbytes; i++) {
        const zfi_group_rule_t *rule = rules->of[i];
        if (rule->number != ZF_RULE_CALLBACK && (seen >> rule->number & 1))
            continue;
        seen |= 1u << rule->number;
        at += (size_t)snprintf(out + at, nbytes - at, "%s%s", at ? ", " : "", rule->name);
    }
}
