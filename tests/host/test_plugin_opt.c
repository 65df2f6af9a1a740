/* SPDX-License-Identifier: Apache-2.0 */
/* test_plugin_opt.c - training through a plugin equals training with the host's AdamW, bit for bit: with the mock of
 * mock_plugin.c always, and with the real plugin that ZFPLUGIN_PATH names where every channel runs ahead (law 1 of the
 * engine). MOCK_PLUGIN_PATH names the mock. */
#define _POSIX_C_SOURCE 200809L
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/run.h"
#include "suite.h"

static char folder[] = "/tmp/zf_test_plugin_XXXXXX";
static host_workload_t workload;
static host_run_options_t options;
static const char *overrides[4];
static const char *mock_path;

static void setup(void) {
    glue_error_t err = {""};

    ck_assert_ptr_nonnull(mkdtemp(folder));
    host_run_defaults(&options);
    options.synthetic_dir = folder;
    options.max_tokens = 64;
    options.model.hidden = 32;
    options.model.ffn = 64;
    options.train.n_steps = 40;
    options.train.batch = 8;
    options.plugin.plugin_path = mock_path;
    options.plugin.overrides = overrides;
    ck_assert_msg(host_workload_load(&options, &workload, &err) == 0, "%s", err.text);
}

static void teardown(void) {
    static const char *const names[] = {"train.tsv", "dev.tsv", "vocab.txt"};
    char path[128];

    host_workload_free(&workload);
    for (int i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(folder);
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

START_TEST(test_mock) { equals_adamw(); }
END_TEST

START_TEST(test_mock_bf16) {
    options.model.dtype = HOST_BFLOAT16;
    equals_adamw();
}
END_TEST

START_TEST(test_mock_accumulation) {
    options.train.accumulation = 3;
    equals_adamw();
    options.train.deliver_parts = 1;
    equals_adamw();
}
END_TEST

START_TEST(test_failures) {
    glue_error_t err = {""};
    host_run_result_t result;

    options.optimizer = HOST_OPTIMIZER_PLUGIN;
    overrides[0] = "mock.refuse=1";
    options.plugin.n_overrides = 1;
    ck_assert_int_eq(host_run(&workload, &options, &result, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "told to refuse"));
    options.plugin.plugin_path = "/nonexistent/plugin.so";
    ck_assert_int_eq(host_run(&workload, &options, &result, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "/nonexistent/plugin.so"));
}
END_TEST

/* The real plugin. */
static void use_real_plugin(void) {
    options.plugin.plugin_path = NULL;
    overrides[0] = "zenflow.topk_ratio=1";
    options.plugin.n_overrides = 1;
}

START_TEST(test_law_1) {
    use_real_plugin();
    equals_adamw();
}
END_TEST

START_TEST(test_law_1_bf16_accumulation) {
    use_real_plugin();
    options.model.dtype = HOST_BFLOAT16;
    options.train.accumulation = 2;
    equals_adamw();
    options.train.deliver_parts = 1;
    equals_adamw();
}
END_TEST

/* Defaults: it trains, and its counters are there. */
START_TEST(test_real_defaults) {
    host_run_result_t r;

    options.plugin.plugin_path = NULL;
    options.train.n_steps = 60;
    r = runs(HOST_OPTIMIZER_PLUGIN);
    ck_assert_double_lt(r.train.losses[59], 1.0);
    ck_assert_uint_gt(r.n_counters, 10);
    ck_assert_str_eq(r.counters[0].name, "steps");
    ck_assert_double_eq(r.counters[0].value, 60.0);
    host_run_result_free(&r);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {test_mock, test_mock_bf16, test_mock_accumulation, test_failures,
                                  /* with the real plugin */
                                  test_law_1, test_law_1_bf16_accumulation, test_real_defaults};
    size_t n = sizeof tests / sizeof tests[0];

    mock_path = getenv("MOCK_PLUGIN_PATH");
    if (mock_path == NULL) {
        (void)puts("skipped: MOCK_PLUGIN_PATH is not set; it must name the mock plugin built beside this test");
        return 77;
    }
    if (getenv("ZFPLUGIN_PATH") == NULL) {
        (void)puts("without the real plugin: ZFPLUGIN_PATH is not set");
        n -= 3;
    }
    return zt_run_suite("plugin optimizer", setup, teardown, tests, n);
}
