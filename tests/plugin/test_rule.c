/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_rule.c - powers and the scalars of an update against numbers known beforehand. */
#include "plan/rule.h"

#include <check.h>
#include <math.h>
#include <string.h>

#include "suite.h"

START_TEST(powers) {
    ck_assert(zfi_power(0.9, 0) == 1.0);
    ck_assert(zfi_power(0.9, 1) == 0.9);
    ck_assert(zfi_power(0.5, 10) == 0x1p-10);
    ck_assert(zfi_power(0.5, 1074) == 0x1p-1074);
    ck_assert(zfi_power(0.0, 5) == 0.0);
    ck_assert(zfi_power(0.9, 2) == 0.9 * 0.9);
    ck_assert(zfi_power(0.9, 3) == 0.9 * (0.9 * 0.9)); /* low bit first: not (0.9 * 0.9) * 0.9 by steps */
    ck_assert(zfi_power(0.9, 5) == 0.9 * ((0.9 * 0.9) * (0.9 * 0.9)));
    ck_assert(zfi_power(1.0, UINT32_MAX) == 1.0);
    for (uint32_t n = 1; n < 3000; n += 7)
        ck_assert_msg(fabs(zfi_power(0.999, n) / pow(0.999, n) - 1) < 1e-12, "0.999^%u", n);
}
END_TEST

START_TEST(first_update) { /* 1 - b^1 cancels against 1 - b up to rounding */
    zfi_hyper_t hyper = {0.001, 0.9, 0.999, 1e-8, 0.01};
    zfi_scalars_t a = zfi_rule_scalars(ZFI_RULE_ADAMW, &hyper, 0.5f, 1);
    ck_assert(a.s == 0.5f);
    ck_assert(a.b1 == 0.9f && a.b2 == 0.999f && a.eps == 1e-8f);
    ck_assert(a.one_minus_b1 == 0.1f && a.one_minus_b2 == 0.001f); /* from doubles, not 1 - 0.9f */
    ck_assert(a.neg_step == -0.01f);
    ck_assert(a.inv_sqrt_bc2 == 31.622776601683793f);
    ck_assert(a.decay == 0.99999f);
}
END_TEST

START_TEST(later_updates) { /* literal values: lr = 0.003, betas 0.9 and 0.95 */
    zfi_hyper_t hyper = {0.003, 0.9, 0.95, 1e-6, 0.1};
    zfi_scalars_t a = zfi_rule_scalars(ZFI_RULE_ADAMW, &hyper, 1.0f, 10);
    ck_assert(a.neg_step == -0.0046060197f); /* -0.003 / (1 - 0.3486784401) */
    ck_assert(a.inv_sqrt_bc2 == 1.5786483f); /* 1 / sqrt(1 - 0.5987369392383787) */
    ck_assert(a.decay == 0.9997f);
    a = zfi_rule_scalars(ZFI_RULE_ADAMW, &hyper, 1.0f, 1000000);
    ck_assert(a.neg_step == -0.003f && a.inv_sqrt_bc2 == 1.0f);
}
END_TEST

START_TEST(no_momentum) {
    zfi_hyper_t hyper = {0.25, 0.0, 0.0, 1.0, 0.0};
    zfi_scalars_t a = zfi_rule_scalars(ZFI_RULE_ADAMW, &hyper, 2.0f, 7);
    ck_assert(a.b1 == 0 && a.one_minus_b1 == 1 && a.b2 == 0 && a.one_minus_b2 == 1);
    ck_assert(a.neg_step == -0.25f && a.inv_sqrt_bc2 == 1 && a.decay == 1 && a.eps == 1);
}
END_TEST

START_TEST(other_rules) { /* no bias correction without v; decay as L2 or decoupled */
    zfi_hyper_t hyper = {0.003, 0.9, 0.95, 1e-6, 0.1};
    zfi_scalars_t a = zfi_rule_scalars(ZFI_RULE_ADAM, &hyper, 1.0f, 10);
    ck_assert(a.neg_step == -0.0046060197f && a.inv_sqrt_bc2 == 1.5786483f && a.l2 == 0.1f);
    for (int rule = ZFI_RULE_SGD; rule <= ZFI_RULE_LION; rule++) {
        a = zfi_rule_scalars((zfi_rule_t)rule, &hyper, 0.5f, 10);
        ck_assert(a.s == 0.5f && a.neg_step == -0.003f && a.l2 == 0.1f && a.decay == 0.9997f);
        ck_assert(a.b1 == 0.9f && a.b2 == 0.95f && a.one_minus_b1 == 0.1f);
    }
}
END_TEST

START_TEST(prediction) { /* e = b1 (1 - b1^x) / (1 - b1): 1/2 of the next step, 3/4 of two, all of them in the end */
    zfi_hyper_t hyper = {0.25, 0.5, 0.75, 1e-8, 0.1}, still = {0.25, 0.0, 0.75, 1e-8, 0.1};
    ck_assert(zfi_rule_predict(&hyper, 1, 1) == -0.25f); /* 0.5 * -0.25/0.5 */
    ck_assert(zfi_rule_predict(&hyper, 1, 2) == -0.375f);
    ck_assert(zfi_rule_predict(&hyper, 1, 64) == -0.5f);
    ck_assert(zfi_rule_predict(&hyper, 2, 1) == (float)(0.5 * (-0.25 / 0.75)));
    ck_assert(zfi_rule_predict(&still, 3, 4) == 0.0f);
}
END_TEST

START_TEST(rounding_keys) { /* splitmix64 of the steps, from a seed of its own: first values computed apart */
    ck_assert_uint_eq(zfi_rounding_key(0), 0xD8707C9B105252FEu);
    ck_assert_uint_eq(zfi_rounding_key(1), 0x6E59C9F25A891E61u);
    ck_assert_uint_eq(zfi_rounding_base(3), 3ull << 40);
}
END_TEST

static zf_error_t err = {.struct_size = sizeof err};

static zf_status_t check(double lr, double beta1, double beta2, double eps, double decay) {
    zf_group_hyper_t hyper = {sizeof hyper, 0, lr, beta1, beta2, eps, decay};
    return zfi_rule_check(&hyper, 5, "step", &err);
}

START_TEST(ranges) {
    static const double not_numbers[] = {NAN, INFINITY, -INFINITY, -0x1p-1074};
    ck_assert_int_eq(check(0, 0, 0, 1e-8, 0), ZF_OK);
    ck_assert_int_eq(check(1e30, 0.999999, 0.999999, 1e30, 1), ZF_OK);
    ck_assert_int_eq(check(1, 0.999999, 0.999999, 1e30, 1e30), ZF_OK);
    ck_assert_int_eq(check(1e31, 0.9, 0.9, 1e-8, 0), ZF_ERR_ARGUMENT); /* beyond fp32 after a division or two */
    ck_assert_int_eq(check(1, 0.9, 0.9, 1e31, 0), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(check(1, 0.9, 0.9, 1e-8, 1e31), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(check(1e20, 0.9, 0.9, 1e-8, 1e20), ZF_ERR_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.message, "group 5: lr * weight_decay = 1e+40"));
    for (size_t i = 0; i < 4; i++) {
        double x = not_numbers[i];
        ck_assert_int_eq(check(x, 0.9, 0.9, 1e-8, 0), ZF_ERR_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(err.message, "group 5: lr"));
        ck_assert_int_eq(check(1, x, 0.9, 1e-8, 0), ZF_ERR_ARGUMENT);
        ck_assert_int_eq(check(1, 0.9, x, 1e-8, 0), ZF_ERR_ARGUMENT);
        ck_assert_int_eq(check(1, 0.9, 0.9, x, 0), ZF_ERR_ARGUMENT);
        ck_assert_int_eq(check(1, 0.9, 0.9, 1e-8, x), ZF_ERR_ARGUMENT);
    }
    ck_assert_int_eq(check(1, 1, 0.9, 1e-8, 0), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(check(1, 0.9, 1, 1e-8, 0), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(check(1, 0.9, 0.9, 0, 0), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(check(1, 0.9, 0.9, 1e-60, 0), ZF_ERR_ARGUMENT); /* 0 as a float: m / d would be 0 / 0 */
}
END_TEST

START_TEST(
    what_rounds_to_one) { /* a beta below 1 that is 1 as a double to the n-th power cannot be; as a float it may */
    zfi_hyper_t hyper = {1e-3, 1 - 0x1p-53, 1 - 0x1p-53, 1e-8, 0};
    zfi_scalars_t a = zfi_rule_scalars(ZFI_RULE_ADAMW, &hyper, 1.0f, 1);
    ck_assert(isfinite(a.neg_step) && isfinite(a.inv_sqrt_bc2));
}
END_TEST

ZT_MAIN("rule", powers, first_update, later_updates, other_rules, prediction, rounding_keys, no_momentum, ranges,
        what_rounds_to_one)
