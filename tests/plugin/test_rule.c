/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_rule.c - ranges of hyper-parameters, and the keys of stochastic rounding. Scalars of an update: the
 * oracle's, which has them from other code. */
#include "plan/rule.h"

#include <check.h>
#include <math.h>
#include <string.h>

#include "suite.h"

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

ZT_MAIN("rule", rounding_keys, ranges, what_rounds_to_one)
