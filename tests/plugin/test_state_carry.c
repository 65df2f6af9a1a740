/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_state_carry.c - a checkpoint that another configuration, cut or declaration takes.
 * What is carried is compared by zf-conform exact; here is what it cannot see: messages, faults, cost. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "instance/instance.h"
#include "state/table.h"
#include "state_rig.h"
#include "suite.h"
#include "wrap.h"

static zt_rig_t rig, copy;
static zt_memory_store_t store;

/* Elements that a block may always have; NULL: as users get it. */
static void set_blocks(const char *n) {
    if (n)
        setenv("ZF_TEST_BLOCK_ELEMS", n, 1);
    else
        unsetenv("ZF_TEST_BLOCK_ELEMS");
}

/* Two texts that mean the same continue each other to the bit; two that do not, do not. */
ZT_TEST(what_is_done_counts_not_how_it_is_said) {
    static const struct {
        const char *from, *to;
        int is_same;
    } pairs[] = {
        {"update_interval = 2\npublish_lag = 0", "update_interval = 2\npublish_lag = auto", 1},
        {"update_interval = 4", "update_interval = 4\nselect_interval = 16", 1},
        {"update_interval = 4", "update_interval = 4\nselect_interval = 12", 0},
        {"select_strategy = epoch\nselect_interval = 8", "select_strategy = epoch\nselect_interval = 5", 1},
        {"update_interval = 7\n[device]\nstate_mib = all", "publish_lag = 1\n[device]\nstate_mib = all", 1},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char from[200], to[200];
        zf_state_report_t loaded = {.struct_size = sizeof loaded};
        snprintf(from, sizeof from, "topk_ratio = 0.2\nfull_warm_up_rounds = 2\n%s", pairs[i].from);
        snprintf(to, sizeof to, "topk_ratio = 0.2\nfull_warm_up_rounds = 2\n%s", pairs[i].to);
        zt_state_saved(&rig, &store, from, 9, 0);
        zt_state_open_copy(&copy, to, 1);
        ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, &loaded));
        ck_assert_msg((int)loaded.is_exact == pairs[i].is_same, "\"%s\" after \"%s\"", pairs[i].to, pairs[i].from);
        zt_state_steps(&rig, 6);
        zt_state_steps(&copy, 6);
        if (pairs[i].is_same)
            zt_state_check_equal(&rig, &copy, pairs[i].to);
        zt_state_end(&rig, &copy, &store);
    }
}

/* What does not fit exactly is refused where only exact will do, and taken otherwise. */
static void refuse_exactly(void) {
    zt_refused(&copy.err, zt_load(&copy, &store.table, NULL, ZF_STATE_EXACT, NULL), ZF_ERR_CHECKPOINT,
               "\"layer.0.weight\" is declared or cut differently");
    ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, NULL));
    zt_state_end(&rig, &copy, &store);
}

ZT_TEST(another_cut_is_carried) {
    set_blocks("500");
    zt_state_saved(&rig, &store, zt_state_configs[0], 5, 0);
    set_blocks(NULL);
    zt_state_open(&copy, zt_state_configs[0]);
    refuse_exactly();
}

ZT_TEST(another_declaration_is_carried) {
    zt_state_saved(&rig, &store, zt_state_configs[0], 5, 0);
    zt_state_open(&copy, zt_state_configs[0]);
    copy.decls[0].group = (copy.decls[0].group + 1) % ZT_MAX_GROUPS;
    zt_rig_bind(&copy);
    refuse_exactly();
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
    zt_rig_t other;
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
    zt_rig_make(&other, shapes, 2, config, 0);
    ZT_OK(&other, zt_load(&other, &again.table, NULL, 0, NULL));
    for (int i = 0; i < 2; i++)
        ck_assert_mem_eq(other.params[i].visible, copy.params[i].visible, 4 * copy.params[i].n_elems);
    zt_rig_end(&other);
    zt_memory_store_clear(&again);
    zt_state_end(&rig, &copy, &store);
}

/* ---- cost -------------------------------------------------------------------------------------------------------- */

static uint64_t n_looks;

ZT_WRAP(zfi_state_dtype_t, zfi_state_array_dtype, const zfi_state_array_t *array, const zfi_param_t *param) {
    n_looks++;
    return __real_zfi_state_array_dtype(array, param);
}

/* A parameter of n blocks into twice as many: reads of the store, and how often a block's length is asked for. */
static void carry_blocks(int64_t n, uint64_t *out_reads, uint64_t *out_looks) {
    zt_shape_t shape = {.rows = 8 * n, .cols = 4};
    static const char config[] = "[zenflow]\nupdate_interval = 4\nfull_warm_up_rounds = 1\ntopk_ratio = 0.5\n";
    zt_memory_store_start(&store);
    zt_rig_start(&rig, &shape, 1);
    set_blocks("32");
    zt_rig_open(&rig, config, 0);
    zt_rig_steps(&rig, 6);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    zt_rig_end(&rig);
    zt_rig_start(&rig, &shape, 1);
    set_blocks("16");
    zt_rig_open(&rig, config, 0);
    set_blocks(NULL);
    store.n_calls = 0;
    n_looks = 0;
    ZT_OK(&rig, zt_load(&rig, &store.table, NULL, 0, NULL));
    *out_reads = (uint64_t)store.n_calls;
    *out_looks = n_looks;
    zt_state_end(&rig, NULL, &store);
}

ZT_TEST(blocks_cost_what_they_hold) {
    uint64_t reads[2], looks[2];
    carry_blocks(100, &reads[0], &looks[0]);
    carry_blocks(400, &reads[1], &looks[1]);
    ck_assert_msg(reads[1] <= 4 * reads[0] && looks[1] <= 4 * looks[0],
                  "of four times as many blocks %llu reads after %llu, %llu looks after %llu",
                  (unsigned long long)reads[1], (unsigned long long)reads[0], (unsigned long long)looks[1],
                  (unsigned long long)looks[0]);
}

ZT_SUITE("state_carry")
