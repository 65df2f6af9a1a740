/* SPDX-License-Identifier: Apache-2.0 */
/* abi_books.c - proof 5, bookkeeping: what the plugin counts, plans, warns of and shows must be what the host counts
 * itself (abi_books.h). */
#include "abi_books.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "abi_probes.h"

enum { N_STEPS = 10, N_SKIPPED = 2, N_ELEMS = 30 + 32 + 5, GRAD_NBYTES = 30 * 4 + 32 * 2 + 5 * 4 };

/* Nothing is selected, every window closes at once: what is delivered goes down, and what is updated comes up, whole.
 */
static const char bare_config[] =
    "[zenflow]\ntopk_ratio = 0\nupdate_interval = 1\nfull_warm_up_rounds = 1\npredict = off\n[host]\nthreads = 1\n";

static int is_step_skipped(uint32_t s) { return s == 3 || s == 6; }

int abi_has_books(const abi_rig_t *rig) {
    return rig->table->get_extension(ZF_EXT_STATS) && rig->table->get_extension(ZF_EXT_STATE);
}

double abi_data_nbytes(void) {
    char line[256];
    double kib = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "VmData:", 7) == 0)
            kib = strtod(line + 7, NULL);
    if (f)
        fclose(f);
    return 1024.0 * kib;
}

uint64_t abi_counter(abi_rig_t *rig, const char *name) {
    const zf_stats_ext_t *ext = rig->table->get_extension(ZF_EXT_STATS);
    zf_error_t err = {.struct_size = sizeof err};
    zf_counter_t c = {.struct_size = sizeof c};
    zf_status_t st = ZF_OK;
    uint32_t i = 0, n = ext->n_counters();
    while (i < n && (st = ext->counter(rig->instance, i, &c, &err)) == ZF_OK && strcmp(c.name, name) != 0)
        i++;
    return abi_check(rig->probe, ABI_RULE_BOOKS, st == ZF_OK && i < n, "counter %s: status %d, number %u of %u", name,
                     st, i, n)
               ? c.value
               : 0;
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
    n_warnings_of_bias += level <= ZF_LOG_WARN && strstr(text, "c.bias") != NULL;
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

/* A gradient that is not finite skips a step; from the fourth step on c.bias has none. */
static zf_status_t step(abi_rig_t *rig, uint32_t s, zf_step_report_t *report, zf_error_t *err) {
    static const float nan_bits = NAN;
    uint32_t n = ABI_RIG_TRAINED - (s >= 4);
    zf_status_t st;
    abi_rig_set_gradients(rig);
    if (is_step_skipped(s))
        memcpy(rig->grads[0], &nan_bits, sizeof nan_bits);
    abi_host_enter(&rig->host);
    st = rig->table->grads_ready(rig->instance, rig->items, n, sizeof rig->items[0], &rig->stream, NULL, err);
    if (st >= 0)
        st = rig->table->step(rig->instance, &rig->step, report, err);
    abi_host_leave(&rig->host);
    rig->n_steps += st >= 0;
    return st;
}

static void check_counters(abi_rig_t *rig, const zf_step_report_t *r) {
    static const char *const busy[] = {"window_closes", "reselects", "replay_elems", "replay_ns"};
    is_count(rig, "submitted_step of the report", r->submitted_step, N_STEPS);
    is_count(rig, "steps", abi_counter(rig, "steps"), N_STEPS);
    is_count(rig, "steps_applied", abi_counter(rig, "steps_applied"), N_STEPS - N_SKIPPED);
    is_count(rig, "steps_skipped", abi_counter(rig, "steps_skipped"), N_SKIPPED);
    for (size_t i = 0; i < sizeof busy / sizeof busy[0]; i++)
        abi_check(rig->probe, ABI_RULE_BOOKS, abi_counter(rig, busy[i]) > 0, "after %d steps %s is 0", N_STEPS,
                  busy[i]);
}

static void probe_run(abi_probe_t *p) {
    static abi_rig_t rig;
    zf_error_t err = {.struct_size = sizeof err};
    zf_step_report_t report = {.struct_size = sizeof report};
    zf_status_t st = ZF_OK;
    if (!abi_rig_open(&rig, p, p->env->plugin) || !abi_has_books(&rig))
        return;
    rig.host.table.log = on_log;
    if (!abi_rig_start(&rig, ABI_BOUND))
        return;
    for (uint32_t s = 1; s <= N_STEPS && st >= 0; s++)
        st = step(&rig, s, &report, &err);
    if (abi_check(p, ABI_RULE_VALID, st >= 0, "a right step returned %d: %s", st, err.message))
        check_counters(&rig, &report);
    abi_check(p, ABI_RULE_BOOKS, n_warnings_of_bias == 1, "%u warnings name the gradient that is missing, not 1",
              n_warnings_of_bias);
    abi_rig_end(&rig);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static void read_bytes(abi_rig_t *rig, uint64_t out[3]) {
    out[0] = abi_counter(rig, "down_grad_nbytes");
    out[1] = abi_counter(rig, "up_publish_nbytes");
    out[2] = abi_counter(rig, "replay_elems");
}

static void probe_bytes(abi_probe_t *p) {
    static abi_rig_t rig;
    uint64_t before[3], after[3];
    if (!abi_rig_open(&rig, p, p->env->plugin) || !abi_has_books(&rig))
        return;
    rig.create.config_text = bare_config;
    rig.create.config_text_nbytes = strlen(bare_config);
    for (int i = 0; i < ABI_RIG_TRAINED; i++)
        rig.decls[i].home = ZF_HOME_HOST;
    if (!abi_rig_start(&rig, ABI_BOUND) || !abi_rig_train(&rig, 4, ABI_RULE_VALID) || !abi_rig_rest(&rig))
        return;
    read_bytes(&rig, before);
    if (!abi_rig_train(&rig, N_STEPS, ABI_RULE_VALID) || !abi_rig_rest(&rig))
        return;
    read_bytes(&rig, after);
    is_count(&rig, "down_grad_nbytes", after[0] - before[0], N_STEPS * GRAD_NBYTES);
    is_count(&rig, "up_publish_nbytes", after[1] - before[1], N_STEPS * GRAD_NBYTES);
    is_count(&rig, "replay_elems", after[2] - before[2], N_STEPS * N_ELEMS);
    abi_rig_end(&rig);
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

/* zf.plan/0 of the same declarations, and the counters, say the same. */
static void check_plan(abi_rig_t *rig, const zf_layout_t *l) {
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

static void check_layout(abi_rig_t *rig, const zf_layout_t *l) {
    is_count(rig, "n_elems of the layout", l->n_elems, N_ELEMS);
    abi_check(rig->probe, ABI_RULE_BOOKS, l->host_nbytes >= 12u * N_ELEMS,
              "layout: %llu bytes of the host hold no state", (unsigned long long)l->host_nbytes);
    is_count(rig, "host_planned_nbytes, of the layout", abi_counter(rig, "host_planned_nbytes"), l->host_nbytes);
    is_count(rig, "device_planned_nbytes, of the layout", abi_counter(rig, "device_planned_nbytes"), l->device_nbytes);
    check_plan(rig, l);
}

static void probe_layout(abi_probe_t *p) {
    static abi_rig_t rig;
    zf_layout_t layout = {.struct_size = sizeof layout};
    zf_error_t err = {.struct_size = sizeof err};
    zf_status_t st;
    if (!abi_rig_open(&rig, p, p->env->plugin) || !abi_has_books(&rig) || !abi_rig_start(&rig, ABI_CREATED))
        return;
    abi_host_enter(&rig.host);
    st = abi_rig_bind(&rig, &layout, &err);
    abi_host_leave(&rig.host);
    if (abi_check(p, ABI_RULE_VALID, st == ZF_OK, "bind_params returned %d: %s", st, err.message))
        check_layout(&rig, &layout);
    abi_rig_end(&rig);
}

/* ---- the configuration ------------------------------------------------------------------------------------------- */

static void probe_config(abi_probe_t *p) {
    static abi_rig_t rig;
    const zf_config_ext_t *ext;
    zf_config_key_t key = {.struct_size = sizeof key};
    char value[64] = "";
    if (!abi_rig_open(&rig, p, p->env->plugin) || !abi_has_books(&rig) || !abi_rig_start(&rig, ABI_BOUND))
        return;
    ext = rig.table->get_extension(ZF_EXT_CONFIG);
    for (uint32_t i = 0; ext && i < ext->n_keys(); i++)
        if (ext->key(i, &key, NULL) == ZF_OK && strcmp(key.key, "update_interval") == 0)
            ext->value(rig.instance, i, value, sizeof value, NULL);
    abi_check(p, ABI_RULE_BOOKS, !ext || strcmp(value, "2") == 0, "update_interval = 2 was given, \"%s\" is shown",
              value);
    abi_rig_end(&rig);
}

void abi_books_probes(abi_report_t *report, const abi_env_t *env) {
    abi_probe_run(report, env, "counters of a run", probe_run);
    abi_probe_run(report, env, "bytes", probe_bytes);
    abi_probe_run(report, env, "layout", probe_layout);
    abi_probe_run(report, env, "effective configuration", probe_config);
}
