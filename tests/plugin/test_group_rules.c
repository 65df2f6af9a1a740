/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_group_rules.c - an update rule for each optimizer group in one instance: what each is trained by,
 * what bind_params refuses, what a checkpoint keeps. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"
#include "state_rig.h"
#include "suite.h"

/* Groups 0 and 2 are one rule, group 1 another: neighbours in one chunk differ. */
static const zt_shape_t shapes[] = {
    {.rows = 24, .cols = 40},
    {.rows = 24, .cols = 40, .group = 1},
    {.rows = 17, .group = 1},
    {.rows = 17},
    {.rows = 5, .cols = 3, .group = 1},
    {.rows = 33, .cols = 21, .is_bf16 = 1, .group = 2},
    {.rows = 33, .cols = 21, .is_bf16 = 1, .group = 1, .home = ZF_HOME_RESIDENT},
    {.rows = 9, .cols = 7, .channels = ZF_CHANNELS_ROWS, .group = 1, .home = ZF_HOME_HOST},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_STEPS = 13 };

static const char *const texts[] = {
    "[zenflow]\ntopk_ratio=0.3\nupdate_interval=3\nselect_interval=3\nfull_warm_up_rounds=2\n[log]\nlateness=0\n",
    "[zenflow]\nmode = mean\ntopk_ratio = 0.3\nupdate_interval = 3\nfull_warm_up_rounds = 2\n[log]\nlateness = 0\n",
    "[device]\nstate_mib = all\n[host]\nmoments_dtype = bfloat16\n[log]\nlateness = 0\n",
    "[zenflow]\nupdate_interval = 4\n[host]\nmoments_dtype = bfloat16_stochastic\n[log]\nlateness = 0\n",
};
enum { N_TEXTS = sizeof texts / sizeof *texts };

static int32_t signed_descent(void *ctx, const zf_rule_update_t *u) {
    (void)ctx;
    for (uint64_t i = 0; i < u->n_elems; i++)
        u->w[i] -= (float)u->lr * u->g[i] / (float)u->n;
    return u->m || u->v; /* it has none, whatever the others keep */
}

static const zf_rule_callback_t callback = {
    .struct_size = sizeof callback, .name = "descent", .update = signed_descent};

static void use(zt_rig_t *rig, uint32_t group, uint32_t rule) {
    rig->rules[group].rule = rule;
    rig->rules[group].callback = rule == ZF_RULE_CALLBACK ? &callback : NULL;
}

static void start(zt_rig_t *rig, uint32_t zero_and_two, uint32_t one) {
    zt_rig_start(rig, shapes, N_SHAPES);
    use(rig, 0, zero_and_two);
    use(rig, 1, one);
    use(rig, 2, zero_and_two);
}

/* fp32 weights after the training, one parameter behind the other. */
static float *trained(uint32_t zero_and_two, uint32_t one, const char *text, uint64_t *out_nbytes) {
    zt_rig_t rig;
    float *all = calloc(8192, sizeof *all);
    uint64_t at = 0;
    start(&rig, zero_and_two, one);
    zt_rig_open(&rig, text, 0);
    *out_nbytes = rig.layout.host_nbytes + rig.layout.device_nbytes;
    for (int i = 0; i < N_STEPS; i++)
        zt_rig_step(&rig);
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        zf_export_item_t item = {.struct_size = sizeof item, .id = rig.params[i].id, .dst = all + at};
        item.dst_nbytes = rig.params[i].n_elems * sizeof *all;
        ZT_OK(&rig, rig.zf->export_params(rig.inst, &item, 1, sizeof item, &rig.err));
        at += rig.params[i].n_elems;
    }
    zt_rig_end(&rig);
    return all;
}

/* Parameters are trained each by itself: mixed, a group ends where it ends when all groups have its rule. */
static void check_mixed(uint32_t zero_and_two, uint32_t one, const char *text) {
    uint64_t mixed_nbytes, a_nbytes, b_nbytes, at = 0;
    float *mixed = trained(zero_and_two, one, text, &mixed_nbytes);
    float *a = trained(zero_and_two, zero_and_two, text, &a_nbytes), *b = trained(one, one, text, &b_nbytes);
    ck_assert_uint_eq(mixed_nbytes, a_nbytes > b_nbytes ? a_nbytes : b_nbytes);
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        size_t n = (size_t)(shapes[i].rows * (shapes[i].cols ? shapes[i].cols : 1));
        const float *want = shapes[i].group == 1 ? b : a, *other = shapes[i].group == 1 ? a : b;
        ck_assert_msg(memcmp(mixed + at, want + at, n * sizeof *want) == 0, "rules %u and %u, parameter %u: %s",
                      zero_and_two, one, i, text);
        ck_assert(memcmp(mixed + at, other + at, n * sizeof *want) != 0);
        at += n;
    }
    free(mixed);
    free(a);
    free(b);
}

START_TEST(each_group_by_its_rule) {
    static const uint32_t pairs[][2] = {{ZF_RULE_ADAMW, ZF_RULE_LION},
                                        {ZF_RULE_SGD, ZF_RULE_ADAMW},
                                        {ZF_RULE_CALLBACK, ZF_RULE_ADAM},
                                        {ZF_RULE_LION, ZF_RULE_CALLBACK},
                                        {ZF_RULE_SGD_NESTEROV, ZF_RULE_SGD}};
    for (size_t t = 0; t < N_TEXTS; t++)
        for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++)
            check_mixed(pairs[p][0], pairs[p][1], texts[t]);
}
END_TEST

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static void refused(zt_rig_t *rig, zf_status_t want, const char *words) {
    ck_assert_int_eq(zt_rig_try_bind(rig), want);
    ck_assert_msg(strstr(rig->err.message, words) != NULL, "%s", rig->err.message);
}

/* A group keeps its rule; another one may come. */
START_TEST(a_group_keeps_its_rule) {
    static zf_rule_callback_t other;
    zt_rig_t rig;
    other = callback;
    start(&rig, ZF_RULE_ADAMW, ZF_RULE_CALLBACK);
    rig.n_params = 7;
    zt_rig_open(&rig, texts[0], 0);
    zt_rig_step(&rig);
    use(&rig, 0, ZF_RULE_LION);
    refused(&rig, ZF_ERR_PARAM, "group 0: its rule is \"AdamW\" (2 moments), not \"Lion\" (1)");
    use(&rig, 0, ZF_RULE_ADAMW);
    other.ctx = &rig;
    rig.rules[1].callback = &other;
    refused(&rig, ZF_ERR_PARAM, "group 1: callback \"descent\" has another function or ctx");
    use(&rig, 1, ZF_RULE_CALLBACK);
    rig.decls[5].group = 1;
    refused(&rig, ZF_ERR_PARAM, "\"layer.5.weight\" comes from group 2 (\"AdamW\") to group 1 (\"descent\")");
    rig.decls[5].group = 0; /* of the same rule */
    zt_rig_bind(&rig);
    rig.n_params = N_SHAPES; /* a set with one more */
    zt_rig_bind(&rig);
    zt_rig_step(&rig);
    zt_rig_end(&rig);
}
END_TEST

START_TEST(every_group_is_declared) {
    zt_rig_t rig;
    zf_bind_args_t args;
    start(&rig, ZF_RULE_ADAMW, ZF_RULE_LION);
    zt_rig_create(&rig, texts[0], 0);
    args = zt_rig_bind_args(&rig);
    args.n_groups = 2;
    ck_assert_int_eq(rig.zf->bind_params(rig.inst, &args, NULL, NULL, &rig.err), ZF_ERR_PARAM);
    ck_assert_ptr_nonnull(strstr(rig.err.message, "\"layer.5.weight\": group = 2, but the table of groups has 2"));
    args.groups = NULL;
    ck_assert_int_eq(rig.zf->bind_params(rig.inst, &args, NULL, NULL, &rig.err), ZF_ERR_ARGUMENT);
    args.n_groups = 0; /* all AdamW */
    ZT_OK(&rig, rig.zf->bind_params(rig.inst, &args, NULL, NULL, &rig.err));
    refused(&rig, ZF_ERR_PARAM, "group 1: its rule is \"AdamW\"");
    zt_rig_end(&rig);
}
END_TEST

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

START_TEST(a_checkpoint_keeps_each_rule) {
    zt_memory_store_t store;
    zt_rig_t rig, copy;
    for (int is_compact = 0; is_compact < 2; is_compact++) {
        zt_memory_store_start(&store);
        start(&rig, ZF_RULE_ADAMW, ZF_RULE_CALLBACK);
        zt_rig_open(&rig, texts[0], 0);
        for (int i = 0; i < 7; i++)
            zt_rig_step(&rig);
        ZT_OK(&rig, zt_save(&rig, &store.table, NULL, is_compact ? ZF_STATE_COMPACT : 0, NULL));
        start(&copy, ZF_RULE_ADAMW, ZF_RULE_LION);
        zt_rig_open(&copy, texts[0], 0);
        ck_assert_int_eq(zt_load(&copy, &store.table, NULL, 0, NULL), ZF_ERR_CHECKPOINT);
        ck_assert_msg(strstr(copy.err.message, "\"layer.1.weight\" was saved with the update rule \"descent\" of 0 "
                                               "moment(s); its group 1 has \"Lion\" of 1") != NULL,
                      "%s", copy.err.message);
        zt_rig_end(&copy);
        start(&copy, ZF_RULE_ADAMW, ZF_RULE_CALLBACK);
        zt_rig_open(&copy, is_compact ? texts[3] : texts[0], 0);
        ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, NULL));
        zt_rig_end(&copy);
        zt_rig_end(&rig);
        zt_memory_store_end(&store);
    }
}
END_TEST

ZT_MAIN("group_rules", each_group_by_its_rule, a_group_keeps_its_rule, every_group_is_declared,
        a_checkpoint_keeps_each_rule)
