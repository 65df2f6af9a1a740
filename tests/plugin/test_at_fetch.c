/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_at_fetch.c - publishing at fetch: the step does not wait for a replay, a fetch waits for what it
 * names alone; in exact, values and gradients take turns in one place. What a fetch brings, in any order, is zf-conform
 * exact's. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "instance/instance.h"
#include "rig.h"
#include "step/publish.h"
#include "suite.h"

enum { N_PARAMS = 24, N_COLS = 160, MOST_ELEMS = 96 * N_COLS, LAST = N_PARAMS - 1 };

static zt_rig_t rig;
static float shown[N_PARAMS][MOST_ELEMS];

/* Large enough that they travel in more buckets than the device's ring holds; the last one is one chunk. */
static void start_at(int32_t home) {
    zt_shape_t shapes[N_PARAMS];
    for (uint32_t i = 0; i < N_PARAMS; i++)
        shapes[i] =
            (zt_shape_t){.rows = i == LAST ? 8 : 40 + i * 7 % 56, .cols = N_COLS, .group = i == LAST, .home = home};
    zt_rig_start(&rig, shapes, N_PARAMS);
}

static void start(void) { start_at(ZF_HOME_PLUGIN); }

static void remember(void) {
    for (uint32_t i = 0; i < N_PARAMS; i++)
        memcpy(shown[i], rig.params[i].visible, zt_nbytes(&rig.params[i]));
}

static int is_as_remembered(uint32_t i) { return zt_shows(&rig.params[i], shown[i]); }

static int is_adamw(uint32_t i) { return zt_shows(&rig.params[i], rig.params[i].serial.w); }

static void fetch(const uint32_t *params, uint32_t n) {
    zf_param_item_t items[N_PARAMS];
    zf_fence_t fence = {.struct_size = sizeof fence};
    for (uint32_t i = 0; i < n; i++)
        items[i] = (zf_param_item_t){.struct_size = sizeof *items, .id = rig.params[params[i]].id};
    ZT_OK(&rig, rig.zf->param_fetch(rig.inst, n ? items : NULL, n, sizeof *items, &rig.stream, &fence, &rig.err));
    zt_rig_wait(&rig, &fence);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static atomic_int is_held, n_waiting;

/* AdamW that stops at the last parameter (group 1) while it is held. */
static int32_t held_adamw(void *ctx, const zf_rule_update_t *u) {
    const struct timespec a_while = {0, 1000000};
    (void)ctx;
    while (u->group == 1 && atomic_load(&is_held)) {
        atomic_store(&n_waiting, 1);
        nanosleep(&a_while, NULL);
    }
    zt_adamw_rule(u);
    return 0;
}

/* A replay that cannot end: the step is reported, the first parameter is fetched, and only a fetch of the last waits.
 * It may begin early, before the others': there is a worker for those. */
ZT_TEST(only_what_is_late_waits) {
    zf_rule_callback_t callback = {
        .struct_size = sizeof callback, .n_moments = 2, .name = "held", .update = held_adamw};
    uint32_t first = 0, last = LAST;
    zf_fence_t fence = {.struct_size = sizeof fence};
    start();
    zt_rig_use_rule(&rig, ZF_RULE_CALLBACK, &callback);
    zt_rig_open(&rig, "[zenflow]\ntopk_ratio = 0\nupdate_interval = 1\nfull_warm_up_rounds = 1\n[host]\nthreads = 2\n",
                ZF_CREATE_CAP_FETCH);
    zt_rig_step(&rig);
    zt_rig_step(&rig);
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN)); /* the warm-up's replay is over */
    atomic_store(&is_held, 1);
    zt_rig_step(&rig); /* closes */
    zt_rig_finish_step(&rig);
    remember();
    fetch(&first, 1);
    ck_assert(is_adamw(first) && !is_as_remembered(first));
    while (!atomic_load(&n_waiting))
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    for (uint32_t p = 1; p < N_PARAMS; p++)
        ck_assert(is_as_remembered(p));
    uint64_t before = zt_rig_counter(&rig, "stall_replay_ns");
    ZT_OK(&rig, zt_fetch(&rig, rig.params[last].id, &fence));
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    ck_assert(is_as_remembered(last));
    atomic_store(&is_held, 0);
    zt_rig_wait(&rig, &fence);
    ck_assert(is_adamw(last) && !is_as_remembered(last));
    for (uint32_t p = 1; p < last; p++)
        ck_assert(is_as_remembered(p));
    ck_assert_uint_gt(zt_rig_counter(&rig, "stall_replay_ns"), before);
    zt_rig_end_flushed(&rig);
}

/* ---- values and gradients in one place --------------------------------------------------------------------------- */

#define EXACT "[zenflow]\nmode = exact\non_overwrite = ask\n[host]\nthreads = 2\nearly_mib = %d\n"

static void open_exact(int early_mib) {
    char text[128];
    snprintf(text, sizeof text, EXACT, early_mib);
    start_at(ZF_HOME_HOST);
    zt_rig_open(&rig, text, ZF_CREATE_CAP_FETCH);
}

/* The values that the newest step is to bring. */
static void remember_due(void) {
    for (uint32_t i = 0; i < N_PARAMS; i++)
        memcpy(shown[i], rig.params[i].serial.w, zt_nbytes(&rig.params[i]));
}

static void check_shown(void) {
    for (uint32_t i = 0; i < N_PARAMS; i++)
        ck_assert_msg(is_as_remembered(i), "%s after step %d", rig.params[i].name, (int)rig.step);
}

/* A part of them is fetched, from the last or the first on. */
static void fetch_some(uint32_t n, int is_backwards) {
    uint32_t params[N_PARAMS];
    for (uint32_t i = 0; i < n; i++)
        params[i] = is_backwards ? LAST - i : i;
    if (n)
        fetch(params, n);
    for (uint32_t i = 0; i < n; i++)
        ck_assert(is_as_remembered(params[i]));
}

static void step(void) {
    ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
    for (uint32_t i = 0; i < N_PARAMS; i++)
        zt_serial_update(&rig.params[i].serial, &rig.groups[rig.params[i].shape.group], rig.params[i].grad_values,
                         (float)rig.unscale);
    zt_rig_finish_step(&rig);
}

/* Whatever was fetched before gradients came, or behind them: by the next step each parameter shows the step before. In
 * between gradients are discarded and come again, or wait while all is flushed. */
ZT_TEST(every_value_is_shown_though_gradients_come_first) {
    for (int early_mib = 0; early_mib <= 1000; early_mib += 1000) {
        open_exact(early_mib);
        ck_assert(rig.inst->run->plan.values_in_slots);
        remember();
        for (uint32_t i = 0; i < 24; i++) {
            fetch_some(i * 5 % 16, i % 2);
            ZT_OK(&rig, zt_rig_deliver_all(&rig, NULL));
            fetch_some(i * 7 % 11, i % 3 == 0);
            if (i % 4 == 1) {
                ZT_OK(&rig, zt_rig_submit(&rig, ZF_STEP_DISCARD, NULL));
                ZT_OK(&rig, zt_rig_deliver_all(&rig, NULL));
            }
            if (i % 4 == 3) {
                ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_FLUSH));
                check_shown();
            }
            step();
            check_shown();
            remember_due();
        }
        uint64_t n_made = rig.inst->run->unfetched.n_made;
        ck_assert_uint_gt(n_made, 0);
        fetch_some(N_PARAMS, 0);
        zt_rig_step(&rig);
        ck_assert_uint_eq(rig.inst->run->unfetched.n_made, n_made);
        zt_rig_end_flushed(&rig);
    }
}

/* A gradient waits until the value in its place has been read. */
ZT_TEST(no_place_is_given_before_its_value_went_up) {
    uint32_t first = 0;
    zf_fence_t sent = {.struct_size = sizeof sent};
    open_exact(0);
    zfi_engine_t *engine = &rig.inst->engine;
    zfi_list_add(&engine->to_up, zfi_op_wait(&engine->lines.taken, 1, NULL)); /* nothing goes up until then */
    zt_rig_step(&rig);
    remember_due();
    zt_rig_fill_grad(&rig, first, rig.step + 1);
    ZT_OK(&rig, zt_rig_deliver(&rig, first, ZF_GRAD_TOTAL | ZF_GRAD_LAST | ZF_GRAD_ASYNC_READ, &sent));
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    zfi_timeline_signal(&engine->lines.taken, 1);
    zt_rig_wait(&rig, &sent);
    fetch(&first, 1);
    ck_assert(is_as_remembered(first));
    zt_rig_end_flushed(&rig);
}

static int32_t slow_adamw(void *ctx, const zf_rule_update_t *u) {
    (void)ctx;
    if (u->group == 1)
        nanosleep(&(struct timespec){0, 20000000}, NULL);
    zt_adamw_rule(u);
    return 0;
}

/* A value that is made of its master once more is the newest step's. */
ZT_TEST(a_lost_value_waits_for_its_replay) {
    zf_rule_callback_t callback = {
        .struct_size = sizeof callback, .n_moments = 2, .name = "slow", .update = slow_adamw};
    uint32_t last = LAST;
    start_at(ZF_HOME_HOST);
    zt_rig_use_rule(&rig, ZF_RULE_CALLBACK, &callback);
    zt_rig_open(&rig, "[zenflow]\nmode = exact\n[host]\nearly_mib = 0\n", ZF_CREATE_CAP_FETCH);
    zt_rig_step(&rig);
    ZT_OK(&rig, zt_rig_deliver_all(&rig, NULL));
    fetch(&last, 1);
    ck_assert(is_adamw(last));
    ck_assert_uint_eq(rig.inst->run->unfetched.n_made, 1);
    zt_rig_end_flushed(&rig);
}

ZT_SUITE("at_fetch")
