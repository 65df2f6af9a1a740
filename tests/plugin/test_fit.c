/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_fit.c - update_interval = fit: which choice times give, that a run goes on as the one that its
 * choice pins, and checkpoints on both sides of the choice. ZF_TEST_FIT gives the choice where it must not depend on
 * times. */
#include "schedule/fit.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config_table.h"
#include "instance/instance.h"
#include "offload/pace.h"
#include "state_rig.h"
#include "suite.h"

/* ---- the choice -------------------------------------------------------------------------------------------------- */

static zfi_config_t config;
static zfi_fit_times_t times;

static void parse(const char *text, int can_fetch) {
    zf_error_t err = {.struct_size = sizeof err};
    ck_assert_msg(zfi_config_parse(text, 0, "test", NULL, 0, &config, &err) == ZF_OK, "%s", err.message);
    zfi_config_settle(&config, can_fetch, 1);
}

static void check_choice(uint32_t interval, uint32_t lag) {
    zfi_fit_cost_t costs[ZFI_FIT_CHOICES];
    zfi_fit_choice_t choice;
    zfi_fit_costs(&times, config.can_fetch, costs);
    choice = zfi_fit_choices[zfi_fit_choose(&config, config.update_interval, costs)];
    ck_assert_msg(choice.interval == interval && choice.lag == lag, "%u, %u instead of %u, %u", choice.interval,
                  choice.lag, interval, lag);
}

/* A step of 100 ms; replays of so many ms with 1 to 4 slots; the first half of the state is fetched 10 ms after the
 * step, the rest after 30. */
static void set_times(double one, double two, double three, double four) {
    times = (zfi_fit_times_t){.step_s = 0.1,
                              .replay_s = {0, one / 1000, two / 1000, three / 1000, four / 1000},
                              .n_points = 2,
                              .points = {{0.010, 0.5}, {0.030, 1.0}}};
}

START_TEST(the_least_lateness_that_hides) {
    parse("[zenflow]\nupdate_interval = fit\n", 1);
    set_times(15, 16, 17, 18);
    check_choice(1, 0); /* 7.5 before 10 */
    set_times(40, 44, 48, 52);
    check_choice(2, 0); /* 20 after 10, then 11 */
    set_times(70, 74, 78, 82);
    check_choice(3, 0); /* 13 is 3 late: 3 % */
    set_times(85, 90, 95, 100);
    check_choice(4, 0);
    times.down_s = 0.002;
    check_choice(1, 1);
    set_times(110, 115, 200, 300);
    check_choice(2, 1);
    set_times(150, 250, 280, 400);
    check_choice(3, 1);
    set_times(200, 300, 360, 400);
    check_choice(4, 1);
}
END_TEST

START_TEST(what_bounds_it) {
    set_times(15, 16, 17, 18);
    parse("[zenflow]\nupdate_interval = fit\n", 0);
    check_choice(1, 1); /* nobody fetches: lag 0 would be waited for */
    parse("[zenflow]\nupdate_interval = fit\npublish_lag = 1\n", 1);
    check_choice(1, 1);
    parse("[zenflow]\nupdate_interval = fit\npublish_lag = 0\n", 0);
    check_choice(4, 0); /* 4.5 is the least of what the closing steps wait */
    parse("[zenflow]\nupdate_interval = fit\nmax_update_interval = 2\n", 1);
    set_times(500, 600, 700, 800);
    check_choice(2, 1); /* none hides: the least */
    parse("[zenflow]\nupdate_interval = fit\nmax_stall = 0.2\n", 1);
    set_times(40, 44, 48, 52);
    check_choice(1, 0); /* 10 late */
}
END_TEST

/* Nothing is fetched: all of it is due with the next step. */
START_TEST(a_host_that_never_fetches) {
    parse("[zenflow]\nupdate_interval = fit\n", 1);
    set_times(90, 91, 92, 93);
    check_choice(4, 0);
    times.n_points = 0;
    check_choice(1, 0);
    set_times(110, 120, 130, 140);
    times.n_points = 0;
    check_choice(2, 0);
}
END_TEST

/* A slow link counts as a slow replay does; what the device merges meanwhile it does not wait for, but it costs. */
START_TEST(travel_and_merge) {
    parse("[zenflow]\nupdate_interval = fit\n", 1);
    set_times(15, 16, 17, 18);
    times.travel_s = 0.040;
    check_choice(2, 0);
    set_times(40, 44, 48, 52);
    times.merge_s = 0.003;
    check_choice(2, 0);
    times.merge_s = 0.040;
    check_choice(4, 0); /* 40/3 ms of work is 3.3 ms more than 40/4 */
}
END_TEST

START_TEST(nothing_measured) {
    zfi_fit_choice_t choice;
    parse("[zenflow]\nupdate_interval = fit\n", 1);
    choice = zfi_fit_choices[zfi_fit_choose(&config, config.update_interval, NULL)];
    ck_assert(choice.interval == 2 && choice.lag == 0);
    parse("[zenflow]\nupdate_interval = fit\n", 0);
    choice = zfi_fit_choices[zfi_fit_choose(&config, config.update_interval, NULL)];
    ck_assert(choice.interval == 2 && choice.lag == 1);
    parse("[zenflow]\nupdate_interval = fit\nmax_update_interval = 1\n", 1);
    choice = zfi_fit_choices[zfi_fit_choose(&config, config.update_interval, NULL)];
    ck_assert(choice.interval == 1 && choice.lag == 0);
}
END_TEST

/* ---- the configuration ------------------------------------------------------------------------------------------- */

static void check_text(const char *key, const char *text) {
    char buf[64];
    ck_assert_int_eq(zfi_config_value(&config, (uint32_t)zfi_key_find("zenflow", key), buf, sizeof buf, NULL), ZF_OK);
    ck_assert_str_eq(buf, text);
}

/* Until it has chosen, fit says so; then the configuration is the one that pins the choice. */
START_TEST(what_the_configuration_says) {
    zfi_config_t saved;
    parse("[zenflow]\nupdate_interval = fit\n", 1);
    ck_assert(config.is_interval_fit && config.update_interval == 4 && config.max_stall == 0.03);
    check_text("update_interval", "fit");
    check_text("publish_lag", "auto");
    ck_assert(!zfi_config_publishes_at_fetch(&config) && zfi_config_may_publish_at_fetch(&config));
    saved = config;
    zfi_config_pin(&config, 3, 0);
    check_text("update_interval", "3");
    check_text("publish_lag", "0");
    ck_assert(!config.is_interval_fit && zfi_config_predict(&config) == 2 && zfi_config_publishes_at_fetch(&config));
    zfi_config_refit(&config, &saved);
    check_text("update_interval", "fit");
    check_text("publish_lag", "auto");
    parse("[zenflow]\nupdate_interval = fit\npublish_lag = 1\nmax_update_interval = 3\n", 1);
    ck_assert(config.update_interval == 3 && !zfi_config_may_publish_at_fetch(&config));
    saved = config;
    zfi_config_pin(&config, 2, 0);
    check_text("publish_lag", "1"); /* was given */
    parse("[zenflow]\nupdate_interval = 2\n", 1);
    zfi_config_refit(&config, &saved);
    check_text("update_interval", "2"); /* pinned: no checkpoint changes it */
}
END_TEST

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static zt_rig_t rig, pinned, copy;
static zt_memory_store_t store, other;

static const char *const fit = "topk_ratio = 0.2\nupdate_interval = fit\nselect_interval = 3\nfull_warm_up_rounds = 3";
static const char *const pin = "topk_ratio = 0.2\nupdate_interval = 3\npublish_lag = 1\nselect_interval = 3\n"
                               "full_warm_up_rounds = 3";

static void check_value(zt_rig_t *of, const char *name, const char *value) {
    char text[64];
    for (uint32_t i = 0; i < zfi_config_n_keys(); i++) {
        zf_config_key_t key = {.struct_size = sizeof key};
        ZT_OK(of, zfi_config_key(i, &key, &of->err));
        if (strcmp(key.key, name) == 0) {
            ZT_OK(of, zfi_config_value(&of->inst->engine.config, i, text, sizeof text, &of->err));
            ck_assert_str_eq(text, value);
            return;
        }
    }
    ck_abort_msg("no key %s", name);
}

START_TEST(a_run_is_the_one_that_its_choice_pins) {
    setenv("ZF_TEST_FIT", "3,1", 1);
    zt_state_open(&rig, fit);
    zt_state_open(&pinned, pin);
    for (int t = 1; t <= 14; t++) {
        char when[32];
        zt_state_steps(&rig, 1);
        zt_state_steps(&pinned, 1);
        check_value(&rig, "update_interval", t < 3 ? "fit" : "3");
        check_value(&rig, "publish_lag", t < 3 ? "auto" : "1");
        ck_assert_uint_eq(zt_rig_stats(&rig).update_interval, t < 3 ? 0 : 3);
        ck_assert_uint_eq(zt_rig_stats(&rig).publish_lag, t < 3 ? 0 : 1);
        snprintf(when, sizeof when, "step %d", t);
        zt_state_check_equal(&rig, &pinned, when);
    }
    zt_rig_end(&pinned);
    zt_rig_end(&rig);
    unsetenv("ZF_TEST_FIT");
}
END_TEST

/* Saved after n steps with one configuration, loaded into an instance with another after k steps of its own; it would
 * choose otherwise itself. */
static void check_load(const char *saved_by, const char *loaded_by, int n, int k, const char *choice, int is_exact) {
    zf_state_report_t loaded = {.struct_size = sizeof loaded};
    char when[128];
    snprintf(when, sizeof when, "saved after %d, loaded after %d", n, k);
    zt_memory_store_start(&store);
    setenv("ZF_TEST_FIT", "3,1", 1);
    zt_state_open(&rig, saved_by);
    zt_state_steps(&rig, n);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    setenv("ZF_TEST_FIT", choice, 1);
    zt_state_open_copy(&copy, loaded_by, k == 0);
    zt_state_steps(&copy, k);
    ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, &loaded));
    ck_assert_msg(loaded.is_exact == is_exact, "%s: exact: %d", when, loaded.is_exact);
    copy.step = rig.step; /* the gradients that follow */
    for (int t = 0; t < 9 && is_exact; t++) {
        zt_state_check_equal(&rig, &copy, when);
        zt_state_steps(&rig, 1);
        zt_state_steps(&copy, 1);
    }
    ZT_OK(&copy, copy.zf->quiesce(copy.inst, ZF_QUIESCE_FLUSH, &copy.err));
    zt_rig_end(&copy);
    zt_rig_end(&rig);
    zt_memory_store_end(&store);
    unsetenv("ZF_TEST_FIT");
}

START_TEST(a_resumed_run_goes_on_with_the_choice) {
    static const int after[] = {0, 2, 5};
    for (int n = 3; n <= 8; n++)
        for (int k = 0; k < 3; k++)
            check_load(fit, fit, n, after[k], "1,0", 1);
}
END_TEST

START_TEST(before_the_choice_it_is_still_to_come) {
    static const int after[] = {0, 1, 5};
    for (int n = 0; n <= 2; n++)
        for (int k = 0; k < 3; k++)
            check_load(fit, fit, n, after[k], "3,1", 1);
}
END_TEST

START_TEST(a_pinned_run_and_a_fitted_one_exchange_checkpoints) {
    static const char *const longer = "topk_ratio = 0.2\nupdate_interval = 7\npublish_lag = 0\nselect_interval = 3\n"
                                      "full_warm_up_rounds = 3";
    check_load(fit, pin, 5, 0, "1,0", 1);
    check_load(pin, fit, 5, 0, "1,0", 1);
    check_load(pin, fit, 6, 4, "1,0", 1);
    check_load(longer, fit, 9, 0, "1,0", 1); /* more than fit has room for: a second run is made */
    check_load(longer, fit, 9, 5, "1,0", 1);
    check_load(pin, fit, 2, 0, "1,0", 1);
    check_load(fit, pin, 2, 0, "1,0", 0); /* nothing was chosen yet */
    check_load(fit, longer, 5, 0, "1,0", 0);
}
END_TEST

/* Whatever call to the store fails, the instance goes on as if nothing had been tried. */
static void check_failed_load(int steps) {
    int is_done = 0;
    zt_memory_store_start(&store);
    setenv("ZF_TEST_FIT", "3,1", 1);
    zt_state_open(&rig, fit);
    zt_state_steps(&rig, 5);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    zt_rig_end(&rig);
    setenv("ZF_TEST_FIT", "1,0", 1);
    zt_state_open(&copy, fit);
    zt_state_open(&rig, fit);
    zt_state_steps(&copy, steps);
    zt_state_steps(&rig, steps);
    for (int at = 1; !is_done; at += 7) {
        store.n_calls = 0;
        store.fail_at = at;
        is_done = zt_load(&copy, &store.table, NULL, 0, NULL) >= 0;
        if (!is_done) {
            check_value(&copy, "update_interval", steps < 3 ? "fit" : "1");
            zt_state_check_equal(&rig, &copy, "after a load that failed");
        }
        ck_assert_int_lt(at, 100000);
    }
    check_value(&copy, "update_interval", "3");
    zt_rig_end(&copy);
    zt_rig_end(&rig);
    zt_memory_store_end(&store);
    unsetenv("ZF_TEST_FIT");
}

START_TEST(a_load_that_fails) {
    check_failed_load(0);
    check_failed_load(1);
    check_failed_load(5);
}
END_TEST

/* ... and then chooses by itself, and trains as its choice says. */
START_TEST(a_load_that_fails_before_the_choice) {
    int n_calls;
    zt_memory_store_start(&store);
    setenv("ZF_TEST_FIT", "3,1", 1);
    zt_state_open(&rig, fit);
    zt_state_steps(&rig, 5);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    zt_rig_end(&rig);
    zt_state_open(&copy, fit);
    store.n_calls = 0;
    ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, NULL));
    n_calls = store.n_calls;
    zt_rig_end(&copy);
    zt_state_open(&copy, fit);
    store.n_calls = 0;
    store.fail_at = n_calls; /* the last: all but one tensor is in place */
    ck_assert_int_lt(zt_load(&copy, &store.table, NULL, 0, NULL), 0);
    zt_state_open(&pinned, pin);
    zt_state_steps(&copy, 1);
    zt_memory_store_start(&other);
    ZT_OK(&copy, zt_save(&copy, &other.table, NULL, 0, NULL)); /* its cohorts are those of warm-up again */
    zt_memory_store_end(&other);
    zt_state_steps(&copy, 10);
    zt_state_steps(&pinned, 11);
    zt_state_check_equal(&pinned, &copy, "after a load that failed");
    zt_rig_end(&copy);
    zt_rig_end(&pinned);
    zt_memory_store_end(&store);
    unsetenv("ZF_TEST_FIT");
}
END_TEST

/* ... and no chunk counts as replayed that is not: workers go on from the clocks that it left, not from those it read.
 */
START_TEST(a_load_that_fails_leaves_no_job_behind) {
    static const char *const slow = "topk_ratio = 0.2\nupdate_interval = fit\nselect_interval = 3\n"
                                    "full_warm_up_rounds = 16"; /* longer than workers remember jobs */
    zt_memory_store_start(&store);
    setenv("ZF_TEST_FIT", "3,1", 1);
    zt_state_open(&rig, slow);
    zt_state_steps(&rig, 18); /* a window waits to be published */
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    zt_rig_end(&rig);
    zt_state_open(&copy, slow);
    store.n_calls = 0;
    ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, NULL));
    store.fail_at = store.n_calls;
    zt_rig_end(&copy);
    zt_state_open(&copy, slow);
    store.n_calls = 0;
    ck_assert_int_lt(zt_load(&copy, &store.table, NULL, 0, NULL), 0);
    for (int t = 1; t < 16; t++) {
        zt_state_steps(&copy, 1);
        ZT_OK(&copy, copy.zf->quiesce(copy.inst, ZF_QUIESCE_DRAIN, &copy.err));
        ck_assert_uint_eq(zfi_timeline_now(&copy.inst->engine.lines.jobs), copy.inst->run->clock.next_job);
    }
    zt_rig_end(&copy);
    zt_memory_store_end(&store);
    unsetenv("ZF_TEST_FIT");
}
END_TEST

/* ---- what is measured -------------------------------------------------------------------------------------------- */

static char logged[512];
static uint64_t began_ns;

static void keep_fit(void *ctx, int32_t level, const char *component, const char *file, int32_t line, const char *text,
                     uint64_t nbytes) {
    (void)ctx;
    (void)level;
    (void)file;
    (void)line;
    (void)nbytes;
    if (strcmp(component, "fit") == 0)
        snprintf(logged, sizeof logged, "%s", text);
}

static void open_measured(const zt_shape_t *shapes, uint32_t n, uint32_t warm_up, uint32_t flags) {
    char text[160];
    snprintf(text, sizeof text, "[zenflow]\nupdate_interval = fit\nfull_warm_up_rounds = %u\n[host]\nthreads = 1\n",
             warm_up);
    logged[0] = '\0';
    began_ns = zfi_now_ns();
    zt_rig_start(&rig, shapes, n);
    rig.host.log = keep_fit;
    zt_rig_open(&rig, text, flags);
}

static void fetch_all_one_by_one(void) {
    for (uint32_t i = 0; i < rig.n_params; i++) {
        zf_fence_t fence = {.struct_size = sizeof fence};
        ZT_OK(&rig, rig.zf->param_fetch(rig.inst, &rig.params[i].id, 1, &rig.stream, &fence, &rig.err));
        zt_rig_wait(&rig, &fence);
    }
}

/* No time that it says is longer than the run has lasted. */
static void check_times(void) {
    double most_ms = 1e-6 * (double)(zfi_now_ns() - began_ns);
    int n = 0;
    for (const char *at = logged; (at = strstr(at, " ms")) != NULL; at += 3, n++) {
        const char *figure = at;
        while (figure > logged && figure[-1] != ' ')
            figure--;
        ck_assert_msg(strtod(figure, NULL) <= most_ms, "%s, after %g ms", logged, most_ms);
    }
    ck_assert_int_eq(n, 6);
}

static void check_decided(void) {
    const zf_stats_t stats = zt_rig_stats(&rig);
    char line[64];
    check_times();
    ck_assert_uint_ge(stats.update_interval, 1);
    ck_assert_uint_le(stats.update_interval, 4);
    snprintf(line, sizeof line, "update_interval = %u, publish_lag = %u (fit: expects", stats.update_interval,
             stats.publish_lag);
    ck_assert_msg(strncmp(logged, line, strlen(line)) == 0, "%s", logged);
    ck_assert_uint_gt(stats.fit_step_ns, 0);
}

static const zt_shape_t model[] = {{.rows = 64, .cols = 96}, {.rows = 96}, {.rows = 96, .cols = 64}, {.rows = 31}};
enum { N_MODEL = sizeof model / sizeof *model, WARM_UP = 6 };

static void nothing(void *args) { (void)args; }

START_TEST(steps_and_fetches_are_timed) {
    zfi_fit_times_t taken;
    open_measured(model, N_MODEL, WARM_UP, ZF_CREATE_CAP_FETCH);
    for (int t = 1; t < WARM_UP; t++) {
        zt_rig_step(&rig);
        fetch_all_one_by_one();
    }
    ZT_OK(&rig, rig.zf->quiesce(rig.inst, ZF_QUIESCE_DRAIN, &rig.err));
    ZT_OK(&rig, zfi_serial_call(rig.inst->engine.control, nothing, NULL, 0)); /* the last fetch is noted */
    ck_assert_uint_eq(rig.inst->run->pace.n_steps, WARM_UP - 1);
    ck_assert_uint_eq(zfi_pace_times(rig.inst->run, &taken), WARM_UP - 2); /* the first has none before it */
    ck_assert_uint_ge(taken.n_points, 3); /* the last vector ends where the matrix before it does, nearly */
    for (uint32_t i = 1; i < taken.n_points; i++)
        ck_assert(taken.points[i].at_s >= taken.points[i - 1].at_s &&
                  taken.points[i].share > taken.points[i - 1].share);
    ck_assert(taken.points[taken.n_points - 1].share == 1.0);
    ck_assert(taken.step_s > 0 && taken.replay_s[1] > 0);
    ck_assert_str_eq(logged, "");
    zt_rig_step(&rig);
    check_decided();
    fetch_all_one_by_one();
    for (int t = 0; t < 9; t++) {
        zt_rig_step(&rig);
        fetch_all_one_by_one();
    }
    ck_assert_uint_eq(rig.inst->run->pace.n_steps, WARM_UP); /* nothing is measured any more */
    zt_rig_check_flushed(&rig);
    zt_rig_end(&rig);
}
END_TEST

/* A host that fetches all at once does so for the first layer: the whole replay is due then. */
START_TEST(a_fetch_of_all_is_timed) {
    zfi_fit_times_t taken;
    open_measured(model, N_MODEL, WARM_UP, ZF_CREATE_CAP_FETCH);
    for (int t = 1; t < WARM_UP; t++) {
        zf_fence_t fence = {.struct_size = sizeof fence};
        zt_rig_step(&rig);
        ZT_OK(&rig, rig.zf->param_fetch(rig.inst, NULL, 0, &rig.stream, &fence, &rig.err));
        zt_rig_wait(&rig, &fence);
    }
    ZT_OK(&rig, rig.zf->quiesce(rig.inst, ZF_QUIESCE_DRAIN, &rig.err));
    ZT_OK(&rig, zfi_serial_call(rig.inst->engine.control, nothing, NULL, 0)); /* the last fetch is noted */
    ck_assert_uint_gt(zfi_pace_times(rig.inst->run, &taken), 0);
    ck_assert_uint_eq(taken.n_points, 1);
    ck_assert(taken.points[0].share == 1.0);
    zt_rig_end(&rig);
}
END_TEST

/* What a step that skips or lacks gradients takes is no measure. */
START_TEST(steps_that_are_not_whole_are_not_timed) {
    zfi_fit_times_t taken;
    open_measured(model, N_MODEL, 8, 0);
    for (uint64_t t = 1; t <= 6; t++) {
        for (uint32_t i = 0; i < N_MODEL - (t == 3); i++) {
            zt_rig_fill_grad(&rig, i, t);
            if (t == 5)
                memcpy(rig.params[i].grad, &(float){INFINITY}, sizeof(float));
            ZT_OK(&rig, zt_rig_deliver(&rig, i, 0, NULL));
        }
        ZT_OK(&rig, zt_rig_submit(&rig, ZF_STEP_WAIT, NULL));
    }
    ZT_OK(&rig, rig.zf->quiesce(rig.inst, ZF_QUIESCE_DRAIN, &rig.err));
    ck_assert_uint_eq(zt_rig_stats(&rig).steps_skipped, 1);
    ck_assert_uint_eq(zfi_pace_times(rig.inst->run, &taken), 3); /* 2, 4 and 6, from the end of the one before */
    zt_rig_end(&rig);
}
END_TEST

static void check_host(const zt_shape_t *shapes, uint32_t n, uint32_t flags, int is_queue) {
    began_ns = zfi_now_ns();
    zt_rig_start(&rig, shapes, n);
    rig.host.log = keep_fit;
    if (is_queue)
        zt_rig_use_queue(&rig);
    zt_rig_open(&rig, "[zenflow]\nupdate_interval = fit\nfull_warm_up_rounds = 6\n", flags);
    for (int t = 0; t < 20; t++)
        zt_rig_step(&rig);
    check_decided();
    if (!flags)
        ck_assert_uint_eq(zt_rig_stats(&rig).publish_lag, 1);
    zt_rig_check_flushed(&rig);
    zt_rig_end(&rig);
}

START_TEST(other_hosts) {
    static const zt_shape_t one[] = {{.rows = 7, .cols = 5}};
    for (int is_queue = 0; is_queue < 2; is_queue++) {
        check_host(model, N_MODEL, 0, is_queue);
        check_host(model, N_MODEL, ZF_CREATE_CAP_FETCH, is_queue); /* which it never does */
        check_host(one, 1, ZF_CREATE_CAP_FETCH, is_queue);
    }
}
END_TEST

/* Warm-up too short to measure: the fallback, and it is said. */
START_TEST(short_warm_up) {
    for (uint32_t warm_up = 1; warm_up <= 3; warm_up++) {
        open_measured(model, N_MODEL, warm_up, ZF_CREATE_CAP_FETCH);
        for (int t = 0; t < 9; t++)
            zt_rig_step(&rig);
        ck_assert_uint_eq(zt_rig_stats(&rig).update_interval, 2);
        ck_assert_uint_eq(zt_rig_stats(&rig).publish_lag, 0);
        ck_assert_uint_eq(zt_rig_stats(&rig).fit_step_ns, 0);
        ck_assert_msg(strstr(logged, "update_interval = 2, publish_lag = 0 (fit: warm-up of") != NULL &&
                          strstr(logged, "too short") != NULL,
                      "%s", logged);
        zt_rig_check_flushed(&rig);
        zt_rig_end(&rig);
    }
}
END_TEST

/* Where memory is short, fit is planned for shorter windows. */
START_TEST(short_memory) {
    static const zt_shape_t large[] = {{.rows = 1024, .cols = 700}};
    static const uint32_t intervals[] = {1, 2, 4};
    uint64_t nbytes[3];
    char text[128];
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "[zenflow]\nupdate_interval = fit\nmax_update_interval = %u\n", intervals[i]);
        zt_rig_start(&rig, large, 1);
        zt_rig_open(&rig, text, 0);
        nbytes[i] = rig.layout.host_nbytes + rig.layout.device_nbytes;
        ck_assert_uint_eq(rig.inst->engine.config.update_interval, intervals[i]);
        zt_rig_end(&rig);
    }
    for (int i = 1; i < 3; i++) {
        ck_assert_uint_gt(nbytes[i] >> 20, (nbytes[i - 1] >> 20) + 1);
        snprintf(text, sizeof text, "[zenflow]\nupdate_interval = fit\n[host]\nmemory_limit_mib = %u\n",
                 (unsigned)(nbytes[i - 1] >> 20) + 1);
        zt_rig_start(&rig, large, 1);
        zt_rig_open(&rig, text, 0);
        ck_assert_uint_eq(rig.inst->engine.config.update_interval, intervals[i - 1]);
        zt_rig_end(&rig);
    }
    zt_rig_start(&rig, large, 1);
    zt_rig_create(&rig, "[zenflow]\nupdate_interval = fit\n[host]\nmemory_limit_mib = 5\n", 0);
    ck_assert_int_eq(zt_rig_try_bind(&rig), ZF_ERR_MEMORY); /* not even windows of one step */
    zt_rig_end(&rig);
}
END_TEST

START_TEST(a_bad_choice_for_a_test) {
    static const char *const bad[] = {"5,0", "0,1", "2,2", "2", "2,1x", "x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("ZF_TEST_FIT", bad[i], 1);
        open_measured(model, N_MODEL, 1, 0);
        ck_assert_uint_eq(rig.inst->engine.given_fit.interval, 0);
        zt_rig_end(&rig);
    }
    unsetenv("ZF_TEST_FIT");
}
END_TEST

ZT_MAIN("fit", the_least_lateness_that_hides, what_bounds_it, a_host_that_never_fetches, travel_and_merge,
        nothing_measured, what_the_configuration_says, a_run_is_the_one_that_its_choice_pins,
        a_resumed_run_goes_on_with_the_choice, before_the_choice_it_is_still_to_come,
        a_pinned_run_and_a_fitted_one_exchange_checkpoints, a_load_that_fails, a_load_that_fails_before_the_choice,
        a_load_that_fails_leaves_no_job_behind, steps_and_fetches_are_timed, a_fetch_of_all_is_timed,
        steps_that_are_not_whole_are_not_timed, other_hosts, short_warm_up, short_memory, a_bad_choice_for_a_test)
