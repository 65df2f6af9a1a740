/* tests/plugin/test_state.c - zf.state/1 within one process: N steps = n steps, save, load, N - n steps, in every mode
 * and at every step of a window; compact checkpoints; other configurations; storage that fails. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "instance.h"
#include "state_rig.h"
#include "suite.h"

static const char *const configs[] = {
    "topk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 3\nfull_warm_up_rounds = 2",
    "topk_ratio = 0.3\nupdate_interval = 3\nselect_interval = 2\nfull_warm_up_rounds = 1\nstagger = false",
    "topk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 5\nfull_warm_up_rounds = 3\npublish_lag = 0",
    "topk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 3\nfull_warm_up_rounds = 2\ndeferred = mean",
    "topk_ratio = 0.5\nupdate_interval = 1\nselect_interval = 4\nfull_warm_up_rounds = 2",
    "topk_ratio = 1\nupdate_interval = 5\nselect_interval = 1\nfull_warm_up_rounds = 1",
    "topk_ratio = auto\nmax_topk_ratio = 0.4\nupdate_interval = 4\nselect_interval = 3\nfull_warm_up_rounds = 2\n"
    "max_swap_ratio = 0.2\nselect_strategy = auto",
    "topk_ratio = auto\nenergy = 1\nmax_topk_ratio = 1\nupdate_interval = 3\nselect_interval = 2\n"
    "full_warm_up_rounds = 3\ndeferred = mean",
    "topk_ratio = 0.2\nupdate_interval = 2\nfull_warm_up_rounds = 1\nselect_strategy = epoch",
    "topk_ratio = 0\nupdate_interval = 3\nfull_warm_up_rounds = 2",
    "topk_ratio = 0.3\nupdate_interval = 4\nselect_interval = 3\nfull_warm_up_rounds = 2\npredict = auto",
};
enum { WITH_PREDICT = sizeof configs / sizeof *configs - 1, N_CONFIGS = WITH_PREDICT };

static zt_rig_t rig, copy;
static zt_memory_store_t store;

/* ---- exact --------------------------------------------------------------------------------------------------------
 */

/* Every number of steps from 0 to 12. */
static void check_exact(int config) {
    for (int n = 0; n <= 12; n++) {
        zf_state_report_t saved = {.struct_size = sizeof saved}, loaded = {.struct_size = sizeof loaded};
        char when[64];
        snprintf(when, sizeof when, "configuration %d, saved after %d steps", config, n);
        zt_memory_store_start(&store);
        zt_state_open(&rig, configs[config]);
        zt_state_steps(&rig, n);
        ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, &saved));
        zt_state_open_copy(&copy, configs[config], 1);
        ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, &loaded));
        ck_assert_int_eq(saved.is_exact, 1);
        ck_assert_msg(loaded.is_exact == 1, "%s: taken as compact", when);
        ck_assert_uint_eq(saved.step, (uint64_t)n);
        ck_assert_uint_eq(loaded.step, (uint64_t)n);
        ck_assert_uint_eq(loaded.n_params, 6);
        zt_state_check_equal(&rig, &copy, when);
        for (int k = 0; k < 9; k++) {
            zt_state_steps(&rig, 1);
            zt_state_steps(&copy, 1);
            snprintf(when, sizeof when, "configuration %d, saved after %d, %d later", config, n, k + 1);
            zt_state_check_equal(&rig, &copy, when);
        }
        ZT_OK(&rig, rig.zf->quiesce(rig.inst, ZF_QUIESCE_FLUSH, &rig.err));
        ZT_OK(&copy, copy.zf->quiesce(copy.inst, ZF_QUIESCE_FLUSH, &copy.err));
        zt_state_check_equal(&rig, &copy, "after FLUSH");
        zt_rig_end(&rig);
        zt_rig_end(&copy);
        zt_memory_store_end(&store);
    }
}

START_TEST(exact_in_memory) {
    for (int i = 0; i < N_CONFIGS; i++)
        check_exact(i);
}
END_TEST

/* Where topk_ratio = auto decides, a checkpoint may not select more than device memory was planned for. */
START_TEST(a_selection_beyond_the_plan) {
    static const char text[] = "topk_ratio = auto\nupdate_interval = 2\nfull_warm_up_rounds = 1";
    zfi_plan_t *plan;
    uint64_t room, fixed = 0;
    zt_memory_store_start(&store);
    zt_state_open(&rig, text);
    zt_state_steps(&rig, 3);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    zt_state_open_copy(&copy, text, 1);
    plan = &copy.inst->plan;
    for (uint32_t i = 0; i < plan->n_matrices; i++) /* k of the others is still 0 */
        fixed += plan->matrices[i].k * zfi_channel_elems(&plan->matrices[i]);
    room = plan->n_sel_elems;
    plan->n_sel_elems = fixed;
    ck_assert_int_eq(zt_load(&copy, &store.table, NULL, 0, NULL), ZF_ERR_CHECKPOINT);
    ck_assert_msg(strstr(copy.err.message, "max_topk_ratio allows") != NULL, "%s", copy.err.message);
    copy.inst->plan.n_sel_elems = room;
    ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, NULL)); /* nothing was half done */
    zt_state_check_equal(&rig, &copy, "loaded at last");
    zt_rig_end(&rig);
    zt_rig_end(&copy);
    zt_memory_store_end(&store);
}
END_TEST

static void decay(void *ctx, const zf_rule_update_t *u) {
    (void)ctx;
    for (uint64_t i = 0; i < u->n_elems; i++) {
        u->m[i] = 0.5f * u->m[i] + u->g[i];
        u->w[i] -= (float)u->lr / (float)u->n * u->m[i];
    }
}

static const zf_rule_callback_t callback = {
    .struct_size = sizeof callback, .n_moments = 1, .name = "decay", .update = decay};

static const struct {
    zt_state_mode_t mode;
    int config;
} modes[] = {
    {{ZF_RULE_ADAMW, NULL, "moments_dtype = bfloat16_stochastic"}, WITH_PREDICT},
    {{ZF_RULE_ADAM, NULL, "moments_dtype = bfloat16"}, WITH_PREDICT},
    {{ZF_RULE_SGD_NESTEROV, NULL, "moments_dtype = bfloat16_stochastic"}, 3},
    {{ZF_RULE_LION, NULL, ""}, 0},
    {{ZF_RULE_CALLBACK, &callback, "moments_dtype = bfloat16_stochastic"}, 1},
    {{ZF_RULE_CALLBACK, &callback, ""}, 3},
};

static void check_running(int config);

START_TEST(exact_with_other_rules_and_moments) {
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        zt_state_mode = modes[i].mode;
        check_exact(modes[i].config);
        check_running(modes[i].config);
    }
}
END_TEST

START_TEST(another_rule_is_refused) {
    zt_memory_store_start(&store);
    zt_state_open(&rig, configs[0]);
    zt_state_steps(&rig, 5);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    zt_state_mode.rule = ZF_RULE_LION;
    zt_state_open(&copy, configs[0]);
    ck_assert_int_eq(zt_load(&copy, &store.table, NULL, 0, NULL), ZF_ERR_CHECKPOINT);
    ck_assert_ptr_nonnull(strstr(copy.err.message, "update rule 0, this instance has 4"));
    zt_rig_end(&rig);
    zt_rig_end(&copy);
    zt_memory_store_end(&store);
}
END_TEST

/* A running instance goes back to where it was. */
static void check_running(int config) {
    for (int n = 3; n <= 8; n++) {
        zt_memory_store_start(&store);
        zt_state_open(&rig, configs[config]);
        zt_state_open(&copy, configs[config]);
        zt_state_steps(&rig, n);
        zt_state_steps(&copy, n);
        ZT_OK(&copy, zt_save(&copy, &store.table, NULL, 0, NULL));
        zt_state_steps(&copy, 1 + n % 4);
        ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, NULL));
        zt_state_check_equal(&rig, &copy, "went back");
        zt_state_steps(&rig, 9);
        zt_state_steps(&copy, 9);
        zt_state_check_equal(&rig, &copy, "went on");
        zt_rig_end(&rig);
        zt_rig_end(&copy);
        zt_memory_store_end(&store);
    }
}

START_TEST(exact_into_a_running_instance) {
    for (int i = 0; i < N_CONFIGS; i++)
        check_running(i);
}
END_TEST

START_TEST(exact_in_a_directory) {
    char path[128];
    zf_state_report_t report = {.struct_size = sizeof report};
    snprintf(path, sizeof path, "%s/ckpt", zt_state_dir());
    zt_state_open(&rig, configs[0]);
    for (int k = 0; k < 3; k++) { /* each replaces the one before */
        zt_state_steps(&rig, 3);
        ZT_OK(&rig, zt_save(&rig, NULL, path, 0, &report));
    }
    zt_state_open_copy(&copy, configs[0], 1);
    ZT_OK(&copy, zt_load(&copy, NULL, path, 0, &report));
    ck_assert_uint_eq(report.step, 9);
    zt_state_check_equal(&rig, &copy, "loaded from a directory");
    zt_rig_end(&rig);
    zt_rig_end(&copy);
}
END_TEST

ZT_MAIN("state", a_selection_beyond_the_plan, exact_in_memory, exact_with_other_rules_and_moments,
        another_rule_is_refused, exact_into_a_running_instance, exact_in_a_directory)
