/* SPDX-License-Identifier: Apache-2.0 */
/* test_oracle.c - the oracle against values computed by hand from SCHEDULE.md: numbers are chosen so that every
 * product, sum and root is exact. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/oracle.h"
#include "test_oracle.h"

/* m/d = 0.5 at the first update whatever the gradient 0.5 x 2^k is worth: b1 = 1/2, b2 = 3/4, eps too small to count.
 */
static const zo_hyper_t half = {.lr = 0.25, .beta1 = 0.5, .beta2 = 0.75, .eps = 0x1p-60, .weight_decay = 0.0};

static zo_decl_t matrix(int64_t rows, int64_t cols, const float *visible) {
    return (zo_decl_t){.ndim = 2, .shape = {rows, cols}, .visible = visible};
}

static zo_config_t config(uint32_t interval, int lag) {
    return (zo_config_t){
        .topk_ratio = 0.25, .select_interval = 1, .update_interval = interval, .warm_up = 1, .publish_lag = lag};
}

static zo_report_t step(zo_t *o, const zo_hyper_t *hyper) {
    zo_step_t args = {.groups = hyper, .unscale = 1.0};
    zo_report_t r;

    zo_step(o, &args, &r);
    return r;
}

static zo_report_t step_with(zo_t *o, const float *grad) {
    zo_deliver(o, 0, grad, 0, 0);
    return step(o, &half);
}

static float visible(const zo_t *o, uint64_t i) { return ((const float *)zo_visible(o, 0))[i]; }

/* ---- arithmetic -------------------------------------------------------------------------------------------------- */

static uint16_t bf16_of(uint32_t bits) {
    float x;
    uint16_t out;

    memcpy(&x, &bits, sizeof x);
    zo_narrow(&out, ZO_BF16, 0, x);
    return out;
}

START_TEST(bf16_rounds_to_nearest_even) {
    static const struct {
        uint32_t f32;
        uint16_t bf16;
    } rows[] = {
        {0x3F800000, 0x3F80}, {0x3F808000, 0x3F80},                                             /* tie, even below */
        {0x3F818000, 0x3F82},                                                                   /* tie, even above */
        {0x3F808001, 0x3F81}, {0x3F807FFF, 0x3F80}, {0x00000001, 0x0000}, {0x00008001, 0x0001}, /* denormals */
        {0x80000000, 0x8000}, {0x7F7FFFFF, 0x7F80}, {0xFF800000, 0xFF80}, {0x7F800001, 0x7FC0},
        {0xFFC12345, 0xFFC1}, /* NaN stays NaN */
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        ck_assert_uint_eq(bf16_of(rows[i].f32), rows[i].bf16);
}
END_TEST

START_TEST(one_update) {
    static const float w = 1.0f, g = 0.5f;
    zo_decl_t d = matrix(1, 1, &w);
    zo_config_t c = config(1, 0);
    zo_hyper_t decayed = half;
    zo_t *o = zo_create(&c, &d, 1);
    float m, v;
    uint32_t n;
    zo_state_t state = {.m = &m, .v = &v, .n = &n};

    decayed.weight_decay = 0.5;
    zo_deliver(o, 0, &g, 0, 0);
    step(o, &decayed);
    zo_read(o, 0, &state);
    ck_assert(m == 0.25f && v == 0.0625f && n == 1);
    /* d = 0.25 * 1/sqrt(1 - 0.75) = 0.5; w = 1 * (1 - 0.25*0.5) - 0.25/0.5 * 0.25/0.5 */
    ck_assert(visible(o, 0) == 0.625f);
    zo_destroy(o);
}
END_TEST

START_TEST(scalars_of_a_step) {
    static const float w[2] = {0, 0}, g[2] = {3, 4};
    zo_decl_t d = matrix(1, 2, w);
    zo_config_t c = config(1, 0);
    zo_t *o = zo_create(&c, &d, 1);
    zo_step_t args = {.groups = &half, .unscale = 0.5, .clip_norm = 1.0};
    zo_report_t r;
    double host_norm = INFINITY;

    zo_deliver(o, 0, g, 0, 0);
    zo_step(o, &args, &r);
    ck_assert(r.is_applied && r.n_present == 1 && r.norm == 2.5);
    ck_assert(r.clip_factor == 1.0 / (2.5 + 1e-6));
    ck_assert(r.s == (float)(0.5 * (1.0 / (2.5 + 1e-6))));
    args.host_norm = &host_norm;
    zo_deliver(o, 0, g, 0, 0);
    zo_step(o, &args, &r);
    ck_assert(!r.is_applied && r.nonfinite_param == ZO_NO_ID);
    host_norm = 0.25;
    zo_deliver(o, 0, g, 0, 0);
    zo_step(o, &args, &r);
    ck_assert(r.is_applied && r.norm == 0.25 && r.clip_factor == 1.0);
    zo_destroy(o);
}
END_TEST

START_TEST(parts_totals_and_replace) {
    static const float w = 0, g1 = 1, g2 = 2, g5 = 5;
    zo_decl_t d = matrix(1, 1, &w);
    zo_config_t c = config(1, 0);
    zo_t *o = zo_create(&c, &d, 1);

    zo_deliver(o, 0, &g1, 1, 0);
    zo_deliver(o, 0, &g2, 1, 0);
    step(o, &half);
    ck_assert(*zo_step_grad(o, 0) == 3.0f);
    zo_deliver(o, 0, &g1, 0, 0);
    zo_deliver(o, 0, &g2, 0, 0);
    step(o, &half);
    ck_assert(*zo_step_grad(o, 0) == 2.0f);
    zo_deliver(o, 0, &g1, 1, 0);
    zo_deliver(o, 0, &g2, 1, 1);
    zo_deliver(o, 0, &g5, 1, 0);
    step(o, &half);
    ck_assert(*zo_step_grad(o, 0) == 7.0f);
    step(o, &half);
    ck_assert_ptr_null(zo_step_grad(o, 0));
    zo_deliver(o, 0, &g5, 0, 0);
    zo_discard(o, 0);
    ck_assert_uint_eq(zo_n_steps(o), 4);
    step(o, &half);
    ck_assert_ptr_null(zo_step_grad(o, 0));
    zo_destroy(o);
}
END_TEST

/* ---- plan -------------------------------------------------------------------------------------------------------- */

static void check_matrix(const zo_t *o, uint32_t i, uint32_t param, uint64_t first, uint64_t rows, uint32_t cohort) {
    zo_matrix_info_t x;

    zo_matrix_info(o, i, &x);
    ck_assert_uint_eq(x.param, param);
    ck_assert_uint_eq(x.first, first);
    ck_assert_uint_eq(x.rows, rows);
    ck_assert_uint_eq(x.cohort, cohort);
}

START_TEST(big_matrices_are_cut_and_dealt) {
    static const float zeros[40];
    zo_decl_t d[3] = {matrix(4, 6, zeros), {.ndim = 1, .shape = {6}, .visible = zeros}, matrix(2, 2, zeros)};
    zo_config_t c = config(2, 1);
    zo_t *o;

    c.block_elems = 12;
    d[2].is_stateless = 1; /* frozen: no bytes, no matrix */
    o = zo_create(&c, d, 3);
    /* 24 > 12 elements: 12 / 6 = 2 rows, ceil(4 / 2) = 2 blocks; 6 <= 12: whole. 48, 48 and 24 bytes */
    ck_assert_uint_eq(zo_n_matrices(o), 3);
    check_matrix(o, 0, 0, 0, 2, 0);
    check_matrix(o, 1, 0, 12, 2, 1);
    check_matrix(o, 2, 1, 0, 6, 0);
    zo_destroy(o);
}
END_TEST

START_TEST(blocks_are_uneven_and_batches_numbered) {
    static const float zeros[64];
    zo_decl_t d[2] = {matrix(5, 3, zeros), {.ndim = 3, .shape = {2, 1, 3}, .n_batch_axes = 1, .visible = zeros}};
    zo_config_t c = config(3, 1);
    zo_t *o;

    c.block_elems = 6;
    o = zo_create(&c, d, 2);
    /* 15 > 6: 6 / 3 = 2 rows, ceil(5 / 2) = 3 blocks of rows [0,1) [1,3) [3,5): 12, 24, 24 bytes; two matrices of 12,
     * which are lots of their own, as 18 / 1024 = 0. In order: 0, 1, 2, then the lightest, 0 with 12, which has 24 as
     * all have then */
    ck_assert_uint_eq(zo_n_matrices(o), 5);
    check_matrix(o, 0, 0, 0, 1, 0);
    check_matrix(o, 1, 0, 3, 2, 1);
    check_matrix(o, 2, 0, 9, 2, 2);
    check_matrix(o, 3, 1, 0, 1, 0);
    check_matrix(o, 4, 1, 3, 1, 0);
    zo_destroy(o);
}
END_TEST

START_TEST(a_row_is_never_cut) {
    static const float zeros[40];
    zo_decl_t d = matrix(3, 11, zeros);
    zo_config_t c = config(2, 1);
    zo_t *o;

    c.block_elems = 10;
    o = zo_create(&c, &d, 1);
    ck_assert_uint_eq(zo_n_matrices(o), 3);
    check_matrix(o, 0, 0, 0, 1, 0);
    check_matrix(o, 1, 0, 11, 1, 1);
    check_matrix(o, 2, 0, 22, 1, 0);
    zo_destroy(o);
}
END_TEST

START_TEST(what_users_get_is_cut_at_65536) { /* whatever the number of cohorts */
    float *zeros = calloc(65537, sizeof *zeros);
    zo_decl_t d[2] = {matrix(65536, 1, zeros), matrix(65537, 1, zeros)};

    for (uint32_t s = 1; s <= 5; s += 2) {
        zo_config_t c = config(s, 1);
        zo_t *o = zo_create(&c, d, 2);

        ck_assert_uint_eq(zo_n_matrices(o), 3);
        check_matrix(o, 0, 0, 0, 65536, 0);
        check_matrix(o, 1, 1, 0, 32768, s > 1 ? 1 : 0);
        check_matrix(o, 2, 1, 32768, 32769, s > 2 ? 2 : (s > 1 ? 1 : 0));
        zo_destroy(o);
    }
    free(zeros);
}
END_TEST

/* 1,024 + 11 elements: neighbours may have 4 together. */
START_TEST(small_neighbours_share_a_lot) {
    static const float zeros[1024];
    zo_decl_t one = {.ndim = 1, .shape = {1}, .visible = zeros}, d[10];
    zo_config_t c = config(4, 1);
    static const uint32_t cohorts[10] = {0, 1, 1, 1, 2, 3, 3, 3, 3, 3};
    zo_t *o;

    for (int i = 0; i < 10; i++)
        d[i] = one;
    d[0] = matrix(1024, 1, zeros);
    d[2].shape[0] = 2;                      /* 1, 2, 1: a lot of 16 bytes */
    d[4].shape[0] = 2;                      /* would make 6: a lot of its own, 8 bytes, as the next has another type */
    d[5].dtype = d[5].grad_dtype = ZO_BF16; /* 2 bytes */
    d[6].grad_dtype = ZO_BF16; /* another type of gradient: 4 bytes, where 2 are; the last three, 12, where now 6 are */
    o = zo_create(&c, d, 10);
    ck_assert_uint_eq(zo_n_matrices(o), 10);
    for (uint32_t i = 0; i < 10; i++) {
        zo_matrix_info_t x;

        zo_matrix_info(o, i, &x);
        ck_assert_msg(x.cohort == cohorts[i], "matrix %u is in cohort %u", i, x.cohort);
    }
    zo_destroy(o);
}
END_TEST

static uint64_t n_selected(zo_decl_t d, double ratio) {
    static const float zeros[64];
    zo_config_t c = config(1, 0);
    zo_matrix_info_t x;
    zo_t *o;

    c.topk_ratio = ratio;
    d.visible = zeros;
    o = zo_create(&c, &d, 1);
    zo_matrix_info(o, 0, &x);
    zo_destroy(o);
    return x.n_selected;
}

START_TEST(how_many_are_selected) {
    zo_decl_t d = {.ndim = 2, .shape = {3, 5}}, vector = {.ndim = 1, .shape = {7}};

    ck_assert_uint_eq(n_selected(d, 0.5), 3); /* floor(2.5 + 0.5) */
    ck_assert_uint_eq(n_selected(d, 0.29), 1);
    ck_assert_uint_eq(n_selected(d, 0.01), 1);
    ck_assert_uint_eq(n_selected(d, 1.0), 5);
    ck_assert_uint_eq(n_selected(d, 0.0), 0);
    ck_assert_uint_eq(n_selected(vector, 0.0), 0);
    d.channels_are_rows = 1;
    ck_assert_uint_eq(n_selected(d, 0.5), 2);
    ck_assert_uint_eq(n_selected(vector, 0.1), 1); /* one column: all */
    vector.channels_are_rows = 1;
    ck_assert_uint_eq(n_selected(vector, 0.1), 7);
    d.is_always_selected = 1;
    ck_assert_uint_eq(n_selected(d, 0.1), 3);
    ck_assert_uint_eq(n_selected(d, 0.0), 3);
    d.is_never_selected = 1;
    ck_assert_uint_eq(n_selected(d, 1.0), 0);
}
END_TEST

/* ---- schedule ---------------------------------------------------------------------------------------------------- */

/* W = 1, S = 3, cohort 0, lag 1: closes at 1, 2, 5, 8; what closed at 5 is seen at the end of 6. */
START_TEST(deferred_values_come_late) {
    static const float w = 1.0f, g = 0.5f;
    zo_decl_t d = matrix(1, 1, &w);
    zo_config_t c = config(3, 1);
    zo_adamw_t *a = zo_adamw_create(&d, 1);
    const float *grads[1] = {&g};
    float plain[10];
    zo_t *o;

    d.is_never_selected = 1;
    o = zo_create(&c, &d, 1);
    for (int t = 1; t <= 9; t++) {
        static const int seen[10] = {0, 1, 1, 2, 2, 2, 5, 5, 5, 8};

        zo_adamw_step(a, grads, &half, 1.0f);
        plain[t] = *zo_adamw_w(a, 0);
        step_with(o, &g);
        ck_assert_msg(visible(o, 0) == plain[seen[t]], "step %d", t);
    }
    zo_flush(o);
    ck_assert(visible(o, 0) == plain[9]);
    zo_adamw_destroy(a);
    zo_destroy(o);
}
END_TEST

/* Selected by importance, ties by the lower index; the choice at t = W uses record W, later ones records <= t-1. */
START_TEST(choice_of_channels) {
    static const float w[4], g1[4] = {1, 4, 4, 2}, g2[4] = {0, 0, 0, 9}, g3[4] = {5, 0, 0, 0};
    zo_decl_t d = matrix(1, 4, w);
    zo_config_t c = config(1, 1);
    uint8_t selected[4];
    double importance[4];
    zo_state_t state = {.selected = selected, .importance = importance};
    zo_t *o = zo_create(&c, &d, 1);

    step_with(o, g1);
    zo_read(o, 0, &state);
    ck_assert(!selected[0] && selected[1] && !selected[2] && !selected[3]);
    ck_assert(importance[1] == 0.0);
    step_with(o, g2); /* nothing was counted since: the lowest index */
    zo_read(o, 0, &state);
    ck_assert(selected[0] && !selected[1]);
    ck_assert(importance[3] == 9.0 && importance[0] == 0.0);
    step_with(o, g3); /* from record 2 */
    zo_read(o, 0, &state);
    ck_assert(selected[3] && !selected[0]);
    ck_assert(importance[0] == 5.0 && importance[3] == 0.0);
    zo_destroy(o);
}
END_TEST

/* W = 1, S = 2, cohort 0: channel 1 runs ahead at step 2, channel 0 waits for the close at 3, published at 4. */
START_TEST(selected_channels_run_ahead) {
    static const float w[4] = {1, 1, 1, 1}, g[4] = {0.5f, 4, 0.5f, 0.5f};
    zo_decl_t d = matrix(1, 4, w);
    zo_config_t c = config(2, 1);
    zo_adamw_t *a = zo_adamw_create(&d, 1);
    const float *grads[1] = {g};
    float plain[6][4];
    zo_t *o;

    c.select_interval = 100;
    o = zo_create(&c, &d, 1);
    for (int t = 1; t <= 5; t++) {
        static const int seen[6] = {0, 1, 1, 2, 2, 4};

        zo_adamw_step(a, grads, &half, 1.0f);
        memcpy(plain[t], zo_adamw_w(a, 0), sizeof plain[t]);
        step_with(o, g);
        ck_assert_msg(visible(o, 1) == plain[t][1], "step %d, selected", t);
        ck_assert_msg(visible(o, 0) == plain[seen[t]][0], "step %d, deferred", t);
        ck_assert_uint_eq(zo_n_device_differs(o), 0);
    }
    zo_adamw_destroy(a);
    zo_destroy(o);
}
END_TEST

/* Gradients 0.25 and 0.75 have the mean 0.5: one update as in one_update. */
START_TEST(mean_of_a_window) {
    static const float w = 1.0f, inf = INFINITY, g1 = 0.25f, g3 = 0.75f, hole = 0.0f;
    zo_decl_t d = matrix(1, 1, &w);
    zo_config_t c = config(3, 0);
    uint32_t n;
    zo_state_t state = {.n = &n};
    zo_t *o;

    d.is_never_selected = 1;
    c.is_mean = 1;
    o = zo_create(&c, &d, 1);
    ck_assert(!step_with(o, &inf).is_applied); /* warm-up without an update */
    step_with(o, &inf);                        /* the first window of cohort 0 has one step */
    ck_assert(visible(o, 0) == 1.0f);
    step_with(o, &g1);
    step_with(o, &inf);
    ck_assert(visible(o, 0) == 1.0f);
    step_with(o, &g3);
    ck_assert(visible(o, 0) == 0.75f); /* 1 - 0.25/0.5 * 0.5 */
    zo_read(o, 0, &state);
    ck_assert_uint_eq(n, 1);
    for (int i = 0; i < 3; i++)
        step(o, &half); /* a window of holes: nothing */
    zo_read(o, 0, &state);
    ck_assert(visible(o, 0) == 0.75f && n == 1);
    step_with(o, &hole);
    zo_destroy(o);
}
END_TEST

/* W = 1, S = 6, cohort 0, whose first window has one step, two channels of which the second is chosen at step 1.
 * Records of it are 4; those of the other add up to 4 with record 4, which the decision for step 6 is the first to
 * know: closes at 6. */
START_TEST(windows_close_by_data) {
    static const float w[2] = {1, 1}, g1[2] = {0, 4}, g2[2] = {2, 4}, none[2] = {0, 4};
    zo_decl_t d = matrix(1, 2, w);
    zo_config_t c = config(6, 0);
    uint32_t n[2];
    zo_state_t state = {.n = n};
    static const uint32_t closed[14] = {0, 1, 2, 2, 2, 2, 6, 6, 6, 6, 6, 6, 12, 12};
    zo_t *o;

    c.topk_ratio = 0.5;
    c.select_interval = 100;
    c.is_interval_auto = 1;
    o = zo_create(&c, &d, 1);
    for (int t = 1; t <= 13; t++) {
        step_with(o, t <= 2 ? g1 : t <= 4 ? g2 : none);
        zo_read(o, 0, &state);
        ck_assert_msg(n[0] == closed[t], "step %d: %u updates on the host", t, n[0]); /* 12: the bound */
    }
    zo_destroy(o);
}
END_TEST

START_TEST(params_changed_drops_slots) {
    static const float w = 1.0f, g = 0.5f, written = 8.0f;
    zo_decl_t d = matrix(1, 1, &w);
    zo_config_t c = config(4, 1);
    float state_w, m, exported;
    uint32_t n;
    zo_state_t state = {.w = &state_w, .m = &m, .n = &n};
    zo_t *o = zo_create(&c, &d, 1);

    for (int t = 1; t <= 3; t++)
        step_with(o, &g);
    zo_params_changed(o, &(zo_range_t){0}, &written, 0);
    zo_read(o, 0, &state);
    ck_assert(state_w == 8.0f && m == 0.375f && n == 2); /* the open slot of step 3 is gone */
    zo_export(o, 0, &exported);
    ck_assert(exported == 8.0f);
    zo_params_changed(o, &(zo_range_t){0}, &written, 1);
    zo_read(o, 0, &state);
    ck_assert(m == 0.0f && n == 0);
    step_with(o, &g);
    ck_assert(visible(o, 0) == 7.75f); /* a first update again, on the device too */
    zo_destroy(o);
}
END_TEST

/* After FLUSH at t the clocks start again: cohort 0 closes at t+1, then every S steps. */
START_TEST(flush_restarts_the_windows) {
    static const float w = 1.0f, g = 0.5f;
    zo_decl_t d = matrix(1, 1, &w);
    zo_config_t c = config(3, 0);
    float before, exported;
    zo_t *o;

    d.is_never_selected = 1;
    o = zo_create(&c, &d, 1);
    for (int t = 1; t <= 3; t++)
        step_with(o, &g);
    zo_export(o, 0, &exported);
    zo_flush(o);
    before = visible(o, 0);
    ck_assert(before == exported);
    step_with(o, &g);
    ck_assert(visible(o, 0) != before);
    before = visible(o, 0);
    step_with(o, &g); /* 5 would have closed */
    step_with(o, &g);
    ck_assert(visible(o, 0) == before);
    step_with(o, &g);
    ck_assert(visible(o, 0) != before);
    zo_destroy(o);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("oracle");
    TCase *tc = tcase_create("by hand");
    SRunner *runner = srunner_create(suite);
    int failed;

    tcase_add_test(tc, bf16_rounds_to_nearest_even);
    tcase_add_test(tc, one_update);
    tcase_add_test(tc, scalars_of_a_step);
    tcase_add_test(tc, parts_totals_and_replace);
    tcase_add_test(tc, big_matrices_are_cut_and_dealt);
    tcase_add_test(tc, a_row_is_never_cut);
    tcase_add_test(tc, what_users_get_is_cut_at_65536);
    tcase_add_test(tc, small_neighbours_share_a_lot);
    tcase_add_test(tc, blocks_are_uneven_and_batches_numbered);
    tcase_add_test(tc, how_many_are_selected);
    tcase_add_test(tc, deferred_values_come_late);
    tcase_add_test(tc, choice_of_channels);
    tcase_add_test(tc, selected_channels_run_ahead);
    tcase_add_test(tc, mean_of_a_window);
    tcase_add_test(tc, windows_close_by_data);
    tcase_add_test(tc, params_changed_drops_slots);
    tcase_add_test(tc, flush_restarts_the_windows);
    suite_add_tcase(suite, tc);
    suite_add_tcase(suite, oracle_select_tcase());
    suite_add_tcase(suite, oracle_rules_tcase());
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
