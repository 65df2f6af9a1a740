/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_early.c - early replays (replay/early.h): of use where a step is as expected. That they are without
 * effect where it is not, whatever happens between the deliveries and the step, is zf-conform exact's. */
#include "replay/early.h"

#include <check.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "instance/instance.h"
#include "rig.h"
#include "suite.h"

/* Chunks of different sizes, so that a spare which has held a small one is no room for a large one. */
static const zt_shape_t shapes[] = {{.rows = 200, .cols = 330},
                                    {.rows = 40, .cols = 30, .group = 1},
                                    {.rows = 100, .cols = 300, .is_bf16 = 1},
                                    {.rows = 17},
                                    {.rows = 260, .cols = 100}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_STEPS = 12 };

static zt_rig_t rig;
static zfi_run_t *run;
static uint64_t early_taken, early_lost; /* up to the newest count() */

static void start(const char *config) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    zt_rig_open(&rig, config, 0);
    run = rig.inst->run;
    early_taken = early_lost = 0;
    ck_assert_ptr_nonnull(run->early);
}

#define EXACT "[zenflow]\nupdate_interval = 1\nfull_warm_up_rounds = 1\n[host]\nthreads = 2\naffinity = none\n"

static void end(void) {
    zt_rig_check_flushed(&rig);
    zt_rig_end(&rig);
}

/* All gradients, and as many early replays as there is room for. */
static void deliver(void) {
    zf_fence_t fence = {.struct_size = sizeof fence};
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        zt_rig_fill_grad(&rig, i, rig.step + 1);
        ZT_OK(&rig, zt_rig_deliver(&rig, i, 0, i + 1 == N_SHAPES ? &fence : NULL));
    }
    while (zfi_early_has_work(run->early))
        sched_yield();
}

static void update_serial(void) {
    for (uint32_t i = 0; i < N_SHAPES; i++)
        zt_serial_update(&rig.params[i].serial, &rig.groups[shapes[i].group], rig.params[i].grad_values,
                         (float)rig.unscale);
}

static void submit(void) {
    ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
    update_serial();
    zt_rig_check_export(&rig);
}

/* What early replays were of use and not, since the last time. */
static void count(uint64_t *out_taken, uint64_t *out_lost) {
    uint64_t taken = atomic_load(&rig.inst->engine.count.early_taken);
    uint64_t lost = atomic_load(&rig.inst->engine.count.early_lost);
    *out_taken = taken - early_taken;
    *out_lost = lost - early_lost;
    early_taken = taken;
    early_lost = lost;
}

/* Of a step: some were of use and none was lost, or the other way round. */
static void expect(int of_use) {
    uint64_t taken, lost;
    count(&taken, &lost);
    ck_assert_msg((taken > 0) == of_use && (lost > 0) == !of_use, "step %d: %d taken, %d lost", (int)rig.step,
                  (int)taken, (int)lost);
}

/* The first steps, after which hyper-parameters are expected. */
static void begin(const char *config) {
    start(config);
    deliver();
    submit();
    deliver();
    submit();
    expect(1);
}

START_TEST(announced) { /* from the first step on, whatever the rates are */
    start(EXACT);
    for (int i = 0; i < N_STEPS; i++) {
        rig.groups[i % 3].lr *= 0.9;
        rig.unscale *= 0.5;
        ZT_OK(&rig, zt_rig_announce(&rig));
        deliver();
        submit();
        expect(1);
    }
    end();
}
END_TEST

/* ---- a replay that does not end ---------------------------------------------------------------------------------- */

static _Atomic uint32_t n_begun; /* chunks */
static _Atomic int may_end = 1;

static int32_t slow_adamw(void *ctx, const zf_rule_update_t *u) {
    zf_group_hyper_t hyper = {sizeof hyper, 0, u->lr, u->beta1, u->beta2, u->eps, u->weight_decay};
    (void)ctx;
    atomic_fetch_add(&n_begun, 1);
    while (!atomic_load(&may_end))
        sched_yield();
    for (uint64_t i = 0; i < u->n_elems; i++)
        zt_adamw(&u->w[i], &u->m[i], &u->v[i], u->g[i], 1.0f, &hyper, (uint32_t)u->n);
    return 0;
}

/* The next step, submitted while an earlier one is replayed. */
static void step_beside(zf_fence_t *fence) {
    zt_rig_fill_grad(&rig, 0, rig.step + 1);
    ZT_OK(&rig, zt_rig_deliver(&rig, 0, 0, fence));
    ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
    zt_serial_update(&rig.params[0].serial, &rig.groups[0], rig.params[0].grad_values, (float)rig.unscale);
    usleep(60000);
}

/* "Not yet" can fail only if the engine does not wait. */
START_TEST(a_step_waits_for_what_has_begun) {
    static const zf_rule_callback_t rule = {
        .struct_size = sizeof rule, .n_moments = 2, .name = "slow", .update = slow_adamw};
    static const zt_shape_t one = {.rows = 50, .cols = 40};
    zf_fence_t fence = {.struct_size = sizeof fence};
    uint64_t taken, lost;
    zt_rig_start(&rig, &one, 1);
    zt_rig_use_queue(&rig);
    zt_rig_use_rule(&rig, ZF_RULE_CALLBACK, &rule);
    zt_rig_open(&rig, "[zenflow]\ntopk_ratio = 0\nupdate_interval = 1\nfull_warm_up_rounds = 1\n[host]\nthreads = 8\n",
                ZF_CREATE_CAP_FETCH);
    run = rig.inst->run;
    zt_rig_step(&rig);
    zt_rig_step(&rig);
    ZT_OK(&rig, zt_fetch(&rig, 0, &fence)); /* so that there is a place for the next values */
    zt_rig_sync(&rig);
    zt_rig_fill_grad(&rig, 0, rig.step + 1);
    atomic_store(&may_end, 0);
    atomic_store(&n_begun, 0);
    ZT_OK(&rig, zt_rig_deliver(&rig, 0, 0, &fence));
    while (atomic_load(&n_begun) < run->plan.n_chunks)
        sched_yield();
    ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
    zt_serial_update(&rig.params[0].serial, &rig.groups[0], rig.params[0].grad_values, (float)rig.unscale);
    usleep(60000);
    ck_assert_uint_lt(zfi_timeline_now(&rig.inst->engine.lines.jobs), run->clock.next_job);
    step_beside(&fence); /* its replays wait for these, by workers of their own */
    early_taken = atomic_load(&rig.inst->engine.count.early_taken);
    early_lost = atomic_load(&rig.inst->engine.count.early_lost);
    atomic_store(&may_end, 1);
    zt_rig_check_flushed(&rig); /* does not give up what was submitted */
    count(&taken, &lost);
    ck_assert_uint_eq(taken, run->plan.n_chunks);
    ck_assert_uint_eq(lost, 0);
    zt_rig_end(&rig);
}
END_TEST

START_TEST(pauses_where_nothing_is_of_use) {
    uint64_t n_tried = 0, taken, lost;
    begin(EXACT);
    for (int i = 0; i < 2 * N_STEPS; i++) {
        rig.groups[0].lr *= 0.99;
        deliver();
        rig.groups[0].lr *= 0.99;
        submit();
        count(&taken, &lost);
        ck_assert_uint_eq(taken, 0);
        n_tried += lost > 0;
    }
    ck_assert_uint_gt(n_tried, 0);
    ck_assert_uint_lt(n_tried, N_STEPS);
    end();
}
END_TEST

ZT_MAIN("early", announced, a_step_waits_for_what_has_begun, pauses_where_nothing_is_of_use)
