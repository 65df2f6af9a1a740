/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_plan.c - what the slot pool loses against the formula, and models that cannot be planned. How
 * parameters are cut and dealt, the oracle works out again (zf-conform exact). */
#include "plan/plan.h"

#include <check.h>
#include <string.h>

#include "rig.h"
#include "suite.h"

enum { MOST = 12 };

static zf_tensor_t tensors[MOST];
static zf_param_decl_t decls[MOST];
static int64_t sizes[MOST][3];
static char names[MOST][8];
static uint32_t n_params;
static zfi_param_t *params;
static zfi_plan_t plan;
static zfi_config_t config;
static zf_error_t err = {.struct_size = sizeof err};
static float nowhere[16]; /* plans do not look at values */

static void start(uint32_t interval, double topk) {
    n_params = 0;
    ck_assert_int_eq(zfi_config_parse("", 0, "plan", NULL, 0, &config, &err), ZF_OK);
    config.update_interval = interval;
    config.topk_ratio = topk;
}

/* b x rows x cols with one batch axis, in a place of its own. */
static void add(int64_t b, int64_t rows, int64_t cols, int is_bf16, int32_t home, int32_t channels) {
    uint32_t i = n_params++;
    sizes[i][0] = b;
    sizes[i][1] = rows;
    sizes[i][2] = cols;
    names[i][0] = 'p';
    names[i][1] = (char)('a' + i);
    zt_tensor(&tensors[i], nowhere, sizes[i], 3, is_bf16);
    tensors[i].dl.byte_offset = (uint64_t)i << 40;
    decls[i] = (zf_param_decl_t){.struct_size = sizeof decls[i],
                                 .name = names[i],
                                 .tensor = &tensors[i],
                                 .n_batch_axes = 1,
                                 .channels = channels,
                                 .home = home};
}

static void build(void) {
    ck_assert_msg(zfi_params_build(decls, n_params, sizeof *decls, ZF_DEVICE_CPU, &params, &err) == ZF_OK, "%s",
                  err.message);
    ck_assert_msg(zfi_plan_build(&config, params, n_params, &plan, &err) == ZF_OK, "%s", err.message);
}

static void end(void) {
    zfi_plan_free(&plan);
    zfi_params_free(params, n_params);
}

/* ---- the rules, as SCHEDULE.md writes them ----------------------------------------------------------------------- */

static uint64_t slot_nbytes(const zfi_chunk_t *chunk) {
    return chunk->n_elems * (chunk->grad_dtype == ZFI_F32 ? 4u : 2u);
}

/* What the pool holds beyond the slots of the schedule's peak: cohorts that differ, and alignment. */
static void check_waste(double most) {
    double nbytes = 0;
    for (uint32_t i = 0; i < plan.n_chunks; i++)
        nbytes += (double)slot_nbytes(&plan.chunks[i]);
    ck_assert_msg((double)plan.pool_nbytes <= nbytes * plan.slots_mean * (1 + most), "%g of %g bytes are lost",
                  (double)plan.pool_nbytes - nbytes * plan.slots_mean, nbytes * plan.slots_mean);
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

/* Slots in bytes, as the formula has them: one large tensor, cut; many small ones, in lots; layers of an encoder. */
START_TEST(little_of_the_pool_is_lost) {
    static const uint32_t intervals[] = {2, 4, 8};
    for (int i = 0; i < 9; i++) {
        start(intervals[i / 3], 0.1);
        if (i % 3 == 0)
            add(1, 3162, 3162, 0, 0, 0);
        else if (i % 3 == 1)
            add(10000, 1000, 1, 0, 0, 0);
        for (int k = 0; k < 6 && i % 3 == 2; k++) {
            add(1, k == 5 ? 768 : 3072, k == 5 ? 3072 : 768, 0, 0, 0);
            add(1, 768, 1, 0, 0, 0);
        }
        build();
        check_waste(0.015);
        end();
    }
}
END_TEST

/* Rows that may not be cut make cohorts of very different sizes: what each needs, not what the largest needs. */
START_TEST(uneven_cohorts_do_not_share_large_pieces) {
    start(4, 0.1);
    add(1, 1, 400000, 0, 0, 0);
    add(1, 1, 70000, 0, 0, 0);
    add(1, 1, 1000, 0, 0, 0);
    add(1, 1, 1000, 0, 0, 0);
    build();
    ck_assert_uint_eq(plan.n_layers, 3);
    check_waste(0.45); /* 5 slots of the largest at once, 3.5 on average */
    end();
}
END_TEST

START_TEST(nothing_to_train) {
    start(4, 0.1);
    add(1, 3, 3, 0, 0, 0);
    decls[n_params - 1].flags = ZF_PARAM_FROZEN;
    add(1, 0, 3, 0, 0, 0);
    ck_assert_int_eq(zfi_params_build(decls, 2, sizeof *decls, ZF_DEVICE_CPU, &params, &err), ZF_OK);
    ck_assert_int_eq(zfi_plan_build(&config, params, 2, &plan, &err), ZF_ERR_PARAM);
    ck_assert_ptr_nonnull(strstr(err.message, "none of the 2 parameters"));
    zfi_params_free(params, 2);
}
END_TEST

START_TEST(more_matrices_than_can_be_numbered) { /* a batch axis of 2^33: one matrix each */
    start(4, 0.1);
    add((int64_t)1 << 33, 1, 1, 0, 0, 0);
    ck_assert_int_eq(zfi_params_build(decls, 1, sizeof *decls, ZF_DEVICE_CPU, &params, &err), ZF_OK);
    ck_assert_int_lt(zfi_plan_build(&config, params, 1, &plan, &err), 0);
    zfi_params_free(params, 1);
}
END_TEST

ZT_MAIN("plan", little_of_the_pool_is_lost, uneven_cohorts_do_not_share_large_pieces, nothing_to_train,
        more_matrices_than_can_be_numbered)
