/* SPDX-License-Identifier: Apache-2.0 */
/* tests/conformance/test_oracle_select.c - choices of channels by hand: exchanges, strategies. One matrix of one row,
 * so that a record is |gradient|; W = 1, S = 1, a choice at every step unless the strategy says otherwise. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/oracle.h"
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

/* k = 3. The choice at t counts records <= t-1; equal ones rank by index. */
START_TEST(the_best_are_selected) {
    zo_t *o = start((zo_config_t){.topk_ratio = 0.5});

    step(o, "654000", 0);
    check_selected(o, "111000");
    step(o, "123789", 0);
    check_selected(o, "111000");
    step(o, "111111", 0);
    check_selected(o, "000111");
    step(o, "111112", 0);
    check_selected(o, "111000");
    step(o, "000000", 0);
    check_selected(o, "110001");
    zo_destroy(o);
}
END_TEST

START_TEST(auto_keeps_what_holds_enough) {
    zo_t *o = start((zo_config_t){.topk_ratio = 0.5, .strategy = ZO_SELECT_AUTO});
    double importance[CHANNELS];
    zo_state_t state = {.importance = importance};

    step(o, "654000", 0);
    step(o, "400020", 0);
    check_selected(o, "111000"); /* nothing counted yet: 0 is not below 0 */
    step(o, "400030", 0);
    check_selected(o, "111000"); /* 16 of 20 */
    zo_read(o, 0, &state);
    ck_assert(importance[0] == 4.0 && importance[4] == 3.0); /* counted anew all the same */
    step(o, "000000", 0);
    check_selected(o, "110010"); /* 16 of 25 */
    zo_destroy(o);
}
END_TEST

START_TEST(epochs_end) {
    zo_t *o = start((zo_config_t){.topk_ratio = 0.5, .strategy = ZO_SELECT_EPOCH});

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

TCase *oracle_select_tcase(void) {
    TCase *tc = tcase_create("choices by hand");

    tcase_add_test(tc, the_best_are_selected);
    tcase_add_test(tc, auto_keeps_what_holds_enough);
    tcase_add_test(tc, epochs_end);
    return tc;
}
