/* SPDX-License-Identifier: Apache-2.0 */
/* test_fine_tune.c - training that starts from a safetensors file: a file with the weights that a run from scratch
 * starts from must train exactly as that run does, whether or not unused rows of the vocabulary are left out. */
#define _POSIX_C_SOURCE 200809L
#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "folder.h"
#include "glue/synthetic.h"
#include "host/run.h"
#include "suite.h"

enum { N_POSITIONS = 48 };

static host_run_options_t options;

static void append(const char *name, const char *text) {
    FILE *file = fopen(zt_path(name), "ab");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

/* The generated corpus, and in its dev file one word that the training file lacks. */
static void setup(void) {
    zt_folder_make();
    ck_assert_int_eq(glue_synthetic_ensure(zt_folder(), NULL), 0);
    append("vocab.txt", "zyzzyva\n");
    append("dev.tsv", "a zyzzyva film \t1\n");
    host_run_defaults(&options);
    options.synthetic_dir = zt_folder();
    options.max_tokens = 32;
    options.keeps_vocabulary = 1;
    options.model.n_layers = 2;
    options.model.hidden = 32;
    options.model.ffn = 64;
    options.train.n_steps = 8;
    options.train.batch = 8;
    options.train.clip_norm = 0.0; /* the norm's sum runs over the table, in another order when rows are left out */
    options.train.hyper.weight_decay = 0.0;
}

static void write_config(const host_model_config_t *c) {
    char text[512];

    (void)snprintf(text, sizeof text,
                   "{\"model_type\": \"bert\", \"hidden_size\": %zu, \"num_hidden_layers\": %zu, \"vocab_size\": %zu,"
                   " \"num_attention_heads\": %zu, \"intermediate_size\": %zu, \"max_position_embeddings\": %zu,"
                   " \"layer_norm_eps\": 1e-12, \"initializer_range\": 0.05}",
                   c->hidden, c->n_layers, c->n_pieces, c->n_heads, c->ffn, c->max_positions);
    zt_write_text("config.json", text);
}

/* Every parameter but the classifier, which a fine-tune draws anew. */
static void write_weights(const host_model_t *model) {
    static char header[1 << 15];
    unsigned char *data = NULL;
    size_t n = 0, nbytes = 0;

    for (size_t i = 0; i < model->params.n; i++) {
        const host_param_t *p = &model->params.list[i];
        char shape[64];

        if (strncmp(p->name, "classifier", 10) == 0)
            continue;
        (void)snprintf(shape, sizeof shape, p->n_dims == 2 ? "%lld,%lld" : "%lld", (long long)p->shape[0],
                       (long long)p->shape[1]);
        n += (size_t)snprintf(header + n, sizeof header - n,
                              "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                              i == 0 ? '{' : ',', p->name, shape, nbytes, nbytes + 4 * p->n_elems);
        data = realloc(data, nbytes + 4 * p->n_elems);
        ck_assert_ptr_nonnull(data);
        memcpy(data + nbytes, p->value, 4 * p->n_elems);
        nbytes += 4 * p->n_elems;
    }
    (void)snprintf(header + n, sizeof header - n, "}");
    zt_write_tensors("model.safetensors", header, n + 1, data, nbytes);
    free(data);
}

/* The encoder that a run from scratch of this seed begins with, but with more positions. */
static void write_start(size_t n_pieces) {
    host_model_config_t config = options.model;
    host_model_t model;

    config.n_pieces = n_pieces;
    config.max_positions = N_POSITIONS;
    config.n_labels = 2;
    ck_assert_int_eq(host_model_init(&model, &config, NULL), 0);
    host_model_randomise(&model, options.train.seed);
    write_config(&config);
    write_weights(&model);
    host_model_free(&model);
}

static host_run_result_t runs(host_workload_t *out_workload) {
    host_run_result_t result;
    glue_error_t err = {""};

    ck_assert_msg(host_workload_load(&options, out_workload, &err) == 0, "%s", err.text);
    ck_assert_msg(host_run(out_workload, &options, &result, &err) == 0, "%s", err.text);
    return result;
}

static void same_training(const host_run_result_t *a, const host_run_result_t *b) {
    for (size_t i = 0; i < a->train.n_steps; i++)
        ck_assert_double_eq(a->train.losses[i], b->train.losses[i]);
    ck_assert_double_eq(a->scores.loss, b->scores.loss);
    ck_assert_double_eq(a->scores.main, b->scores.main);
}

START_TEST(test_same_as_from_scratch) {
    host_workload_t w;
    host_run_result_t scratch = runs(&w), tuned;
    size_t n_pieces = w.n_pieces;

    host_workload_free(&w);
    write_start(n_pieces);
    options.model_dir = zt_folder();
    options.model.hidden = 4; /* the file decides */
    tuned = runs(&w);
    ck_assert_uint_eq(w.n_pieces, n_pieces);
    ck_assert_uint_eq(tuned.model.hidden, 32);
    same_training(&scratch, &tuned);
    host_run_result_free(&tuned);
    host_workload_free(&w);

    options.keeps_vocabulary = 0;
    tuned = runs(&w);
    ck_assert_uint_lt(w.n_pieces, n_pieces);
    ck_assert_uint_eq(w.n_unknown_dev, 0);
    same_training(&scratch, &tuned);
    host_run_result_free(&tuned);
    host_workload_free(&w);
    host_run_result_free(&scratch);
}
END_TEST

START_TEST(test_refused) {
    host_workload_t w;
    host_run_result_t result = runs(&w);
    glue_error_t err = {""};
    size_t n_pieces = w.n_pieces;

    host_run_result_free(&result);
    host_workload_free(&w);
    write_start(n_pieces);
    options.model_dir = zt_folder();
    options.max_tokens = N_POSITIONS + 1;
    ck_assert_int_eq(host_workload_load(&options, &w, &err), -1);
    ck_assert_msg(strstr(err.text, "max-tokens 49") != NULL && strstr(err.text, "48 positions") != NULL, "%s",
                  err.text);
    options.max_tokens = 32;
    write_start(n_pieces - 1); /* vocab.txt has a piece more than the encoder */
    ck_assert_int_eq(host_workload_load(&options, &w, &err), -1);
    ck_assert_msg(strstr(err.text, "pieces; the encoder of") != NULL, "%s", err.text);
}
END_TEST

ZT_MAIN_WITH("fine-tune", setup, zt_folder_remove, test_same_as_from_scratch, test_refused)
