/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_callback.c - the host's own update rule: what it is given, and what comes of its errors. */
#include "instance/callback.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "instance/run.h"
#include "memory_store.h"
#include "state_rig.h"
#include "suite.h"

static const zt_shape_t shapes[] = {
    {.rows = 24, .cols = 40, .home = ZF_HOME_HOST},
    {.rows = 17, .home = ZF_HOME_HOST},
    {.rows = 5, .cols = 3, .home = ZF_HOME_HOST},
    {.rows = 70, .cols = 48, .is_bf16 = 1, .group = 1, .home = ZF_HOME_HOST},
    {.rows = 9, .cols = 7, .channels = ZF_CHANNELS_ROWS, .group = 2, .home = ZF_HOME_HOST},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static zt_rig_t rig;
static atomic_int n_bad;

/* ---- moments ----------------------------------------------------------------------------------------------------- */

static uint32_t n_moments;

static int32_t decay(void *ctx, const zf_rule_update_t *u) {
    (void)ctx;
    if ((u->m != NULL) != (n_moments > 0) || (u->v != NULL) != (n_moments > 1))
        atomic_fetch_add(&n_bad, 1);
    for (uint64_t i = 0; i < u->n_elems; i++)
        u->w[i] *= 0.5f;
    return 0;
}

ZT_TEST(only_the_moments_asked_for) {
    static const char *const texts[] = {"", "[host]\nmoments_dtype = bfloat16\n",
                                        "[zenflow]\nmode = mean\nfull_warm_up_rounds = 1\n"};
    for (size_t t = 0; t < 3; t++)
        for (n_moments = 0; n_moments <= 2; n_moments++) {
            zf_rule_callback_t given = {
                .struct_size = sizeof given, .n_moments = n_moments, .name = "decay", .update = decay};
            uint64_t nbytes = 4 + n_moments * (t == 1 ? 2 : 4);
            zt_rig_start(&rig, shapes, N_SHAPES);
            zt_rig_use_rule(&rig, ZF_RULE_CALLBACK, &given);
            zt_rig_open(&rig, texts[t], 0);
            memset(&given, 0, sizeof given); /* copied */
            ck_assert_uint_ge(zt_rig_parts(&rig)->host_state_nbytes, nbytes * rig.layout.n_elems);
            ck_assert_uint_le(zt_rig_parts(&rig)->host_state_nbytes, nbytes * rig.layout.n_elems + 8192);
            zt_rig_steps(&rig, 9);
            ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_FLUSH));
            zt_rig_end(&rig);
        }
    ck_assert_int_eq(n_bad, 0);
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

static int32_t is_of_its_group(void *ctx, const zf_rule_update_t *u) {
    if (u->group != *(const uint32_t *)ctx)
        atomic_fetch_add(&n_bad, 1);
    return 0;
}

/* All groups have one rule by name, each with a ctx of its own. */
static void open_in_group(zt_rig_t *of, uint32_t group) {
    static uint32_t numbers[ZT_MAX_GROUPS];
    static zf_rule_callback_t given[ZT_MAX_GROUPS];
    const zt_shape_t shape = {.rows = 8, .cols = 12, .group = group};
    zt_rig_start(of, &shape, 1);
    for (uint32_t i = 0; i < ZT_MAX_GROUPS; i++) {
        numbers[i] = i;
        given[i] = (zf_rule_callback_t){
            .struct_size = sizeof given[i], .name = "grouped", .update = is_of_its_group, .ctx = &numbers[i]};
        of->rules[i] = (zf_group_decl_t){sizeof of->rules[i], ZF_RULE_CALLBACK, &given[i]};
    }
    zt_rig_open(of, "[zenflow]\ntopk_ratio = 0\nupdate_interval = 4\nfull_warm_up_rounds = 1\n", 0);
}

/* A window that was open when it was saved is replayed by the rule of the group that the parameter has now. */
ZT_TEST(loaded_into_another_group) {
    zt_memory_store_t store;
    zt_rig_t other;
    zt_memory_store_start(&store);
    open_in_group(&rig, 0);
    zt_rig_steps(&rig, 3);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    open_in_group(&other, 2);
    ZT_OK(&other, zt_load(&other, &store.table, NULL, 0, NULL));
    zt_state_end(&rig, &other, &store);
    ck_assert_int_eq(n_bad, 0);
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

/* The last is cut within a row. */
static const zt_shape_t numbered[] = {
    {.rows = 24, .cols = 40},
    {.rows = 17},
    {.rows = 70, .cols = 48, .is_bf16 = 1, .group = 1},
    {.rows = 9, .cols = 7, .channels = ZF_CHANNELS_ROWS, .group = 2},
    {.rows = 130, .cols = 97},
};
enum { N_NUMBERED = sizeof numbered / sizeof *numbered, MOST_NUMBERED = 130 * 97 };

static float weight_of(uint32_t param, uint64_t element) { return (float)(20000 * (param + 1) + element); }

static int32_t number_elements(void *ctx, const zf_rule_update_t *u) {
    (void)ctx;
    for (uint64_t i = 0; i < u->n_elems; i++)
        u->w[i] = weight_of(u->param, u->index ? u->index[i] : u->first + i);
    return 0;
}

/* Whether an fp32 parameter shows no other element's number; first: what it was bound with. */
static void check_shown(const zt_param_t *p, const float *first) {
    for (uint64_t e = 0; e < p->n_elems && p->elem_nbytes == 4; e++) {
        float now = ((const float *)(const void *)p->visible)[e];
        ck_assert_msg(now == first[e] || now == weight_of(p->id, e), "\"%s\": element %d shows %g", p->name, (int)e,
                      (double)now);
    }
}

static void check_masters(uint32_t param) {
    const zt_param_t *p = &rig.params[param];
    static float dst[MOST_NUMBERED];
    ZT_OK(&rig, zt_try_export(&rig, param, dst));
    for (uint64_t e = 0; e < p->n_elems; e++)
        ck_assert_msg(dst[e] == weight_of(p->id, e), "\"%s\": element %d is %g", p->name, (int)e, (double)dst[e]);
}

/* A rule that writes each element's number leaves it there, wherever and however often the element is updated. */
ZT_TEST(elements_are_named) {
    static const char *const texts[] = {"", "[host]\nmoments_dtype = bfloat16\n",
                                        "[zenflow]\nmode = windows\ntopk_ratio = 0.3\nselect_interval = 1\n"
                                        "update_interval = 3\nfull_warm_up_rounds = 1\n",
                                        "[zenflow]\nmode = mean\ntopk_ratio = 0.3\nfull_warm_up_rounds = 1\n",
                                        "[device]\nstate_mib = all\n"};
    static float first[N_NUMBERED][MOST_NUMBERED];
    zf_rule_callback_t given = {
        .struct_size = sizeof given, .n_moments = 1, .name = "numbers", .update = number_elements};
    for (size_t t = 0; t < 2 * sizeof texts / sizeof *texts; t++) {
        if (t % 2) /* matrices of several blocks; else blocks of several calls of the rule */
            setenv("ZF_TEST_BLOCK_ELEMS", "256", 1);
        zt_rig_start(&rig, numbered, N_NUMBERED);
        zt_rig_use_rule(&rig, ZF_RULE_CALLBACK, &given);
        zt_rig_open(&rig, texts[t / 2], 0);
        unsetenv("ZF_TEST_BLOCK_ELEMS");
        for (uint32_t i = 0; i < N_NUMBERED; i++)
            memcpy(first[i], rig.params[i].visible, rig.params[i].n_elems * rig.params[i].elem_nbytes);
        for (int s = 0; s < 8; s++) {
            zt_rig_steps(&rig, 1);
            for (uint32_t i = 0; i < N_NUMBERED; i++)
                check_shown(&rig.params[i], first[i]);
        }
        for (uint32_t i = 0; i < N_NUMBERED; i++)
            check_masters(i);
        zt_rig_end(&rig);
    }
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* Fails in group 1 at update 4: code 77 of update number 4, for deferred or for selected channels. */
static int32_t fail_late(void *ctx, const zf_rule_update_t *u) {
    (void)ctx;
    return u->group == 1 && u->n == 4 ? 77 : 0;
}

ZT_TEST(a_code_ends_the_instance) {
    static const char *const texts[] = {
        "[zenflow]\ntopk_ratio = 0\nupdate_interval = 2\n", "[zenflow]\ntopk_ratio = 1\nupdate_interval = 64\n",
        "[zenflow]\nmode = mean\ntopk_ratio = 0.3\nupdate_interval = 2\n", "[device]\nstate_mib = all\n"};
    zf_rule_callback_t given = {.struct_size = sizeof given, .name = "fails", .update = fail_late};
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++) {
        zf_status_t st = ZF_OK;
        zt_rig_start(&rig, shapes, N_SHAPES);
        zt_rig_use_rule(&rig, ZF_RULE_CALLBACK, &given);
        zt_rig_open(&rig, texts[t], 0);
        for (int i = 0; i < 20 && st >= 0; i++)
            st = zt_rig_try_step(&rig);
        ck_assert_msg(st == ZF_ERR_RULE, "%s: %d: %s", texts[t], st, rig.err.message);
        ck_assert_int_eq(rig.err.native_code, 77);
        zt_refused(&rig.err, rig.err.scope, ZF_SCOPE_INSTANCE, "group 1: the host's update rule \"fails\" returned 77");
        zt_rig_end(&rig);
    }
}

static atomic_int fails_now;

static int32_t fail_when_told(void *ctx, const zf_rule_update_t *u) {
    (void)ctx;
    return u->group == 1 && atomic_load(&fails_now) ? -3 : 0;
}

/* Where windows are rehearsed, on copies. */
ZT_TEST(a_code_ends_an_export) {
    zf_rule_callback_t given = {.struct_size = sizeof given, .name = "fails", .update = fail_when_told};
    zf_status_t st = ZF_OK;
    float dst[70 * 48];
    zt_rig_start(&rig, shapes, N_SHAPES);
    zt_rig_use_rule(&rig, ZF_RULE_CALLBACK, &given);
    zt_rig_open(&rig, "[zenflow]\ntopk_ratio = 0\nupdate_interval = 2\nfull_warm_up_rounds = 1\n", 0);
    for (int i = 0; i < 4 && st >= 0; i++) { /* at every other step the window is open */
        atomic_store(&fails_now, 0);
        zt_rig_step(&rig);
        ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
        atomic_store(&fails_now, 1);
        st = zt_try_export(&rig, 3, dst);
    }
    zt_refused(&rig.err, st, ZF_ERR_RULE, "returned -3");
    ck_assert_int_eq(rig.zf->poll(rig.inst, NULL, &rig.err), ZF_ERR_RULE);
    zt_rig_end(&rig);
}

ZT_SUITE("callback")
