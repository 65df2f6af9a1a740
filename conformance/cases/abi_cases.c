/* SPDX-License-Identifier: Apache-2.0 */
/* abi_cases.c - bad calls of abi_cases.def.
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
#define CASE(rule, slots, want, needle, what, ...)                                                                     \
    static void CONCAT(spoil_, __LINE__)(abi_args_t * a) { (void)(__VA_ARGS__); }
#include "abi_cases.def"
#undef CASE

typedef struct bad_case {
    abi_rule_t rule;
    const char *slots; /* separated by blanks */
    zf_status_t want;
    const char *needle, *what;
    void (*spoil)(abi_args_t *a);
} bad_case_t;

#define CASE(rule, slots, want, needle, what, ...)                                                                     \
    {ABI_RULE_##rule, slots, want, needle, what, CONCAT(spoil_, __LINE__)},
static const bad_case_t cases[] = {
#include "abi_cases.def"
};
#undef CASE
enum { N_CASES = sizeof cases / sizeof cases[0], N_LATER_STEPS = 4 };

/* ---- running them ------------------------------------------------------------------------------------------------ */

static int is_of(const bad_case_t *c, const char *slot) {
    size_t n = strlen(slot);
    for (const char *at = c->slots; (at = strstr(at, slot)); at += n)
        if ((at == c->slots || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0'))
            return 1;
    return 0;
}

static const abi_entry_t *current; /* slot of the probe that the child runs; set before the fork */

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
              "%s: %u steps with refused calls between end in another state than without them", current->name,
              rig->n_steps);
}

/* What create refuses of a text, check refuses. */
static void check_text(abi_rig_t *rig, const abi_args_t *a, const bad_case_t *c) {
    const zf_config_ext_t *ext = rig->table->get_extension(ZF_EXT_CONFIG);
    zf_error_t err = {.struct_size = sizeof err};
    if (!ext || c->want != ZF_ERR_CONFIG || a->create.config_path || a->create.config_text != a->text)
        return;
    zf_status_t st =
        ext->check(a->text, a->create.config_text_nbytes, a->create.overrides, a->create.n_overrides, &err);
    abi_check(rig->probe, ABI_RULE_CONFIG, st == ZF_ERR_CONFIG && (!c->needle || strstr(err.message, c->needle)),
              "check, %s: returned %d: %.200s", c->what, st, err.message);
}

static void run_cases(abi_probe_t *probe) {
    static abi_rig_t rig;
    static abi_args_t args;
    abi_stage_t stage = strcmp(current->name, "bind_params") == 0 ? ABI_CREATED : ABI_ACTIVE;
    uint64_t alone = abi_rig_hash_alone(probe, 1, N_LATER_STEPS + (stage == ABI_ACTIVE ? ABI_RIG_STEPS : 0));
    if (!abi_rig_open(&rig, probe, probe->plugin) || !abi_rig_start(&rig, stage))
        return;
    for (size_t i = 0; i < N_CASES; i++) {
        const bad_case_t *c = &cases[i];
        if (!is_of(c, current->name) || !abi_args_fill(&args, &rig, current->owner, current->name))
            continue;
        c->spoil(&args);
        check_text(&rig, &args, c);
        if (!abi_refused(&args, c->rule, c->want, c->needle, c->what) && !start_anew(&rig, stage))
            return;
    }
    if (stage == ABI_CREATED) {
        zf_status_t st = abi_rig_bind(&rig, NULL);
        if (!abi_rig_check(&rig, ABI_RULE_USABLE, st == ZF_OK, "bind_params after refused calls", st))
            return;
        rig.stage = ABI_BOUND;
    }
    compare_futures(&rig, alone);
    abi_rig_end(&rig);
}

void abi_case_probes(abi_probe_t *probe) {
    size_t n, c;
    const abi_entry_t *entries = abi_table(&n);
    for (size_t i = 0; i < n; i++) {
        current = &entries[i];
        for (c = 0; c < N_CASES && !is_of(&cases[c], current->name);)
            c++;
        if (c < N_CASES)
            abi_probe_run(probe, current->name, run_cases);
    }
}
