/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_at_fetch.c - publishing at fetch: the step does not wait for a replay, a fetch brings what it names
 * and nothing else, in any order. */
#define _GNU_SOURCE
#include <check.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rig.h"
#include "suite.h"

enum { N_PARAMS = 24, N_COLS = 160, MOST_ELEMS = 96 * N_COLS, LAST = N_PARAMS - 1 };

static zt_rig_t rig;
static float shown[N_PARAMS][MOST_ELEMS];

/* Large enough that they travel in more buckets than the device's ring holds. */
static void start(void) {
    zt_shape_t shapes[N_PARAMS];
    for (uint32_t i = 0; i < N_PARAMS; i++)
        shapes[i] = (zt_shape_t){.rows = 40 + i * 7 % 56, .cols = N_COLS, .group = i == LAST};
    zt_rig_start(&rig, shapes, N_PARAMS);
}

static void remember(void) {
    for (uint32_t i = 0; i < N_PARAMS; i++)
        memcpy(shown[i], rig.params[i].visible, rig.params[i].n_elems * sizeof(float));
}

static int is_as_remembered(uint32_t i) {
    return memcmp(shown[i], rig.params[i].visible, rig.params[i].n_elems * sizeof(float)) == 0;
}

static int is_adamw(uint32_t i) {
    return memcmp(rig.params[i].serial.w, rig.params[i].visible, rig.params[i].n_elems * sizeof(float)) == 0;
}

static void fetch(const uint32_t *params, uint32_t n) {
    zf_param_item_t items[N_PARAMS];
    zf_fence_t fence = {.struct_size = sizeof fence};
    for (uint32_t i = 0; i < n; i++)
        items[i] = (zf_param_item_t){.struct_size = sizeof *items, .id = rig.params[params[i]].id};
    ZT_OK(&rig, rig.zf->param_fetch(rig.inst, n ? items : NULL, n, sizeof *items, &rig.stream, &fence, &rig.err));
    zt_rig_wait(&rig, &fence);
}

/* What the step itself writes is in place. */
static void finish_step(void) {
    zf_step_report_t report = {.struct_size = sizeof report};
    const struct timespec a_while = {0, 1000000};
    while (report.step < rig.step) {
        ZT_OK(&rig, rig.zf->poll(rig.inst, &report, &rig.err));
        nanosleep(&a_while, NULL);
    }
}

/* The parameters elsewhere, with the same values; nothing is where they were. */
static void move_params(void) {
    for (uint32_t i = 0; i < N_PARAMS; i++) {
        zt_param_t *param = &rig.params[i];
        size_t nbytes = param->n_elems * sizeof(float);
        unsigned char *moved = malloc(nbytes);
        memcpy(moved, param->visible, nbytes);
        memset(param->visible, 0xA5, nbytes);
        free(param->visible);
        param->visible = moved;
        param->tensor.dl.data = moved;
    }
    zt_rig_bind(&rig);
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

static uint32_t draw_order(uint64_t step, uint32_t *params) {
    uint32_t n = 0, share = 1 + (uint32_t)(zt_hash(step) % 4); /* of four */
    for (uint32_t i = 0; i < N_PARAMS; i++)
        if (zt_hash(step << 8 | i) % 4 < share)
            params[n++] = i;
    for (uint32_t i = n; i > 1 && step % 3; i--) {
        uint32_t j = step % 3 == 1 ? (uint32_t)(zt_hash(step << 16 | i) % i) : i / 2, kept = params[j];
        params[j] = params[i - 1];
        params[i - 1] = kept;
    }
    return n;
}

/* Every close is of everything (S = 1), nothing runs ahead: fetched ones are AdamW's, the others what they were. */
START_TEST(any_order_and_any_missing) {
    start();
    zt_rig_open(&rig, "[zenflow]\ntopk_ratio = 0\nupdate_interval = 1\nfull_warm_up_rounds = 1\npredict = off\n",
                ZF_CREATE_CAP_FETCH);
    for (int t = 0; t < 40; t++) {
        uint32_t order[N_PARAMS], n = draw_order((uint64_t)t, order);
        uint8_t is_fetched[N_PARAMS] = {0};
        if (t > 1) { /* all of the step before is in place when the next has ended */
            zt_rig_step(&rig);
            finish_step();
        } else {
            zt_rig_step(&rig);
            fetch(NULL, 0);
            continue;
        }
        remember();
        for (uint32_t i = 0; i < n; i++) {
            fetch(&order[i], 1);
            is_fetched[order[i]] = 1;
            for (uint32_t p = 0; p < N_PARAMS; p++)
                ck_assert_msg(is_fetched[p] ? is_adamw(p) : is_as_remembered(p),
                              "step %d: parameter %u after the fetch of %u", t + 1, p, order[i]);
        }
        if (t % 5 == 4)
            fetch(NULL, 0);
        for (uint32_t p = 0; p < N_PARAMS && t % 5 == 4; p++)
            ck_assert(is_adamw(p));
    }
    zt_rig_check_flushed(&rig);
    zt_rig_end(&rig);
}
END_TEST

/* What waits to be fetched while the parameters move is fetched where they are. */
START_TEST(parameters_move_before_a_fetch) {
    start();
    zt_rig_open(&rig, "[zenflow]\ntopk_ratio = 0\nupdate_interval = 1\nfull_warm_up_rounds = 1\npredict = off\n",
                ZF_CREATE_CAP_FETCH);
    for (uint32_t t = 0; t < 6; t++) {
        zt_rig_step(&rig);
        finish_step();
        for (uint32_t i = t; i < N_PARAMS && t; i += 3)
            fetch(&i, 1);
        move_params();
        if (t % 2)
            fetch(NULL, 0);
        for (uint32_t i = 0; i < N_PARAMS && t % 2; i++)
            ck_assert_msg(is_adamw(i), "step %u: parameter %u was moved before its fetch", t + 1, i);
    }
    zt_rig_check_flushed(&rig);
    zt_rig_end(&rig);
}
END_TEST

/* Small tensors share a chunk, and are fetched one by one all the same. */
START_TEST(neighbours_in_a_chunk) {
    zt_shape_t shapes[N_PARAMS] = {{.rows = 300, .cols = 200}};
    for (uint32_t i = 1; i < N_PARAMS; i++)
        shapes[i] = (zt_shape_t){.rows = 1 + i % 4};
    zt_rig_start(&rig, shapes, N_PARAMS);
    zt_rig_open(&rig, "[zenflow]\ntopk_ratio = 0\nupdate_interval = 1\nfull_warm_up_rounds = 1\npredict = off\n",
                ZF_CREATE_CAP_FETCH);
    zt_rig_step(&rig);
    for (uint32_t t = 0; t < 4; t++) {
        zt_rig_step(&rig);
        finish_step();
        for (uint32_t i = 0; i < N_PARAMS; i++)
            memcpy(shown[i], rig.params[i].visible, (i ? rig.params[i].n_elems : 1) * sizeof(float));
        for (uint32_t i = 1 + t; i < N_PARAMS; i += 2) {
            fetch(&i, 1);
            for (uint32_t p = 1; p < N_PARAMS; p++)
                ck_assert(p >= 1 + t && p <= i && (p - 1 - t) % 2 == 0 ? is_adamw(p) : is_as_remembered(p));
        }
    }
    zt_rig_check_flushed(&rig);
    zt_rig_end(&rig);
}
END_TEST

/* What was not fetched comes with the next step, before its own close. */
START_TEST(unfetched_comes_with_the_next_step) {
    float before[MOST_ELEMS];
    start();
    zt_rig_open(&rig, "[zenflow]\ntopk_ratio = 0\nupdate_interval = 1\nfull_warm_up_rounds = 1\npredict = off\n",
                ZF_CREATE_CAP_FETCH);
    for (int t = 0; t < 6; t++) {
        memcpy(before, rig.params[5].serial.w, rig.params[5].n_elems * sizeof(float));
        zt_rig_step(&rig);
        finish_step();
        if (t > 0) /* in warm-up the step itself shows its values */
            ck_assert(memcmp(before, rig.params[5].visible, rig.params[5].n_elems * sizeof(float)) == 0);
    }
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
    for (uint32_t p = 0; p < N_PARAMS; p++)
        ck_assert(is_adamw(p));
    zt_rig_end(&rig);
}
END_TEST

/* The parameters keep what they show, or what the host wrote there since (a checkpoint loaded at the end of a run). */
START_TEST(destroy_brings_nothing) {
    start();
    zt_rig_open(&rig, "[zenflow]\ntopk_ratio = 0\nupdate_interval = 1\nfull_warm_up_rounds = 1\npredict = off\n",
                ZF_CREATE_CAP_FETCH);
    for (int t = 0; t < 6; t++)
        zt_rig_step(&rig);
    finish_step();
    memset(rig.params[3].visible, 0, rig.params[3].n_elems * sizeof(float));
    remember();
    rig.zf->destroy(rig.inst, NULL);
    rig.inst = NULL;
    for (uint32_t p = 0; p < N_PARAMS; p++)
        ck_assert_msg(is_as_remembered(p), "parameter %u was written", p);
    zt_rig_end(&rig);
}
END_TEST

/* The host's own values stay over what was on its way. */
START_TEST(what_the_host_wrote_stays) {
    start();
    zt_rig_open(&rig, "[zenflow]\ntopk_ratio = 0\nupdate_interval = 1\nfull_warm_up_rounds = 1\npredict = off\n",
                ZF_CREATE_CAP_FETCH);
    for (int t = 0; t < 5; t++) {
        uint32_t p = (uint32_t)t * 5;
        zt_rig_step(&rig);
        finish_step();
        if (t < 2)
            continue;
        for (size_t i = 0; i < rig.params[p].n_elems; i++)
            ((float *)(void *)rig.params[p].visible)[i] = 0.125f;
        memcpy(shown[p], rig.params[p].visible, rig.params[p].n_elems * sizeof(float));
        ZT_OK(&rig, zt_changed(&rig, rig.params[p].id, 0));
        ck_assert(is_as_remembered(p));
        memcpy(rig.params[p].serial.w, shown[p], rig.params[p].n_elems * sizeof(float));
        for (uint32_t other = 0; other < N_PARAMS; other++)
            ck_assert(is_adamw(other));
    }
    zt_rig_check_flushed(&rig);
    zt_rig_end(&rig);
}
END_TEST

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static atomic_int is_held, n_waiting;

/* AdamW that stops at the last parameter (group 1) while it is held. */
static int32_t held_adamw(void *ctx, const zf_rule_update_t *u) {
    zf_group_hyper_t hyper = {sizeof hyper, 0, u->lr, u->beta1, u->beta2, u->eps, u->weight_decay};
    const struct timespec a_while = {0, 1000000};
    (void)ctx;
    while (u->group == 1 && atomic_load(&is_held)) {
        atomic_store(&n_waiting, 1);
        nanosleep(&a_while, NULL);
    }
    for (uint64_t i = 0; i < u->n_elems; i++)
        zt_adamw(&u->w[i], &u->m[i], &u->v[i], u->g[i], 1.0f, &hyper, (uint32_t)u->n);
    return 0;
}

/* A replay that cannot end: the step is reported, the first parameter is fetched, and only a fetch of the last waits.
 */
START_TEST(only_what_is_late_waits) {
    zf_rule_callback_t callback = {
        .struct_size = sizeof callback, .n_moments = 2, .name = "held", .update = held_adamw};
    uint32_t first = 0, last = LAST;
    zf_fence_t fence = {.struct_size = sizeof fence};
    uint64_t before;
    start();
    zt_rig_use_rule(&rig, ZF_RULE_CALLBACK, &callback);
    zt_rig_open(&rig, "[zenflow]\ntopk_ratio = 0\nupdate_interval = 1\nfull_warm_up_rounds = 1\n[host]\nthreads = 1\n",
                ZF_CREATE_CAP_FETCH);
    zt_rig_step(&rig);
    zt_rig_step(&rig);
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN)); /* the warm-up's replay is over */
    atomic_store(&is_held, 1);
    zt_rig_step(&rig); /* closes */
    finish_step();
    remember();
    fetch(&first, 1);
    ck_assert(is_adamw(first) && !is_as_remembered(first));
    while (!atomic_load(&n_waiting))
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    for (uint32_t p = 1; p < N_PARAMS; p++)
        ck_assert(is_as_remembered(p));
    before = zt_rig_counter(&rig, "stall_replay_ns");
    ZT_OK(&rig, zt_fetch(&rig, rig.params[last].id, &fence));
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    ck_assert(is_as_remembered(last));
    atomic_store(&is_held, 0);
    zt_rig_wait(&rig, &fence);
    ck_assert(is_adamw(last) && !is_as_remembered(last));
    for (uint32_t p = 1; p < last; p++)
        ck_assert(is_as_remembered(p));
    ck_assert_uint_gt(zt_rig_counter(&rig, "stall_replay_ns"), before);
    zt_rig_check_flushed(&rig);
    zt_rig_end(&rig);
}
END_TEST

/* ---- a host that does not fetch ---------------------------------------------------------------------------------- */

static int32_t take_a_while(void *ctx, const zf_rule_update_t *update) {
    (void)ctx;
    (void)update;
    nanosleep(&(struct timespec){0, 100000}, NULL);
    return 0;
}

static int n_said;

static void note_line(void *ctx, int32_t level, const char *component, const char *file, int32_t line, const char *msg,
                      uint64_t length) {
    (void)ctx, (void)component, (void)file, (void)line;
    n_said += level == ZF_LOG_WARN && memmem(msg, length, "call param_fetch", 16) != NULL;
}

/* Lines about waits in a run of some steps with slow workers. */
static int n_waits_said(const char *keys, uint32_t flags) {
    static const zf_rule_callback_t slow = {
        .struct_size = sizeof slow, .n_moments = 2, .name = "slow", .update = take_a_while};
    char config[256];
    n_said = 0;
    start();
    zt_rig_use_rule(&rig, ZF_RULE_CALLBACK, &slow);
    rig.host.log = note_line;
    snprintf(config, sizeof config, "[zenflow]\ntopk_ratio = 0\nfull_warm_up_rounds = 1\n%s[host]\nthreads = 1\n",
             keys);
    zt_rig_open(&rig, config, flags);
    for (int t = 0; t < 40; t++)
        zt_rig_step(&rig);
    zt_rig_end(&rig);
    return n_said;
}

/* It waits, since it is to train on what one that fetches trains on; the log says so once, with the cure. */
START_TEST(waits_are_said) {
    ck_assert_int_eq(n_waits_said("", 0), 1);
    ck_assert_int_eq(n_waits_said("publish_lag = 0\n", 0), 0); /* asked for */
    ck_assert_int_eq(n_waits_said("publish_lag = 1\n", 0), 0);
    ck_assert_int_eq(n_waits_said("", ZF_CREATE_CAP_FETCH), 0);
}
END_TEST

ZT_MAIN("at_fetch", waits_are_said, any_order_and_any_missing, parameters_move_before_a_fetch, neighbours_in_a_chunk,
        unfetched_comes_with_the_next_step, destroy_brings_nothing, what_the_host_wrote_stays, only_what_is_late_waits)
