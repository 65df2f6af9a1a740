/* SPDX-License-Identifier: Apache-2.0 */
/* test_plugin_opt.c - training through the plugin that ZFPLUGIN_PATH names equals training with the host's AdamW, bit
 * for bit, where the plugin claims so: in windows of one step, whose deferred values appear at fetches, so that a host
 * which forgets to fetch trains on stale weights; and where every channel runs ahead. */
#define _POSIX_C_SOURCE 200809L
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "folder.h"
#include "host/run.h"
#include "suite.h"

static host_workload_t workload;
static host_run_options_t options;
static const char *overrides[] = {"zenflow.update_interval=1", "zenflow.publish_lag=0"};

static void setup(void) {
    glue_error_t err = {""};

    zt_folder_make();
    host_run_defaults(&options);
    options.synthetic_dir = zt_folder();
    options.max_tokens = 64;
    options.model.hidden = 32;
    options.model.ffn = 64;
    options.train.n_steps = 40;
    options.train.batch = 8;
    options.plugin.overrides = overrides;
    options.plugin.n_overrides = 2;
    ck_assert_msg(host_workload_load(&options, &workload, &err) == 0, "%s", err.text);
}

static void teardown(void) {
    host_workload_free(&workload);
    zt_folder_remove();
}

static host_run_result_t runs(host_optimizer_kind_t kind) {
    glue_error_t err = {""};
    host_run_result_t result;

    options.optimizer = kind;
    ck_assert_msg(host_run(&workload, &options, &result, &err) == 0, "%s", err.text);
    return result;
}

/* Every step's loss and the final dev loss are the same bits. */
static void equals_adamw(void) {
    host_run_result_t a = runs(HOST_OPTIMIZER_ADAMW), b = runs(HOST_OPTIMIZER_PLUGIN);

    for (size_t i = 0; i < a.train.n_steps; i++)
        ck_assert_msg(memcmp(&a.train.losses[i], &b.train.losses[i], sizeof(double)) == 0,
                      "step %zu: AdamW has loss %.17g, %s %.17g", i + 1, a.train.losses[i], b.optimizer_name,
                      b.train.losses[i]);
    ck_assert(a.scores.loss == b.scores.loss && a.scores.main == b.scores.main);
    host_run_result_free(&a);
    host_run_result_free(&b);
}

START_TEST(test_fetched_values) { equals_adamw(); }
END_TEST

START_TEST(test_bf16) {
    options.model.dtype = HOST_BFLOAT16;
    equals_adamw();
}
END_TEST

START_TEST(test_accumulation) {
    options.train.accumulation = 3;
    equals_adamw();
    options.train.deliver_parts = 1;
    equals_adamw();
}
END_TEST

START_TEST(test_all_channels_run_ahead) {
    overrides[0] = "zenflow.topk_ratio=1";
    options.plugin.n_overrides = 1;
    equals_adamw();
}
END_TEST

START_TEST(test_failures) {
    glue_error_t err = {""};
    host_run_result_t result;

    options.optimizer = HOST_OPTIMIZER_PLUGIN;
    overrides[0] = "zenflow.nonsense=1";
    options.plugin.n_overrides = 1;
    ck_assert_int_eq(host_run(&workload, &options, &result, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "nonsense"));
    options.plugin.plugin_path = "/nonexistent/plugin.so";
    ck_assert_int_eq(host_run(&workload, &options, &result, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "/nonexistent/plugin.so"));
}
END_TEST

/* Defaults: it trains, and its counters are there. */
START_TEST(test_defaults) {
    host_run_result_t r;

    options.plugin.n_overrides = 0;
    options.train.n_steps = 60;
    r = runs(HOST_OPTIMIZER_PLUGIN);
    ck_assert_double_lt(r.train.losses[59], 1.0);
    ck_assert_uint_gt(r.n_counters, 10);
    ck_assert_str_eq(r.counters[0].name, "steps");
    ck_assert_double_eq(r.counters[0].value, 60.0);
    host_run_result_free(&r);
}
END_TEST

ZT_MAIN_WITH("plugin optimizer", setup, teardown, test_fetched_values, test_bf16, test_accumulation,
             test_all_channels_run_ahead, test_failures, test_defaults)
