/* SPDX-License-Identifier: Apache-2.0 */
/* test_pretrained.c - folders of pretrained encoders written here: naming variants, missing poolers, fewer pieces and
 * positions, and configurations and weights that are refused by name. */
#define _POSIX_C_SOURCE 200809L
#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "folder.h"
#include "host/pretrained.h"
#include "suite.h"

static const char good_config[] =
    "{\"model_type\": \"bert\", \"hidden_act\": \"gelu\", \"hidden_size\": 4, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 2, \"intermediate_size\": 6, \"vocab_size\": 7, \"max_position_embeddings\": 9,"
    " \"layer_norm_eps\": 1e-6}";

/* How a weights file is written. */
typedef struct variant {
    int has_prefix, has_old_names, has_pooler, has_extra;
    const char *missing;    /* part of the name of tensors that are left out */
    const char *transposed; /* part of the name of a tensor whose shape is turned round */
} variant_t;

static const variant_t whole = {.has_prefix = 1, .has_pooler = 1};

/* Element j of parameter i. */
static float value_at(size_t i, size_t j) { return (float)i + (float)j / 1024.0f; }

static void stored_name(const variant_t *v, const char *name, char out[160]) {
    const char *norm = strstr(name, "LayerNorm.");
    const char *start = v->has_prefix ? name : name + strlen("bert.");

    if (v->has_old_names && norm != NULL)
        (void)snprintf(out, 160, "%.*sLayerNorm.%s", (int)(norm - start), start,
                       strstr(norm, "weight") != NULL ? "gamma" : "beta");
    else
        (void)snprintf(out, 160, "%s", start);
}

static int is_left_out(const variant_t *v, const char *name) {
    return strncmp(name, "classifier", 10) == 0 || (!v->has_pooler && strstr(name, "pooler") != NULL) ||
           (v->missing != NULL && strstr(name, v->missing) != NULL);
}

static host_model_t outline(void) {
    host_model_config_t config = {.hidden = 4,
                                  .n_layers = 2,
                                  .n_heads = 2,
                                  .ffn = 6,
                                  .n_pieces = 7,
                                  .max_positions = 9,
                                  .n_types = 2,
                                  .n_labels = 1};
    host_model_t model;

    ck_assert_int_eq(host_model_outline(&model, &config, NULL), 0);
    return model;
}

static void write_weights(const variant_t *v) {
    static char header[1 << 16];
    static float data[1 << 12];
    host_model_t model = outline();
    size_t n = (size_t)snprintf(header, sizeof header, "{"), n_data = 0;
    char name[160];

    if (v->has_extra) {
        n += (size_t)snprintf(header + n, sizeof header - n,
                              "\"embeddings.position_ids\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]},");
        n_data = 2;
    }
    for (size_t i = 0; i < model.params.n; i++) {
        const host_param_t *p = &model.params.list[i];
        int is_turned = v->transposed != NULL && strstr(p->name, v->transposed) != NULL;
        char shape[64];

        if (is_left_out(v, p->name))
            continue;
        stored_name(v, p->name, name);
        (void)snprintf(shape, sizeof shape, p->n_dims == 2 ? "%lld,%lld" : "%lld", (long long)p->shape[is_turned],
                       (long long)p->shape[!is_turned]);
        n += (size_t)snprintf(header + n, sizeof header - n,
                              "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                              header[n - 1] == '{' || header[n - 1] == ',' ? "" : ",", name, shape, 4 * n_data,
                              4 * (n_data + p->n_elems));
        for (size_t j = 0; j < p->n_elems; j++)
            data[n_data++] = value_at(i, j);
    }
    n += (size_t)snprintf(header + n, sizeof header - n, "}");
    zt_write_tensors("model.safetensors", header, n, data, 4 * n_data);
    host_model_free(&model);
}

static void setup(void) {
    zt_folder_make();
    zt_write_text("config.json", good_config);
    write_weights(&whole);
}

static host_pretrained_t opens(void) {
    host_pretrained_t p;
    glue_error_t err = {""};

    ck_assert_msg(host_pretrained_open(zt_folder(), &p, &err) == 0, "%s", err.text);
    return p;
}

static void refuses(const char *reason) {
    host_pretrained_t p = {.keeps_case = 77};
    glue_error_t err = {""};

    ck_assert_msg(host_pretrained_open(zt_folder(), &p, &err) == -1, "opened, although \"%s\"", reason);
    ck_assert_int_eq(p.keeps_case, 77);
    ck_assert_msg(strstr(err.text, reason) != NULL && strstr(err.text, zt_folder()) != NULL, "\"%s\" lacks \"%s\"",
                  err.text, reason);
    ck_assert_int_eq(host_pretrained_open(zt_folder(), &p, NULL), -1);
}

/* Every element of the model is the file's; the classifier, and without has_pooler the pooler, keep 0.5. */
static void check_filled(int has_pooler) {
    host_pretrained_t p = opens();
    host_model_t model;
    glue_error_t err = {""};

    ck_assert_int_eq(host_model_init(&model, &p.config, &err), 0);
    for (size_t i = 0; i < model.params.n; i++)
        for (size_t j = 0; j < model.params.list[i].n_elems; j++)
            host_param_set(&model.params.list[i], j, 0.5f);
    ck_assert_msg(host_pretrained_fill(&p, NULL, &model, &err) == 0, "%s", err.text);
    for (size_t i = 0; i < model.params.n; i++) {
        const host_param_t *param = &model.params.list[i];
        int is_kept =
            strncmp(param->name, "classifier", 10) == 0 || (!has_pooler && strstr(param->name, "pooler") != NULL);

        for (size_t j = 0; j < param->n_elems; j++)
            ck_assert_float_eq(host_param_get(param, j), is_kept ? 0.5f : value_at(i, j));
    }
    host_model_free(&model);
    host_pretrained_free(&p);
}

START_TEST(test_names) {
    host_pretrained_t p = opens();

    ck_assert_uint_eq(p.config.n_layers, 2);
    ck_assert_uint_eq(p.config.ffn, 6);
    ck_assert_uint_eq(p.config.n_types, 2);
    ck_assert_double_eq(p.config.layer_norm_eps, 1e-6);
    ck_assert_double_eq(p.config.init_std, 0.02);
    ck_assert_int_eq(p.has_pooler, 1);
    ck_assert_int_eq(p.keeps_case, 0);
    host_pretrained_free(&p);
    check_filled(1);
    for (int i = 0; i < 16; i++) {
        variant_t v = {.has_prefix = i & 1, .has_old_names = i & 2, .has_pooler = i & 4, .has_extra = i & 8};

        write_weights(&v);
        check_filled(v.has_pooler);
    }
}
END_TEST

START_TEST(test_fewer_rows) {
    static const int32_t pieces[] = {6, 0, 3};
    host_pretrained_t p = opens();
    host_model_config_t config = p.config;
    host_model_t model;

    config.n_pieces = 3;
    config.max_positions = 5;
    config.dtype = HOST_BFLOAT16;
    ck_assert_int_eq(host_model_init(&model, &config, NULL), 0);
    ck_assert_int_eq(host_pretrained_fill(&p, pieces, &model, NULL), 0);
    for (size_t i = 0; i < 3; i++)
        ck_assert_float_eq_tol(host_param_get(model.word_table, 4 * i + 2), value_at(0, 4 * (size_t)pieces[i] + 2),
                               1e-4f);
    ck_assert_float_eq_tol(host_param_get(model.position_table, 4 * 4 + 3), value_at(1, 4 * 4 + 3), 1e-2f);
    host_model_free(&model);
    host_pretrained_free(&p);
}
END_TEST

/* The good configuration with one piece of it replaced. */
static void with_config(const char *from, const char *to) {
    char text[sizeof good_config + 200];
    const char *place = strstr(good_config, from);

    ck_assert_ptr_nonnull(place);
    (void)snprintf(text, sizeof text, "%.*s%s%s", (int)(place - good_config), good_config, to, place + strlen(from));
    zt_write_text("config.json", text);
}

START_TEST(test_configurations) {
    with_config("\"bert\"", "\"roberta\"");
    refuses("\"model_type\" is \"roberta\"; this host has bert only");
    with_config("\"gelu\"", "\"gelu_new\"");
    refuses("\"hidden_act\" is \"gelu_new\"");
    with_config("\"gelu\"", "{}");
    refuses("\"hidden_act\"");
    with_config("}", ", \"position_embedding_type\": \"relative_key\"}");
    refuses("relative_key");
    with_config("}", ", \"is_decoder\": true}");
    refuses("\"is_decoder\" is true");
    with_config("}", ", \"type_vocab_size\": 1}");
    refuses("\"type_vocab_size\"");
    with_config("\"hidden_size\": 4,", "");
    refuses("\"hidden_size\" is missing");
    with_config("\"hidden_size\": 4", "\"hidden_size\": 1e300");
    refuses("\"hidden_size\"");
    with_config("\"hidden_size\": 4", "\"hidden_size\": -4");
    refuses("\"hidden_size\"");
    with_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1000000000");
    refuses("a whole number from 1 to 1000");
    with_config("\"num_attention_heads\": 2", "\"num_attention_heads\": 3");
    refuses("not a multiple");
    with_config("\"vocab_size\": 7", "\"vocab_size\": 16777216"); /* found before its memory is asked for */
    refuses("word_embeddings.weight is 7 x 4; config.json makes it 16777216 x 4");
    with_config("1e-6", "\"small\"");
    refuses("\"layer_norm_eps\"");
    with_config("}", "");
    refuses("config.json:");
    zt_write_text("config.json", "[]");
    refuses("no JSON object");
    (void)unlink(zt_path("config.json"));
    refuses("cannot open");
}
END_TEST

START_TEST(test_weights) {
    variant_t v = whole;

    v.missing = "layer.1.attention.self.key.bias";
    write_weights(&v);
    refuses("1 tensors of a BERT encoder are missing, the first is bert.encoder.layer.1.attention.self.key.bias");
    v.missing = "layer.";
    write_weights(&v);
    refuses("32 tensors");
    v.missing = "pooler.dense.bias"; /* half a pooler is none that could be used */
    write_weights(&v);
    refuses("bert.pooler.dense.bias");
    v.missing = NULL;
    v.transposed = "layer.0.intermediate.dense.weight";
    write_weights(&v);
    refuses("intermediate.dense.weight is 4 x 6; config.json makes it 6 x 4");
    with_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
    write_weights(&whole);
    refuses("16 tensors");
    zt_write_text("config.json", good_config);
    (void)unlink(zt_path("model.safetensors"));
    refuses("model.safetensors: cannot open");
}
END_TEST

START_TEST(test_tokenizer_config) {
    host_pretrained_t p;

    zt_write_text("tokenizer_config.json", "{\"do_lower_case\": false, \"strip_accents\": null}");
    p = opens();
    ck_assert_int_eq(p.keeps_case, 1);
    host_pretrained_free(&p);
    zt_write_text("tokenizer_config.json", "{\"do_lower_case\": true, \"strip_accents\": true}");
    p = opens();
    ck_assert_int_eq(p.keeps_case, 0);
    host_pretrained_free(&p);
    zt_write_text("tokenizer_config.json", "{\"do_lower_case\": false, \"strip_accents\": true}");
    refuses("\"strip_accents\" is true and \"do_lower_case\" is false");
    zt_write_text("tokenizer_config.json", "{\"tokenize_chinese_chars\": false}");
    refuses("tokenize_chinese_chars");
    zt_write_text("tokenizer_config.json", "{");
    refuses("tokenizer_config.json:");
}
END_TEST

ZT_MAIN_WITH("pretrained", setup, zt_folder_remove, test_names, test_fewer_rows, test_configurations, test_weights,
             test_tokenizer_config)
