/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_state_carry.c - a checkpoint that another configuration, cut, moment type or number of parameter
 * takes: what FLUSH would have left, to the bit. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "instance/instance.h"
#include "state/table.h"
#include "state_rig.h"
#include "suite.h"

static zt_rig_t rig, copy;
static zt_memory_store_t store;

/* ---- configurations ---------------------------------------------------------------------------------------------- */

static float *export_param(zt_rig_t *of, uint32_t p) {
    zf_export_item_t item = {.struct_size = sizeof item, .id = of->params[p].id};
    item.dst_nbytes = of->params[p].n_elems * sizeof(float);
    item.dst = malloc(item.dst_nbytes);
    ck_assert(item.dst != NULL);
    ZT_OK(of, of->zf->export_params(of->inst, &item, 1, sizeof item, &of->err));
    return item.dst;
}

/* Elements that a block may always have, of the run that saves and of the one that loads; NULL: as users get it. */
static const char *blocks_of_rig, *blocks_of_copy;

static void set_blocks(const char *n) {
    if (n)
        setenv("ZF_TEST_BLOCK_ELEMS", n, 1);
    else
        unsetenv("ZF_TEST_BLOCK_ELEMS");
}

/* What FLUSH would leave is what another configuration takes from a checkpoint, exact (its windows closed) or compact.
 */
static void check_carried(const char *from, const char *to, uint32_t flags) {
    for (int n = 5; n <= 8; n += ZT_EVERY) {
        zf_state_report_t loaded = {.struct_size = sizeof loaded};
        zt_memory_store_start(&store);
        set_blocks(blocks_of_rig);
        zt_state_open(&rig, from);
        zt_state_steps(&rig, n);
        ZT_OK(&rig, zt_save(&rig, &store.table, NULL, flags, NULL));
        set_blocks(blocks_of_copy);
        zt_state_open_copy(&copy, to, 1);
        set_blocks(NULL);
        ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, &loaded));
        ck_assert_int_eq(loaded.is_exact, 0);
        for (uint32_t p = 0; p < rig.n_params; p++) {
            float *mine, *theirs;
            if (rig.params[p].shape.flags & (ZF_PARAM_FROZEN | ZF_PARAM_TIED))
                continue;
            mine = export_param(&rig, p);
            theirs = export_param(&copy, p);
            ck_assert_msg(memcmp(mine, theirs, rig.params[p].n_elems * sizeof(float)) == 0, "%d steps, parameter %u", n,
                          p);
            free(mine);
            free(theirs);
        }
        zt_state_steps(&copy, 6); /* and it goes on */
        zt_rig_end(&rig);
        zt_rig_end(&copy);
        zt_memory_store_end(&store);
    }
}

/* A read that fails is said, whatever is read after it. */
START_TEST(reads_that_fail_while_windows_are_closed) {
    int n_calls;
    zt_memory_store_start(&store);
    zt_state_open(&rig, zt_state_configs[1]);
    zt_state_steps(&rig, 6);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    zt_state_open_copy(&copy, zt_state_configs[0], 1);
    store.n_calls = 0;
    ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, NULL));
    n_calls = store.n_calls;
    zt_rig_end(&copy);
    zt_state_open_copy(&copy, zt_state_configs[0], 1);
    for (int k = 1; k <= n_calls; k++) {
        store.n_calls = 0;
        store.fail_at = k;
        ck_assert_msg(zt_load(&copy, &store.table, NULL, 0, NULL) == ZF_ERR_STORAGE, "call %d of %d", k, n_calls);
    }
    store.fail_at = 0;
    zt_rig_end(&rig);
    zt_rig_end(&copy);
    zt_memory_store_end(&store);
}
END_TEST

START_TEST(windows_closed_by_data) {
    check_carried(zt_state_configs[ZT_STATE_AUTOMATIC], zt_state_configs[0], 0);
    check_carried(zt_state_configs[ZT_STATE_AUTOMATIC + 1], zt_state_configs[0], 0);
    check_carried(zt_state_configs[ZT_STATE_AUTOMATIC], zt_state_configs[ZT_STATE_AUTOMATIC], ZF_STATE_COMPACT);
}
END_TEST

/* Moments and counts as well: gradients do not depend on the weights, so both end with the same ones after a FLUSH. */
static void check_goes_on(const char *from, const char *to) {
    zt_memory_store_start(&store);
    zt_state_open(&rig, from);
    zt_state_steps(&rig, 9);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    zt_state_open_copy(&copy, to, 1);
    ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, NULL));
    copy.step = rig.step;
    zt_state_steps(&rig, 8);
    zt_state_steps(&copy, 8);
    for (uint32_t p = 0; p < rig.n_params; p++) {
        float *mine, *theirs;
        if (rig.params[p].shape.flags & ZF_PARAM_FROZEN)
            continue;
        mine = export_param(&rig, p);
        theirs = export_param(&copy, p);
        ck_assert_msg(memcmp(mine, theirs, rig.params[p].n_elems * sizeof(float)) == 0, "parameter %u", p);
        free(mine);
        free(theirs);
    }
    zt_rig_end(&rig);
    zt_rig_end(&copy);
    zt_memory_store_end(&store);
}

/* Where the state lives makes no difference to what a checkpoint says. */
START_TEST(between_host_and_device) {
    static const char *const hosts[] = {"", "moments_dtype = bfloat16"};
    for (int i = 0; i < 2; i++) {
        zt_state_mode.host = hosts[i];
        for (int c = i; c < ZT_STATE_NONE; c += i ? 4 : 2) {
            check_carried(zt_state_configs[ZT_STATE_NONE], zt_state_configs[c], c % 2 ? ZF_STATE_COMPACT : 0);
            check_carried(zt_state_configs[c], zt_state_configs[ZT_STATE_NONE], c % 2 ? 0 : ZF_STATE_COMPACT);
        }
    }
    zt_state_mode.host = "";
    check_carried(zt_state_configs[ZT_STATE_NONE], zt_state_configs[ZT_STATE_NONE], ZF_STATE_COMPACT);
    check_goes_on(zt_state_configs[ZT_STATE_NONE], zt_state_configs[0]);
    check_goes_on(zt_state_configs[0], zt_state_configs[ZT_STATE_NONE]);
}
END_TEST

/* Keys without effect may change: the run goes on to the bit. */
START_TEST(idle_keys_do_not_count) {
    zf_state_report_t loaded = {.struct_size = sizeof loaded};
    zt_memory_store_start(&store);
    zt_state_open(&rig, "topk_ratio = 0.3\nupdate_interval = 7\n[device]\nstate_mib = all");
    zt_state_steps(&rig, 9);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    zt_state_open_copy(&copy, "full_warm_up_rounds = 3\npublish_lag = 1\n[device]\nstate_mib = all", 1);
    ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, &loaded));
    ck_assert_int_eq(loaded.is_exact, 1);
    zt_state_steps(&rig, 6);
    zt_state_steps(&copy, 6);
    zt_state_check_equal(&rig, &copy, "after six steps more");
    zt_rig_end(&copy);
    zt_rig_start(&copy, zt_state_shapes,
                 zt_n_state_shapes); /* what is said, and who computes, are no part of a state */
    zt_rig_open(&copy,
                "[device]\nstate_mib = all\n[zenflow]\ntopk_ratio = 0.3\nupdate_interval = 7\n[host]\nthreads = 1\n"
                "[log]\nlevel = warn\n",
                0);
    ZT_OK(&copy, zt_load(&copy, &store.table, NULL, ZF_STATE_EXACT, NULL));
    zt_rig_end(&rig);
    zt_rig_end(&copy);
    zt_memory_store_end(&store);
}
END_TEST

/* Two texts that mean the same continue each other to the bit; two that do not, do not. */
START_TEST(what_is_done_counts_not_how_it_is_said) {
    static const struct {
        const char *from, *to;
        int is_same;
    } pairs[] = {
        {"update_interval = 2\npublish_lag = 0", "update_interval = 2\npublish_lag = auto", 1},
        {"update_interval = 4", "update_interval = 4\nselect_interval = 16", 1},
        {"update_interval = 4", "update_interval = 4\nselect_interval = 12", 0},
        {"select_strategy = epoch\nselect_interval = 8", "select_strategy = epoch\nselect_interval = 5", 1},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char from[200], to[200];
        zf_state_report_t loaded = {.struct_size = sizeof loaded};
        snprintf(from, sizeof from, "topk_ratio = 0.2\nfull_warm_up_rounds = 2\n%s", pairs[i].from);
        snprintf(to, sizeof to, "topk_ratio = 0.2\nfull_warm_up_rounds = 2\n%s", pairs[i].to);
        zt_memory_store_start(&store);
        zt_state_open(&rig, from);
        zt_state_steps(&rig, 9);
        ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
        zt_state_open_copy(&copy, to, 1);
        ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, &loaded));
        ck_assert_msg((int)loaded.is_exact == pairs[i].is_same, "\"%s\" after \"%s\"", pairs[i].to, pairs[i].from);
        zt_state_steps(&rig, 6);
        zt_state_steps(&copy, 6);
        if (pairs[i].is_same)
            zt_state_check_equal(&rig, &copy, pairs[i].to);
        zt_rig_end(&rig);
        zt_rig_end(&copy);
        zt_memory_store_end(&store);
    }
}
END_TEST

/* ---- moments in two bytes -----------------------------------------------------------------------------------------
 */

/* m or v of a parameter. */
static float *moment_of(zt_rig_t *of, uint32_t p, int is_v) {
    const zf_inspect_ext_t *inspect = of->zf->get_extension(ZF_EXT_INSPECT);
    size_t n = of->params[p].n_elems;
    float *out = malloc(n * sizeof *out);
    zf_inspect_out_t state = {.struct_size = sizeof state, .n_elems = n};
    *(is_v ? &state.v : &state.m) = out;
    ZT_OK(of, inspect->read(of->inst, of->params[p].id, &state, &of->err));
    return out;
}

static float to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* After n steps: a checkpoint with open windows, loaded with other moments and another configuration, against FLUSH. */
static void check_moments(const char *from, const char *to, int is_rounded, int n) {
    zt_memory_store_start(&store);
    zt_state_mode = (zt_state_mode_t){.host = from};
    zt_state_open(&rig, zt_state_configs[0]);
    zt_state_steps(&rig, n);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_FLUSH));
    zt_state_mode.host = to;
    zt_state_open_copy(&copy, zt_state_configs[1], 1);
    ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, NULL));
    for (uint32_t p = 0; p < rig.n_params; p++)
        for (int is_v = 0; is_v < 2 && !(rig.params[p].shape.flags & ZF_PARAM_FROZEN) && rig.params[p].n_elems;
             is_v++) {
            float *a = moment_of(&rig, p, is_v), *b = moment_of(&copy, p, is_v);
            for (size_t i = 0; i < rig.params[p].n_elems; i++)
                if (b[i] != (is_rounded ? to_bf16(a[i]) : a[i]))
                    ck_abort_msg("%s into %s, %d steps: %s of parameter %u, element %zu: %a, need %a", from, to, n,
                                 is_v ? "v" : "m", p, i, b[i], is_rounded ? to_bf16(a[i]) : a[i]);
            free(a);
            free(b);
        }
    zt_state_steps(&copy, 4);
    zt_rig_end(&rig);
    zt_rig_end(&copy);
    zt_memory_store_end(&store);
}

START_TEST(moments_of_another_type) {
    static const char fp32[] = "", bf16[] = "moments_dtype = bfloat16", drawn[] = "moments_dtype = bfloat16_stochastic";
    for (int n = 5; n <= 8; n += ZT_EVERY) {
        check_moments(fp32, bf16, 1, n); /* to nearest even, once */
        check_moments(fp32, drawn, 1, n);
        check_moments(bf16, fp32, 0, n);
        check_moments(drawn, fp32, 0, n); /* by the hash of each parameter's own elements */
        check_moments(drawn, drawn, 0, n);
    }
}
END_TEST

/* Where moments are rounded by a hash of the parameter's number, another number is another run. */
START_TEST(another_number_of_a_parameter) {
    zt_shape_t shifted[2] = {{.rows = 3, .cols = 5, .flags = ZF_PARAM_FROZEN}, {.rows = 96, .cols = 80}};
    for (int is_drawn = 0; is_drawn < 2; is_drawn++) {
        char text[256];
        zf_state_report_t report = {.struct_size = sizeof report};
        zt_memory_store_start(&store);
        snprintf(text, sizeof text, "[zenflow]\n%s\n[host]\nthreads = 2\nmoments_dtype = %s\n[log]\nlevel = error\n",
                 zt_state_configs[0], is_drawn ? "bfloat16_stochastic" : "bfloat16");
        zt_rig_start(&rig, shifted + 1, 1);
        zt_rig_open(&rig, text, 0);
        zt_state_steps(&rig, 3);
        ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
        zt_rig_start(&copy, shifted, 2);
        copy.decls[0].name = "frozen";
        copy.decls[1].name = rig.decls[0].name;
        zt_rig_open(&copy, text, 0);
        ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, &report));
        ck_assert_int_eq(report.is_exact, !is_drawn);
        zt_rig_end(&rig);
        zt_rig_end(&copy);
        zt_memory_store_end(&store);
    }
}
END_TEST

/* The same configuration and parameters, cut otherwise: carried, and refused where only exact will do. */
START_TEST(another_cut_is_carried) {
    static const char *const blocks[][2] = {{"500", NULL}, {NULL, "500"}, {"900", "64"}};
    for (int i = 0; i < 3; i++) {
        blocks_of_rig = blocks[i][0];
        blocks_of_copy = blocks[i][1];
        for (int c = 0; c < ZT_N_STATE_CONFIGS; c += 3)
            check_carried(zt_state_configs[c], zt_state_configs[c], 0);
    }
    blocks_of_rig = blocks_of_copy = NULL;
    zt_memory_store_start(&store);
    set_blocks("500");
    zt_state_open(&rig, zt_state_configs[0]);
    set_blocks(NULL);
    zt_state_steps(&rig, 5);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    zt_state_open(&copy, zt_state_configs[0]);
    ck_assert_int_eq(zt_load(&copy, &store.table, NULL, ZF_STATE_EXACT, NULL), ZF_ERR_CHECKPOINT);
    ck_assert_msg(strstr(copy.err.message, "is declared or cut differently") != NULL, "%s", copy.err.message);
    zt_rig_end(&rig);
    zt_rig_end(&copy);
    zt_memory_store_end(&store);
}
END_TEST

/* One word of one declaration is another: what does not fit exactly is refused where only exact will do. */
static void refuse_exactly(void (*change)(zt_rig_t *rig), const char *why) {
    zt_memory_store_start(&store);
    zt_state_open(&rig, zt_state_configs[0]);
    zt_state_steps(&rig, 5);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    zt_state_open(&copy, zt_state_configs[0]);
    change(&copy);
    ZT_OK(&copy, zt_rig_try_bind(&copy));
    ck_assert_int_eq(zt_load(&copy, &store.table, NULL, ZF_STATE_EXACT, NULL), ZF_ERR_CHECKPOINT);
    ck_assert_msg(strstr(copy.err.message, why) != NULL, "%s", copy.err.message);
    ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, NULL));
    zt_rig_end(&rig);
    zt_rig_end(&copy);
    zt_memory_store_end(&store);
}

static void of_another_group(zt_rig_t *other) { other->decls[0].group = (other->decls[0].group + 1) % ZT_MAX_GROUPS; }

START_TEST(another_declaration_is_carried) {
    refuse_exactly(of_another_group, "\"layer.0.weight\" is declared or cut differently");
}
END_TEST

/* ---- the wrong model --------------------------------------------------------------------------------------------- */

START_TEST(another_model) {
    zt_shape_t other[] = {{.rows = 96, .cols = 81}, {.rows = 17}};
    zt_memory_store_start(&store);
    zt_state_open(&rig, zt_state_configs[0]);
    zt_state_steps(&rig, 7);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    zt_rig_start(&copy, other, 2);
    zt_rig_open(&copy, "[zenflow]\nfull_warm_up_rounds = 2\n", 0);
    ck_assert_int_eq(zt_load(&copy, &store.table, NULL, ZF_STATE_PARTIAL, NULL), ZF_ERR_CHECKPOINT);
    ck_assert_msg(strstr(copy.err.message, "96, 80") && strstr(copy.err.message, "96, 81"), "%s", copy.err.message);
    zt_rig_end(&rig);
    zt_rig_end(&copy);
    zt_memory_store_end(&store);
}
END_TEST

/* ---- cost -------------------------------------------------------------------------------------------------------- */

static uint64_t n_looks;

zfi_state_dtype_t __real_zfi_state_array_dtype(const zfi_state_array_t *array, const zfi_param_t *param);
zfi_state_dtype_t __wrap_zfi_state_array_dtype(const zfi_state_array_t *array, const zfi_param_t *param);
zfi_state_dtype_t __wrap_zfi_state_array_dtype(const zfi_state_array_t *array, const zfi_param_t *param) {
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
    for (int i = 0; i < 6; i++)
        zt_rig_step(&rig);
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
    zt_rig_end(&rig);
    zt_memory_store_end(&store);
}

START_TEST(blocks_cost_what_they_hold) {
    uint64_t reads[2], looks[2];
    carry_blocks(100, &reads[0], &looks[0]);
    carry_blocks(400, &reads[1], &looks[1]);
    ck_assert_msg(reads[1] <= 4 * reads[0] && looks[1] <= 4 * looks[0],
                  "of four times as many blocks %llu reads after %llu, %llu looks after %llu",
                  (unsigned long long)reads[1], (unsigned long long)reads[0], (unsigned long long)looks[1],
                  (unsigned long long)looks[0]);
}
END_TEST

ZT_MAIN("state_carry", blocks_cost_what_they_hold, between_host_and_device, idle_keys_do_not_count,
        what_is_done_counts_not_how_it_is_said, windows_closed_by_data, another_cut_is_carried, moments_of_another_type,
        another_number_of_a_parameter, another_declaration_is_carried, reads_that_fail_while_windows_are_closed,
        another_model)
