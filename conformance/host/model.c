/* SPDX-License-Identifier: Apache-2.0 */
/* model.c - names, shapes and memory of the model's parameters (model.h). */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>

enum { N_PARAMS_PER_LAYER = 16, N_PARAMS_ELSEWHERE = 9 };

/* Adds PREFIX.weight [n_out, n_in] and PREFIX.bias [n_out]; n_in = 0 makes the weight a vector (LayerNorm). */
static int add_pair(host_model_t *model, const char *prefix, size_t n_out, size_t n_in, host_affine_t *out) {
    char name[HOST_NAME_NBYTES];
    (void)snprintf(name, sizeof name, "%s.weight", prefix);
    out->weight = host_params_add(&model->params, name, n_out, n_in, 0);
    (void)snprintf(name, sizeof name, "%s.bias", prefix);
    out->bias = host_params_add(&model->params, name, n_out, 0, 0);
    return out->weight != NULL && out->bias != NULL ? 0 : -1;
}

static int add_layer_pair(host_model_t *model, size_t layer, const char *suffix, size_t n_out, size_t n_in,
                          host_affine_t *out) {
    char prefix[HOST_NAME_NBYTES - 8];
    (void)snprintf(prefix, sizeof prefix, "bert.encoder.layer.%zu.%s", layer, suffix);
    return add_pair(model, prefix, n_out, n_in, out);
}

static int add_layer(host_model_t *model, size_t i) {
    host_layer_t *layer = &model->layers[i];
    size_t hidden = model->config.hidden, ffn = model->config.ffn;
    int st = 0;
    st |= add_layer_pair(model, i, "attention.self.query", hidden, hidden, &layer->query);
    st |= add_layer_pair(model, i, "attention.self.key", hidden, hidden, &layer->key);
    st |= add_layer_pair(model, i, "attention.self.value", hidden, hidden, &layer->value);
    st |= add_layer_pair(model, i, "attention.output.dense", hidden, hidden, &layer->attention_out);
    st |= add_layer_pair(model, i, "attention.output.LayerNorm", hidden, 0, &layer->attention_norm);
    st |= add_layer_pair(model, i, "intermediate.dense", ffn, hidden, &layer->up);
    st |= add_layer_pair(model, i, "output.dense", hidden, ffn, &layer->down);
    st |= add_layer_pair(model, i, "output.LayerNorm", hidden, 0, &layer->out_norm);
    return st;
}

static host_param_t *add_table(host_model_t *model, const char *name, size_t n_rows) {
    return host_params_add(&model->params, name, n_rows, model->config.hidden, 1);
}

static int add_params(host_model_t *model) {
    const host_model_config_t *c = &model->config;
    int st = 0;
    model->word_table = add_table(model, "bert.embeddings.word_embeddings.weight", c->n_pieces);
    model->position_table = add_table(model, "bert.embeddings.position_embeddings.weight", c->max_positions);
    model->type_table = add_table(model, "bert.embeddings.token_type_embeddings.weight", c->n_types);
    if (model->word_table == NULL || model->position_table == NULL || model->type_table == NULL)
        return -1;
    st |= add_pair(model, "bert.embeddings.LayerNorm", c->hidden, 0, &model->embedding_norm);
    for (size_t i = 0; i < c->n_layers; i++)
        st |= add_layer(model, i);
    st |= add_pair(model, "bert.pooler.dense", c->hidden, c->hidden, &model->pooler);
    st |= add_pair(model, "classifier", c->n_labels, c->hidden, &model->classifier);
    return st;
}

static int check_config(const host_model_config_t *c, glue_error_t *err) {
    if (c->hidden == 0 || c->n_layers == 0 || c->n_heads == 0 || c->ffn == 0 || c->n_labels == 0)
        return glue_fail(err, "model: hidden, layers, heads, ffn and labels must be at least 1");
    if (c->hidden % c->n_heads != 0)
        return glue_fail(err, "model: hidden %zu is not a multiple of %zu heads", c->hidden, c->n_heads);
    if (!(c->dropout >= 0.0 && c->dropout < 1.0))
        return glue_fail(err, "model: dropout %g; a number from 0 to below 1 is needed", c->dropout);
    return 0;
}

int host_model_init(host_model_t *model, const host_model_config_t *config, glue_error_t *err) {
    size_t n_params = N_PARAMS_ELSEWHERE + N_PARAMS_PER_LAYER * config->n_layers;
    *model = (host_model_t){.config = *config};
    if (check_config(config, err) != 0 || host_params_init(&model->params, n_params, config->dtype, err) != 0)
        return -1;
    model->layers = calloc(config->n_layers, sizeof *model->layers);
    if (model->layers == NULL || add_params(model) != 0) {
        host_model_free(model);
        return glue_fail(err, "model: out of memory for %zu parameters", n_params);
    }
    return 0;
}

void host_model_free(host_model_t *model) {
    host_params_free(&model->params);
    free(model->layers);
    model->layers = NULL;
}
