/* SPDX-License-Identifier: Apache-2.0 */
/* test_gradients.c - every derivative of the reference host against central finite differences.
 *
 * The model is compiled here to compute in double (real.h), while parameters stay fp32: the difference quotient uses
 * the two rounded values that were really stored. Every element of every parameter is checked, for classification
 * and regression, with and without dropout, and for sequences of different lengths in one batch. */
#include <stdlib.h>

#include "suite.h"
#include "tiny_model.h"

static const double scores[] = {0.5, 4.25, 3.0, 1.75};

typedef struct fixture {
    host_model_t model;
    host_encoder_t encoder;
    host_batch_t batch;
} fixture_t;

static void setup(fixture_t *f, int is_regression, double dropout) {
    glue_error_t err = {""};
    make_tiny_model(&f->model, is_regression, dropout, HOST_FLOAT32);
    for (size_t i = 0; i < f->model.params.n; i++) /* biases and LayerNorm away from their special values 0 and 1 */
        if (f->model.params.list[i].n_dims == 1)
            for (size_t j = 0; j < f->model.params.list[i].n_elems; j++) {
                host_param_t *p = &f->model.params.list[i];
                host_param_set(p, j, host_param_get(p, j) + 0.2f * (float)glue_rng_normal(glue_rng(9, i), j));
            }
    ck_assert_msg(host_encoder_init(&f->encoder, &f->model, &err) == 0, "%s", err.text);
    f->batch = tiny_batch;
    f->batch.targets = is_regression ? scores : tiny_classes;
}

static void teardown(fixture_t *f) {
    host_encoder_free(&f->encoder);
    host_model_free(&f->model);
}

/* Mean loss; leaves d_logits for backward. */
static double loss(fixture_t *f) {
    glue_error_t err = {""};
    ck_assert_msg(host_encoder_forward(&f->encoder, &f->batch, 1, 99, NULL, &err) == 0, "%s", err.text);
    return host_encoder_loss(&f->encoder, &f->batch, 1.0 / (double)tiny_batch.n_sequences) /
           (double)tiny_batch.n_sequences;
}

static double difference_quotient(fixture_t *f, host_param_t *p, size_t i) {
    const float step = 0x1p-12f;
    float middle = host_param_get(p, i), above = middle + step, below = middle - step;
    host_param_set(p, i, above);
    double loss_above = loss(f);
    host_param_set(p, i, below);
    double loss_below = loss(f);
    host_param_set(p, i, middle);
    return (loss_above - loss_below) / ((double)above - (double)below);
}

static double largest_gradient(const host_param_t *p) {
    double largest = 0.0;
    for (size_t i = 0; i < p->n_elems; i++)
        largest = fmax(largest, fabs((double)((const float *)p->grad)[i]));
    return largest;
}

/* The truncation error of the quotient is about step^2 = 6e-8 times a third derivative. */
static void check_param(fixture_t *f, host_param_t *p) {
    double tolerance = 2e-5 * largest_gradient(p) + 5e-8;
    for (size_t i = 0; i < p->n_elems; i++) {
        double expected = difference_quotient(f, p, i), found = (double)((const float *)p->grad)[i];
        ck_assert_msg(fabs(found - expected) <= tolerance, "%s element %zu: backward gives %.9g, differences %.9g",
                      p->name, i, found, expected);
    }
}

static void check_all(int is_regression, double dropout) {
    glue_error_t err = {""};
    fixture_t f;
    setup(&f, is_regression, dropout);
    (void)loss(&f);
    ck_assert_msg(host_encoder_backward(&f.encoder, &f.batch, NULL, &err) == 0, "%s", err.text);
    for (size_t i = 0; i < f.model.params.n; i++)
        check_param(&f, &f.model.params.list[i]);
    teardown(&f);
}

ZT_TEST(test_classification) { check_all(0, 0.0); }

ZT_TEST(test_regression) { check_all(1, 0.0); }

ZT_TEST(test_dropout) { check_all(0, 0.25); }

/* Gradients add up over backward passes: accumulation. */
ZT_TEST(test_gradients_add) {
    glue_error_t err = {""};
    fixture_t f;
    setup(&f, 0, 0.0);
    (void)loss(&f);
    (void)host_encoder_backward(&f.encoder, &f.batch, NULL, &err);
    float once = ((const float *)f.model.pooler.weight->grad)[5];
    (void)loss(&f);
    (void)host_encoder_backward(&f.encoder, &f.batch, NULL, &err);
    ck_assert_float_eq_tol(((const float *)f.model.pooler.weight->grad)[5], 2.0f * once, 1e-6f * fabsf(once));
    host_param_zero_grad(f.model.pooler.weight);
    host_param_round_grad(f.model.pooler.weight);
    ck_assert_float_eq(((const float *)f.model.pooler.weight->grad)[5], 0.0f);
    teardown(&f);
}

ZT_SUITE("gradients")
