/* SPDX-License-Identifier: Apache-2.0 */
/* model.h - a BERT-family encoder with a classifier on [CLS]: its shape and its parameters.
 *
 * Names, shapes and order of parameters are Hugging Face's (BertForSequenceClassification); Linear weights are
 * [out, in]. The order of model->params.list is the order of first use in the forward pass. */
#pragma once

#include "param.h"

#include <stdint.h>

typedef struct host_model_config {
    size_t n_pieces;      /* vocabulary */
    size_t max_positions; /* longest sequence */
    size_t n_types;       /* 2 */
    size_t hidden, n_layers, n_heads, ffn;
    size_t n_labels;   /* width of the classifier; 1 with is_regression */
    int is_regression; /* mean squared error instead of cross entropy */
    double dropout;    /* 0 = none */
    double layer_norm_eps;
    double init_std; /* of weight matrices and tables */
    host_dtype_t dtype;
} host_model_config_t;

/* The two parameters of a linear layer or a LayerNorm. */
typedef struct host_affine {
    host_param_t *weight, *bias;
} host_affine_t;

typedef struct host_layer {
    host_affine_t query, key, value, attention_out, attention_norm, up, down, out_norm;
} host_layer_t;

typedef struct host_model {
    host_model_config_t config;
    host_params_t params;
    host_param_t *word_table, *position_table, *type_table;
    host_affine_t embedding_norm;
    host_layer_t *layers; /* [config.n_layers] */
    host_affine_t pooler, classifier;
} host_model_t;

/* Allocates all parameters, zero. Release with host_model_free. */
int host_model_init(host_model_t *model, const host_model_config_t *config, glue_error_t *err);
void host_model_free(host_model_t *model);

/* Initial weights of a seed, the same on every machine: matrices and tables normal with init_std, biases 0, LayerNorm
 * weights 1. (init.c) */
void host_model_randomise(host_model_t *model, uint64_t seed);
