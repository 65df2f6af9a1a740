/* SPDX-License-Identifier: Apache-2.0 */
/* test_train.c - the training loop on made rows: determinism, accumulation, the order in which an optimizer is called.
 */
#include <check.h>
#include <string.h>

#include "host/run.h"
#include "made.h"
#include "suite.h"

static host_examples_t examples;
static host_run_options_t options;

static void setup(void) {
    host_run_defaults(&options);
    options.model.n_layers = 1;
    options.model.hidden = 32;
    options.model.ffn = 64;
    options.train.n_steps = 12;
    options.train.batch = 8;
    zt_examples_make(&examples);
}

static void teardown(void) { host_examples_close(&examples); }

static host_run_result_t runs(void) {
    glue_error_t err = {""};
    host_run_result_t result;
    ck_assert_msg(host_run(&examples, &options, &result, &err) == 0, "%s", err.text);
    return result;
}

static int same_losses(const host_run_result_t *a, const host_run_result_t *b) {
    return a->train.n_steps == b->train.n_steps &&
           memcmp(a->train.losses, b->train.losses, a->train.n_steps * sizeof *a->train.losses) == 0;
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

ZT_TEST(test_same_seed_same_bits) {
    host_run_result_t a = runs(), b = runs(), c;
    ck_assert(same_losses(&a, &b));
    ck_assert(a.dev.loss == b.dev.loss);
    ck_assert_mem_eq(a.dev.values, b.dev.values, a.dev.n_rows * sizeof *a.dev.values);
    options.train.seed = 2;
    c = runs();
    ck_assert(!same_losses(&a, &c));
    host_run_result_free(&a);
    host_run_result_free(&b);
    host_run_result_free(&c);
}

/* 4 micro-batches of 8 rows are one batch of 32, but for rounding; parts are totals, but for rounding. */
ZT_TEST(test_accumulation) {
    host_run_result_t whole, total, parts;
    options.train.batch = 32;
    whole = runs();
    options.train.batch = 8;
    options.train.accumulation = 4;
    total = runs();
    options.train.deliver_parts = 1;
    parts = runs();
    for (size_t i = 0; i < whole.train.n_steps; i++) {
        ck_assert_double_eq_tol(whole.train.losses[i], total.train.losses[i], 1e-4);
        ck_assert_double_eq_tol(total.train.losses[i], parts.train.losses[i], 1e-4);
    }
    host_run_result_free(&whole);
    host_run_result_free(&total);
    host_run_result_free(&parts);
}

ZT_TEST(test_bf16_trains) {
    host_run_result_t wide, narrow;
    options.train.n_steps = 60;
    wide = runs();
    options.model.dtype = HOST_BFLOAT16;
    narrow = runs();
    ck_assert_double_eq_tol(wide.train.losses[0], narrow.train.losses[0], 0.01);
    ck_assert_double_eq_tol(wide.train.losses[59], narrow.train.losses[59], 0.15);
    host_run_result_free(&wide);
    host_run_result_free(&narrow);
}

ZT_TEST(test_schedule) {
    host_train_options_t o = {.n_steps = 100, .hyper = {.lr = 2.0}, .warmup_share = 0.1};
    ck_assert_double_eq(host_learning_rate(&o, 0), 0.2);
    ck_assert_double_eq(host_learning_rate(&o, 9), 2.0);
    ck_assert_double_eq(host_learning_rate(&o, 10), 2.0);
    ck_assert_double_eq_tol(host_learning_rate(&o, 99), 2.0 / 90.0, 1e-15);
    o.warmup_share = 0.0;
    ck_assert_double_eq(host_learning_rate(&o, 0), 2.0);
}

/* ---- the optimizer's calls --------------------------------------------------------------------------------------- */

/* An optimizer that only watches. */
typedef struct watcher {
    host_optimizer_t base;
    size_t n_fetched, n_delivered, n_steps, n_finished;
    size_t last_fetched, last_delivered;
    unsigned flags;
    int is_in_order;
} watcher_t;

static int watch_fetch(host_optimizer_t *base, size_t param, glue_error_t *err) {
    watcher_t *w = (watcher_t *)base;
    (void)err;
    w->is_in_order &= w->n_fetched % base->params->n == 0 ? param == 0 : param == w->last_fetched + 1;
    w->last_fetched = param;
    w->n_fetched++;
    return 0;
}

/* Last layer first: parameters of one layer lie together, and layers come in falling order. */
static int watch_grads(host_optimizer_t *base, size_t param, unsigned flags, glue_error_t *err) {
    watcher_t *w = (watcher_t *)base;
    const char *name = base->params->list[param].name;
    (void)err;
    if (w->n_delivered % base->params->n == 0)
        w->is_in_order &= strcmp(name, "classifier.bias") == 0;
    else if (w->n_delivered % base->params->n == base->params->n - 1)
        w->is_in_order &= param == 0; /* the word table */
    else
        w->is_in_order &= param <= w->last_delivered + 1;
    w->last_delivered = param;
    w->flags = flags;
    w->n_delivered++;
    return 0;
}

static int watch_step(host_optimizer_t *base, const host_step_args_t *args, glue_error_t *err) {
    watcher_t *w = (watcher_t *)base;
    (void)err;
    w->is_in_order &= args->groups[HOST_GROUP_NO_DECAY].weight_decay == 0.0 && args->groups[0].weight_decay > 0.0;
    w->n_steps++;
    return 0;
}

static int watch_finish(host_optimizer_t *base, glue_error_t *err) {
    (void)err;
    ((watcher_t *)base)->n_finished++;
    return 0;
}

ZT_TEST(test_calls) {
    static const host_optimizer_ops_t ops = {.name = "watcher",
                                             .before_forward = watch_fetch,
                                             .grads_ready = watch_grads,
                                             .step = watch_step,
                                             .finish = watch_finish};
    host_model_config_t config = options.model;
    host_train_result_t result;
    host_predictions_t dev;
    glue_error_t err = {""};
    watcher_t w = {.base = {.ops = &ops}, .is_in_order = 1};
    host_model_t model;
    size_t n;
    config.n_layers = 3;
    config.n_pieces = examples.shape.n_pieces;
    config.max_positions = ZT_MADE_TOKENS;
    config.n_labels = 2;
    ck_assert_int_eq(host_model_init(&model, &config, &err), 0);
    host_model_randomise(&model, 1);
    w.base.params = &model.params;
    n = model.params.n;
    options.train.n_steps = 3;
    options.train.accumulation = 2;
    ck_assert_int_eq(host_train(&model, &w.base, &examples.train, &options.train, &result, &err), 0);
    ck_assert_uint_eq(w.n_fetched, 3 * 2 * n);
    ck_assert_uint_eq(w.n_delivered, 3 * n); /* totals: at the last micro-batch only */
    ck_assert_uint_eq(w.flags, HOST_GRAD_TOTAL | HOST_GRAD_LAST);
    ck_assert_uint_eq(w.n_steps, 3);
    ck_assert_uint_eq(w.n_finished, 1);
    host_train_result_free(&result);
    options.train.deliver_parts = 1;
    ck_assert_int_eq(host_train(&model, &w.base, &examples.train, &options.train, &result, &err), 0);
    ck_assert_uint_eq(w.n_delivered, 9 * n);
    ck_assert_uint_eq(w.flags, HOST_GRAD_PART | HOST_GRAD_LAST);
    ck_assert_int_eq(host_evaluate(&model, &w.base, &examples.dev, &dev, &err), 0);
    ck_assert_uint_gt(w.n_fetched, 12 * n);
    ck_assert_int_eq(w.is_in_order, 1);
    host_predictions_free(&dev);
    host_train_result_free(&result);
    host_model_free(&model);
}

/* ---- the encoder ------------------------------------------------------------------------------------------------- */

ZT_TEST(test_refusals) {
    glue_error_t err = {""};
    host_run_result_t r;
    options.model.hidden = 33;
    ck_assert_int_eq(host_run(&examples, &options, &r, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "multiple of 2 heads"));
}

ZT_SUITE_WITH("train", setup, teardown)
