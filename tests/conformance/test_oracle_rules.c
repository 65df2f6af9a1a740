/* SPDX-License-Identifier: Apache-2.0 */
/* test_oracle_rules.c - update rules, half precision, rounded moments and prediction against values computed by hand.
 */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "oracle/oracle.h"
#include "oracle/state.h" /* zo_round_moment */
#include "test_oracle.h"

/* With g = 0.5, w = 1: L2 gives g' = 1. */
static const zo_hyper_t hyper = {.lr = 0.25, .beta1 = 0.5, .beta2 = 0.75, .eps = 0x1p-60, .weight_decay = 0.5};

static zo_config_t config(zo_rule_t rule) {
    return (zo_config_t){
        .topk_ratio = 0.25, .select_interval = 100, .update_interval = 1, .warm_up = 1, .groups = {{.rule = rule}}};
}

static zo_t *create(const zo_config_t *c, int64_t n, const float *w) {
    zo_decl_t d = {.ndim = 2, .shape = {n, 1}, .visible = w, .is_never_selected = 1};

    return zo_create(c, &d, 1);
}

static void step(zo_t *o, const float *g, const zo_hyper_t *h) {
    zo_step_t args = {.groups = h, .unscale = 1.0};
    zo_report_t r;

    zo_deliver(o, 0, g, 0, 0);
    zo_step(o, &args, &r);
}

/* w after each of two steps, and m after the second. */
static void check_rule(zo_rule_t rule, float w1, float w2, float m2) {
    static const float w = 1.0f, g = 0.5f;
    zo_config_t c = config(rule);
    zo_t *o = create(&c, 1, &w);
    float state_w, m, v = -1.0f;
    zo_state_t state = {.w = &state_w, .m = &m, .v = &v};

    step(o, &g, &hyper);
    zo_read(o, 0, &state);
    ck_assert_msg(state_w == w1, "rule %d: %a after one step, need %a", (int)rule, (double)state_w, (double)w1);
    step(o, &g, &hyper);
    zo_read(o, 0, &state);
    ck_assert_msg(state_w == w2 && m == m2, "rule %d: %a, m = %a", (int)rule, (double)state_w, (double)m);
    ck_assert(rule == ZO_ADAM || v == 0.0f);
    zo_destroy(o);
}

START_TEST(rules) {
    check_rule(ZO_SGD, 0.75f, 0.40625f, 1.375f);          /* g' = 1, 0.875 */
    check_rule(ZO_NESTEROV, 0.625f, 0.2578125f, 1.3125f); /* 1 - 0.25*(0.5 + 1); g' = 0.8125: 0.625 - 0.25*1.46875 */
    check_rule(ZO_LION, 0.625f, 0.296875f, 0.21875f);     /* 1*0.875 - 0.25; 0.625*0.875 - 0.25 */
}
END_TEST

START_TEST(adam_adds_decay_to_the_gradient) {
    static const float w = 1.0f, g = 0.5f;
    zo_config_t c = config(ZO_ADAM);
    zo_t *o = create(&c, 1, &w);
    float state_w, m, v;
    zo_state_t state = {.w = &state_w, .m = &m, .v = &v};

    step(o, &g, &hyper);
    zo_read(o, 0, &state);
    ck_assert(m == 0.5f && v == 0.25f && state_w == 0.75f); /* d = 0.5 * 2 */
    zo_destroy(o);
}
END_TEST

START_TEST(lion_at_zero_only_decays) {
    static const float w = 1.0f, g = 0.0f;
    zo_config_t c = config(ZO_LION);
    zo_t *o = create(&c, 1, &w);

    step(o, &g, &hyper);
    ck_assert(*(const float *)zo_visible(o, 0) == 0.875f);
    zo_destroy(o);
}
END_TEST

static void count_updates(void *ctx, float *w, float *m, float *v, float g, const zo_hyper_t *h, uint64_t n) {
    uint64_t *sum = ctx;

    (void)m;
    (void)v;
    *sum = 10 * *sum + n;
    *w = (float)h->lr * g;
}

START_TEST(callback_sees_n_and_scalars) {
    static const float w = 1.0f, g = 0.5f;
    uint64_t sum = 0;
    zo_config_t c = config(ZO_CALLBACK);
    zo_t *o;

    c.groups[0].element = count_updates;
    c.groups[0].element_ctx = &sum;
    o = create(&c, 1, &w);
    for (int i = 0; i < 3; i++)
        step(o, &g, &hyper);
    ck_assert_uint_eq(sum, 123);
    ck_assert(*(const float *)zo_visible(o, 0) == 0.125f);
    zo_destroy(o);
}
END_TEST

/* ---- half precision ---------------------------------------------------------------------------------------------- */

static uint16_t half_of(double x) {
    uint16_t out;

    zo_narrow(&out, ZO_F16, 0, (float)x);
    return out;
}

START_TEST(f16_rounds_to_nearest_even) {
    static const struct {
        double x;
        uint16_t bits;
    } rows[] = {{0.0, 0x0000},
                {-0.0, 0x8000},
                {1.0, 0x3C00},
                {-2.0, 0xC000},
                {65504.0, 0x7BFF},
                {0x1.ffdffep15, 0x7BFF},
                {65520.0, 0x7C00},
                {-65520.0, 0xFC00},
                {INFINITY, 0x7C00},
                {1 + 0x1p-11, 0x3C00},
                {1 + 0x3p-11, 0x3C02},
                {1 + 0x1p-11 + 0x1p-20, 0x3C01},
                {1 - 0x1p-12, 0x3C00},
                {0x1p-14, 0x0400},
                {0x1p-24, 0x0001},
                {0x1p-25, 0x0000},
                {0x1.8p-24, 0x0002},
                {0x1.000002p-25, 0x0001},
                {1023.5 * 0x1p-24, 0x0400},
                {0x1p-149, 0x0000},
                {-1023 * 0x1p-24, 0x83FF}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        ck_assert_msg(half_of(rows[i].x) == rows[i].bits, "%a: 0x%04x", rows[i].x, half_of(rows[i].x));
    ck_assert_uint_gt(half_of(NAN) & 0x7FFF, 0x7C00);
}
END_TEST

START_TEST(f16_goes_and_comes_back) {
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        uint16_t half = (uint16_t)bits;
        float x = zo_widen(&half, ZO_F16, 0);

        if ((bits & 0x7FFF) > 0x7C00)
            ck_assert(isnan(x));
        else
            ck_assert_msg(half_of((double)x) == half, "0x%04x", bits);
    }
}
END_TEST

/* ---- moments ----------------------------------------------------------------------------------------------------- */

/* b1 = b2 = 0: m = g, v = g*g = 1 + 2^-8 + 2^-18. One bf16 unit is 2^-7. */
static const zo_hyper_t memoryless = {.lr = 0.25, .eps = 1.0};
static const float odd = 1 + 0x1p-9f;

START_TEST(bf16_moments_round_at_the_close) {
    static const float w = 1.0f;
    zo_config_t c = config(ZO_ADAMW);
    float m, v;
    zo_state_t state = {.m = &m, .v = &v};
    zo_t *o;

    c.moments = ZO_MOMENTS_BF16;
    c.update_interval = 3;
    o = create(&c, 1, &w);
    step(o, &odd, &memoryless);
    zo_read(o, 0, &state);
    ck_assert(m == 1.0f && v == 1 + 0x1p-7f);
    zo_destroy(o);
}
END_TEST

START_TEST(stochastic_moments_are_unbiased) {
    enum { N = 4096 };
    static float w[N], g[N], m[N], v[N];
    zo_config_t c = config(ZO_ADAMW);
    zo_state_t state = {.m = m, .v = v};
    zo_t *o;
    int m_up = 0, v_up = 0, both = 0;

    c.moments = ZO_MOMENTS_STOCHASTIC;
    for (int i = 0; i < N; i++)
        g[i] = odd;
    o = create(&c, N, w);
    step(o, g, &memoryless);
    zo_read(o, 0, &state);
    for (int i = 0; i < N; i++) {
        ck_assert(m[i] == 1.0f || m[i] == 1 + 0x1p-7f);
        ck_assert(v[i] == 1.0f || v[i] == 1 + 0x1p-7f);
        m_up += m[i] > 1.0f;
        v_up += v[i] > 1.0f;
        both += m[i] > 1.0f && v[i] > 1.0f;
    }
    /* expected 1/4, 1/2 and their product; five standard deviations */
    ck_assert_int_le(abs(m_up - N / 4), 140);
    ck_assert_int_le(abs(v_up - N / 2), 160);
    ck_assert_int_le(abs(both - N / 8), 106);
    zo_destroy(o);
}
END_TEST

START_TEST(stochastic_rounding_at_the_edges) {
    for (uint32_t r = 0; r < 0x10000; r += 255) {
        ck_assert(zo_round_moment(1.0078125f, ZO_MOMENTS_STOCHASTIC, r) == 1.0078125f); /* bf16 already */
        ck_assert(zo_round_moment(-0.0f, ZO_MOMENTS_STOCHASTIC, r) == 0.0f);
        ck_assert(zo_round_moment(FLT_MAX, ZO_MOMENTS_STOCHASTIC, r) == 0x1.fep127f); /* never to Inf */
        ck_assert(zo_round_moment(-FLT_MAX, ZO_MOMENTS_STOCHASTIC, r) == -0x1.fep127f);
        ck_assert(isinf(zo_round_moment(INFINITY, ZO_MOMENTS_STOCHASTIC, r)));
        ck_assert(isnan(zo_round_moment(NAN, ZO_MOMENTS_STOCHASTIC, r)));
    }
    ck_assert(zo_round_moment(1 + 0x1p-8f, ZO_MOMENTS_STOCHASTIC, 0x7FFF) == 1.0f);
    ck_assert(zo_round_moment(1 + 0x1p-8f, ZO_MOMENTS_STOCHASTIC, 0x8000) == 1 + 0x1p-7f);
}
END_TEST

/* ---- prediction -------------------------------------------------------------------------------------------------- */

/* W = 1, S = 2, lag 0, x = 1: e = b1; closes at 1 (warm-up: not predicted), 2 and 4. */
START_TEST(predicted_values_are_published) {
    static const float w = 1.0f, g = 0.5f;
    zo_config_t c = config(ZO_ADAMW);
    float s[3], d, expected, exported;
    zo_state_t state = {.w = &s[0], .m = &s[1], .v = &s[2]};
    zo_t *o;

    c.update_interval = 2;
    c.predicts = 1;
    o = create(&c, 1, &w);
    step(o, &g, &hyper);
    zo_read(o, 0, &state);
    ck_assert(*(const float *)zo_visible(o, 0) == s[0]);
    for (int i = 2; i <= 4; i++)
        step(o, &g, &hyper);
    zo_read(o, 0, &state);
    d = fmaf(sqrtf(s[2]), (float)(1 / sqrt(1 - 0.31640625)), 0x1p-60f);
    expected = fmaf((float)(0.5 * (-0.25 / 0.9375)), s[1] / d, s[0]);
    ck_assert(expected != s[0]);
    ck_assert(*(const float *)zo_visible(o, 0) == expected);
    zo_export(o, 0, &exported);
    ck_assert(exported == s[0]);
    zo_flush(o);
    ck_assert(*(const float *)zo_visible(o, 0) == s[0]);
    zo_destroy(o);
}
END_TEST

TCase *oracle_rules_tcase(void) {
    TCase *tc = tcase_create("rules");

    tcase_add_test(tc, rules);
    tcase_add_test(tc, adam_adds_decay_to_the_gradient);
    tcase_add_test(tc, lion_at_zero_only_decays);
    tcase_add_test(tc, callback_sees_n_and_scalars);
    tcase_add_test(tc, f16_rounds_to_nearest_even);
    tcase_add_test(tc, f16_goes_and_comes_back);
    tcase_add_test(tc, bf16_moments_round_at_the_close);
    tcase_add_test(tc, stochastic_moments_are_unbiased);
    tcase_add_test(tc, stochastic_rounding_at_the_edges);
    tcase_add_test(tc, predicted_values_are_published);
    return tc;
}
