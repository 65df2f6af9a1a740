/* SPDX-License-Identifier: Apache-2.0 */
/* test_changed.c - weights of the host's that are not finite: params_changed and adopt refuse them by name, and
 * training goes on to the bits of a trainer that never wrote them. Weights of some matrices of a parameter. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "rig.h"
#include "suite.h"
#include "zf/ext/draft/digest.h"

static const zt_shape_t shapes[] = {{.rows = 24, .cols = 40},
                                    {.rows = 17},
                                    {.rows = 30, .cols = 20, .is_bf16 = 1},
                                    {.rows = 9, .cols = 7, .home = ZF_HOME_HOST},
                                    {.rows = 8, .cols = 16, .home = ZF_HOME_RESIDENT}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static zt_rig_t rig;

#define WINDOWS "topk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 8\npredict = off\nfull_warm_up_rounds = 2\n"

static void start(const char *keys, uint32_t flags) {
    char config[400];
    snprintf(config, sizeof config, "[host]\nthreads = 2\n[zenflow]\n%s", keys);
    zt_rig_make(&rig, shapes, N_SHAPES, config, flags);
}

/* Puts a value in place of the last element but one. */
static void put(uint32_t param, float value) {
    zt_param_t *p = &rig.params[param];
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    memcpy(p->visible + (p->n_elems - 2) * p->elem_nbytes, (char *)&bits + 4 - p->elem_nbytes, p->elem_nbytes);
}

static float last_but_one(uint32_t param) { return zt_visible(&rig.params[param], rig.params[param].n_elems - 2); }

typedef zf_status_t (*announce_fn)(uint32_t param);

static zf_status_t change_one(uint32_t param) { return zt_changed(&rig, rig.params[param].id, 0); }

static zf_status_t change_all(uint32_t param) {
    (void)param;
    return rig.zf->params_changed(rig.inst, NULL, 0, 0, ZF_CHANGED_RESET, &rig.err);
}

static zf_status_t adopt_one(uint32_t param) {
    const zf_digest_ext_t *ext = rig.zf->get_extension(ZF_EXT_DIGEST);
    return ext->adopt(rig.inst, &rig.params[param].id, 1, &rig.err);
}

/* What a refusal left behind would show: the host writes its former weights back, and trains on. */
static void refuses(announce_fn announce, uint32_t param, float value) {
    zt_rig_finish_step(&rig);
    float was = last_but_one(param);
    put(param, value);
    zt_refused(&rig.err, announce(param), ZF_ERR_NONFINITE, rig.params[param].name);
    zt_contains(rig.err.message, isnan(value) ? "nan" : "inf");
    ck_assert_int_eq(rig.err.scope, ZF_SCOPE_PARAM);
    ck_assert_uint_eq(rig.err.param, rig.params[param].id);
    put(param, was);
}

static void refuses_each(announce_fn announce) {
    static const float values[] = {NAN, INFINITY, -INFINITY};
    for (uint32_t p = 0; p < N_SHAPES; p++) {
        refuses(announce, p, values[p % 3]);
        zt_rig_steps(&rig, 1);
    }
    zt_rig_end_flushed(&rig);
}

/* At each depth of a window, while values wait to be fetched or for the next step. */
ZT_TEST(params_changed) {
    static const char *const keys[] = {WINDOWS "publish_lag = 0\n", WINDOWS "publish_lag = 1\n", "mode = exact\n"};
    static const uint32_t flags[] = {0, ZF_CREATE_CAP_FETCH, ZF_CREATE_CAP_FETCH | ZT_ON_QUEUE};
    for (int c = 0; c < 9; c++)
        for (int n = 3; n<8; n += ZT_EVERY> 1 ? 4 : 1) {
            start(keys[c / 3], flags[c % 3]);
            zt_rig_steps(&rig, n);
            refuses_each(n % 2 ? change_all : change_one);
        }
}

/* ... and those that wait are not lost. */
ZT_TEST(what_waits_to_be_fetched_still_comes) {
    zf_fence_t fence = {.struct_size = sizeof fence};
    start("topk_ratio = 0.2\nupdate_interval = 1\nfull_warm_up_rounds = 2\npredict = off\npublish_lag = 0\n",
          ZF_CREATE_CAP_FETCH);
    for (uint32_t p = 0; p < N_SHAPES; p++) {
        zt_rig_steps(&rig, 4);
        refuses(change_all, p, NAN);
        ZT_OK(&rig, rig.zf->param_fetch(rig.inst, NULL, 0, 0, &rig.stream, &fence, &rig.err));
        zt_rig_wait(&rig, &fence);
        zt_rig_check_visible(&rig);
    }
    zt_rig_end_flushed(&rig);
}

/* By element. */
ZT_TEST(adopt) {
    for (int n = 3; n < 8; n++) {
        start(WINDOWS "on_overwrite = ask\n", n % 2 ? ZF_CREATE_CAP_FETCH : 0);
        zt_rig_steps(&rig, n);
        refuses_each(adopt_one);
    }
}

/* ---- announced in part ------------------------------------------------------------------------------------------- */

enum { LAYER = 8 * 40 };
static const char errs[] =
    "[zenflow]\nfull_warm_up_rounds = 1\nupdate_interval = 1\npublish_lag = 0\ntopk_ratio = 0.1\n";

/* Three layers of 8 x 40 in one parameter; steps are not waited for. */
static void start_stacked(zt_rig_t *r) {
    static const int64_t axes[] = {3, 8, 40};
    zt_rig_start(r, shapes, 1);
    zt_tensor(&r->params[0].tensor, r->params[0].visible, axes, 3, 0);
    zt_tensor(&r->params[0].grad_tensor, r->params[0].grad, axes, 3, 0);
    r->decls[0].n_batch_axes = 1;
    zt_rig_open(r, errs, ZF_CREATE_CAP_FETCH);
    zt_rig_steps(r, 4);
}

static void fetch_one(zt_rig_t *r) {
    zf_fence_t fence = {.struct_size = sizeof fence};
    ZT_OK(r, zt_fetch(r, r->params[0].id, &fence));
    zt_rig_wait(r, &fence);
}

static zf_status_t changed_layer(zt_rig_t *r, uint32_t layer) {
    zf_param_item_t item = {.struct_size = sizeof item, .id = r->params[0].id, .first_batch = layer, .n_batches = 1};
    return r->zf->params_changed(r->inst, &item, 1, sizeof item, 0, &r->err);
}

/* What waits to be fetched of the other layers comes, whether or not it was fetched before. */
ZT_TEST(the_other_layers_go_on) {
    static zt_rig_t twin;
    zt_rig_t *both[] = {&rig, &twin};
    for (int i = 0; i < 2; i++) {
        start_stacked(both[i]);
        zt_rig_finish_step(both[i]);
        if (i)
            fetch_one(both[i]);
        for (int e = LAYER; e < 2 * LAYER; e++)
            ((float *)(void *)both[i]->params[0].visible)[e] = 0.25f;
        ZT_OK(both[i], changed_layer(both[i], 1));
        fetch_one(both[i]);
    }
    ck_assert(zt_shows(&rig.params[0], twin.params[0].visible));
    zt_rig_end(&rig);
    zt_rig_end(&twin);
}

/* A step has passed over all layers by then. */
ZT_TEST(found_before_it_is_announced_in_part) {
    start_stacked(&rig);
    fetch_one(&rig);
    rig.params[0].visible[7 * 4] ^= 1;
    ZT_OK(&rig, zt_rig_try_step(&rig));
    zt_refused(&rig.err, changed_layer(&rig, 0), ZF_ERR_STATE, "name the whole");
    ZT_OK(&rig, zt_changed(&rig, rig.params[0].id, 0));
    zt_rig_steps(&rig, 3);
    zt_rig_end(&rig);
}

/* ... and a question in between, which no longer finds it, does not take that back. */
ZT_TEST(found_and_written_back) {
    const zf_digest_ext_t *ext = zt_table()->get_extension(ZF_EXT_DIGEST);
    for (uint32_t flags = ZF_WRITTEN_LOOK; flags <= ZF_WRITTEN_HOLD; flags++) {
        uint8_t found = 0;
        start_stacked(&rig);
        fetch_one(&rig);
        rig.params[0].visible[7 * 4] ^= 1;
        ZT_OK(&rig, zt_rig_try_step(&rig));
        ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
        rig.params[0].visible[7 * 4] ^= 1;
        ZT_OK(&rig, ext->written(rig.inst, flags, NULL, 0, &found, &rig.err));
        ck_assert_uint_eq(found, 1);
        zt_refused(&rig.err, zt_rig_try_step(&rig), ZF_ERR_OVERWRITTEN, "without params_changed");
        zt_rig_end(&rig);
    }
}

ZT_SUITE("changed")
