/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_guard.c - weights that the host writes without params_changed, reported by name by every call, with
 * nothing of the parameter overwritten. Whatever is written, asked and adopted at any step is zf-conform exact's. */
#define _GNU_SOURCE
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "state_rig.h"
#include "suite.h"
#include "zf/ext/draft/digest.h"

static zt_rig_t rig;

static const char windows[] = "[zenflow]\nfull_warm_up_rounds = 3\nupdate_interval = 3\ntopk_ratio = 0.1\n"
                              "select_interval = 2\n";

/* Columns, rows, vectors, two types, one that never runs ahead and one that always does. */
static const zt_shape_t shapes[] = {{.rows = 24, .cols = 40},
                                    {.rows = 30, .cols = 17, .channels = ZF_CHANNELS_ROWS},
                                    {.rows = 50},
                                    {.rows = 21, .cols = 33, .is_bf16 = 1},
                                    {.rows = 16, .cols = 16, .home = ZF_HOME_HOST},
                                    {.rows = 12, .cols = 9, .home = ZF_HOME_RESIDENT}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static void start(const char *config, uint32_t flags) {
    zt_rig_start(&rig, shapes, N_SHAPES);
    zt_rig_open(&rig, config, flags);
}

static size_t nbytes_of(uint32_t p) { return zt_nbytes(&rig.params[p]); }

static unsigned char *copy_of(uint32_t p) {
    unsigned char *copy = malloc(nbytes_of(p));
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, rig.params[p].visible, nbytes_of(p));
    return copy;
}

/* One bit of one element, low enough that the value stays finite. */
static void edit_at(zt_rig_t *r, uint32_t p, size_t element) {
    r->params[p].visible[element * r->params[p].elem_nbytes] ^= 1;
}

static size_t somewhere(uint32_t p, uint64_t seed) { return (size_t)(zt_hash(seed << 8 | p) % rig.params[p].n_elems); }

static void expect_named(zf_status_t st, uint32_t p) {
    ck_assert_int_eq(st, ZF_ERR_OVERWRITTEN);
    ck_assert_int_eq(rig.err.scope, ZF_SCOPE_PARAM);
    ck_assert_msg(strstr(rig.err.message, rig.params[p].name), "%s does not name %s", rig.err.message,
                  rig.params[p].name);
}

static zf_status_t flush(zt_rig_t *r) { return zt_quiesce(r, ZF_QUIESCE_FLUSH); }

static zf_status_t poll_report(void) {
    zf_step_report_t report = {.struct_size = sizeof report};
    return rig.zf->poll(rig.inst, &report, &rig.err);
}

static zf_status_t export_all(void) {
    static float out[24 * 40];
    zf_export_item_t item = {.struct_size = sizeof item, .id = 0, .dst = out, .dst_nbytes = sizeof out};
    return rig.zf->export_params(rig.inst, &item, 1, sizeof item, &rig.err);
}

static void announce(zt_rig_t *r, uint32_t p) {
    uint32_t id = r->params[p].id;
    ZT_OK(r, zt_changed(r, id, 0));
}

static zf_status_t flush_it(void) { return flush(&rig); }
static zf_status_t save_it(void) { return zt_save(&rig, NULL, zt_state_dir(), 0, NULL); }
static zf_status_t step_it(void) { return zt_rig_try_step(&rig); }

/* Every call that would overwrite the edit, or keep it from a checkpoint, is refused, whichever comes first. */
static void check_refused(uint32_t p, uint64_t seed) {
    static zf_status_t (*const calls[])(void) = {step_it, flush_it, export_all, save_it};
    unsigned char *written;
    edit_at(&rig, p, somewhere(p, seed));
    written = copy_of(p);
    for (uint32_t i = 0; i < 4; i++) {
        expect_named(calls[(seed + i) % 4](), p);
        expect_named(poll_report(), p);
    }
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
    ck_assert(memcmp(written, rig.params[p].visible, nbytes_of(p)) == 0);
    announce(&rig, p);
    ck_assert(memcmp(written, rig.params[p].visible, nbytes_of(p)) == 0);
    ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL)); /* its gradients are still there */
    free(written);
}

/* ---- where ------------------------------------------------------------------------------------------------------- */

/* Whatever the element's channel is at the time: not selected, selected, on its way in or out. */
START_TEST(any_element_at_any_step) {
    start(windows, 0);
    for (uint32_t t = 0; t < 48; t++) {
        check_refused(t % N_SHAPES, t);
        zt_rig_steps(&rig, 1 + (int)(zt_hash(t) % 2));
    }
    zt_rig_end(&rig);
}
END_TEST

/* ---- when -------------------------------------------------------------------------------------------------------- */

/* The same set with other memory, and another set. */
START_TEST(after_bind_again) {
    start(windows, 0);
    zt_rig_steps(&rig, 8);
    for (uint32_t p = 0; p < N_SHAPES; p++) {
        unsigned char *was = rig.params[p].visible;
        rig.params[p].visible = copy_of(p);
        rig.params[p].tensor.dl.data = rig.params[p].visible;
        memset(was, 0, nbytes_of(p));
        free(was);
    }
    zt_rig_bind(&rig);
    check_refused(2, 1);
    edit_at(&rig, 3, 7); /* between the bind and the first step */
    zt_rig_bind(&rig);
    expect_named(zt_rig_try_step(&rig), 3);
    announce(&rig, 3);
    ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
    rig.decls[0].home = ZF_HOME_HOST; /* another set: masters are carried over */
    edit_at(&rig, 4, 9);
    expect_named(zt_rig_try_bind(&rig), 4);
    announce(&rig, 4);
    zt_rig_bind(&rig);
    check_refused(0, 2);
    zt_rig_steps(&rig, 8);
    check_refused(5, 3);
    zt_rig_end(&rig);
}
END_TEST

/* What the checkpoint lacks would keep its masters. */
START_TEST(before_a_partial_load) {
    start(windows, 0);
    zt_rig_steps(&rig, 5);
    ZT_OK(&rig, zt_save(&rig, NULL, zt_state_dir(), 0, NULL));
    edit_at(&rig, 2, 3);
    expect_named(zt_load(&rig, NULL, zt_state_dir(), ZF_STATE_PARTIAL, NULL), 2);
    ZT_OK(&rig, zt_load(&rig, NULL, zt_state_dir(), 0, NULL));
    zt_rig_steps(&rig, 5);
    zt_rig_end(&rig);
}
END_TEST

/* ---- hosts that do not wait -------------------------------------------------------------------------------------- */

static void wait_for_steps(zt_rig_t *r) { ZT_OK(r, zt_quiesce(r, ZF_QUIESCE_DRAIN)); }

static void fetch(zt_rig_t *r, uint32_t p) {
    uint32_t id = r->params[p].id;
    zf_fence_t fence = {.struct_size = sizeof fence};
    ZT_OK(r, zt_fetch(r, id, &fence));
    zt_rig_wait(r, &fence);
}

/* A fetch does not publish over it, and is no error; nor does what comes to rest. */
START_TEST(a_fetch_leaves_it) {
    start(windows, ZF_CREATE_CAP_FETCH);
    zt_rig_steps(&rig, 6);
    for (uint32_t t = 0; t < 18; t++) {
        uint32_t p = t % N_SHAPES;
        unsigned char *written;
        for (uint32_t i = 0; i < N_SHAPES; i++)
            fetch(&rig, i);
        zt_rig_step(&rig);
        ZT_OK(&rig, zt_rig_submit(&rig, ZF_STEP_WAIT, NULL)); /* without gradients; what closed waits to be fetched */
        edit_at(&rig, p, somewhere(p, t));
        written = copy_of(p);
        if (t % 3)
            fetch(&rig, p);
        else
            wait_for_steps(&rig);
        ck_assert(memcmp(written, rig.params[p].visible, nbytes_of(p)) == 0);
        expect_named(zt_rig_submit(&rig, ZF_STEP_WAIT, NULL), p);
        ck_assert(memcmp(written, rig.params[p].visible, nbytes_of(p)) == 0);
        announce(&rig, p);
        free(written);
        zt_rig_steps(&rig, 1);
    }
    zt_rig_end(&rig);
}
END_TEST

/* ---- no false alarm ---------------------------------------------------------------------------------------------- */

START_TEST(off_checks_nothing) {
    uint64_t on;
    start(windows, 0);
    on = rig.layout.device_nbytes;
    zt_rig_end(&rig);
    start("[zenflow]\nfull_warm_up_rounds = 3\nupdate_interval = 3\non_overwrite = off\n", 0);
    ck_assert_uint_le(rig.layout.device_nbytes, on);
    zt_rig_steps(&rig, 5);
    for (uint32_t p = 0; p < N_SHAPES; p++)
        edit_at(&rig, p, 2);
    zt_rig_steps(&rig, 5);
    ZT_OK(&rig, flush(&rig));
    zt_rig_end(&rig);
}
END_TEST

/* ---- asked for --------------------------------------------------------------------------------------------------- */

static const char asks[] = "[zenflow]\nfull_warm_up_rounds = 3\nupdate_interval = 3\ntopk_ratio = 0.1\n"
                           "select_interval = 2\non_overwrite = ask\n";

/* Whether exactly `expected` (N_SHAPES: none) is found, of all and asked for alone. */
static void check_written(uint32_t flags, uint32_t expected) {
    const zf_digest_ext_t *ext = rig.zf->get_extension(ZF_EXT_DIGEST);
    uint8_t found[N_SHAPES], alone;
    for (uint32_t p = 0; p < N_SHAPES; p++) {
        ZT_OK(&rig, ext->written(rig.inst, flags, &rig.params[p].id, 1, &alone, &rig.err));
        ck_assert_msg(alone == (p == expected), "%s: %u", rig.params[p].name, alone);
    }
    ZT_OK(&rig, ext->written(rig.inst, flags, NULL, 0, found, &rig.err));
    for (uint32_t p = 0; p < N_SHAPES; p++)
        ck_assert_msg(found[rig.params[p].id] == (flags == ZF_WRITTEN_ACCEPT ? 0 : p == expected), "%s",
                      rig.params[p].name);
}

START_TEST(adopting_is_refused) {
    const zf_digest_ext_t *ext;
    uint32_t unknown = 99;
    start(asks, 0);
    ext = rig.zf->get_extension(ZF_EXT_DIGEST);
    ck_assert_int_eq(ext->adopt(rig.inst, &unknown, 1, &rig.err), ZF_ERR_PARAM);
    ck_assert_int_eq(ext->adopt(rig.inst, NULL, 1, &rig.err), ZF_ERR_ARGUMENT);
    zt_rig_end(&rig);
    start(windows, 0);
    zt_refused(&rig.err, ext->adopt(rig.inst, NULL, 0, &rig.err), ZF_ERR_STATE, "on_overwrite = ask");
    zt_rig_end(&rig);
}
END_TEST

/* The other modes answer too, and find it themselves all the same. */
START_TEST(ask_beside_other_modes) {
    const zf_digest_ext_t *ext;
    uint32_t unknown = 99;
    uint8_t found;
    start(windows, 0);
    ext = rig.zf->get_extension(ZF_EXT_DIGEST);
    zt_rig_steps(&rig, 4);
    edit_at(&rig, 1, 7);
    check_written(ZF_WRITTEN_LOOK, 1);
    expect_named(zt_rig_try_step(&rig), 1);
    check_written(ZF_WRITTEN_LOOK, 1);
    expect_named(flush(&rig), 1);
    announce(&rig, 1);
    check_written(ZF_WRITTEN_LOOK, N_SHAPES);
    ck_assert_int_eq(ext->written(rig.inst, 3, NULL, 0, &found, &rig.err), ZF_ERR_UNSUPPORTED_FIELD);
    ck_assert_int_eq(ext->written(rig.inst, 0, &unknown, 1, &found, &rig.err), ZF_ERR_PARAM);
    ck_assert_int_eq(ext->written(rig.inst, 0, NULL, 1, &found, &rig.err), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(ext->written(rig.inst, 0, &unknown, 1, NULL, &rig.err), ZF_ERR_ARGUMENT);
    zt_rig_end(&rig);
    start("[zenflow]\non_overwrite = off\n", 0);
    ck_assert_int_eq(ext->written(rig.inst, 0, &rig.params[0].id, 1, &found, &rig.err), ZF_ERR_STATE);
    zt_rig_end(&rig);
}
END_TEST

/* ---- held -------------------------------------------------------------------------------------------------------- */

static const char holds[] = "[zenflow]\nfull_warm_up_rounds = 3\nupdate_interval = 3\ntopk_ratio = 0.1\n"
                            "select_interval = 2\non_overwrite = hold\n";

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
START_TEST(hold_leaves_it_and_fails_nothing) {
    for (uint32_t flags = 0; flags < 2; flags++) {
        start(holds, flags ? ZF_CREATE_CAP_FETCH : 0);
        zt_rig_steps(&rig, 6);
        for (uint32_t t = 0; t < 18; t++) {
            uint32_t p = t % N_SHAPES;
            unsigned char *written;
            wait_for_steps(&rig);
            edit_at(&rig, p, somewhere(p, t));
            written = copy_of(p);
            if (flags)
                fetch(&rig, p);
            zt_rig_steps(&rig, 1 + (int)(t % 3));
            ZT_OK(&rig, t % 2 ? flush(&rig) : save_it());
            ZT_OK(&rig, export_all());
            (void)poll_report();
            wait_for_steps(&rig);
            ck_assert(memcmp(written, rig.params[p].visible, nbytes_of(p)) == 0);
            check_answer(p, 1);
            check_answer(p, 1);
            announce(&rig, p);
            check_answer(p, 0);
            ck_assert(memcmp(written, rig.params[p].visible, nbytes_of(p)) == 0);
            free(written);
            zt_rig_steps(&rig, 2);
        }
        zt_rig_end(&rig);
    }
}
END_TEST

static void end_alike(zt_rig_t *a, zt_rig_t *b, uint32_t announced) {
    zt_rig_t *both[] = {a, b};
    for (int i = 0; i < 2; i++) {
        ZT_OK(both[i], flush(both[i]));
        announce(both[i], announced);
        zt_rig_steps(both[i], 7);
        ZT_OK(both[i], flush(both[i]));
    }
    for (uint32_t p = 0; p < N_SHAPES; p++)
        ck_assert_msg(memcmp(a->params[p].visible, b->params[p].visible, zt_nbytes(&a->params[p])) == 0, "%s",
                      a->params[p].name);
}

/* Written back after a write left it out, it is told to be behind. Announced then, it goes on as if it had never been
 * written; written back before, it is as it was. */
START_TEST(hold_and_written_back) {
    static zt_rig_t twin;
    for (uint32_t t = 0; t < 4 * N_SHAPES; t++) {
        uint32_t p = t % N_SHAPES, is_late = t % 3;
        unsigned char *was;
        zt_rig_start(&twin, shapes, N_SHAPES);
        zt_rig_open(&twin, windows, 0);
        start(holds, 0);
        zt_rig_steps(&rig, 6 + (int)(t % 5));
        zt_rig_steps(&twin, 6 + (int)(t % 5) + (is_late != 0));
        was = copy_of(p);
        edit_at(&rig, p, somewhere(p, t));
        if (is_late)
            zt_rig_steps(&rig, 1);
        wait_for_steps(&rig);
        memcpy(rig.params[p].visible, was, nbytes_of(p));
        if (is_late == 2) { /* nobody asks, and it is written again */
            zt_rig_steps(&rig, 3);
            zt_rig_steps(&twin, 3);
            ck_assert(memcmp(rig.params[p].visible, was, nbytes_of(p)) != 0);
        }
        check_answer(p, is_late ? 2 : 0);
        end_alike(&rig, &twin, p);
        check_answer(p, 0);
        free(was);
        zt_rig_end(&twin);
        zt_rig_end(&rig);
    }
}
END_TEST

/* Of two blocks of a matrix, whose windows close in turn, one is due; the other one is edited. */
START_TEST(an_edit_in_a_block_that_is_not_due) {
    static const zt_shape_t one = {.rows = 8, .cols = 64, .home = ZF_HOME_HOST};
    size_t element = 0;
    unsigned char *before;
    setenv("ZF_TEST_BLOCK_ELEMS", "256", 1);
    for (int n_steps = 7; n_steps < 9; n_steps++) /* either block is the one that is due */
        for (int half = 0; half < 2; half++) {
            zf_fence_t fence = {.struct_size = sizeof fence};
            zt_rig_start(&rig, &one, 1);
            zt_rig_open(&rig, "[zenflow]\nfull_warm_up_rounds = 1\nupdate_interval = 2\n", ZF_CREATE_CAP_FETCH);
            for (int i = 0; i < n_steps; i++) {
                ZT_OK(&rig, zt_fetch(&rig, 0, &fence));
                zt_rig_wait(&rig, &fence);
                zt_rig_step(&rig);
            }
            element = half ? 511 : 0;
            edit_at(&rig, 0, element);
            before = copy_of(0);
            expect_named(flush(&rig), 0);
            ck_assert_int_eq(memcmp(before, rig.params[0].visible, nbytes_of(0)), 0);
            free(before);
            zt_rig_end(&rig);
        }
    unsetenv("ZF_TEST_BLOCK_ELEMS");
}
END_TEST

/* A fetch checks what it is about to write: of two blocks, one of which is due, the due one appears beside an edit of
 * the other one, and does not over an edit of its own. The edit stays, and the next step names it. */
START_TEST(an_edit_beside_what_is_fetched) {
    static const zt_shape_t one = {.rows = 8, .cols = 64, .home = ZF_HOME_HOST};
    setenv("ZF_TEST_BLOCK_ELEMS", "256", 1);
    for (int n_steps = 7; n_steps < 9; n_steps++) {
        int n_appeared = 0;
        for (int half = 0; half < 2; half++) {
            unsigned char *before;
            zf_fence_t fence = {.struct_size = sizeof fence};
            zt_rig_start(&rig, &one, 1);
            zt_rig_open(&rig, "[zenflow]\nfull_warm_up_rounds = 1\nupdate_interval = 2\n", ZF_CREATE_CAP_FETCH);
            zt_rig_steps(&rig, n_steps - 1);
            ZT_OK(&rig, zt_fetch(&rig, 0, &fence));
            zt_rig_wait(&rig, &fence);
            zt_rig_fill_grad(&rig, 0, rig.step + 1);
            ZT_OK(&rig, zt_rig_deliver(&rig, 0, 0, NULL));
            ZT_OK(&rig, zt_rig_submit(&rig, ZF_STEP_WAIT, NULL));
            edit_at(&rig, 0, half ? 511 : 0);
            before = copy_of(0);
            ZT_OK(&rig, zt_fetch(&rig, 0, &fence));
            zt_rig_wait(&rig, &fence);
            ck_assert_int_eq(memcmp(before + 1024 * half, rig.params[0].visible + 1024 * half, 1024), 0);
            n_appeared += memcmp(before + 1024 * !half, rig.params[0].visible + 1024 * !half, 1024) != 0;
            expect_named(zt_rig_submit(&rig, ZF_STEP_WAIT, NULL), 0);
            ck_assert_int_eq(memcmp(before + 1024 * half, rig.params[0].visible + 1024 * half, 1024), 0);
            free(before);
            zt_rig_end(&rig);
        }
        ck_assert_int_eq(n_appeared, 1);
    }
    unsetenv("ZF_TEST_BLOCK_ELEMS");
}
END_TEST

ZT_MAIN("guard", any_element_at_any_step, after_bind_again, before_a_partial_load, a_fetch_leaves_it,
        an_edit_in_a_block_that_is_not_due, an_edit_beside_what_is_fetched, off_checks_nothing, adopting_is_refused,
        ask_beside_other_modes, hold_leaves_it_and_fails_nothing, hold_and_written_back)
