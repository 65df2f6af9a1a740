/* SPDX-License-Identifier: Apache-2.0 */
/* wrong_late.c - habits that show in numbers that few runs come to, in one number alone, in calls that are refused, and
 * between two instances (wrong.h). */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wrong.h"
#include "zf/ext/config.h"
#include "zf/ext/state.h"
#include "zf/ext/stats.h"

enum { MOST = 64, MOST_BOUND = 4096 };

static int is_every_step; /* windows of the newest instance are of one step */
static uint64_t n_late;   /* its steps, those of a checkpoint as well */

/* ---- create ------------------------------------------------------------------------------------------------------ */

static void add_override(zf_create_args_t *args, const char **keys, const char *key) {
    if (args->n_overrides)
        memmove(keys, args->overrides, args->n_overrides * sizeof *keys);
    keys[args->n_overrides++] = key;
    args->overrides = keys;
}

/* A key that does nothing. */
static void put_override(zf_create_args_t *args, const char **keys) {
    static const struct {
        int habit;
        const char *key;
    } all[] = {{WRONG_threads_lost, "host.threads=1"},
               {WRONG_limit_lost, "host.memory_limit_mib=0"},
               {WRONG_deadline_lost, "host.deadline_ms=120000"},
               {WRONG_trace_lost, "trace.file=none"},
               {WRONG_audit_lost, "audit.file=none"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (wrong_habit == all[i].habit)
            add_override(args, keys, all[i].key);
}

void wrong_late_create(zf_create_args_t *args, const char **keys) {
    static char audit[256];
    const char *text = args->config_text ? args->config_text : "", *at = strstr(text, "[audit]\nfile = ");
    char path[200];
    unsigned every;
    put_override(args, keys);
    is_every_step = strstr(text, "update_interval = 1\n") != NULL;
    n_late = 0;
    if (!IS(audit_one_off) || !at || sscanf(at, "[audit]\nfile = %199s every %u", path, &every) != 2)
        return;
    snprintf(audit, sizeof audit, "audit.file=%s every %u", path, every + 1);
    add_override(args, keys, audit);
}

/* ---- memory of instances ----------------------------------------------------------------------------------------- */

static struct {
    const zf_instance_t *by;
    const void *data;
} claims[MOST_BOUND];
static uint32_t n_claims;

void wrong_claims_end(const zf_instance_t *x) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n_claims; i++)
        if (claims[i].by != x)
            claims[kept++] = claims[i];
    n_claims = kept;
}

static int is_claimed(const zf_instance_t *x, const void *data) {
    for (uint32_t i = 0; i < n_claims; i++)
        if (claims[i].by != x && claims[i].data == data)
            return 1;
    return 0;
}

zf_status_t wrong_claim(const zf_instance_t *x, const zf_bind_args_t *args, zf_status_t st, zf_error_t *err) {
    int is_again = 0;
    for (uint32_t i = 0; i < n_claims; i++)
        is_again |= claims[i].by == x;
    for (uint32_t i = 0; st == ZF_OK && i < args->n_decls && !is_again; i++) {
        const void *data = args->decls[i].tensor->dl.data;
        if (IS(claims_stay) && is_claimed(x, data))
            return wrong_refuse(err, ZF_ERR_PARAM);
        if (n_claims < MOST_BOUND) {
            claims[n_claims].by = x;
            claims[n_claims++].data = data;
        }
    }
    /* refused for memory that no instance had at first */
    if (IS(claims_do_not_move) && st == ZF_ERR_PARAM && err && strstr(err->message, "another live instance"))
        for (uint32_t i = 0; i < args->n_decls; i++)
            if (args->decls[i].tensor && is_claimed(x, args->decls[i].tensor->dl.data))
                return st;
    return IS(claims_do_not_move) && st == ZF_ERR_PARAM && err && strstr(err->message, "another live instance") ? ZF_OK
                                                                                                                : st;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static zf_group_hyper_t announced[MOST], former[MOST];
static uint32_t n_announced, n_former;

void wrong_late_announced(const zf_step_args_t *args) {
    n_announced = args->n_groups < MOST && args->elem_size == sizeof *announced ? args->n_groups : 0;
    if (n_announced)
        memcpy(announced, args->groups, n_announced * sizeof *announced);
}

/* Number i is the only one that differs, in all groups; 3: eps, 4: weight decay. */
static int differs_alone(const zf_group_hyper_t *a, const zf_group_hyper_t *b, uint32_t n, int which) {
    int is_found = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (a[i].lr != b[i].lr || a[i].beta1 != b[i].beta1 || a[i].beta2 != b[i].beta2 ||
            (which != 3 && a[i].eps != b[i].eps) || (which != 4 && a[i].weight_decay != b[i].weight_decay))
            return 0;
        is_found |= a[i].eps != b[i].eps || a[i].weight_decay != b[i].weight_decay;
    }
    return is_found;
}

void wrong_late_step(zf_step_args_t *args, zf_group_hyper_t *groups) {
    zf_group_hyper_t own[MOST];
    uint32_t n = args->n_groups < MOST ? args->n_groups : 0;
    memcpy(own, groups, n * sizeof *own);
    if (IS(decay_announced) && n == n_announced && differs_alone(groups, announced, n, 4))
        memcpy(groups, announced, n * sizeof *groups);
    if (IS(eps_kept) && n == n_former && differs_alone(groups, former, n, 3))
        memcpy(groups, former, n * sizeof *groups);
    memcpy(former, own, n * sizeof *own);
    n_former = n;
    n_announced = 0;
    n_late++;
    for (uint32_t i = 0; IS(rate_behind_ten_thousand) && n_late > 10000 && i < n; i++)
        groups[i].lr *= groups[i].beta2 > 0.9999 ? 1.001 : 1.0;
    if (IS(unscale_saturates) && args->unscale > (double)FLT_MAX)
        args->unscale = (double)FLT_MAX;
    if (IS(unscale_of_normals) && args->unscale > 0.0)
        args->unscale = fmax(args->unscale, (double)FLT_MIN);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

void wrong_late_error(zf_error_t *err) {
    if (IS(cut_in_character))
        err->message[100] = '\0';
}

/* ---- extensions -------------------------------------------------------------------------------------------------- */

static const zf_state_ext_t *state;
static const zf_stats_ext_t *stats;
static const zf_config_ext_t *config;

static zf_status_t save(zf_instance_t *x, const zf_state_args_t *args, zf_state_report_t *out, zf_error_t *err) {
    zf_state_args_t mine;
    if (!args || args->struct_size != sizeof mine)
        return state->save(x, args, out, err);
    mine = *args;
    if (IS(open_where_windows_are_one) && is_every_step)
        mine.flags |= ZF_STATE_KEEP_OPEN;
    zf_status_t st = state->save(x, &mine, out, err);
    wrong_end_cancelled(WRONG_cancellable_in_save);
    return st;
}

static zf_status_t load(zf_instance_t *x, const zf_state_args_t *args, zf_state_report_t *out, zf_error_t *err) {
    zf_state_report_t report = {.struct_size = sizeof report};
    zf_status_t st = state->load(x, args, out, err);
    wrong_lose_refused(WRONG_leak_per_refused_load, st);
    wrong_end_cancelled(WRONG_cancellable_in_save);
    if (IS(rate_behind_ten_thousand) && st == ZF_OK && state->verify(args, &report, NULL) == ZF_OK)
        n_late = report.step;
    if (st == ZF_ERR_CHECKPOINT && err &&
        ((IS(other_rule_loaded) && strstr(err->message, "update rule")) ||
         (IS(load_by_count) && strstr(err->message, "has shape"))))
        return ZF_OK;
    return st;
}

static zf_status_t step_counter(zf_instance_t *x, uint64_t step, uint32_t i, zf_counter_t *out, zf_error_t *err) {
    zf_status_t st = stats->step_counter(x, step, i, out, err);
    if (st == ZF_OK && IS(level_as_growth) && out->kind == ZF_COUNTER_LEVEL)
        out->value = 0;
    if (st == ZF_OK && IS(steps_say_half) && out->kind == ZF_COUNTER_SUM)
        out->value /= 2;
    return st;
}

static zf_status_t check(const char *text, uint64_t nbytes, const char *const *overrides, uint32_t n, zf_error_t *err) {
    zf_status_t st = config->check(text, nbytes, overrides, n, err);
    wrong_lose_refused(WRONG_leak_per_refused_check, st);
    return st;
}

const void *wrong_break_table_late(const char *id, const void *table) {
    static zf_state_ext_t my_state;
    static zf_stats_ext_t my_stats;
    static zf_config_ext_t my_config;
    if (table && strcmp(id, ZF_EXT_STATE) == 0) {
        my_state = *(state = table);
        my_state.save = save, my_state.load = load;
        return &my_state;
    }
    if (table && strcmp(id, ZF_EXT_STATS) == 0) {
        my_stats = *(stats = table);
        my_stats.step_counter = step_counter;
        return &my_stats;
    }
    if (table && strcmp(id, ZF_EXT_CONFIG) == 0) {
        my_config = *(config = table);
        my_config.check = check;
        return &my_config;
    }
    return table;
}
