/* SPDX-License-Identifier: Apache-2.0 */
/* test_train.c - the training loop on made rows: determinism, accumulation. That an optimizer is told all that it needs
 * is seen where the plugin trains to the host's AdamW (tests/accuracy/glue_smoke.sh). */
#include <stdlib.h>
#include <string.h>

#include "glue/rng.h"
#include "host/examples.h"
#include "host/run.h"
#include "suite.h"

/* ---- examples without a file ------------------------------------------------------------------------------------- */

enum {
    CLS = 2,
    SEP = 3,
    N_SPECIAL = 4,
    N_PIECES = 40,
    LEAST_TOKENS = 6,
    MOST_TOKENS = 16,
    N_TRAIN = 2000,
    N_DEV = 300
};

/* Rows of random pieces, whose class says which of two pieces, N_SPECIAL and N_SPECIAL + 1, is among them. */
static void make_row(host_corpus_t *c, size_t row, glue_rng_t rng) {
    size_t first = c->starts[row], counter = row * 2 * MOST_TOKENS;
    size_t n = LEAST_TOKENS + (size_t)glue_rng_below(rng, counter++, MOST_TOKENS - LEAST_TOKENS + 1);
    size_t label = (size_t)glue_rng_below(rng, counter++, 2);
    for (size_t i = 1; i + 1 < n; i++)
        c->ids[first + i] = N_SPECIAL + 2 + (int32_t)glue_rng_below(rng, counter++, N_PIECES - N_SPECIAL - 2);
    c->ids[first] = CLS;
    c->ids[first + n - 1] = SEP;
    c->ids[first + 1 + (size_t)glue_rng_below(rng, counter, n - 2)] = N_SPECIAL + (int32_t)label;
    c->targets[row] = (double)label;
    c->starts[row + 1] = first + n;
}

static void make_corpus(host_corpus_t *c, size_t n_rows, uint64_t stream) {
    *c = (host_corpus_t){.ids = calloc(n_rows * MOST_TOKENS, sizeof *c->ids),
                         .types = calloc(n_rows * MOST_TOKENS, sizeof *c->types),
                         .starts = calloc(n_rows + 1, sizeof *c->starts),
                         .targets = calloc(n_rows, sizeof *c->targets),
                         .n_rows = n_rows};
    ck_assert(c->ids != NULL && c->types != NULL && c->starts != NULL && c->targets != NULL);
    for (size_t i = 0; i < n_rows; i++)
        make_row(c, i, glue_rng(7, stream));
}

static void make_examples(host_examples_t *out) {
    *out = (host_examples_t){
        .shape = {.n_pieces = N_PIECES, .max_positions = MOST_TOKENS, .n_labels = 2},
        .task = "made",
        .file = {.fd = -1},
    };
    make_corpus(&out->train, N_TRAIN, 0);
    make_corpus(&out->dev, N_DEV, 1);
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static host_examples_t examples;
static host_run_options_t options;

static void setup(void) {
    host_run_defaults(&options);
    options.model.n_layers = 1;
    options.model.hidden = 32;
    options.model.ffn = 64;
    options.train.n_steps = 12;
    options.train.batch = 8;
    make_examples(&examples);
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
    options.train.batch = 32;
    host_run_result_t whole = runs();
    options.train.batch = 8;
    options.train.accumulation = 4;
    host_run_result_t total = runs();
    options.train.deliver_parts = 1;
    host_run_result_t parts = runs();
    for (size_t i = 0; i < whole.train.n_steps; i++) {
        ck_assert_double_eq_tol(whole.train.losses[i], total.train.losses[i], 1e-4);
        ck_assert_double_eq_tol(total.train.losses[i], parts.train.losses[i], 1e-4);
    }
    host_run_result_free(&whole);
    host_run_result_free(&total);
    host_run_result_free(&parts);
}

ZT_TEST(test_bf16_trains) {
    options.train.n_steps = 60;
    host_run_result_t wide = runs();
    options.model.dtype = HOST_BFLOAT16;
    host_run_result_t narrow = runs();
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

/* ---- the encoder ------------------------------------------------------------------------------------------------- */

ZT_TEST(test_refusals) {
    glue_error_t err = {""};
    host_run_result_t r;
    options.model.hidden = 33;
    ck_assert_int_eq(host_run(&examples, &options, &r, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "multiple of 2 heads"));
}

ZT_SUITE_WITH("train", setup, teardown)
