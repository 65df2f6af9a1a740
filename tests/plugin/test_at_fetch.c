/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_at_fetch.c - publishing at fetch: the step does not wait for a replay, a fetch waits for what it
 * names alone. What a fetch brings, in any order, is zf-conform exact's. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "rig.h"
#include "suite.h"

enum { N_PARAMS = 24, N_COLS = 160, MOST_ELEMS = 96 * N_COLS, LAST = N_PARAMS - 1 };

static zt_rig_t rig;
static float shown[N_PARAMS][MOST_ELEMS];

/* Large enough that they travel in more buckets than the device's ring holds; the last one is one chunk. */
static void start(void) {
    zt_shape_t shapes[N_PARAMS];
    for (uint32_t i = 0; i < N_PARAMS; i++)
        shapes[i] = (zt_shape_t){.rows = i == LAST ? 8 : 40 + i * 7 % 56, .cols = N_COLS, .group = i == LAST};
    zt_rig_start(&rig, shapes, N_PARAMS);
}

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

ZT_SUITE("at_fetch")
