/* SPDX-License-Identifier: Apache-2.0 */
/* test_oracle_laws.c - laws 1 and 6 in the oracle alone, over random cases: the schedule itself keeps them, so a plugin
 * that equals the oracle does. And the invariant of the device copy, after every step. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/oracle.h"
#include "test_oracle.h"

enum { N_CASES = 200, MAX_PARAMS = 5, N_GROUPS = 2 };

static uint64_t state;

static uint32_t below(uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(((state >> 32) * n) >> 32);
}

static double uniform(double lo, double hi) { return lo + (hi - lo) * (below(1u << 24) / (double)(1u << 24)); }

typedef struct fixture {
    zo_config_t config;
    zo_decl_t decls[MAX_PARAMS];
    void *visible[MAX_PARAMS];
    uint32_t n_params;
    zo_t *oracle;
    zo_adamw_t *adamw;
} fixture_t;

static void *random_array(zo_dtype_t dtype, uint64_t n, double scale) {
    void *array = calloc(n + 1, zo_dtype_nbytes(dtype));

    for (uint64_t i = 0; i < n; i++)
        zo_narrow(array, dtype, i, (float)uniform(-scale, scale));
    return array;
}

static void draw_decl(fixture_t *f, uint32_t i) {
    zo_decl_t *d = &f->decls[i];
    uint64_t n = 1;

    *d = (zo_decl_t){.ndim = below(4), .channels_are_rows = (int)below(2), .group = below(N_GROUPS)};
    for (uint32_t axis = 0; axis < d->ndim; axis++)
        n *= (uint64_t)(d->shape[axis] = 1 + below(9));
    d->n_batch_axes = d->ndim > 1 ? below(2) : 0;
    d->dtype = (zo_dtype_t)below(ZO_N_DTYPES);
    d->grad_dtype = (zo_dtype_t)below(ZO_N_DTYPES);
    d->is_stateless = i > 0 && below(10) == 0;
    d->visible = f->visible[i] = random_array(d->dtype, n, 1.0);
}

static void start(fixture_t *f, int law) {
    memset(f, 0, sizeof *f);
    f->config =
        (zo_config_t){.topk_ratio = law == 1 ? 1.0 : uniform(0.05, 0.8),
                      .strategy = (zo_strategy_t)below(3),
                      .select_interval = 1 + below(6),
                      .update_interval = 1 + below(6),
                      .warm_up = 1 + below(3),
                      .publish_lag = (int)below(2),
                      .is_mean = law == 1 && below(2),
                      .groups = {{.rule = (zo_rule_t)below(ZO_CALLBACK)}, {.rule = (zo_rule_t)below(ZO_CALLBACK)}}};
    if (law == 0) { /* none: the invariant alone */
        f->config.moments = (zo_moments_t)below(ZO_N_MOMENTS);
        f->config.predicts = (int)below(2);
    }
    if (law == 1 && below(2)) {
        f->config.topk_ratio = 0.3;
        f->config.update_interval = 1;
        f->config.publish_lag = 0;
    }
    f->n_params = 1 + below(MAX_PARAMS);
    for (uint32_t i = 0; i < f->n_params; i++)
        draw_decl(f, i);
    f->oracle = zo_create(&f->config, f->decls, f->n_params);
    f->adamw = zo_plain_create(&f->config, f->decls, f->n_params);
}

static void end(fixture_t *f) {
    zo_destroy(f->oracle);
    zo_adamw_destroy(f->adamw);
    for (uint32_t i = 0; i < f->n_params; i++)
        free(f->visible[i]);
}

static void deliver_all(fixture_t *f) {
    for (uint32_t i = 0; i < f->n_params; i++) {
        uint64_t n = zo_n_elems(f->oracle, i);
        void *grad = random_array(f->decls[i].grad_dtype, n, 1.0);

        if (below(20) == 0)
            zo_narrow(grad, f->decls[i].grad_dtype, below((uint32_t)n), INFINITY);
        if (zo_is_trainable(f->oracle, i) && below(5) > 0)
            zo_deliver(f->oracle, i, grad, 0, 0);
        free(grad);
    }
}

static void step(fixture_t *f) {
    zo_hyper_t groups[N_GROUPS];
    const float *grads[MAX_PARAMS];
    zo_step_t args = {.groups = groups, .unscale = uniform(0.1, 2.0), .clip_norm = below(2) ? uniform(0.1, 3.0) : 0.0};
    zo_report_t r;

    for (uint32_t i = 0; i < N_GROUPS; i++)
        groups[i] = (zo_hyper_t){.lr = uniform(0.0, 0.1),
                                 .beta1 = uniform(0.0, 0.95),
                                 .beta2 = uniform(0.5, 0.999),
                                 .eps = 1e-8,
                                 .weight_decay = uniform(0.0, 0.2)};
    deliver_all(f);
    zo_step(f->oracle, &args, &r);
    for (uint32_t i = 0; i < f->n_params; i++)
        grads[i] = zo_step_grad(f->oracle, i);
    if (r.is_applied)
        zo_adamw_step(f->adamw, grads, groups, r.s);
    if (below(15) == 0)
        zo_flush(f->oracle);
    ck_assert_uint_eq(zo_n_device_differs(f->oracle), 0);
}

static void check_visible(const fixture_t *f, uint64_t index) {
    for (uint32_t i = 0; i < f->n_params; i++)
        for (uint64_t e = 0; zo_is_trainable(f->oracle, i) && e < zo_n_elems(f->oracle, i); e++) {
            uint64_t size = zo_dtype_nbytes(f->decls[i].dtype);
            float expected = 0.0f;

            zo_narrow(&expected, f->decls[i].dtype, 0, zo_adamw_w(f->adamw, i)[e]);
            ck_assert_msg(memcmp(&expected, (const char *)zo_visible(f->oracle, i) + e * size, size) == 0,
                          "case %llu, step %llu, parameter %u, element %llu", (unsigned long long)index,
                          (unsigned long long)zo_n_steps(f->oracle), i, (unsigned long long)e);
        }
}

static void check_state(const fixture_t *f, uint64_t index) {
    for (uint32_t i = 0; i < f->n_params; i++) {
        uint64_t n = zo_n_elems(f->oracle, i);
        float *w = calloc(3 * n, sizeof *w);
        zo_state_t read = {.w = w, .m = w + n, .v = w + 2 * n};

        if (zo_is_trainable(f->oracle, i)) {
            zo_read(f->oracle, i, &read);
            ck_assert_msg(memcmp(w, zo_adamw_w(f->adamw, i), n * sizeof *w) == 0 &&
                              memcmp(w + n, zo_adamw_m(f->adamw, i), n * sizeof *w) == 0 &&
                              memcmp(w + 2 * n, zo_adamw_v(f->adamw, i), n * sizeof *w) == 0,
                          "case %llu, parameter %u", (unsigned long long)index, i);
        }
        free(w);
    }
}

START_TEST(law_1_visible_is_adamw) {
    fixture_t f;

    for (uint64_t index = 0; index < N_CASES; index++) {
        state = index * 7919 + 1;
        start(&f, 1);
        for (int t = 0; t < 20; t++) {
            step(&f);
            check_visible(&f, index);
        }
        end(&f);
    }
}
END_TEST

START_TEST(law_6_flush_gives_adamw) {
    fixture_t f;

    for (uint64_t index = 0; index < N_CASES; index++) {
        uint32_t n_steps;

        state = index * 104729 + 5;
        start(&f, 6);
        n_steps = 3 + below(25);
        for (uint32_t t = 0; t < n_steps; t++)
            step(&f);
        zo_flush(f.oracle);
        check_state(&f, index);
        check_visible(&f, index);
        end(&f);
    }
}
END_TEST

START_TEST(device_equals_host_after_each_close) {
    fixture_t f;

    for (uint64_t index = 0; index < N_CASES; index++) {
        state = index * 15485863 + 3;
        start(&f, 0);
        for (uint32_t t = 0; t < 25; t++)
            step(&f);
        end(&f);
    }
}
END_TEST

TCase *oracle_laws_tcase(void) {
    TCase *tc = tcase_create("laws");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, law_1_visible_is_adamw);
    tcase_add_test(tc, law_6_flush_gives_adamw);
    tcase_add_test(tc, device_equals_host_after_each_close);
    return tc;
}
