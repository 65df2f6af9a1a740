/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_rebind.c - a second bind_params that is refused, and what reads a run while it is exchanged. That a
 * bind_params which fails leaves the run as it was is test_no_memory's; sets that are taken are zf-conform exact's. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "state_rig.h"
#include "suite.h"

static zt_rig_t rig;
static zt_memory_store_t store;

static int32_t descent(void *ctx, const zf_rule_update_t *u) {
    (void)ctx;
    for (uint64_t i = 0; i < u->n_elems; i++)
        u->w[i] -= (float)u->lr * u->g[i];
    return 0;
}

/* A group keeps its rule, and a parameter the rule of its group. */
ZT_TEST(another_rule_is_refused) {
    static const zf_rule_callback_t callback = {.struct_size = sizeof callback, .name = "descent", .update = descent};
    static const zt_shape_t shapes[] = {{.rows = 24, .cols = 40}, {.rows = 17, .group = 1}};
    zf_rule_callback_t other = callback;
    zt_rig_start(&rig, shapes, 2);
    rig.rules[1].rule = ZF_RULE_CALLBACK;
    rig.rules[1].callback = &callback;
    zt_rig_open(&rig, "", 0);
    rig.rules[0].rule = ZF_RULE_LION;
    zt_refused(&rig.err, zt_rig_try_bind(&rig), ZF_ERR_PARAM,
               "group 0: its rule is \"AdamW\" (2 moments), not \"Lion\" (1)");
    rig.rules[0].rule = ZF_RULE_ADAMW;
    other.ctx = &rig;
    rig.rules[1].callback = &other;
    zt_refused(&rig.err, zt_rig_try_bind(&rig), ZF_ERR_PARAM,
               "group 1: callback \"descent\" has another function or ctx");
    rig.rules[1].callback = &callback;
    rig.decls[0].group = 1;
    ck_assert_int_eq(zt_rig_try_bind(&rig), ZF_ERR_PARAM);
    rig.decls[0].group = 0;
    zt_rig_bind(&rig);
    zt_rig_end(&rig);
}

/* ---- statistics from another thread ------------------------------------------------------------------------------ */

static _Atomic int is_over;

static void *read_statistics(void *raw) {
    const uint64_t *want = raw;
    while (!atomic_load(&is_over)) {
        if (zt_rig_counter(&rig, "slot_chunks_total") != want[0] ||
            zt_rig_counter(&rig, "host_measured_nbytes") != want[1])
            return &is_over;
    }
    return NULL;
}

/* A load makes a second run and frees the first, which no other thread may be reading. */
ZT_TEST(statistics_while_runs_are_exchanged) {
    uint64_t want[2];
    pthread_t reader;
    void *failed;
    zt_state_saved(&rig, &store, zt_state_configs[0], 5, 0);
    zt_image_t image = zt_state_image(&rig);
    want[0] = zt_rig_counter(&rig, "slot_chunks_total");
    want[1] = zt_rig_counter(&rig, "host_measured_nbytes");
    ck_assert_uint_gt(want[0], 0);
    pthread_create(&reader, NULL, read_statistics, want);
    for (int i = 0; i < 20; i++)
        ZT_OK(&rig, zt_load(&rig, &store.table, NULL, 0, NULL));
    atomic_store(&is_over, 1);
    pthread_join(reader, &failed);
    ck_assert_ptr_null(failed);
    zt_state_check_image(&rig, &image, "exchanged");
    free(image.bytes);
    zt_state_end(&rig, NULL, &store);
}

static void *read_all(void *raw) {
    zf_counter_t got = {.struct_size = sizeof got};
    while (!atomic_load(&is_over))
        for (uint32_t i = 0; i < rig.stats->n_counters(); i++)
            if (rig.stats->counter(rig.inst, i, &got, NULL))
                return &is_over;
    return raw;
}

/* What it settles any thread may be asking for: the thread sanitizer looks. */
ZT_TEST(statistics_while_bind_params_is_under_way) {
    static const zt_shape_t shape = {.rows = 24, .cols = 40};
    pthread_t reader;
    void *failed;
    zt_rig_start(&rig, &shape, 1);
    zt_rig_create(&rig, "", 0);
    pthread_create(&reader, NULL, read_all, NULL);
    zt_rig_bind(&rig);
    zt_rig_steps(&rig, 3);
    atomic_store(&is_over, 1);
    pthread_join(reader, &failed);
    ck_assert_ptr_null(failed);
    zt_rig_end(&rig);
}

ZT_SUITE("rebind")
