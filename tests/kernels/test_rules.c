/* SPDX-License-Identifier: Apache-2.0 */
/* test_rules.c - the definition of each update (ref) against results worked out by hand: every number is exact in
 * fp32. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "arrays.h"
#include "suite.h"

/* One element and what a job says of it. */
typedef struct elem {
    float w, m, v, visible;
} elem_t;

static const zfi_scalars_t scalars = {.s = 0.5f,
                                      .b1 = 0.5f,
                                      .one_minus_b1 = 0.5f,
                                      .b2 = 0.5f,
                                      .one_minus_b2 = 0.5f,
                                      .inv_sqrt_bc2 = 2.0f,
                                      .eps = 2.0f,
                                      .neg_step = -2.0f,
                                      .decay = 0.5f,
                                      .l2 = 0.25f};

static elem_t updated(zfi_rule_t rule, elem_t x, float grad, const zfi_scalars_t *a, int has_predict, float predict) {
    const void *grads[] = {&grad};
    const zfi_replay_t job = {.w = &x.w,
                              .m = &x.m,
                              .v = zfi_rule_has_v(rule) ? &x.v : NULL,
                              .grads = grads,
                              .scalars = a,
                              .n_slots = 1,
                              .grad_dtype = ZFI_F32,
                              .visible = &x.visible,
                              .visible_dtype = ZFI_F32,
                              .n_elems = 1,
                              .has_predict = has_predict,
                              .predict = predict};

    ck_assert_uint_eq(zfi_kernels_ref()->replay[rule](&job), isfinite(x.w) ? UINT64_MAX : 0);
    return x;
}

/* g' = 0.25*4 + 4*0.5 = 3, m = 0.5*1 + 0.5*3 = 2, v = 0.5*9 + 0.5*3*3 = 9, d = 2*3 + 2 = 8, w = -2*(2/8) + 4 = 3.5.
 * AdamW at the same start: g' = 2, m = 1.5, v = 6.5. */
START_TEST(adam) {
    const elem_t start = {.w = 4.0f, .m = 1.0f, .v = 9.0f};
    elem_t x = updated(ZFI_RULE_ADAM, start, 4.0f, &scalars, 0, 0.0f);

    ck_assert(x.m == 2.0f && x.v == 9.0f && x.w == 3.5f && x.visible == 3.5f);
    x = updated(ZFI_RULE_ADAM, start, 4.0f, &scalars, 1, -2.0f);
    ck_assert(x.m == 2.0f && x.v == 9.0f && x.w == 3.5f && x.visible == 3.0f); /* -2*(2/8) + 3.5 */
    x = updated(ZFI_RULE_ADAMW, start, 4.0f, &scalars, 0, 0.0f);
    ck_assert(x.m == 1.5f && x.v == 6.5f);
}
END_TEST

/* g' = 3, m = 0.5*1 + 3 = 3.5; w = -2*3.5 + 4 = -3, Nesterov's -2*(0.5*3.5 + 3) + 4 = -5.5. No prediction. */
START_TEST(sgd) {
    const elem_t start = {.w = 4.0f, .m = 1.0f, .v = 7.0f};
    elem_t x = updated(ZFI_RULE_SGD, start, 4.0f, &scalars, 0, 0.0f);

    ck_assert(x.m == 3.5f && x.w == -3.0f && x.visible == -3.0f && x.v == 7.0f);
    x = updated(ZFI_RULE_SGD, start, 4.0f, &scalars, 1, 100.0f);
    ck_assert(x.w == -3.0f && x.visible == -3.0f);
    x = updated(ZFI_RULE_SGD_NESTEROV, start, 4.0f, &scalars, 0, 0.0f);
    ck_assert(x.m == 3.5f && x.w == -5.5f && x.visible == -5.5f && x.v == 7.0f);
}
END_TEST

/* Without momentum g' = 3 is the update, w = -2*3 + 4 = -2, and m rests, whatever it holds. */
START_TEST(sgd_without_momentum) {
    const elem_t start = {.w = 4.0f, .m = INFINITY};
    zfi_scalars_t plain = scalars;
    plain.b1 = 0.0f;
    for (zfi_rule_t rule = ZFI_RULE_SGD; rule <= ZFI_RULE_SGD_NESTEROV; rule++) {
        elem_t x = updated(rule, start, 4.0f, &plain, 0, 0.0f);

        ck_assert(x.m == INFINITY && x.w == -2.0f && x.visible == -2.0f);
    }
}
END_TEST

/* g' = 2; c = 0.5*m + 1; w = -2*sign(c) + 0.5*4; m = 0.75*m + 0.25*2. */
START_TEST(lion) {
    static const struct {
        float m, want_w, want_m;
    } cases[] = {{1.0f, 0.0f, 1.25f}, {-5.0f, 4.0f, -3.25f}, {-2.0f, 2.0f, -1.0f}};
    zfi_scalars_t a = scalars;
    elem_t x;

    a.b2 = 0.75f;
    a.one_minus_b2 = 0.25f;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        x = updated(ZFI_RULE_LION, (elem_t){.w = 4.0f, .m = cases[i].m, .v = 7.0f}, 4.0f, &a, 0, 0.0f);
        ck_assert(x.w == cases[i].want_w && x.m == cases[i].want_m && x.v == 7.0f);
    }
    x = updated(ZFI_RULE_LION, (elem_t){.w = -0.0f, .m = -0.0f}, -0.0f, &a, 0, 0.0f);
    ck_assert(x.w == 0.0f && !signbit(x.w) && signbit(x.m)); /* -2*-0 + -0: the sign of zero stays a zero */
    x = updated(ZFI_RULE_LION, (elem_t){.w = 4.0f, .m = NAN}, 4.0f, &a, 0, 0.0f);
    ck_assert(isnan(x.w) && isnan(x.m));
}
END_TEST

ZT_MAIN("rules", adam, sgd, sgd_without_momentum, lion)
