/* SPDX-License-Identifier: Apache-2.0 */
/* tests/device/test_part.c - what a backend lacks is refused by name when parameters are bound (part.c); the rest
 * trains. */

#include "local_ranks.h"
#include "suite.h"

enum { N_SHAPES = 2 };

static const char plain[] = "[zenflow]\nmode = windows\ntopk_ratio = 0.3\n";

typedef struct attempt {
    const char *config, *words;
    zt_shape_t second; /* the second parameter */
    uint32_t rule;
} attempt_t;

static const zt_shape_t matrix = {.rows = 8, .cols = 12};

static void refuse(const attempt_t *attempt) {
    const zt_shape_t shapes[N_SHAPES] = {matrix, attempt->second};
    zt_rig_t rig;
    zt_rig_start(&rig, shapes, N_SHAPES);
    if (attempt->rule)
        zt_rig_use_rule(&rig, attempt->rule, NULL);
    zt_rig_create(&rig, attempt->config, 0);
    zt_refused(&rig.err, zt_rig_try_bind(&rig), ZF_ERR_DEVICE, attempt->words);
    zt_contains(rig.err.message, "\"part\"");
    zt_rig_end(&rig);
}

ZT_TEST(what_is_lacking_is_named) {
    const zt_shape_t half = {.rows = 3, .cols = 4, .is_bf16 = 1},
                     resident = {.rows = 3, .cols = 4, .home = ZF_HOME_RESIDENT};
    const attempt_t attempts[] = {
        {"[zenflow]\nmode = mean\n", "mode = mean", matrix, 0},
        {"[device]\nstate_mib = 1\n", "state_mib", matrix, 0},
        {"[host]\nmoments_dtype = bfloat16\n", "moments_dtype", matrix, 0},
        {plain, "\"layer.1.weight\" is bfloat16 with gradients in bfloat16", half, 0},
        {plain, "home = resident", resident, 0},
        {plain, "the rule \"Lion\"", matrix, ZF_RULE_LION},
    };
    for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++)
        refuse(&attempts[i]);
}

static void *bind_as_rank(void *raw) {
    const zt_shape_t shapes[] = {matrix};
    zt_rig_t rig;
    zt_rig_start(&rig, shapes, 1);
    rig.host.get_extension = zt_ranks_extension;
    rig.host.ctx = *(zt_rank_t **)raw;
    zt_rig_create(&rig, plain, 0);
    zt_refused(&rig.err, zt_rig_try_bind(&rig), ZF_ERR_DEVICE, "other ranks");
    zt_rig_end(&rig);
    return NULL;
}

ZT_TEST(ranks_are_named) {
    zt_ranks_t ranks;
    zt_rank_t *of[] = {&ranks.ranks[0], &ranks.ranks[1]};
    zt_ranks_init(&ranks, 2);
    zt_ranks_run(2, bind_as_rank, of, sizeof *of);
    zt_ranks_free(&ranks);
}

ZT_TEST(the_rest_trains) {
    const zt_shape_t shapes[N_SHAPES] = {matrix, {.rows = 17}};
    zt_rig_t rig;
    zt_rig_make(&rig, shapes, N_SHAPES, plain, 0);
    zt_rig_steps(&rig, 20);
    zt_rig_end_flushed(&rig);
}

ZT_SUITE("part")
