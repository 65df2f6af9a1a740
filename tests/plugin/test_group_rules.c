/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_group_rules.c - an update rule for each optimizer group in one instance: what bind_params refuses
 * and a checkpoint keeps. What each is trained by is zf-conform exact's. */
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
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static const char config[] =
    "[zenflow]\ntopk_ratio=0.3\nupdate_interval=3\nselect_interval=3\nfull_warm_up_rounds=2\n[log]\nlateness=0\n";
static const char other_config[] =
    "[zenflow]\nupdate_interval = 4\n[host]\nmoments_dtype = bfloat16_stochastic\n[log]\nlateness = 0\n";

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

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static void refused(zt_rig_t *rig, zf_status_t want, const char *words) {
    ck_assert_int_eq(zt_rig_try_bind(rig), want);
    zt_contains(rig->err.message, words);
}

/* A group keeps its rule; another one may come. */
START_TEST(a_group_keeps_its_rule) {
    static zf_rule_callback_t other;
    zt_rig_t rig;
    other = callback;
    start(&rig, ZF_RULE_ADAMW, ZF_RULE_CALLBACK);
    rig.n_params = 7;
    zt_rig_open(&rig, config, 0);
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
    zt_rig_create(&rig, config, 0);
    args = zt_rig_bind_args(&rig);
    args.n_groups = 2;
    zt_refused(&rig.err, rig.zf->bind_params(rig.inst, &args, NULL, NULL, &rig.err), ZF_ERR_PARAM,
               "\"layer.5.weight\": group = 2, but the table of groups has 2");
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
        zt_rig_open(&rig, config, 0);
        zt_rig_steps(&rig, 7);
        ZT_OK(&rig, zt_save(&rig, &store.table, NULL, is_compact ? ZF_STATE_COMPACT : 0, NULL));
        start(&copy, ZF_RULE_ADAMW, ZF_RULE_LION);
        zt_rig_open(&copy, config, 0);
        ck_assert_int_eq(zt_load(&copy, &store.table, NULL, 0, NULL), ZF_ERR_CHECKPOINT);
        ck_assert_msg(strstr(copy.err.message, "\"layer.1.weight\" was saved with the update rule \"descent\" of 0 "
                                               "moment(s); its group 1 has \"Lion\" of 1") != NULL,
                      "%s", copy.err.message);
        zt_rig_end(&copy);
        start(&copy, ZF_RULE_ADAMW, ZF_RULE_CALLBACK);
        zt_rig_open(&copy, is_compact ? other_config : config, 0);
        ZT_OK(&copy, zt_load(&copy, &store.table, NULL, 0, NULL));
        zt_state_end(&copy, &rig, &store);
    }
}
END_TEST

ZT_MAIN("group_rules", a_group_keeps_its_rule, every_group_is_declared, a_checkpoint_keeps_each_rule)
