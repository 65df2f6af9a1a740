/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_hold.c - on_overwrite = hold: weights that the host writes without a word are left alone while they
 * differ, and told when it asks. What error and ask do is zf-conform exact's. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "state_rig.h"
#include "suite.h"
#include "zf/ext/draft/digest.h"

static zt_rig_t rig;

/* Columns, rows, vectors, two types, one that never runs ahead and one that always does. */
static const zt_shape_t shapes[] = {{.rows = 24, .cols = 40},
                                    {.rows = 30, .cols = 17, .channels = ZF_CHANNELS_ROWS},
                                    {.rows = 50},
                                    {.rows = 21, .cols = 33, .is_bf16 = 1},
                                    {.rows = 16, .cols = 16, .home = ZF_HOME_HOST},
                                    {.rows = 12, .cols = 9, .home = ZF_HOME_RESIDENT}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static const char holds[] = "[zenflow]\nfull_warm_up_rounds = 3\nupdate_interval = 3\ntopk_ratio = 0.1\n"
                            "select_interval = 2\non_overwrite = hold\n";

static void start(const char *config, uint32_t flags) { zt_rig_make(&rig, shapes, N_SHAPES, config, flags); }

static unsigned char *copy_of(uint32_t p) {
    unsigned char *copy = malloc(zt_nbytes(&rig.params[p]));
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, rig.params[p].visible, zt_nbytes(&rig.params[p]));
    return copy;
}

/* One bit of one element, low enough that the value stays finite. */
static void edit_at(zt_rig_t *r, uint32_t p, size_t element) {
    r->params[p].visible[element * r->params[p].elem_nbytes] ^= 1;
}

static size_t somewhere(uint32_t p, uint64_t seed) { return (size_t)(zt_hash(seed << 8 | p) % rig.params[p].n_elems); }

static void wait_for_steps(zt_rig_t *r) { ZT_OK(r, zt_quiesce(r, ZF_QUIESCE_DRAIN)); }

static void fetch(zt_rig_t *r, uint32_t p) {
    zf_fence_t fence = {.struct_size = sizeof fence};
    ZT_OK(r, zt_fetch(r, r->params[p].id, &fence));
    zt_rig_wait(r, &fence);
}

/* What is asked about each parameter, all of which but p are as they should be. */
static void check_answer(uint32_t p, uint8_t expected) {
    const zf_digest_ext_t *ext = rig.zf->get_extension(ZF_EXT_DIGEST);
    uint8_t found[N_SHAPES];
    ZT_OK(&rig, ext->written(rig.inst, ZF_WRITTEN_LOOK, NULL, 0, found, &rig.err));
    for (uint32_t i = 0; i < N_SHAPES; i++)
        ck_assert_msg(found[rig.params[i].id] == (i == p ? expected : 0), "%s: %u", rig.params[i].name,
                      found[rig.params[i].id]);
}

/* No call fails, and none writes over it. */
ZT_TEST(hold_leaves_it_and_fails_nothing) {
    for (uint32_t flags = 0; flags < 2; flags++) {
        start(holds, flags ? ZF_CREATE_CAP_FETCH : 0);
        zt_rig_steps(&rig, 6);
        for (uint32_t t = 0; t < 18; t++) {
            uint32_t p = t % N_SHAPES;
            wait_for_steps(&rig);
            edit_at(&rig, p, somewhere(p, t));
            unsigned char *written = copy_of(p);
            if (flags)
                fetch(&rig, p);
            zt_rig_steps(&rig, 1 + (int)(t % 3));
            ZT_OK(&rig, t % 2 ? zt_quiesce(&rig, ZF_QUIESCE_FLUSH) : zt_save(&rig, NULL, zt_dir(), 0, NULL));
            wait_for_steps(&rig);
            ck_assert(zt_shows(&rig.params[p], written));
            check_answer(p, 1);
            check_answer(p, 1);
            ZT_OK(&rig, zt_changed(&rig, rig.params[p].id, 0));
            check_answer(p, 0);
            ck_assert(zt_shows(&rig.params[p], written));
            free(written);
            zt_rig_steps(&rig, 2);
        }
        zt_rig_end(&rig);
    }
}

static void end_alike(zt_rig_t *a, zt_rig_t *b, uint32_t announced) {
    zt_rig_t *both[] = {a, b};
    for (int i = 0; i < 2; i++) {
        ZT_OK(both[i], zt_quiesce(both[i], ZF_QUIESCE_FLUSH));
        ZT_OK(both[i], zt_changed(both[i], both[i]->params[announced].id, 0));
        zt_rig_steps(both[i], 7);
        ZT_OK(both[i], zt_quiesce(both[i], ZF_QUIESCE_FLUSH));
    }
    for (uint32_t p = 0; p < N_SHAPES; p++)
        ck_assert_msg(zt_shows(&a->params[p], b->params[p].visible), "%s", a->params[p].name);
}

/* Written back after a write left it out, it is told to be behind. Announced then, it goes on as if it had never been
 * written; written back before, it is as it was. */
ZT_TEST(hold_and_written_back) {
    static zt_rig_t twin;
    for (uint32_t t = 0; t < 4 * N_SHAPES; t += ZT_EVERY) {
        uint32_t p = t % N_SHAPES, is_late = t % 3;
        zt_rig_make(&twin, shapes, N_SHAPES, holds, 0);
        start(holds, 0);
        zt_rig_steps(&rig, 6 + (int)(t % 5));
        zt_rig_steps(&twin, 6 + (int)(t % 5) + (is_late != 0));
        unsigned char *was = copy_of(p);
        edit_at(&rig, p, somewhere(p, t));
        if (is_late)
            zt_rig_steps(&rig, 1);
        wait_for_steps(&rig);
        memcpy(rig.params[p].visible, was, zt_nbytes(&rig.params[p]));
        if (is_late == 2) { /* nobody asks, and it is written again */
            zt_rig_steps(&rig, 3);
            zt_rig_steps(&twin, 3);
            ck_assert(!zt_shows(&rig.params[p], was));
        }
        check_answer(p, is_late ? 2 : 0);
        end_alike(&rig, &twin, p);
        check_answer(p, 0);
        free(was);
        zt_rig_end(&twin);
        zt_rig_end(&rig);
    }
}

/* A step that leaves it out is counted with the eighth one after it, however far the device is; a question never. */
ZT_TEST(hold_is_counted_eight_steps_later) {
    for (int is_late = 0; is_late < 2; is_late++) {
        zt_rig_start(&rig, shapes, N_SHAPES);
        zt_rig_use_queue(&rig);
        zt_rig_open(&rig, holds, 0);
        zt_rig_steps(&rig, 6);
        wait_for_steps(&rig);
        edit_at(&rig, 0, 7);
        check_answer(0, 1);
        if (is_late)
            zt_rig_block(&rig);
        for (int t = 0; t < 8; t++) {
            ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
            if (!is_late)
                zt_rig_sync(&rig);
            ck_assert_uint_eq(zt_rig_counter(&rig, "foreign_steps"), 0);
        }
        zt_gate_open();
        for (uint64_t t = 1; t < 4; t++) {
            ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
            ck_assert_uint_eq(zt_rig_counter(&rig, "foreign_steps"), t);
        }
        ZT_OK(&rig, zt_changed(&rig, rig.params[0].id, 0));
        for (int t = 0; t < 20; t++)
            ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
        ck_assert_uint_eq(zt_rig_counter(&rig, "foreign_steps"), 11);
        zt_rig_end(&rig);
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
            fetch(both[i], 0);
        for (int e = LAYER; e < 2 * LAYER; e++)
            ((float *)(void *)both[i]->params[0].visible)[e] = 0.25f;
        ZT_OK(both[i], changed_layer(both[i], 1));
        fetch(both[i], 0);
    }
    ck_assert(zt_shows(&rig.params[0], twin.params[0].visible));
    zt_rig_end(&rig);
    zt_rig_end(&twin);
}

/* A step has passed over all layers by then. */
ZT_TEST(found_before_it_is_announced_in_part) {
    start_stacked(&rig);
    fetch(&rig, 0);
    edit_at(&rig, 0, 7);
    ZT_OK(&rig, zt_rig_try_step(&rig));
    zt_refused(&rig.err, changed_layer(&rig, 0), ZF_ERR_STATE, "name the whole");
    ZT_OK(&rig, zt_changed(&rig, rig.params[0].id, 0));
    zt_rig_steps(&rig, 3);
    zt_rig_end(&rig);
}

/* ... and a look in between, which no longer finds it, does not take that back. */
ZT_TEST(found_and_written_back) {
    const zf_digest_ext_t *ext = zt_table()->get_extension(ZF_EXT_DIGEST);
    for (uint32_t flags = ZF_WRITTEN_LOOK; flags <= ZF_WRITTEN_HOLD; flags++) {
        uint8_t found = 0;
        start_stacked(&rig);
        fetch(&rig, 0);
        edit_at(&rig, 0, 7);
        ZT_OK(&rig, zt_rig_try_step(&rig));
        wait_for_steps(&rig);
        edit_at(&rig, 0, 7);
        ZT_OK(&rig, ext->written(rig.inst, flags, NULL, 0, &found, &rig.err));
        ck_assert_uint_eq(found, 1);
        zt_refused(&rig.err, zt_rig_try_step(&rig), ZF_ERR_OVERWRITTEN, "without params_changed");
        zt_rig_end(&rig);
    }
}

ZT_SUITE("hold")
