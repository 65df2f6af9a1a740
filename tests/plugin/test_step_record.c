/* SPDX-License-Identifier: Apache-2.0 */
/* test_step_record.c - where the time of each step went: records against reports and against the counters. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "hooks/step_record.h"
#include "state_rig.h"
#include "suite.h"

enum { MOST = 64 };

static const zt_shape_t shapes[] = {
    {.rows = 48, .cols = 40}, {.rows = 40}, {.rows = 64, .cols = 33, .is_bf16 = 1, .group = 1}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };
static const char config[] = "[zenflow]\nfull_warm_up_rounds = 2\nupdate_interval = 4\n";

static zt_rig_t rig;

static zf_step_record_t record_of(uint64_t step, zf_status_t expected) {
    zf_step_record_t got = {.struct_size = sizeof got};
    ck_assert_int_eq(rig.stats->step_record(rig.inst, step, &got, &rig.err), expected);
    return got;
}

/* What the counter grew by in a step. */
static uint64_t grown(uint64_t step, const char *name) {
    zf_counter_t got = {.struct_size = sizeof got};
    for (uint32_t i = 0; rig.stats->step_counter(rig.inst, step, i, &got, &rig.err) == ZF_OK; i++)
        if (strcmp(got.name, name) == 0)
            return got.value;
    ck_abort_msg("step %d has no counter \"%s\"", (int)step, name);
}

/* Of a level, what it was. */
static void add_step(uint64_t step, uint64_t sum[MOST]) {
    zf_counter_t got = {.struct_size = sizeof got};
    for (uint32_t i = 0; i < rig.stats->n_counters(); i++) {
        ZT_OK(&rig, rig.stats->step_counter(rig.inst, step, i, &got, &rig.err));
        sum[i] += got.value;
    }
}

/* Whether a list, each with a blank behind it, has the name. */
static int has(const char *name, const char *list) {
    size_t n = strlen(name);
    for (; *list; list = strchr(list, ' ') + 1)
        if (strncmp(list, name, n) == 0 && list[n] == ' ')
            return 1;
    return 0;
}

static void deliver_all(int is_bad) {
    for (uint32_t i = 0; i < rig.n_params; i++) {
        zt_rig_fill_grad(&rig, i, rig.step + 1);
        if (is_bad && i == 0) {
            float bad = INFINITY;
            memcpy(rig.params[i].grad, &bad, sizeof bad);
        }
        ZT_OK(&rig, zt_rig_deliver(&rig, i, ZF_GRAD_TOTAL | ZF_GRAD_LAST, NULL));
    }
}

static zf_step_report_t step(int is_bad) {
    zf_step_report_t report = {.struct_size = sizeof report};
    deliver_all(is_bad);
    ZT_OK(&rig, zt_rig_submit(&rig, ZF_STEP_WAIT, &report));
    return report;
}

ZT_TEST(says_what_the_report_said) {
    zt_rig_make(&rig, shapes, N_SHAPES, config, 0);
    ck_assert_uint_eq(record_of(0, ZF_IN_PROGRESS).step, 0);
    for (uint64_t t = 1; t <= 20; t++) {
        zf_step_report_t report = step(t == 7);
        zf_step_record_t got = record_of(0, ZF_OK);
        ck_assert_uint_eq(got.step, t);
        ck_assert_int_eq(got.is_finished, 1);
        ck_assert_int_eq(got.applied, t != 7);
        ck_assert_int_eq(got.skip_reason, report.skip_reason);
        ck_assert_uint_eq(got.n_present, N_SHAPES);
        ck_assert(memcmp(&got.grad_norm, &report.grad_norm, sizeof got.grad_norm) == 0);
        ck_assert(memcmp(&got.clip_factor, &report.clip_factor, sizeof got.clip_factor) == 0);
        ck_assert_uint_eq(grown(0, "update_interval"), 4);
        ck_assert(grown(t, "down_grad_nbytes") > 0 && got.step_ns > 0 && grown(t, "host_wait_ns") <= got.step_ns);
        for (uint64_t other = 0; other <= t + 1; other++) /* a report is asked for once */
            ck_assert_int_eq(zfi_step_record_lacks_report(rig.inst, other), 0);
    }
    ck_assert_uint_eq(record_of(21, ZF_IN_PROGRESS).step, 0);
    zt_rig_end(&rig);
}

/* What is counted behind a step's return is in the record of the next one. */
ZT_TEST(records_add_up_to_the_counters) {
    uint64_t sum[MOST] = {0}, before[MOST];
    zf_counter_t now = {.struct_size = sizeof now};
    zt_rig_make(&rig, shapes, N_SHAPES, config, 0);
    ck_assert_uint_le(rig.stats->n_counters(), MOST);
    zt_rig_steps(&rig, 50);
    for (uint64_t t = 1; t <= 50; t++)
        add_step(t, sum);
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
    for (uint32_t i = 0; i < rig.stats->n_counters(); i++) {
        ZT_OK(&rig, rig.stats->counter(rig.inst, i, &now, &rig.err));
        before[i] = now.value;
        ck_assert_msg(now.kind == ZF_COUNTER_LEVEL || sum[i] <= now.value, "%s", now.name);
        if (has(now.name, "replay_elems replay_ns up_publish_nbytes reselects "))
            ck_assert_msg(sum[i] > 0, "%s", now.name);
    }
    zt_rig_step(&rig);
    add_step(51, sum);
    for (uint32_t i = 0; i < rig.stats->n_counters(); i++) {
        ZT_OK(&rig, rig.stats->counter(rig.inst, i, &now, &rig.err));
        ck_assert_msg(now.kind == ZF_COUNTER_LEVEL || (before[i] <= sum[i] && sum[i] <= now.value), "%s", now.name);
        if (has(now.name, "steps down_grad_nbytes up_publish_nbytes window_closes ")) /* hooks count these */
            ck_assert_msg(sum[i] == now.value, "%s", now.name);
    }
    zt_rig_end(&rig);
}

/* A cohort that keeps its set, as it does where all channels are alike, has made a choice. */
ZT_TEST(a_kept_set_is_a_choice) {
    static const char *const strategies[] = {"step", "auto"};
    uint64_t n_choices[2], n_moved[2];
    for (int i = 0; i < 2; i++) {
        char text[160];
        snprintf(text, sizeof text,
                 "[zenflow]\nfull_warm_up_rounds = 2\nupdate_interval = 4\nselect_interval = 4\nselect_strategy = %s\n",
                 strategies[i]);
        zt_rig_make(&rig, shapes, N_SHAPES, text, 0);
        zt_rig_steps(&rig, 40);
        ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
        n_choices[i] = zt_rig_counter(&rig, "reselects");
        n_moved[i] = zt_rig_counter(&rig, "channels_entered");
        zt_rig_end(&rig);
    }
    ck_assert_uint_gt(n_moved[0], n_moved[1]);
    ck_assert_uint_eq(n_choices[0], n_choices[1]);
}

static void hold(void *raw) {
    const _Atomic int *go = raw;
    struct timespec nap = {.tv_nsec = 1000000};
    while (!*go)
        nanosleep(&nap, NULL);
}

/* A step that the device has not come to is in progress; a later hook finds it finished, and a drain does. */
ZT_TEST(a_queue_finishes_later) {
    static _Atomic int go;
    zf_step_report_t report = {.struct_size = sizeof report};
    go = 0;
    zt_rig_make(&rig, shapes, N_SHAPES, config, ZT_ON_QUEUE);
    ZT_OK(&rig, rig.cpu->queue_launch(rig.queue, hold, &go, &rig.err));
    for (int i = 0; i < 2; i++) {
        deliver_all(0);
        ZT_OK(&rig, zt_rig_submit(&rig, 0, &report));
    }
    zf_step_record_t got = record_of(1, ZF_IN_PROGRESS);
    ck_assert_uint_eq(got.step, 1);
    ck_assert_int_eq(got.is_finished, 0);
    ck_assert(got.step_ns > 0 && got.grad_norm == 0 && got.n_present == 0);
    ck_assert_uint_eq(record_of(0, ZF_IN_PROGRESS).step, 0);
    go = 1;
    zt_rig_sync(&rig);
    ck_assert_int_eq(rig.zf->poll(rig.inst, &report, &rig.err), ZF_OK);
    ck_assert(record_of(1, ZF_OK).grad_norm > 0 && record_of(2, ZF_OK).grad_norm > 0);
    ck_assert_uint_eq(record_of(0, ZF_OK).step, 2);
    deliver_all(0);
    ZT_OK(&rig, zt_rig_submit(&rig, 0, &report));
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
    ck_assert_uint_eq(record_of(0, ZF_OK).step, 3);
    zt_rig_end(&rig);
}

/* A load goes back: what was after it is no step any more once another is made. */
ZT_TEST(after_a_load) {
    static zt_memory_store_t store;
    zt_memory_store_start(&store);
    zt_rig_make(&rig, shapes, N_SHAPES, config, 0);
    zt_rig_steps(&rig, 5);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    zt_rig_steps(&rig, 4);
    ZT_OK(&rig, zt_load(&rig, &store.table, NULL, 0, NULL));
    ck_assert_uint_eq(step(0).step, 6);
    ck_assert_uint_eq(record_of(0, ZF_OK).step, 6);
    ck_assert_uint_eq(record_of(5, ZF_OK).step, 5);
    ck_assert_uint_eq(record_of(8, ZF_IN_PROGRESS).step, 0);
    zt_state_end(&rig, NULL, &store);
}

ZT_SUITE("step_record")
