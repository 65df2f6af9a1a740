/* SPDX-License-Identifier: Apache-2.0 */
/* abi_books.c - proof 5, bookkeeping: what the plugin counts, plans, warns of and shows must be what the host counts
 * itself. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "abi_probes.h"
#include "zf_loader.h"

enum { N_STEPS = 10, N_SKIPPED = 2, N_ELEMS = 30 + 32 + 5, GRAD_NBYTES = 30 * 4 + 32 * 2 + 5 * 4, MOST_COUNTERS = 256 };

/* Nothing is selected, every window closes at once: what is delivered goes down, what is updated comes up, whole. */
static const char bare_config[] =
    "[zenflow]\ntopk_ratio = 0\nupdate_interval = 1\nfull_warm_up_rounds = 1\npredict = off\n[host]\nthreads = 1\n";

static int is_step_skipped(uint32_t s) { return s == 3 || s == 6; }

static uint64_t counter(abi_rig_t *rig, const char *name) {
    uint64_t value = 0;
    zf_status_t st = zf_counter_value(rig->table, rig->instance, name, &value, &rig->err);
    abi_rig_check(rig, ABI_RULE_BOOKS, st == ZF_OK, name, st);
    return value;
}

static int is_count(abi_rig_t *rig, const char *what, uint64_t have, uint64_t want) {
    return abi_check(rig->probe, ABI_RULE_BOOKS, have == want, "%s: the plugin says %llu, the host counted %llu", what,
                     (unsigned long long)have, (unsigned long long)want);
}

/* ---- warnings ---------------------------------------------------------------------------------------------------- */

static unsigned n_warnings_of_bias;

static void on_log(void *ctx, int32_t level, const char *component, const char *file, int32_t line, const char *msg,
                   uint64_t len) {
    char text[1024];
    (void)ctx, (void)component, (void)file, (void)line;
    snprintf(text, sizeof text, "%.*s", (int)(len < 1000 ? len : 1000), msg);
    n_warnings_of_bias += level == ZF_LOG_WARN && strstr(text, "c.bias") != NULL;
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

/* A gradient that is not finite skips a step; from the fourth step on c.bias has none. */
static zf_status_t step(abi_rig_t *rig, uint32_t s, zf_step_report_t *report) {
    static const float nan_bits = NAN;
    abi_rig_set_gradients(rig);
    if (is_step_skipped(s))
        memcpy(rig->grads[0], &nan_bits, sizeof nan_bits);
    return abi_rig_step(rig, ABI_RIG_TRAINED - (s >= 4), report);
}

static void check_counters(abi_rig_t *rig, const zf_step_report_t *r) {
    static const char *const busy[] = {"window_closes", "reselects", "replay_elems", "replay_ns"};
    is_count(rig, "submitted_step of the report", r->submitted_step, N_STEPS);
    is_count(rig, "steps", counter(rig, "steps"), N_STEPS);
    is_count(rig, "steps_applied", counter(rig, "steps_applied"), N_STEPS - N_SKIPPED);
    is_count(rig, "steps_skipped", counter(rig, "steps_skipped"), N_SKIPPED);
    for (size_t i = 0; i < sizeof busy / sizeof busy[0]; i++)
        abi_check(rig->probe, ABI_RULE_BOOKS, counter(rig, busy[i]) > 0, "after %d steps %s is 0", N_STEPS, busy[i]);
}

static void probe_run(abi_rig_t *rig) {
    zf_step_report_t report;
    zf_status_t st = ZF_OK;
    rig->host.table.log = on_log;
    if (!abi_rig_start(rig, ABI_BOUND))
        return;
    for (uint32_t s = 1; s <= N_STEPS && st >= 0; s++)
        st = step(rig, s, &report);
    if (abi_rig_check(rig, ABI_RULE_VALID, st >= 0, "a right step", st))
        check_counters(rig, &report);
    abi_check(rig->probe, ABI_RULE_BOOKS, n_warnings_of_bias == 1,
              "%u warnings name the gradient that is missing, not 1", n_warnings_of_bias);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static void read_bytes(abi_rig_t *rig, uint64_t out[3]) {
    out[0] = counter(rig, "down_grad_nbytes");
    out[1] = counter(rig, "up_publish_nbytes");
    out[2] = counter(rig, "replay_elems");
}

static void probe_bytes(abi_rig_t *rig) {
    uint64_t before[3], after[3];
    rig->create.config_text = bare_config;
    rig->create.config_text_nbytes = strlen(bare_config);
    for (int i = 0; i < ABI_RIG_TRAINED; i++)
        rig->decls[i].home = ZF_HOME_HOST;
    if (!abi_rig_start(rig, ABI_BOUND) || !abi_rig_train(rig, 4, ABI_RULE_VALID) || !abi_rig_rest(rig))
        return;
    read_bytes(rig, before);
    if (!abi_rig_train(rig, N_STEPS, ABI_RULE_VALID) || !abi_rig_rest(rig))
        return;
    read_bytes(rig, after);
    is_count(rig, "down_grad_nbytes", after[0] - before[0], N_STEPS * GRAD_NBYTES);
    is_count(rig, "up_publish_nbytes", after[1] - before[1], N_STEPS * GRAD_NBYTES);
    is_count(rig, "replay_elems", after[2] - before[2], N_STEPS * N_ELEMS);
}

/* Of one step less is delivered: its record says so, and no other's. */
static void probe_bytes_of_steps(abi_rig_t *rig) {
    enum { N = 6, FEW = 4 };
    const zf_stats_ext_t *stats = rig->table->get_extension(ZF_EXT_STATS);
    uint32_t down = 0;
    for (zf_counter_t c = {.struct_size = sizeof c}; stats->counter(NULL, down, &c, NULL) == ZF_OK; down++)
        if (strcmp(c.name, "down_grad_nbytes") == 0)
            break;
    rig->create.config_text = bare_config;
    rig->create.config_text_nbytes = strlen(bare_config);
    for (int i = 0; i < ABI_RIG_TRAINED; i++)
        rig->decls[i].home = ZF_HOME_HOST;
    if (!abi_rig_start(rig, ABI_BOUND))
        return;
    for (uint32_t s = 1; s <= N; s++) {
        abi_rig_set_gradients(rig);
        zf_status_t st = abi_rig_step(rig, s == FEW ? 1 : ABI_RIG_TRAINED, NULL);
        abi_rig_check(rig, ABI_RULE_VALID, st >= 0, "a right step", st);
    }
    abi_rig_rest(rig);
    for (uint32_t s = 1; s <= N; s++) {
        zf_counter_t c = {.struct_size = sizeof c};
        stats->step_counter(rig->instance, s, down, &c, NULL);
        is_count(rig, "down_grad_nbytes of a step", c.value, s == FEW ? 30 * 4 : GRAD_NBYTES);
    }
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

/* zf.plan/0 of the same declarations, and the counters, say the same. */
static void check_plan(abi_rig_t *rig, const zf_bind_report_t *l) {
    const zf_plan_ext_t *ext = rig->table->get_extension(ZF_EXT_PLAN);
    zf_bind_args_t bind = {
        .struct_size = sizeof bind, .decls = rig->decls, .n_decls = ABI_RIG_PARAMS, .decl_size = sizeof rig->decls[0]};
    zf_plan_args_t args = {.struct_size = sizeof args, .create = &rig->create, .bind = &bind};
    zf_plan_t plan = {.struct_size = sizeof plan};
    zf_status_t st = ext ? ext->plan(&args, &plan, NULL) : ZF_DISABLED;
    if (st != ZF_OK)
        return;
    is_count(rig, "host_nbytes of the layout, of the plan", l->host_nbytes, plan.host_nbytes);
    is_count(rig, "device_nbytes of the layout, of the plan", l->device_nbytes, plan.device_nbytes);
    is_count(rig, "n_matrices of the plan", plan.n_matrices, 3);
    is_count(rig, "n_channels of the plan", plan.n_channels, 5 + 8 + 1);
    is_count(rig, "n_elems of the plan", plan.n_elems, N_ELEMS);
}

static void check_layout(abi_rig_t *rig, const zf_bind_report_t *l) {
    is_count(rig, "n_elems of the layout", l->n_elems, N_ELEMS);
    abi_check(rig->probe, ABI_RULE_BOOKS, l->host_nbytes >= 12u * N_ELEMS,
              "layout: %llu bytes of the host hold no state", (unsigned long long)l->host_nbytes);
    is_count(rig, "host_planned_nbytes, of the layout", counter(rig, "host_planned_nbytes"), l->host_nbytes);
    is_count(rig, "device_planned_nbytes, of the layout", counter(rig, "device_planned_nbytes"), l->device_nbytes);
    check_plan(rig, l);
}

/* Of three ranks, which are not there: what they keep is what one rank would. */
static void probe_plan_of_ranks(abi_rig_t *rig) {
    enum { N_RANKS = 3 };
    static const char sharded[] =
        "[zenflow]\nmode = windows\nupdate_interval = 3\npublish_lag = 0\n[shard]\nstage = 1\n";
    const zf_plan_ext_t *ext = rig->table->get_extension(ZF_EXT_PLAN);
    zf_bind_args_t bind = {
        .struct_size = sizeof bind, .decls = rig->decls, .n_decls = ABI_RIG_PARAMS, .decl_size = sizeof rig->decls[0]};
    zf_plan_args_t args = {.struct_size = sizeof args, .n_ranks = N_RANKS, .create = &rig->create, .bind = &bind};
    uint64_t n_owned = 0;
    rig->create.config_text = sharded;
    rig->create.config_text_nbytes = strlen(sharded);
    for (; ext && args.rank < N_RANKS; args.rank++) {
        zf_plan_t plan = {.struct_size = sizeof plan};
        zf_status_t st = ABI_CALL(rig, ext->plan(&args, &plan, &rig->err));
        if (!abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "plan of three ranks", st))
            return;
        n_owned += plan.n_owned_elems;
        is_count(rig, "n_elems of a rank's plan", plan.n_elems, N_ELEMS);
        is_count(rig, "update_interval of a plan", plan.update_interval, 3);
        is_count(rig, "publish_lag of a plan", plan.publish_lag, 0);
        abi_check(rig->probe, ABI_RULE_BOOKS,
                  plan.n_buckets > 0 && plan.host_state_nbytes >= 12 * plan.n_owned_elems &&
                      plan.host_nbytes >= plan.host_state_nbytes + plan.host_slots_nbytes + plan.host_publish_nbytes,
                  "plan of rank %u: parts of host memory do not fit what they are parts of", args.rank);
    }
    if (ext)
        is_count(rig, "n_owned_elems of three ranks' plans together", n_owned, N_ELEMS);
}

static void probe_layout(abi_rig_t *rig) {
    zf_bind_report_t layout = {.struct_size = sizeof layout};
    zf_status_t st = abi_rig_bind(rig, &layout);
    if (abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "bind_params", st))
        check_layout(rig, &layout);
}

/* ---- the configuration ------------------------------------------------------------------------------------------- */

static int shows(abi_rig_t *rig, const char *name, const char *want) {
    const zf_config_ext_t *ext = rig->table->get_extension(ZF_EXT_CONFIG);
    zf_config_key_t key = {.struct_size = sizeof key};
    char value[64] = "";
    for (uint32_t i = 0; ext && i < ext->n_keys(); i++)
        if (ext->key(i, &key, NULL) == ZF_OK && strcmp(key.key, name) == 0)
            ext->value(rig->instance, i, value, sizeof value, NULL);
    return abi_check(rig->probe, ABI_RULE_BOOKS, !ext || strcmp(value, want) == 0, "%s = %s was given, \"%s\" is shown",
                     name, want, value);
}

/* What stands behind 8 KiB of a text counts. */
static void probe_config(abi_rig_t *rig) {
    static char text[9000];
    while (strlen(text) < 8192)
        strcat(text, "; a line that says nothing\n");
    strcat(text, rig->create.config_text);
    rig->create.config_text = text;
    rig->create.config_text_nbytes = strlen(text);
    if (abi_rig_start(rig, ABI_CREATED) && shows(rig, "update_interval", "2"))
        shows(rig, "threads", "1");
}

/* The rig's text in a file. */
static void configure_by_file(abi_rig_t *rig) {
    static char path[4200];
    snprintf(path, sizeof path, "%s/settings.ini", rig->probe->scratch);
    FILE *file = fopen(path, "we");
    if (!file || fputs(rig->create.config_text, file) < 0 || fclose(file) != 0)
        abort();
    rig->create.config_text = NULL;
    rig->create.config_text_nbytes = 0;
    rig->create.config_path = path;
}

/* Each counts, over what the text says, or the file. */
static void check_overrides(abi_rig_t *rig) {
    enum { N = 20 };
    const char *overrides[N] = {"zenflow.update_interval=3", "zenflow.topk_ratio=0.25"};
    for (int i = 2; i < N; i++)
        overrides[i] = i < N - 1 ? "host.deadline_ms=60000" : "zenflow.select_interval=7";
    rig->create.overrides = overrides;
    rig->create.n_overrides = N;
    if (abi_rig_start(rig, ABI_CREATED) && shows(rig, "update_interval", "3") && shows(rig, "topk_ratio", "0.25") &&
        shows(rig, "deadline_ms", "60000"))
        shows(rig, "select_interval", "7");
}

static void probe_overrides(abi_rig_t *rig) {
    check_overrides(rig);
    abi_rig_end(rig);
    configure_by_file(rig);
    check_overrides(rig);
}

/* ---- the log ----------------------------------------------------------------------------------------------------- */

static unsigned n_warned;
static const char *warned_word;

static void on_warning(void *ctx, int32_t level, const char *component, const char *file, int32_t line, const char *msg,
                       uint64_t len) {
    char text[1024];
    (void)ctx, (void)component, (void)file, (void)line;
    snprintf(text, sizeof text, "%.*s", (int)(len < 1000 ? len : 1000), msg);
    n_warned += level <= ZF_LOG_WARN && strstr(text, warned_word) != NULL;
}

static void is_warned(abi_rig_t *rig, const char *what) {
    abi_check(rig->probe, ABI_RULE_BOOKS, n_warned > 0, "%s: the log does not say so", what);
    n_warned = 0;
}

/* A key without effect, updates that destroy loses, flags of destroy that are not known. */
static void probe_warnings(abi_rig_t *rig) {
    static const char idle[] = "[zenflow]\nmode = exact\ntopk_ratio = 0.2\n";
    const zf_destroy_args_t unknown = {.struct_size = sizeof unknown, .flags = 1u << 30};
    rig->host.table.log = on_warning;
    warned_word = "FLUSH";
    if (!abi_rig_start(rig, ABI_ACTIVE))
        return;
    n_warned = 0;
    abi_rig_end(rig);
    is_warned(rig, "destroy loses the updates of an open window");
    if (!abi_rig_start(rig, ABI_BOUND))
        return;
    n_warned = 0;
    warned_word = "0x40000000";
    ABI_CALL(rig, (rig->table->destroy(rig->instance, &unknown), ZF_OK));
    rig->instance = NULL;
    is_warned(rig, "destroy has a flag that is not known");
    warned_word = "topk_ratio";
    rig->create.config_text = idle;
    rig->create.config_text_nbytes = strlen(idle);
    if (abi_rig_start(rig, ABI_BOUND))
        is_warned(rig, "topk_ratio has no effect in exact");
}

/* ---- the table of zf.stats/1 ------------------------------------------------------------------------------------- */

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
    if (!abi_check(p, ABI_RULE_COUNTERS, is_name(c->name), "counter %u: the name is not of a-z, 0-9 and _", i))
        return;
    const char *unit = unit_in(c->name);
    abi_check(p, ABI_RULE_COUNTERS, is_unit(c->unit) && (!unit || strcmp(unit, c->unit) == 0),
              "counter \"%s\": the unit is \"%s\"%s%s", c->name, c->unit ? c->unit : "NULL", unit ? ", not " : "",
              unit ? unit : "");
    abi_check(p, ABI_RULE_COUNTERS, c->kind == ZF_COUNTER_SUM || c->kind == ZF_COUNTER_LEVEL, "counter \"%s\": kind %u",
              c->name, c->kind);
    abi_check(p, ABI_RULE_COUNTERS, c->doc && *c->doc, "counter \"%s\": no sentence", c->name);
}

/* Reads all; the number of them, 0 where that fails. */
static uint32_t read_all(abi_rig_t *rig, const zf_stats_ext_t *stats, zf_counter_t out[MOST_COUNTERS]) {
    uint32_t n = stats->n_counters();
    if (!abi_check(rig->probe, ABI_RULE_COUNTERS, n > 0 && n <= MOST_COUNTERS, "%u counters", n))
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (zf_counter_t){.struct_size = sizeof out[i]};
        abi_try(rig->probe, "counter(%u)", i);
        zf_status_t st = stats->counter(rig->instance, i, &out[i], &rig->err);
        if (!abi_rig_check(rig, ABI_RULE_COUNTERS, st == ZF_OK, "counter", st))
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

/* What steps say that a sum grew by; what came behind the newest is not told yet. resting: at rest before that one. Of
 * a level the newest one says what it is. */
static void check_steps(abi_rig_t *rig, const zf_stats_ext_t *stats, const zf_counter_t *now, uint64_t resting,
                        uint32_t i) {
    uint64_t sum = 0, newest = 0;
    for (uint64_t step = 1; step <= rig->n_steps; step++) {
        zf_counter_t grown = {.struct_size = sizeof grown};
        zf_status_t st = stats->step_counter(rig->instance, step, i, &grown, NULL);
        abi_check(rig->probe, ABI_RULE_COUNTERS, st == ZF_OK && grown.name && strcmp(grown.name, now->name) == 0,
                  "step_counter(%llu, %u) returned %d, or not \"%s\"", (unsigned long long)step, i, st, now->name);
        sum += newest = grown.value;
        abi_check(rig->probe, ABI_RULE_COUNTERS, st != ZF_OK || grown.kind == now->kind, "step_counter: \"%s\" is a %s",
                  now->name, grown.kind == ZF_COUNTER_LEVEL ? "level" : "sum");
    }
    if (now->kind == ZF_COUNTER_LEVEL)
        abi_check(rig->probe, ABI_RULE_COUNTERS, newest == now->value,
                  "level \"%s\": the newest step says %llu, it is %llu", now->name, (unsigned long long)newest,
                  (unsigned long long)now->value);
    else
        abi_check(rig->probe, ABI_RULE_COUNTERS, resting <= sum && sum <= now->value,
                  "\"%s\": steps say %llu; the counter was %llu before the newest, and is %llu", now->name,
                  (unsigned long long)sum, (unsigned long long)resting, (unsigned long long)now->value);
}

/* Names, units and kinds; sums that do not fall, and what steps say of each. */
static void probe_counters(abi_rig_t *rig) {
    static zf_counter_t before[MOST_COUNTERS], resting[MOST_COUNTERS], after[MOST_COUNTERS];
    const zf_stats_ext_t *stats = rig->table->get_extension(ZF_EXT_STATS);
    if (!stats) {
        abi_skip(rig->probe, ABI_RULE_COUNTERS, "no extension " ZF_EXT_STATS);
        return;
    }
    uint32_t n = read_all(rig, stats, before);
    if (n == 0)
        return;
    check_names(rig->probe, before, n);
    abi_check(rig->probe, ABI_RULE_COUNTERS, stats->counter(rig->instance, n, &after[0], NULL) < 0, "counter(%u) of %u",
              n, n);
    if (!abi_rig_train(rig, 4, ABI_RULE_COUNTERS) || !abi_rig_rest(rig) || read_all(rig, stats, resting) != n ||
        !abi_rig_train(rig, 1, ABI_RULE_COUNTERS) || !abi_rig_rest(rig) || read_all(rig, stats, after) != n)
        return;
    for (uint32_t i = 0; i < n; i++) {
        if (!is_name(after[i].name))
            continue;
        abi_check(rig->probe, ABI_RULE_COUNTERS, after[i].kind != ZF_COUNTER_SUM || after[i].value >= before[i].value,
                  "\"%s\" fell from %llu to %llu", after[i].name, (unsigned long long)before[i].value,
                  (unsigned long long)after[i].value);
        check_steps(rig, stats, &after[i], resting[i].value, i);
    }
}

const abi_row_t abi_books_rows[] = {{"counters of a run", ABI_OPEN, 1, probe_run},
                                    {"bytes", ABI_OPEN, 1, probe_bytes},
                                    {"bytes of steps", ABI_OPEN, 1, probe_bytes_of_steps},
                                    {"plan of ranks", ABI_OPEN, 1, probe_plan_of_ranks},
                                    {"layout", ABI_CREATED, 1, probe_layout},
                                    {"effective configuration", ABI_OPEN, 1, probe_config},
                                    {"overrides", ABI_OPEN, 1, probe_overrides},
                                    {"warnings", ABI_OPEN, 1, probe_warnings},
                                    {"counters", ABI_ACTIVE, 0, probe_counters},
                                    {NULL, ABI_OPEN, 0, NULL}};
