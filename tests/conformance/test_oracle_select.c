/* SPDX-License-Identifier: Apache-2.0 */
/* tests/conformance/test_oracle_select.c - choices of channels by hand: exchanges, strategies. One matrix of one row,
 * so that a record is |gradient|; W = 1, S = 1, a choice at every step unless the strategy says otherwise. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"
#include "test_oracle.h"

enum { CHANNELS = 6 };

static const zo_hyper_t hyper = {.lr = 0.25, .beta1 = 0.5, .beta2 = 0.75, .eps = 0x1p-60};
static const float zeros[CHANNELS];

static zo_t *start(zo_config_t config) {
    zo_decl_t d = {.ndim = 2, .shape = {1, CHANNELS}, .visible = zeros};

    config.warm_up = config.update_interval = config.select_interval = 1;
    return zo_create(&config, &d, 1);
}

static void step(zo_t *o, const char *digits, int is_epoch_end) {
    zo_step_t args = {.groups = &hyper, .unscale = 1.0, .is_epoch_end = is_epoch_end};
    float grad[CHANNELS];
    zo_report_t r;

    for (int c = 0; c < CHANNELS; c++)
        grad[c] = (float)(digits[c] - '0');
    zo_deliver(o, 0, grad, 0, 0);
    zo_step(o, &args, &r);
}

static void check_selected(const zo_t *o, const char *expected) {
    uint8_t selected[CHANNELS];
    char found[CHANNELS + 1] = {0};
    zo_state_t state = {.selected = selected};

    zo_read(o, 0, &state);
    for (int c = 0; c < CHANNELS; c++)
        found[c] = selected[c] ? '1' : '0';
    ck_assert_str_eq(found, expected);
}

/* k = 3, one exchange at a time: the best newcomer for the worst that leaves. The choice at t counts records <= t-1. */
START_TEST(exchanges_are_bounded) {
    static const char *const expected[] = {"111000", "011001", "001011", "000111", "000111"};
    zo_t *o = start((zo_config_t){.topk_ratio = 0.5, .max_swap_ratio = 0.4});

    step(o, "654000", 0);
    check_selected(o, "111000"); /* the first choice is not bounded */
    for (int t = 0; t < 5; t++) {
        step(o, "123789", 0);
        check_selected(o, expected[t]);
    }
    step(o, "111111", 0);
    step(o, "111111", 0); /* equal ones rank by index: 0 comes in, 5 goes */
    check_selected(o, "100110");
    zo_destroy(o);
}
END_TEST

START_TEST(half_an_exchange_is_one) {
    zo_t *o = start((zo_config_t){.topk_ratio = 0.5, .max_swap_ratio = 0.5}); /* floor(1.5 + 0.5) = 2 */

    step(o, "654000", 0);
    step(o, "000789", 0);
    step(o, "000789", 0);
    check_selected(o, "100011"); /* all that leave are equal: the higher index goes first */
    zo_destroy(o);
}
END_TEST

START_TEST(auto_keeps_what_holds_enough) {
    zo_t *o = start(
        (zo_config_t){.topk_ratio = 0.5, .max_swap_ratio = 1.0, .strategy = ZO_SELECT_AUTO, .reselect_below = 0.5});
    double importance[CHANNELS];
    zo_state_t state = {.importance = importance};

    step(o, "654000", 0);
    step(o, "300030", 0);
    check_selected(o, "111000"); /* nothing counted yet: 0 is not below 0 */
    step(o, "300040", 0);
    check_selected(o, "111000"); /* 9 of 18 */
    zo_read(o, 0, &state);
    ck_assert(importance[0] == 3.0 && importance[4] == 4.0); /* counted anew all the same */
    step(o, "000000", 0);
    check_selected(o, "110010"); /* 9 of 25 */
    zo_destroy(o);
}
END_TEST

START_TEST(epochs_end) {
    zo_t *o = start((zo_config_t){.topk_ratio = 0.5, .max_swap_ratio = 1.0, .strategy = ZO_SELECT_EPOCH});

    step(o, "654000", 1); /* warm-up's end chooses anyway */
    step(o, "000456", 0);
    step(o, "000456", 0);
    check_selected(o, "111000");
    step(o, "000456", 1);
    check_selected(o, "000111");
    step(o, "900000", 0);
    step(o, "900000", 0);
    check_selected(o, "000111");
    zo_discard(o, 1);
    check_selected(o, "000111");
    step(o, "000000", 0);
    check_selected(o, "100011"); /* 18 0 0 4 5 6: the discarded flag counted */
    step(o, "000009", 0);
    check_selected(o, "100011");
    zo_destroy(o);
}
END_TEST

static uint64_t decided(double energy, double most, const char *digits) {
    zo_t *o = start((zo_config_t){
        .is_topk_auto = 1, .energy = energy, .max_topk_ratio = most, .max_swap_ratio = 1.0, .topk_ratio = 0.0});
    zo_matrix_info_t x;

    zo_matrix_info(o, 0, &x);
    ck_assert_uint_eq(x.n_selected, 1);
    step(o, digits, 0);
    zo_matrix_info(o, 0, &x);
    zo_destroy(o);
    return x.n_selected;
}

START_TEST(auto_holds_energy) {
    ck_assert_uint_eq(decided(0.75, 1.0, "400300"), 1); /* 16 of 25 hold 0.5625 of it */
    ck_assert_uint_eq(decided(0.875, 1.0, "400300"), 2);
    ck_assert_uint_eq(decided(1.0, 1.0, "400300"), 2);
    ck_assert_uint_eq(decided(1.0, 1.0, "111111"), 6);
    ck_assert_uint_eq(decided(1.0, 0.5, "111111"), 3);  /* 32/64: 9 of 36; one more would break the budget */
    ck_assert_uint_eq(decided(1.0, 0.01, "111111"), 1); /* never less */
    ck_assert_uint_eq(decided(1.0, 1.0, "000000"), 1);
}
END_TEST

TCase *oracle_select_tcase(void) {
    TCase *tc = tcase_create("choices by hand");

    tcase_add_test(tc, exchanges_are_bounded);
    tcase_add_test(tc, half_an_exchange_is_one);
    tcase_add_test(tc, auto_keeps_what_holds_enough);
    tcase_add_test(tc, epochs_end);
    tcase_add_test(tc, auto_holds_energy);
    return tc;
}
