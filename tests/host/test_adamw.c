/* SPDX-License-Identifier: Apache-2.0 */
/* test_adamw.c - the host's AdamW against the textbook rule in double, and its handling of parts, holes, clipping,
 * non-finite gradients and bf16. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "glue/rng.h"
#include "host/adamw.h"
#include "host/bfloat16.h"
#include "suite.h"

enum { N_ELEMS = 4130 }; /* more than one chunk, and a remainder */

typedef struct fixture {
    host_params_t params;
    host_param_t *matrix, *bias;
    host_optimizer_t *adamw;
    host_step_args_t args;
} fixture_t;

static double draw(uint64_t stream, uint64_t i) { return glue_rng_normal(glue_rng(3, stream), i); }

static void setup(fixture_t *f, host_dtype_t dtype) {
    glue_error_t err = {""};

    ck_assert_int_eq(host_params_init(&f->params, 2, dtype, &err), 0);
    f->matrix = host_params_add(&f->params, "matrix", 413, 10, 0);
    f->bias = host_params_add(&f->params, "bias", 7, 0, 0);
    for (size_t i = 0; i < N_ELEMS; i++)
        host_param_set(f->matrix, i, (float)draw(1, i));
    ck_assert_msg(host_adamw_create(&f->params, &f->adamw, &err) == 0, "%s", err.text);
    f->args = (host_step_args_t){.groups = {{1e-2, 0.9, 0.99, 1e-8, 0.1}, {1e-2, 0.9, 0.99, 1e-8, 0.0}}};
}

static void teardown(fixture_t *f) {
    f->adamw->ops->destroy(f->adamw);
    host_params_free(&f->params);
}

static void set_grad(host_param_t *p, uint64_t stream, double scale) {
    for (size_t i = 0; i < p->n_elems; i++)
        p->grad_sum[i] = (host_real_t)(scale * draw(stream, i));
    host_param_round_grad(p);
}

static void deliver(fixture_t *f, size_t param, unsigned flags) {
    ck_assert_int_eq(f->adamw->ops->grads_ready(f->adamw, param, flags, NULL), 0);
}

static void step(fixture_t *f) { ck_assert_int_eq(f->adamw->ops->step(f->adamw, &f->args, NULL), 0); }

static double counter(fixture_t *f, size_t i) {
    host_counter_t counters[HOST_MAX_COUNTERS];

    ck_assert_uint_gt(f->adamw->ops->counters(f->adamw, counters), i);
    return counters[i].value;
}

/* One textbook update in double (algorithm 2 of arXiv 1711.05101 with the rate inside the decay, as torch has it). */
static void textbook(const host_hyper_t *h, double g, int n, double *w, double *m, double *v) {
    *w -= h->lr * h->weight_decay * *w;
    *m = h->beta1 * *m + (1.0 - h->beta1) * g;
    *v = h->beta2 * *v + (1.0 - h->beta2) * g * g;
    *w -= h->lr * (*m / (1.0 - pow(h->beta1, n))) / (sqrt(*v / (1.0 - pow(h->beta2, n))) + h->eps);
}

START_TEST(test_against_double) {
    enum { N_STEPS = 20 };
    double w[N_ELEMS], m[N_ELEMS] = {0}, v[N_ELEMS] = {0};
    fixture_t f;

    setup(&f, HOST_FLOAT32);
    for (size_t i = 0; i < N_ELEMS; i++)
        w[i] = (double)host_param_get(f.matrix, i);
    for (int n = 1; n <= N_STEPS; n++) {
        f.args.groups[HOST_GROUP_DECAY].lr = 1e-2 / n; /* a schedule */
        set_grad(f.matrix, 10 + (uint64_t)n, 1.0);
        for (size_t i = 0; i < N_ELEMS; i++)
            textbook(&f.args.groups[HOST_GROUP_DECAY], (double)((float *)f.matrix->grad)[i], n, &w[i], &m[i], &v[i]);
        deliver(&f, 0, HOST_GRAD_TOTAL | HOST_GRAD_LAST);
        step(&f);
    }
    for (size_t i = 0; i < N_ELEMS; i++)
        ck_assert_double_eq_tol((double)host_param_get(f.matrix, i), w[i], 1e-6 + 1e-5 * fabs(w[i]));
    teardown(&f);
}
END_TEST

/* A parameter without a gradient stays, and its count of updates with it. */
START_TEST(test_holes) {
    fixture_t f;

    setup(&f, HOST_FLOAT32);
    set_grad(f.matrix, 1, 1.0);
    set_grad(f.bias, 2, 1.0);
    for (int n = 0; n < 3; n++) {
        deliver(&f, 0, HOST_GRAD_TOTAL | HOST_GRAD_LAST);
        step(&f);
        ck_assert_float_eq(host_param_get(f.bias, 0), 0.0f);
    }
    deliver(&f, 1, HOST_GRAD_TOTAL | HOST_GRAD_LAST);
    step(&f);
    ck_assert_float_eq_tol(fabsf(host_param_get(f.bias, 0)), 1e-2f, 1e-6f); /* a first update moves by lr */
    teardown(&f);
}
END_TEST

START_TEST(test_parts_equal_total) {
    fixture_t parts, total;

    setup(&parts, HOST_FLOAT32);
    setup(&total, HOST_FLOAT32);
    for (unsigned i = 0; i < 3; i++) {
        set_grad(parts.matrix, 5, 0.5); /* thrice a power of two: sums are exact */
        deliver(&parts, 0, HOST_GRAD_PART | (i == 2 ? HOST_GRAD_LAST : HOST_GRAD_MORE));
        set_grad(parts.matrix, 6, 7.0); /* the buffer is the host's own again */
    }
    set_grad(total.matrix, 5, 0.5);
    for (size_t i = 0; i < N_ELEMS; i++) {
        float g = ((float *)total.matrix->grad)[i];

        ((float *)total.matrix->grad)[i] = (g + g) + g;
    }
    deliver(&total, 0, HOST_GRAD_TOTAL | HOST_GRAD_LAST);
    parts.args.clip_norm = total.args.clip_norm = 0.25;
    step(&parts);
    step(&total);
    for (size_t i = 0; i < N_ELEMS; i++)
        ck_assert(host_param_get(parts.matrix, i) == host_param_get(total.matrix, i));
    teardown(&parts);
    teardown(&total);
}
END_TEST

/* Gradients 1000 times as large, clipped, give the same step; the norm spans all parameters. */
START_TEST(test_clipping) {
    fixture_t small, large;

    setup(&small, HOST_FLOAT32);
    setup(&large, HOST_FLOAT32);
    set_grad(small.matrix, 5, 1.0);
    set_grad(small.bias, 6, 1.0);
    set_grad(large.matrix, 5, 1024.0);
    set_grad(large.bias, 6, 1024.0);
    small.args.clip_norm = large.args.clip_norm = 1.0;
    small.args.groups[0].eps = large.args.groups[0].eps = 1e-3; /* so that the gradient's size matters */
    for (size_t i = 0; i < 2; i++) {
        deliver(&small, i, HOST_GRAD_TOTAL | HOST_GRAD_LAST);
        deliver(&large, i, HOST_GRAD_TOTAL | HOST_GRAD_LAST);
    }
    step(&small);
    step(&large);
    for (size_t i = 0; i < N_ELEMS; i++)
        ck_assert_float_eq_tol(host_param_get(small.matrix, i), host_param_get(large.matrix, i), 1e-6f);
    ck_assert_double_eq(counter(&small, 2), 1.0);
    teardown(&small);
    teardown(&large);
}
END_TEST

START_TEST(test_nonfinite_is_skipped) {
    fixture_t f;
    float before;

    setup(&f, HOST_FLOAT32);
    before = host_param_get(f.matrix, 3);
    set_grad(f.matrix, 5, 1.0);
    ((float *)f.matrix->grad)[4129] = INFINITY;
    f.args.clip_norm = 1.0;
    deliver(&f, 0, HOST_GRAD_TOTAL | HOST_GRAD_LAST);
    step(&f);
    ck_assert(host_param_get(f.matrix, 3) == before);
    ck_assert_double_eq(counter(&f, 1), 1.0);
    teardown(&f);
}
END_TEST

/* The master keeps what bf16 loses: a hundred steps that are each too small for bf16 still move the value. */
START_TEST(test_bf16_master) {
    fixture_t f;

    setup(&f, HOST_BFLOAT16);
    host_param_set(f.matrix, 0, 1.0f);
    f.adamw->ops->destroy(f.adamw);
    ck_assert_int_eq(host_adamw_create(&f.params, &f.adamw, NULL), 0);
    f.args.groups[0].lr = 1e-4;
    f.args.groups[0].weight_decay = 0.0;
    for (size_t i = 0; i < N_ELEMS; i++)
        f.matrix->grad_sum[i] = 1;
    host_param_round_grad(f.matrix);
    for (int n = 0; n < 100; n++) {
        deliver(&f, 0, HOST_GRAD_TOTAL | HOST_GRAD_LAST);
        step(&f);
    }
    ck_assert_float_eq_tol(host_param_get(f.matrix, 0), 0.99f, 0.004f);
    teardown(&f);
}
END_TEST

START_TEST(test_bfloat16_rounding) {
    ck_assert_uint_eq(host_bfloat16_from_float(1.0f), 0x3f80);
    ck_assert_uint_eq(host_bfloat16_from_float(1.00390625f), 0x3f80); /* half way: to even */
    ck_assert_uint_eq(host_bfloat16_from_float(1.01171875f), 0x3f82);
    ck_assert_uint_eq(host_bfloat16_from_float(1.00390637f), 0x3f81);
    ck_assert_uint_eq(host_bfloat16_from_float(3.4e38f), 0x7f80);
    ck_assert_uint_eq(host_bfloat16_from_float(-0.0f), 0x8000);
    ck_assert(isnan(host_float_from_bfloat16(host_bfloat16_from_float(NAN))));
    ck_assert_uint_eq(host_bfloat16_from_float(0x1p-133f), 0x0001); /* denormals are kept */
}
END_TEST

ZT_MAIN("adamw", test_against_double, test_holes, test_parts_equal_total, test_clipping, test_nonfinite_is_skipped,
        test_bf16_master, test_bfloat16_rounding)
