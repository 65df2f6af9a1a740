/* SPDX-License-Identifier: Apache-2.0 */
/* test_checkpoint.c - a run saved after every step and resumed from each of them goes on to the same bits, in the
 * middle of the plugin's windows too, and saving changes nothing; what is damaged or of another run is refused with the
 * reason. The plugin is the real one, which ZFPLUGIN_PATH names; MOCK_PLUGIN_PATH names one without zf.state/1. */
#define _XOPEN_SOURCE 700
#include <check.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/checkpoint.h"
#include "suite.h"

enum { N_STEPS = 20, PATH_NBYTES = 256 };

static char folder[] = "/tmp/zf_test_checkpoint_XXXXXX";
static host_workload_t workload;
static host_run_options_t options;
static const char *overrides[4];

static void path_of(char out[PATH_NBYTES], const char *name) {
    (void)snprintf(out, PATH_NBYTES, "%s/%s", folder, name);
}

static void setup(void) {
    glue_error_t err = {""};

    ck_assert_ptr_nonnull(mkdtemp(folder));
    host_run_defaults(&options);
    options.synthetic_dir = folder;
    options.max_tokens = 32;
    options.model.hidden = 16;
    options.model.ffn = 32;
    options.model.n_layers = 1;
    options.model.dropout = 0.1;
    options.train.n_steps = N_STEPS;
    options.train.batch = 4;
    options.plugin.overrides = overrides;
    ck_assert_msg(host_workload_load(&options, &workload, &err) == 0, "%s", err.text);
    workload.dev.n_rows = 50;
    workload.train.n_rows = 30; /* several epochs */
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *place) {
    (void)info, (void)type, (void)place;
    return remove(path);
}

static void teardown(void) {
    host_workload_free(&workload);
    (void)nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static void use_plugin(void) {
    static const char *const keys[] = {"zenflow.full_warm_up_rounds=5", "zenflow.select_interval=4",
                                       "zenflow.update_interval=4", "host.threads=1"};

    options.optimizer = HOST_OPTIMIZER_PLUGIN;
    options.plugin.n_overrides = sizeof keys / sizeof keys[0];
    for (size_t i = 0; i < options.plugin.n_overrides; i++)
        overrides[i] = keys[i];
}

static host_run_result_t runs(void) {
    host_run_result_t result;
    glue_error_t err = {""};

    ck_assert_msg(host_run(&workload, &options, &result, &err) == 0, "%s", err.text);
    return result;
}

static void same(const host_run_result_t *a, const host_run_result_t *b) {
    ck_assert_uint_eq(a->train.n_steps, b->train.n_steps);
    for (size_t i = 0; i < a->train.n_steps; i++)
        ck_assert_msg(memcmp(&a->train.losses[i], &b->train.losses[i], sizeof(double)) == 0,
                      "resumed after step %zu: step %zu has loss %.17g, without %.17g", b->first_step, i + 1,
                      b->train.losses[i], a->train.losses[i]);
    ck_assert(a->scores.loss == b->scores.loss && a->scores.main == b->scores.main);
}

static size_t read_file(const char *path, unsigned char **out) {
    FILE *file = fopen(path, "rb");
    struct stat info;

    ck_assert_msg(file != NULL && stat(path, &info) == 0, "%s", path);
    *out = malloc((size_t)info.st_size + 1);
    ck_assert_ptr_nonnull(*out);
    ck_assert_uint_eq(fread(*out, 1, (size_t)info.st_size, file), (size_t)info.st_size);
    (void)fclose(file);
    return (size_t)info.st_size;
}

static void write_file(const char *path, const unsigned char *bytes, size_t n) {
    FILE *file = fopen(path, "wb");

    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, n, file), n);
    ck_assert_int_eq(fclose(file), 0);
}

static void same_final_weights(const char *a, const char *b) {
    char path[2][2 * PATH_NBYTES];
    unsigned char *bytes[2];
    size_t n[2];

    (void)snprintf(path[0], sizeof path[0], "%s/checkpoint-%d/" HOST_WEIGHTS_FILE, a, N_STEPS);
    (void)snprintf(path[1], sizeof path[1], "%s/checkpoint-%d/" HOST_WEIGHTS_FILE, b, N_STEPS);
    for (int i = 0; i < 2; i++)
        n[i] = read_file(path[i], &bytes[i]);
    ck_assert(n[0] == n[1] && n[0] > 1000 && memcmp(bytes[0], bytes[1], n[0]) == 0);
    free(bytes[0]);
    free(bytes[1]);
}

/* Saves after each step; resumes from each. */
static void goes_on_from_every_step(void) {
    host_run_result_t plain = runs(), saved, resumed;
    char all[PATH_NBYTES], one[2 * PATH_NBYTES], other[PATH_NBYTES];

    path_of(all, "all");
    options.save_dir = all;
    options.save_every = 1;
    options.keep = N_STEPS;
    saved = runs();
    same(&plain, &saved);
    for (size_t step = 1; step <= N_STEPS; step++) {
        char name[32];

        (void)snprintf(one, sizeof one, "%s/checkpoint-%zu", all, step);
        (void)snprintf(name, sizeof name, "from-%zu", step);
        path_of(other, name);
        options.resume_dir = one;
        options.save_dir = step < N_STEPS ? other : NULL;
        options.save_every = options.save_dir != NULL ? 3 : 0;
        options.keep = options.save_dir != NULL ? 1 : 0;
        resumed = runs();
        ck_assert_uint_eq(resumed.first_step, step);
        same(&plain, &resumed);
        if (step < N_STEPS)
            same_final_weights(all, other);
        host_run_result_free(&resumed);
    }
    host_run_result_free(&saved);
    host_run_result_free(&plain);
}

START_TEST(test_adamw) { goes_on_from_every_step(); }
END_TEST

START_TEST(test_adamw_bf16_parts) {
    options.model.dtype = HOST_BFLOAT16;
    options.train.accumulation = 2;
    options.train.deliver_parts = 1;
    goes_on_from_every_step();
}
END_TEST

START_TEST(test_plugin) {
    use_plugin();
    goes_on_from_every_step();
}
END_TEST

START_TEST(test_plugin_bf16_accumulation) {
    use_plugin();
    options.model.dtype = HOST_BFLOAT16;
    options.train.accumulation = 2;
    goes_on_from_every_step();
}
END_TEST

static void refuses(const char *reason) {
    host_run_result_t result;
    glue_error_t err = {""};

    ck_assert_msg(host_run(&workload, &options, &result, &err) == -1, "taken, though %s", reason);
    ck_assert_msg(strstr(err.text, reason) != NULL, "found \"%s\"; \"%s\" is needed in it", err.text, reason);
}

/* One checkpoint after step 6; options then resume it. */
static void save_six(char dir[PATH_NBYTES]) {
    host_run_result_t result;

    path_of(dir, "six");
    options.save_dir = dir;
    options.save_every = 6;
    options.keep = N_STEPS;
    result = runs();
    host_run_result_free(&result);
    (void)snprintf(dir, PATH_NBYTES, "%s/six/checkpoint-6", folder);
    options.save_dir = NULL;
    options.save_every = options.keep = 0;
    options.resume_dir = dir;
}

/* A flipped byte anywhere, bytes less, no file: refused, with this text. */
static void refuses_damaged(const char *dir, const char *name, const char *reason) {
    char path[2 * PATH_NBYTES];
    unsigned char *bytes;
    size_t n;

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    n = read_file(path, &bytes);
    for (size_t i = 0; i < 8; i++) {
        size_t place = i * (n - 1) / 7;

        bytes[place] ^= 1;
        write_file(path, bytes, n);
        refuses(reason);
        bytes[place] ^= 1;
    }
    write_file(path, bytes, n - 2);
    refuses(reason);
    ck_assert_int_eq(unlink(path), 0);
    refuses("checkpoint-6");
    write_file(path, bytes, n);
    free(bytes);
}

/* more_file: of the plugin's, or NULL. */
static void refuses_damage(const char *state_file, const char *more_file) {
    char dir[PATH_NBYTES];
    host_run_result_t result;

    save_six(dir);
    refuses_damaged(dir, HOST_CHECKPOINT_INDEX, HOST_CHECKPOINT_INDEX);
    refuses_damaged(dir, HOST_WEIGHTS_FILE, HOST_WEIGHTS_FILE ": damaged");
    refuses_damaged(dir, "config.json", "config.json: damaged");
    refuses_damaged(dir, state_file, state_file);
    if (more_file != NULL)
        refuses_damaged(dir, more_file, "checkpoint-6/plugin: ");
    result = runs(); /* whole again */
    ck_assert_uint_eq(result.first_step, 6);
    host_run_result_free(&result);
}

START_TEST(test_damaged_adamw) { refuses_damage("adamw.safetensors", NULL); }
END_TEST

START_TEST(test_damaged_plugin) {
    use_plugin();
    refuses_damage("plugin/zf_state.json", "plugin/zf_state-00001.safetensors");
}
END_TEST

/* A loss in the index that still is JSON. */
START_TEST(test_changed_number) {
    char dir[PATH_NBYTES], path[2 * PATH_NBYTES], *digit;
    unsigned char *bytes;
    size_t n;

    save_six(dir);
    (void)snprintf(path, sizeof path, "%s/" HOST_CHECKPOINT_INDEX, dir);
    n = read_file(path, &bytes);
    bytes[n] = '\0';
    digit = strstr((char *)bytes, "\"losses\"");
    ck_assert_ptr_nonnull(digit);
    digit = strstr(digit, "0.") + 3;
    *digit = *digit == '5' ? '6' : '5';
    write_file(path, bytes, n);
    refuses("damaged: its SHA-256");
    free(bytes);
}
END_TEST

START_TEST(test_another_run) {
    host_run_options_t before;
    char dir[PATH_NBYTES];

    save_six(dir);
    before = options;
    options.train.seed = 2;
    refuses("seed is \"1\" there and \"2\" here");
    options = before;
    options.train.n_steps = N_STEPS + 1;
    refuses("steps is 20 there and 21 here");
    options = before;
    options.train.hyper.lr = 2e-3;
    refuses("lr is 0.001 there and 0.002 here");
    options = before;
    options.model.hidden = 32;
    refuses("hidden is 16 there and 32 here");
    options = before;
    use_plugin();
    refuses("optimizer is \"adamw\" there and \"plugin\" here");
    options = before;
    options.plugin.overrides = overrides;
    workload.train.targets[0] = 1.0 - workload.train.targets[0];
    refuses("training rows (SHA-256)");
}
END_TEST

START_TEST(test_another_configuration) {
    char dir[PATH_NBYTES];

    use_plugin();
    save_six(dir);
    overrides[2] = "zenflow.update_interval=2";
    refuses("to the bit: zenflow.update_interval was 4, is 2");
}
END_TEST

START_TEST(test_folders) {
    char dir[PATH_NBYTES], six[PATH_NBYTES], empty[PATH_NBYTES];
    host_run_result_t result;

    save_six(dir);
    path_of(six, "six");
    options.save_dir = six; /* whose newest is 20 */
    refuses("checkpoint-20: is there and is not where this run starts");
    options.resume_dir = NULL;
    refuses("checkpoint-20: is there and is not where this run starts");
    options.resume_dir = six;
    result = runs(); /* the newest, already at the end: only scores */
    ck_assert_uint_eq(result.first_step, N_STEPS);
    host_run_result_free(&result);
    path_of(empty, "empty");
    ck_assert_int_eq(mkdir(empty, 0777), 0);
    options.resume_dir = empty;
    refuses("holds no checkpoint");
    options.resume_dir = "/nonexistent";
    refuses("/nonexistent");
    options.resume_dir = options.save_dir = NULL;
    options.keep = 2;
    refuses("--save DIR");
    options.save_dir = "/proc/nowhere";
    refuses("/proc/nowhere: cannot make the folder");
}
END_TEST

/* An optimizer whose disk is full. */
static int save_half(host_optimizer_t *optimizer, const char *dir, glue_error_t *err) {
    char path[2 * PATH_NBYTES];

    (void)optimizer;
    (void)snprintf(path, sizeof path, "%s/half", dir);
    write_file(path, (const unsigned char *)"half", 4);
    return glue_fail(err, "no space left");
}

/* The folder of a save that fails is removed and the older checkpoint stays. */
START_TEST(test_failed_save) {
    static const host_optimizer_ops_t ops = {.name = "full", .save = save_half};
    host_optimizer_t optimizer = {.ops = &ops};
    host_checkpoint_t c = {.options = &options, .workload = &workload, .optimizer = &optimizer};
    char dir[PATH_NBYTES], path[2 * PATH_NBYTES];
    double losses[N_STEPS + 1] = {0.0};
    glue_error_t err = {""};

    save_six(dir);
    path_of(dir, "six");
    options.save_dir = dir;
    ck_assert_int_eq(host_checkpoint_save(&c, N_STEPS + 1, losses, &err), -1);
    ck_assert_str_eq(err.text, "no space left");
    (void)snprintf(path, sizeof path, "%s/checkpoint-21.part", dir);
    ck_assert_int_ne(access(path, F_OK), 0);
    (void)snprintf(path, sizeof path, "%s/checkpoint-6/" HOST_CHECKPOINT_INDEX, dir);
    ck_assert_int_eq(access(path, F_OK), 0);
}
END_TEST

START_TEST(test_plugin_without_state) {
    char dir[PATH_NBYTES];

    path_of(dir, "mock");
    options.optimizer = HOST_OPTIMIZER_PLUGIN;
    options.plugin.plugin_path = getenv("MOCK_PLUGIN_PATH");
    options.save_dir = dir;
    refuses("has no zf.state/1");
    ck_assert_int_ne(access(dir, F_OK), 0); /* nothing was made */
}
END_TEST

int main(void) {
    const TTest *const tests[] = {test_adamw, test_adamw_bf16_parts, test_damaged_adamw, test_changed_number,
                                  test_folders, test_failed_save, test_plugin_without_state,
                                  /* with the real plugin */
                                  test_plugin, test_plugin_bf16_accumulation, test_damaged_plugin,
                                  test_another_configuration, test_another_run};
    size_t n = sizeof tests / sizeof tests[0];

    if (getenv("ZFPLUGIN_PATH") == NULL) {
        (void)puts("without the real plugin: ZFPLUGIN_PATH is not set");
        n -= 5;
    }
    return zt_run_suite("checkpoint", setup, teardown, tests, n);
}
