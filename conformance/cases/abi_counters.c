/* SPDX-License-Identifier: Apache-2.0 */
/* abi_counters.c - proof 5, the table of zf.stats/1: names, units and kinds; sums that do not fall, and what steps add
 * to them. */
#include <string.h>

#include "abi_probes.h"
#include "abi_rig.h"

enum { MOST = 256, N_STEPS = 4 };

static int is_name(const char *name) {
    return name && *name && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(name);
}

/* "ns" for "replay_ns", "bytes" for "sent_nbytes", "elems" for "replay_elems"; NULL: the name does not say. */
static const char *unit_in(const char *name) {
    static const char *const units[][2] = {{"_ns", "ns"}, {"_nbytes", "bytes"}, {"_elems", "elems"}};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (n > strlen(units[i][0]) && strcmp(name + n - strlen(units[i][0]), units[i][0]) == 0)
            return units[i][1];
    return NULL;
}

static int is_unit(const char *unit) {
    static const char *const units[] = {"steps", "elems", "bytes", "ns", "count"};
    for (size_t i = 0; unit && i < sizeof units / sizeof units[0]; i++)
        if (strcmp(units[i], unit) == 0)
            return 1;
    return 0;
}

static void check_row(abi_probe_t *p, const zf_counter_t *c, uint32_t i) {
    const char *unit;
    if (!abi_check(p, ABI_RULE_COUNTERS, is_name(c->name), "counter %u: the name is not of a-z, 0-9 and _", i))
        return;
    unit = unit_in(c->name);
    abi_check(p, ABI_RULE_COUNTERS, is_unit(c->unit) && (!unit || strcmp(unit, c->unit) == 0),
              "counter \"%s\": the unit is \"%s\"%s%s", c->name, c->unit ? c->unit : "NULL", unit ? ", not " : "",
              unit ? unit : "");
    abi_check(p, ABI_RULE_COUNTERS, c->kind == ZF_COUNTER_SUM || c->kind == ZF_COUNTER_LEVEL, "counter \"%s\": kind %u",
              c->name, c->kind);
    abi_check(p, ABI_RULE_COUNTERS, c->doc && *c->doc, "counter \"%s\": no sentence", c->name);
}

/* Reads all; the number of them, 0 where that fails. */
static uint32_t read_all(abi_rig_t *rig, const zf_stats_ext_t *stats, zf_counter_t out[MOST]) {
    uint32_t n = stats->n_counters();
    if (!abi_check(rig->probe, ABI_RULE_COUNTERS, n > 0 && n <= MOST, "%u counters", n))
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        zf_error_t err = {.struct_size = sizeof err};
        zf_status_t st;
        out[i] = (zf_counter_t){.struct_size = sizeof out[i]};
        abi_try(rig->probe, "counter(%u)", i);
        st = stats->counter(rig->instance, i, &out[i], &err);
        if (!abi_check(rig->probe, ABI_RULE_COUNTERS, st == ZF_OK, "counter(%u) returned %d: %s", i, st, err.message))
            return 0;
    }
    return n;
}

static void check_names(abi_probe_t *p, const zf_counter_t *all, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        check_row(p, &all[i], i);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < i; k++)
            abi_check(p, ABI_RULE_COUNTERS,
                      !is_name(all[i].name) || !is_name(all[k].name) || strcmp(all[i].name, all[k].name) != 0,
                      "counters %u and %u are both \"%s\"", k, i, all[i].name);
}

/* What counter i grew by in the newest steps, which the record of the step behind them may still add to. */
static void check_steps(abi_rig_t *rig, const zf_stats_ext_t *stats, const zf_counter_t *now, uint32_t i) {
    uint64_t sum = 0;
    for (uint64_t step = 1; step <= rig->n_steps; step++) {
        zf_counter_t grown = {.struct_size = sizeof grown};
        zf_status_t st = stats->step_counter(rig->instance, step, i, &grown, NULL);
        abi_check(rig->probe, ABI_RULE_COUNTERS, st == ZF_OK && grown.name && strcmp(grown.name, now->name) == 0,
                  "step_counter(%llu, %u) returned %d, or not \"%s\"", (unsigned long long)step, i, st, now->name);
        sum += grown.value;
    }
    abi_check(rig->probe, ABI_RULE_COUNTERS, sum <= now->value, "\"%s\": steps say %llu, the counter %llu", now->name,
              (unsigned long long)sum, (unsigned long long)now->value);
}

static void run_counters(abi_probe_t *p) {
    static abi_rig_t rig;
    static zf_counter_t before[MOST], after[MOST];
    const zf_stats_ext_t *stats;
    zf_error_t err = {.struct_size = sizeof err};
    uint32_t n;
    if (!abi_rig_open(&rig, p, p->env->plugin))
        return;
    stats = rig.table->get_extension(ZF_EXT_STATS);
    if (!stats) {
        abi_skip(p, ABI_RULE_COUNTERS, "no extension " ZF_EXT_STATS);
        return;
    }
    if (!abi_rig_start(&rig, ABI_ACTIVE) || (n = read_all(&rig, stats, before)) == 0)
        return;
    check_names(p, before, n);
    abi_check(p, ABI_RULE_COUNTERS, stats->counter(rig.instance, n, &after[0], &err) < 0, "counter(%u) of %u", n, n);
    if (!abi_rig_train(&rig, N_STEPS, ABI_RULE_COUNTERS) || read_all(&rig, stats, after) != n)
        return;
    for (uint32_t i = 0; i < n; i++) {
        if (after[i].kind != ZF_COUNTER_SUM || !is_name(after[i].name))
            continue;
        abi_check(p, ABI_RULE_COUNTERS, after[i].value >= before[i].value, "\"%s\" fell from %llu to %llu",
                  after[i].name, (unsigned long long)before[i].value, (unsigned long long)after[i].value);
        check_steps(&rig, stats, &after[i], i);
    }
    abi_rig_end(&rig);
}

void abi_counter_probes(abi_report_t *report, const abi_env_t *env) {
    abi_probe_run(report, env, "counters", run_counters);
}
