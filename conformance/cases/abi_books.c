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

int abi_has_books(const abi_rig_t *rig) { return rig->table->get_extension(ZF_EXT_STATS) != NULL; }

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

int abi_read_books(abi_rig_t *rig, zf_stats_t *out) {
    const zf_stats_ext_t *ext = rig->table->get_extension(ZF_EXT_STATS);
    zf_error_t err = {.struct_size = sizeof err};
    zf_status_t st;
    memset(out, 0, sizeof *out);
    out->struct_size = sizeof *out;
    abi_host_enter(&rig->host);
    st = ext->read(rig->instance, out, &err);
    abi_host_leave(&rig->host);
    return abi_check(rig->probe, ABI_RULE_VALID, st == ZF_OK, "reading the counters returned %d: %s", st, err.message);
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
    zf_stats_t s;
    if (!abi_read_books(rig, &s))
        return;
    is_count(rig, "n_skipped of the report", r->n_skipped, N_SKIPPED);
    is_count(rig, "submitted_step of the report", r->submitted_step, N_STEPS);
    is_count(rig, "steps", s.steps, N_STEPS);
    is_count(rig, "steps_applied", s.steps_applied, N_STEPS - N_SKIPPED);
    is_count(rig, "steps_skipped", s.steps_skipped, N_SKIPPED);
    is_count(rig, "window_closes of the report, of the counters", r->window_closes, s.window_closes);
    is_count(rig, "update_interval", s.update_interval, 2);
    abi_check(rig->probe, ABI_RULE_BOOKS, s.window_closes > 0 && s.reselects > 0 && s.replay_elems > 0 && s.n_workers,
              "after %d steps: window_closes %llu, reselects %llu, replay_elems %llu, n_workers %u", N_STEPS,
              (unsigned long long)s.window_closes, (unsigned long long)s.reselects, (unsigned long long)s.replay_elems,
              s.n_workers);
    abi_check(rig->probe, ABI_RULE_BOOKS, s.replay_ns > 0, "replays took no time");
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

static void probe_bytes(abi_probe_t *p) {
    static abi_rig_t rig;
    zf_stats_t before, after;
    if (!abi_rig_open(&rig, p, p->env->plugin) || !abi_has_books(&rig))
        return;
    rig.create.config_text = bare_config;
    rig.create.config_text_nbytes = strlen(bare_config);
    for (int i = 0; i < ABI_RIG_TRAINED; i++)
        rig.decls[i].flags = ZF_PARAM_NEVER_SELECTED;
    if (!abi_rig_start(&rig, ABI_BOUND) || !abi_rig_train(&rig, 4, ABI_RULE_VALID) || !abi_rig_rest(&rig) ||
        !abi_read_books(&rig, &before) || !abi_rig_train(&rig, N_STEPS, ABI_RULE_VALID) || !abi_rig_rest(&rig) ||
        !abi_read_books(&rig, &after))
        return;
    is_count(&rig, "down_grad_nbytes", after.down_grad_nbytes - before.down_grad_nbytes, N_STEPS * GRAD_NBYTES);
    is_count(&rig, "up_publish_nbytes", after.up_publish_nbytes - before.up_publish_nbytes, N_STEPS * GRAD_NBYTES);
    is_count(&rig, "replay_elems", after.replay_elems - before.replay_elems, N_STEPS * N_ELEMS);
    abi_rig_end(&rig);
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

static void check_layout(abi_rig_t *rig, const zf_layout_t *l) {
    zf_stats_t s;
    is_count(rig, "n_elems of the layout", l->n_elems, N_ELEMS);
    is_count(rig, "n_matrices of the layout", l->n_matrices, 3);
    is_count(rig, "n_channels of the layout", l->n_channels, 5 + 8 + 1);
    abi_check(rig->probe, ABI_RULE_BOOKS,
              l->host_nbytes >= l->host_state_nbytes + l->host_slots_nbytes + l->host_publish_nbytes &&
                  l->host_state_nbytes >= 12u * N_ELEMS,
              "layout: of %llu bytes of the host %llu are state, %llu slots, %llu publish",
              (unsigned long long)l->host_nbytes, (unsigned long long)l->host_state_nbytes,
              (unsigned long long)l->host_slots_nbytes, (unsigned long long)l->host_publish_nbytes);
    if (!abi_read_books(rig, &s))
        return;
    is_count(rig, "host_planned_nbytes, of the layout", s.host_planned_nbytes, l->host_nbytes);
    is_count(rig, "device_planned_nbytes, of the layout", s.device_planned_nbytes, l->device_nbytes);
}

static void probe_layout(abi_probe_t *p) {
    static abi_rig_t rig;
    zf_layout_t layout = {.struct_size = sizeof layout};
    zf_error_t err = {.struct_size = sizeof err};
    zf_status_t st;
    if (!abi_rig_open(&rig, p, p->env->plugin) || !abi_has_books(&rig) || !abi_rig_start(&rig, ABI_CREATED))
        return;
    abi_host_enter(&rig.host);
    st = rig.table->bind_params(rig.instance, rig.decls, ABI_RIG_PARAMS, sizeof rig.decls[0], rig.ids, &layout, &err);
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
