/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_state.c - zf.state/1 within one process: what is refused and with which words, what the header
 * says, storage that fails. That a run goes on to the bit in every mode is zf-conform exact's, law 3. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hostile_rig.h"
#include "instance/instance.h"
#include "instance/memory.h"
#include "suite.h"

static zt_rig_t rig, copy, reference;
static zt_memory_store_t store;

/* A save that no load would take is refused: here of a run that is near the end of what its counts can hold. */
ZT_TEST(too_many_steps) {
    zt_memory_store_start(&store);
    zt_state_open(&rig, zt_state_configs[0]);
    zt_state_steps(&rig, 3);
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_FLUSH)); /* workers read it */
    rig.inst->run->clock.steps_before = (uint64_t)3 << 30;
    zt_refused(&rig.err, zt_save(&rig, &store.table, NULL, 0, NULL), ZF_ERR_CHECKPOINT, "3221225472 steps");
    ck_assert_ptr_null(zt_memory_store_find(&store, ZF_STATE_INDEX));
    rig.inst->run->clock.steps_before = ((uint64_t)3 << 30) - 3;
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    ZT_OK(&rig, zt_load(&rig, &store.table, NULL, 0, NULL));
    store.table.reserved0 = 1; /* of a later version */
    zt_refused(&rig.err, zt_load(&rig, &store.table, NULL, 0, NULL), ZF_ERR_UNSUPPORTED_FIELD, "zf_state_store_t");
    zt_state_end(&rig, NULL, &store);
}

static int32_t decay(void *ctx, const zf_rule_update_t *u) {
    (void)ctx;
    for (uint64_t i = 0; i < u->n_elems; i++) {
        u->m[i] = 0.5f * u->m[i] + u->g[i];
        u->w[i] -= (float)u->lr / (float)u->n * u->m[i];
    }
    return 0;
}

static const zf_rule_callback_t callback = {
    .struct_size = sizeof callback, .n_moments = 1, .name = "decay", .update = decay};

/* A rule is known by its number; the host's own by its name and by how many moments it keeps. */
ZT_TEST(another_rule_is_refused) {
    static const zf_rule_callback_t decline = {
        .struct_size = sizeof decline, .n_moments = 1, .name = "decline", .update = decay};
    static const zf_rule_callback_t of_two = {
        .struct_size = sizeof of_two, .n_moments = 2, .name = "decay", .update = decay};
    static const struct {
        zt_state_mode_t saved, loaded;
        const char *words;
    } tries[] = {
        {{ZF_RULE_ADAMW, NULL, ""}, {ZF_RULE_LION, NULL, ""}, "update rule \"AdamW\" of 2 moment(s)"},
        {{ZF_RULE_CALLBACK, &callback, ""}, {ZF_RULE_CALLBACK, &decline, ""}, "\"decline\""},
        {{ZF_RULE_CALLBACK, &callback, ""}, {ZF_RULE_CALLBACK, &of_two, ""}, "\"decay\" of 2"},
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        zt_state_mode = tries[i].saved;
        zt_state_saved(&rig, &store, zt_state_configs[0], 5, 0);
        zt_state_mode = tries[i].loaded;
        zt_state_open(&copy, zt_state_configs[0]);
        zt_refused(&copy.err, zt_load(&copy, &store.table, NULL, 0, NULL), ZF_ERR_CHECKPOINT, tries[i].words);
        zt_state_end(&rig, &copy, &store);
    }
}

static int32_t differ(void *ctx, const zf_rule_update_t *u) {
    (void)ctx;
    for (uint64_t i = 0; i < u->n_elems; i++) {
        u->m[i] = u->g[i] - u->v[i];
        u->v[i] = u->g[i];
        u->w[i] -= (float)u->lr * u->m[i];
    }
    return 0;
}

/* What the host's rule keeps in the second moment need be no square. */
ZT_TEST(a_second_moment_below_zero) {
    static const zf_rule_callback_t rule = {
        .struct_size = sizeof rule, .n_moments = 2, .name = "differ", .update = differ};
    zt_state_mode = (zt_state_mode_t){ZF_RULE_CALLBACK, &rule, ""};
    zt_state_saved(&rig, &store, zt_state_configs[0], 5, 0);
    zt_state_open(&copy, zt_state_configs[0]);
    ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, NULL));
    zt_state_end(&rig, &copy, &store);
}

/* ---- windows close, or stay open --------------------------------------------------------------------------------- */

/* What was done before the first step, a load undoes: windows that were closed, weights that were announced. */
ZT_TEST(a_load_undoes_what_was_done_before) {
    for (int i = 0; i < ZT_N_STATE_CONFIGS; i++) {
        zt_state_saved(&rig, &store, zt_state_configs[i], 9, 0);
        zt_state_open_copy(&copy, zt_state_configs[i], 1);
        for (int twice = 0; twice < 2; twice++) {
            ZT_OK(&copy, zt_quiesce(&copy, ZF_QUIESCE_FLUSH));
            ZT_OK(&copy, copy.zf->params_changed(copy.inst, NULL, 0, 0, ZF_CHANGED_RESET, &copy.err));
        }
        ZT_OK(&copy, zt_load(&copy, &store.table, NULL, ZF_STATE_CONTINUE, NULL));
        zt_state_steps(&rig, 12);
        zt_state_steps(&copy, 12);
        zt_state_check_equal(&rig, &copy, zt_state_configs[i]);
        zt_state_end(&rig, &copy, &store);
    }
}

/* Other ratios of the same k, and any key of selection where nothing is chosen. */
ZT_TEST(keys_that_decide_nothing_refuse_no_load) {
    static const char *const ways[][2] = {
        {"topk_ratio = 0.1\nupdate_interval = 4\nfull_warm_up_rounds = 1\nselect_interval = 4",
         "topk_ratio = 0.099\nupdate_interval = 4\nfull_warm_up_rounds = 1\nselect_interval = 4"},
        {"topk_ratio = 0.1\nupdate_interval = 4\n[device]\nstate_mib = all",
         "topk_ratio = 0.9\nupdate_interval = 4\nselect_strategy = epoch\n[device]\nstate_mib = all"},
        {"mode = exact\ntopk_ratio = 0.1", "mode = exact\ntopk_ratio = 0.9\nselect_interval = 3"},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        zt_state_saved(&rig, &store, ways[i][0], 9, 0);
        zt_state_open(&copy, ways[i][1]);
        ZT_OK(&copy, zt_load(&copy, &store.table, NULL, ZF_STATE_CONTINUE, NULL));
        zt_state_end(&rig, &copy, &store);
    }
}

/* A save that keeps windows open leaves the instance as it is, and saves the same. Where the selection does not fit,
 * the schedule begins again, or the load is refused. */
ZT_TEST(windows_that_stay_open) {
    zt_memory_store_t closed;
    zt_memory_store_start(&closed);
    zt_state_saved(&rig, &store, zt_state_configs[0], 9, ZF_STATE_KEEP_OPEN);
    zt_image_t before = zt_state_image(&rig);
    ZT_OK(&rig, zt_save(&rig, &closed.table, NULL, ZF_STATE_KEEP_OPEN, NULL));
    zt_state_check_image(&rig, &before, "after a save that keeps windows open");
    ZT_OK(&rig, zt_save(&rig, &closed.table, NULL, 0, NULL));
    for (int i = 0; i < store.n_blobs; i++) {
        const zt_blob_t *other = zt_memory_store_find(&closed, store.blobs[i].name);
        ck_assert_uint_eq(store.blobs[i].nbytes, other->nbytes);
        ck_assert_mem_eq(store.blobs[i].data, other->data, other->nbytes);
    }
    free(before.bytes);
    zt_state_open(&copy, "topk_ratio = 0.5\nupdate_interval = 4\nfull_warm_up_rounds = 2");
    before = zt_state_image(&copy);
    zt_refused(&copy.err, zt_load(&copy, &store.table, NULL, ZF_STATE_CONTINUE, NULL), ZF_ERR_CHECKPOINT, "topk_ratio");
    zt_state_check_image(&copy, &before, "after a refused load");
    ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, NULL));
    free(before.bytes);
    zt_memory_store_clear(&closed);
    zt_state_end(&rig, &copy, &store);
}

/* Keys that change neither cut nor selection may be others. */
ZT_TEST(other_keys_do_not_begin_again) {
    static const char from[] = "topk_ratio = 0.2\nfull_warm_up_rounds = 2\nupdate_interval = 4";
    static const char *const to[] = {"update_interval = 2",
                                     "update_interval = 4\nselect_interval = 12",
                                     "update_interval = auto",
                                     "update_interval = 4\npublish_lag = 1",
                                     "mode = mean\nupdate_interval = 4",
                                     "update_interval = 4\nselect_strategy = epoch"};
    zt_state_saved(&rig, &store, from, 9, 0);
    for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
        char text[200];
        snprintf(text, sizeof text, "topk_ratio = 0.2\nfull_warm_up_rounds = 2\n%s", to[i]);
        zt_state_open_copy(&copy, text, 1);
        ZT_OK(&copy, zt_load(&copy, &store.table, NULL, ZF_STATE_CONTINUE, NULL));
        zt_state_steps(&copy, 6);
        zt_rig_end(&copy);
    }
    zt_state_end(&rig, NULL, &store);
}

/* ---- the wrong model --------------------------------------------------------------------------------------------- */

ZT_TEST(another_model) {
    zt_shape_t other[] = {{.rows = 96, .cols = 81}, {.rows = 17}};
    zt_state_saved(&rig, &store, zt_state_configs[0], 7, 0);
    zt_rig_make(&copy, other, 2, "[zenflow]\nfull_warm_up_rounds = 2\n", 0);
    ck_assert_int_eq(zt_load(&copy, &store.table, NULL, ZF_STATE_PARTIAL, NULL), ZF_ERR_CHECKPOINT);
    ck_assert_msg(strstr(copy.err.message, "96, 80") && strstr(copy.err.message, "96, 81"), "%s", copy.err.message);
    zt_state_end(&rig, &copy, &store);
}

/* A parameter that the checkpoint lacks has had more updates than the checkpoint has steps: what is saved then loads.
 */
ZT_TEST(a_part_of_the_model_into_an_older_run) {
    zt_shape_t shapes[] = {{.rows = 24, .cols = 8}, {.rows = 17}};
    static const char config[] = "[zenflow]\nfull_warm_up_rounds = 2\n";
    zt_memory_store_t again;
    zt_memory_store_start(&store);
    zt_memory_store_start(&again);
    zt_rig_make(&rig, shapes, 1, config, 0);
    zt_state_steps(&rig, 3);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    zt_rig_make(&copy, shapes, 2, config, 0);
    zt_state_steps(&copy, 9);
    ZT_OK(&copy, zt_load(&copy, &store.table, NULL, ZF_STATE_PARTIAL, NULL));
    ZT_OK(&copy, zt_save(&copy, &again.table, NULL, 0, NULL));
    zt_rig_make(&reference, shapes, 2, config, 0);
    ZT_OK(&reference, zt_load(&reference, &again.table, NULL, 0, NULL));
    for (int i = 0; i < 2; i++)
        ck_assert_mem_eq(reference.params[i].visible, copy.params[i].visible, 4 * copy.params[i].n_elems);
    zt_rig_end(&reference);
    zt_memory_store_clear(&again);
    zt_state_end(&rig, &copy, &store);
}

/* ---- cost -------------------------------------------------------------------------------------------------------- */

/* Reads of the store that loading a parameter of n blocks into twice as many takes. */
static uint64_t reads_of_blocks(int64_t n) {
    zt_shape_t shape = {.rows = 8 * n, .cols = 4};
    static const char config[] = "[zenflow]\nupdate_interval = 4\nfull_warm_up_rounds = 1\ntopk_ratio = 0.5\n";
    zt_memory_store_start(&store);
    setenv("ZF_TEST_BLOCK_ELEMS", "32", 1);
    zt_rig_make(&rig, &shape, 1, config, 0);
    zt_rig_steps(&rig, 6);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    zt_rig_end(&rig);
    setenv("ZF_TEST_BLOCK_ELEMS", "16", 1);
    zt_rig_make(&rig, &shape, 1, config, 0);
    unsetenv("ZF_TEST_BLOCK_ELEMS");
    store.n_calls = 0;
    ZT_OK(&rig, zt_load(&rig, &store.table, NULL, 0, NULL));
    uint64_t n_reads = (uint64_t)store.n_calls;
    zt_state_end(&rig, NULL, &store);
    return n_reads;
}

ZT_TEST(blocks_cost_what_they_hold) {
    uint64_t few = reads_of_blocks(100), many = reads_of_blocks(400);
    ck_assert_msg(many <= 4 * few, "of four times as many blocks %llu reads after %llu", (unsigned long long)many,
                  (unsigned long long)few);
}

/* Of small parameters the index takes a few hundred bytes each. */
ZT_TEST(an_index_in_proportion) {
    enum { N = 2000 };
    zt_shape_t *shapes = calloc(N, sizeof *shapes);
    for (int i = 0; i < N; i++)
        shapes[i] = (zt_shape_t){.rows = 8, .cols = 8};
    zt_memory_store_start(&store);
    zt_rig_make(&rig, shapes, N, "[zenflow]\nfull_warm_up_rounds = 1\n", 0);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    ck_assert_uint_lt(zt_memory_store_find(&store, ZF_STATE_INDEX)->nbytes, (size_t)N * 400);
    ZT_OK(&rig, zt_load(&rig, &store.table, NULL, 0, NULL));
    free(shapes);
    zt_state_end(&rig, NULL, &store);
}

/* ---- no room for two --------------------------------------------------------------------------------------------- */

static char limit[64];

/* A running instance, with room for itself. */
static void open_narrow(void) {
    zt_state_open(&copy, zt_state_configs[0]);
    snprintf(limit, sizeof limit, "memory_limit_mib = %u\n",
             (unsigned)((copy.layout.host_nbytes + copy.layout.device_nbytes) >> 20) + 1);
    zt_rig_end(&copy);
    zt_state_mode.host = limit;
    zt_state_open(&copy, zt_state_configs[0]);
    zt_state_mode.host = "";
    zt_state_steps(&copy, 4);
    ck_assert(!zfi_memory_has_room_beside(&copy.inst->run->ranks));
}

/* What is there is given up once the checkpoint is checked: what is loaded is the same. */
ZT_TEST(loaded_in_place_of_what_was_there) {
    zt_state_saved(&rig, &store, zt_state_configs[0], 9, 0);
    {
        open_narrow();
        ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, NULL));
        zt_state_check_equal(&rig, &copy, "loaded with room for one");
        copy.step = rig.step;
        zt_state_open(&reference, zt_state_configs[0]);
        zt_state_steps(&reference, 4);
        ZT_OK(&reference, zt_load(&reference, &store.table, NULL, 0, NULL)); /* with room for two */
        reference.step = rig.step;
        zt_state_steps(&copy, 5);
        zt_state_steps(&reference, 5);
        zt_state_check_equal(&reference, &copy, "trained on");
        zt_rig_end(&reference);
        zt_rig_end(&copy);
    }
    zt_state_end(&rig, NULL, &store);
}

/* Until then a failure changes nothing; later it ends the instance. */
ZT_TEST(a_load_that_fails_when_all_was_given_up) {
    int n_load, n_ended = 0;
    zt_state_saved(&rig, &store, zt_state_configs[0], 6, 0);
    store.n_calls = 0;
    open_narrow();
    ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, NULL));
    n_load = store.n_calls;
    zt_rig_end(&copy);
    for (int k = 1; k <= n_load; k += 1 + n_load / 12) {
        open_narrow();
        store.n_calls = 0;
        store.fail_at = k;
        ck_assert_int_eq(zt_load(&copy, &store.table, NULL, 0, NULL), ZF_ERR_STORAGE);
        if (zt_rig_try_step(&copy) < 0) {
            n_ended++;
            ck_assert_int_eq(copy.err.scope, ZF_SCOPE_INSTANCE);
            zt_contains(copy.err.message, "gave that up, and failed");
        } else {
            ck_assert_int_eq(n_ended, 0);
        }
        zt_rig_end(&copy);
    }
    ck_assert_int_gt(n_ended, 0);
    zt_state_end(&rig, NULL, &store);
}

/* ---- storage that fails ------------------------------------------------------------------------------------------ */

/* Into an instance of so many steps: each of the load's calls fails, and it is as it was. Then it gets through. */
static void fail_each_read(const char *into, int n_steps, int stride) {
    zt_state_open_copy(&copy, into, 1);
    store.n_calls = 0;
    ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, NULL));
    int n_load = store.n_calls;
    zt_rig_end(&copy);
    zt_state_open(&copy, into);
    zt_state_steps(&copy, n_steps);
    zt_image_t before = zt_state_image(&copy);
    for (int k = 1; k <= n_load; k += stride * ZT_EVERY) {
        store.n_calls = 0;
        store.fail_at = k;
        ck_assert_msg(zt_load(&copy, &store.table, NULL, 0, NULL) == ZF_ERR_STORAGE, "call %d of %d", k, n_load);
        zt_state_check_image(&copy, &before, "a call failed");
    }
    free(before.bytes);
    store.fail_at = 0;
    ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, NULL));
    if (into == zt_state_configs[0])
        zt_state_check_equal(&rig, &copy, "after failures");
    zt_rig_end(&copy);
}

/* Every call of the host's store fails once: save and load say so, and the instances are as they were. */
ZT_TEST(stores_that_fail) {
    zt_state_saved(&rig, &store, zt_state_configs[0], 6, 0);
    int n_save = store.n_calls;
    zt_image_t image = zt_state_image(&rig);
    for (int k = 1; k <= n_save; k += ZT_EVERY) {
        zt_memory_store_clear(&store);
        store.fail_at = k;
        ck_assert_int_eq(zt_save(&rig, &store.table, NULL, 0, NULL), ZF_ERR_STORAGE);
    }
    zt_memory_store_clear(&store);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    fail_each_read(zt_state_configs[0], 0, 1); /* fresh: filled in place */
    fail_each_read(zt_state_configs[0], 4, 3);
    fail_each_read(zt_state_configs[1], 0, 1);
    zt_state_check_image(&rig, &image, "after failed saves");
    free(image.bytes);
    zt_state_end(&rig, NULL, &store);
}

/* Steps applied and skipped of before the save count on after a load. */
static void check_totals_count_on(uint32_t flags) {
    zt_rig_t loaded;
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, flags, NULL));
    zt_state_open_copy(&loaded, zt_state_configs[0], 1);
    ZT_OK(&loaded, zt_load(&loaded, &store.table, NULL, 0, NULL));
    zt_state_steps(&loaded, 7); /* the fourteenth is skipped */
    ZT_OK(&loaded, zt_quiesce(&loaded, ZF_QUIESCE_DRAIN));
    ck_assert_uint_eq(zt_rig_counter(&loaded, "steps"), 14);
    ck_assert_uint_eq(zt_rig_counter(&loaded, "steps_applied"), 12);
    ck_assert_uint_eq(zt_rig_counter(&loaded, "steps_skipped"), 2);
    zt_rig_end(&loaded);
}

#define APPLIED "\"applied\":"
#define SKIPPED "\"skipped\":"

/* No checkpoint may claim more of them than there were steps. */
ZT_TEST(totals_count_on) {
    static const struct {
        const char *applied, *skipped;
        zf_status_t st;
    } claims[] = {{APPLIED "7", SKIPPED "1", ZF_OK},
                  {APPLIED "6", SKIPPED "7", ZF_OK},
                  {APPLIED "8", SKIPPED "1", ZF_ERR_CHECKPOINT},
                  {APPLIED "6", SKIPPED "8", ZF_ERR_CHECKPOINT}};
    zt_memory_store_start(&store);
    zt_state_open(&rig, zt_state_configs[0]);
    zt_state_steps(&rig, 7); /* the seventh is skipped */
    check_totals_count_on(0);
    check_totals_count_on(ZF_STATE_KEEP_OPEN);
    zt_state_open_copy(&copy, zt_state_configs[0], 1);
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
        zt_index_replace(&store, NULL, APPLIED "6", claims[i].applied);
        zt_index_replace(&store, NULL, SKIPPED "1", claims[i].skipped);
        zf_status_t st = zt_load(&copy, &store.table, NULL, 0, NULL);
        ck_assert_msg(st == claims[i].st, "claim %zu: %d", i, st);
        ck_assert_msg(st == ZF_OK || strstr(copy.err.message, "a smaller number") != NULL, "%s", copy.err.message);
    }
    zt_state_end(&copy, &rig, &store);
}

ZT_SUITE("state")
