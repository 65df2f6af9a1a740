/* abi_cases.c - bad calls of abi_cases.def, and what a non-finite gradient does.
 *
 * All cases of one slot run one after the other on one instance in the middle of a window: each must leave every bit of
 * its training state, and at the end it trains on, to the same bits as an instance that never saw a bad call. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "abi_args.h"
#include "abi_probes.h"

/* ---- what the statements of the list use ------------------------------------------------------------------------- */

static void text(abi_args_t *a, const char *text) {
    size_t n = strlen(text);
    memset(a->text, 0, sizeof a->text);
    memcpy(a->text, text, n);
    a->create.config_text = a->text;
    a->create.config_text_nbytes = n;
}

static void path(abi_args_t *a, const char *path) {
    a->create.config_text = NULL;
    a->create.config_text_nbytes = 0;
    a->create.config_path = path;
}

static void long_line(abi_args_t *a) {
    text(a, "[zenflow]\ntopk_ratio = 0.1 ; ");
    memset(a->text + a->create.config_text_nbytes, 'x', 400);
    a->create.config_text_nbytes += 400;
}

#define CONCAT2(a, b) a##b
#define CONCAT(a, b) CONCAT2(a, b)
#define CASE(rule, slot, want, needle, what, ...)                                                                      \
    static void CONCAT(spoil_, __LINE__)(abi_args_t * a) { (void)(__VA_ARGS__); }
#include "abi_cases.def"
#undef CASE

typedef struct bad_case {
    abi_rule_t rule;
    const char *slot;
    zf_status_t want;
    const char *needle, *what;
    void (*spoil)(abi_args_t *a);
} bad_case_t;

#define CASE(rule, slot, want, needle, what, ...) {ABI_RULE_##rule, slot, want, needle, what, CONCAT(spoil_, __LINE__)},
static const bad_case_t cases[] = {
#include "abi_cases.def"
};
#undef CASE
enum { N_CASES = sizeof cases / sizeof cases[0], N_LATER_STEPS = 4 };

/* ---- running them ------------------------------------------------------------------------------------------------ */

static const char *current; /* slot of the probe that the child runs; set before the fork */

static int start_anew(abi_rig_t *rig, abi_stage_t stage) {
    abi_rig_end(rig);
    abi_rig_describe(rig, 1);
    return abi_rig_start(rig, stage);
}

/* Slots and sums are not on view: the training goes on, and must end where it ends without the refused calls. */
static void compare_futures(abi_rig_t *rig, uint64_t alone) {
    if (!abi_rig_train(rig, N_LATER_STEPS, ABI_RULE_USABLE))
        return;
    abi_check(rig->probe, ABI_RULE_UNCHANGED, !alone || abi_rig_hash(rig) == alone,
              "%s: %u steps with refused calls between end in another state than without them", current, rig->n_steps);
}

static void run_cases(abi_probe_t *probe) {
    static abi_rig_t rig;
    static abi_args_t args;
    abi_stage_t stage = strcmp(current, "bind_params") == 0 ? ABI_CREATED : ABI_ACTIVE;
    uint64_t alone =
        abi_rig_hash_alone(probe, probe->env->plugin, 1, N_LATER_STEPS + (stage == ABI_ACTIVE ? ABI_RIG_STEPS : 0));
    if (!abi_rig_open(&rig, probe, probe->env->plugin) || !abi_rig_start(&rig, stage))
        return;
    for (size_t i = 0; i < N_CASES; i++) {
        const bad_case_t *c = &cases[i];
        if (strcmp(c->slot, current) != 0 || !abi_args_fill(&args, &rig, "zf_plugin_t", c->slot))
            continue;
        c->spoil(&args);
        if (!abi_refused(&args, c->rule, c->want, c->needle, c->what) && !start_anew(&rig, stage))
            return;
    }
    if (stage == ABI_CREATED) {
        zf_error_t err = {.struct_size = sizeof err};
        zf_status_t st;
        abi_host_enter(&rig.host);
        st = rig.table->bind_params(rig.instance, rig.decls, ABI_RIG_PARAMS, sizeof rig.decls[0], rig.ids, NULL, &err);
        abi_host_leave(&rig.host);
        if (!abi_check(probe, ABI_RULE_USABLE, st == ZF_OK, "bind_params after refused calls returned %d: %s", st,
                       err.message))
            return;
        rig.stage = ABI_BOUND;
    }
    compare_futures(&rig, alone);
    abi_rig_end(&rig);
}

/* ---- non-finite gradients ---------------------------------------------------------------------------------------- */

static void check_skipped(abi_rig_t *rig, zf_status_t st, const zf_step_report_t *report, const char *what) {
    abi_probe_t *p = rig->probe;
    abi_check(p, ABI_RULE_NONFINITE, st == ZF_SKIPPED, "%s: step with WAIT returned %d, not ZF_SKIPPED", what, st);
    abi_check(p, ABI_RULE_NONFINITE, report->has_report && !report->applied && report->skip_reason == ZF_SKIP_NONFINITE,
              "%s: report: has_report %d, applied %d, skip_reason %d", what, report->has_report, report->applied,
              report->skip_reason);
    abi_check(p, ABI_RULE_NONFINITE, report->nonfinite_param == rig->ids[1], "%s: report names parameter %u, not %u",
              what, report->nonfinite_param, rig->ids[1]);
}

/* A skipped step: masters and moments keep their bits, visible values stay finite. */
static void skip_a_step(abi_rig_t *rig, uint16_t bits, const char *what) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_step_report_t report = {.struct_size = sizeof report};
    zf_status_t st;
    abi_try(rig->probe, "%s", what);
    abi_rig_set_gradients(rig);
    memcpy((char *)rig->grads[1] + 2 * 13, &bits, sizeof bits);
    abi_host_enter(&rig->host);
    st = rig->table->grads_ready(rig->instance, rig->items, ABI_RIG_TRAINED, sizeof rig->items[0], &rig->stream, NULL,
                                 &err);
    abi_check(rig->probe, ABI_RULE_NONFINITE, st >= 0, "%s: grads_ready returned %d: %s", what, st, err.message);
    st = rig->table->step(rig->instance, &rig->step, &report, &err);
    abi_host_leave(&rig->host);
    rig->n_steps++;
    check_skipped(rig, st, &report, what);
}

static int all_finite(const abi_rig_t *rig) {
    for (size_t i = 0; i < 30; i++)
        if (!isfinite(((const float *)rig->memory[0])[i]))
            return 0;
    for (size_t i = 0; i < 32; i++)
        if ((((const uint16_t *)rig->memory[1])[i] & 0x7F80) == 0x7F80)
            return 0;
    return 1;
}

static void run_nonfinite(abi_probe_t *probe) {
    static abi_rig_t rig;
    size_t n;
    unsigned char *before, *after;
    if (!abi_rig_open(&rig, probe, probe->env->plugin) || !abi_rig_start(&rig, ABI_BOUND))
        return;
    if (!abi_rig_train(&rig, 1, ABI_RULE_VALID))
        return; /* in warm-up: nothing is deferred, so nothing at all may move */
    rig.stage = ABI_ACTIVE;
    before = abi_rig_state(&rig, &n);
    skip_a_step(&rig, 0x7FC0, "NaN in b.weight");
    after = abi_rig_state(&rig, &n);
    for (size_t i = 0; i < n; i++)
        if (before[i] != after[i] &&
            i < sizeof rig.memory) { /* what is counted for the choice may move on, weights may not */
            char where[80];
            abi_rig_describe_byte(&rig, i, where, sizeof where);
            abi_check(probe, ABI_RULE_NONFINITE, 0, "a skipped step changed %s", where);
            break;
        }
    free(before);
    free(after);
    abi_rig_train(&rig, 3, ABI_RULE_USABLE);
    skip_a_step(&rig, 0x7F80, "infinity in b.weight");
    abi_rig_train(&rig, 3, ABI_RULE_USABLE);
    abi_check(probe, ABI_RULE_NONFINITE, all_finite(&rig), "weights are not finite after a skipped step");
    abi_rig_end(&rig);
}

void abi_case_probes(abi_report_t *report, const abi_env_t *env) {
    for (size_t i = 0; i < N_CASES; i++) {
        if (i && strcmp(cases[i].slot, cases[i - 1].slot) == 0)
            continue;
        current = cases[i].slot;
        abi_probe_run(report, env, current, run_cases);
    }
    abi_probe_run(report, env, "non-finite gradient", run_nonfinite);
}
