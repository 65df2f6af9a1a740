/* SPDX-License-Identifier: Apache-2.0 */
/* run.c - see run.h. */
#include "run.h"

#include "adamw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void host_run_defaults(host_run_options_t *out) {
    *out = (host_run_options_t){
        .model = {.n_types = 2,
                  .hidden = 64,
                  .n_layers = 2,
                  .n_heads = 2,
                  .ffn = 256,
                  .layer_norm_eps = 1e-12,
                  .init_std = 0.05,
                  .dtype = HOST_FLOAT32},
        .train = {.seed = 1,
                  .n_steps = 2000,
                  .batch = 32,
                  .accumulation = 1,
                  .hyper = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01},
                  .clip_norm = 1.0,
                  .warmup_share = 0.1},
    };
}

static host_model_config_t shape_of(const host_examples_t *e, const host_run_options_t *o) {
    host_model_config_t shape = e->is_pretrained ? e->shape : o->model;
    shape.dropout = o->model.dropout;
    shape.dtype = o->model.dtype;
    shape.n_pieces = e->shape.n_pieces;
    shape.max_positions = e->shape.max_positions;
    shape.n_labels = e->shape.n_labels;
    shape.is_regression = e->shape.is_regression;
    return shape;
}

static int make_model(const host_examples_t *e, const host_run_options_t *o, host_model_t *out, glue_error_t *err) {
    host_model_config_t shape = shape_of(e, o);
    if (host_model_init(out, &shape, err) != 0)
        return -1;
    host_model_randomise(out, o->train.seed);
    if (e->is_pretrained && host_examples_fill(e, out, err) != 0) {
        host_model_free(out);
        return -1;
    }
    return 0;
}

static int make_optimizer(const host_run_options_t *o, host_model_t *model, host_optimizer_t **out, glue_error_t *err) {
    host_plugin_options_t plugin = o->plugin;
    plugin.compute = o->compute;
    return o->optimizer == HOST_OPTIMIZER_PLUGIN ? host_plugin_create(&model->params, &plugin, out, err)
                                                 : host_adamw_create(&model->params, o->optimizer == HOST_OPTIMIZER_DOCUMENTED, out, err);
}

static void describe_optimizer(host_optimizer_t *optimizer, host_run_result_t *out) {
    int is_plugin = strcmp(optimizer->ops->name, "plugin") == 0;
    (void)snprintf(out->optimizer_name, sizeof out->optimizer_name, "%s%s%s", optimizer->ops->name,
                   is_plugin ? " " : "", is_plugin ? host_plugin_version(optimizer) : "");
    out->n_counters = optimizer->ops->counters(optimizer, out->counters);
}

/* FNV-1a of 64 bits. */
static uint64_t digest_of(const host_param_t *p) {
    const unsigned char *bytes = p->value;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < p->n_elems * host_dtype_nbytes(p->dtype); i++)
        h = (h ^ bytes[i]) * 0x100000001b3u;
    return h;
}

static int digest_all(const host_model_t *model, const host_run_options_t *o, host_run_result_t *out, glue_error_t *err) {
    out->n_digests = o->compute != NULL ? 0 : model->params.n;
    out->digests = calloc(model->params.n, sizeof *out->digests);
    if (out->digests == NULL)
        return glue_fail(err, "out of memory for digests");
    for (size_t i = 0; i < out->n_digests; i++)
        out->digests[i] = digest_of(&model->params.list[i]);
    return 0;
}

int host_run(const host_examples_t *e, const host_run_options_t *o, host_run_result_t *out, glue_error_t *err) {
    host_run_result_t result = {.n_counters = 0};
    host_optimizer_t *optimizer = NULL;
    host_model_t model;
    int st = -1;
    if (make_model(e, o, &model, err) != 0)
        return -1;
    result.model = model.config;
    result.n_param_elems = host_params_n_elems(&model.params);
    if (o->compute != NULL && host_params_move(&model.params, o->compute, err) != 0)
        goto err_model;
    if (make_optimizer(o, &model, &optimizer, err) != 0)
        goto err_model;
    if (host_train(&model, optimizer, &e->train, &o->train, &result.train, err) != 0)
        goto err_optimizer;
    st = digest_all(&model, o, &result, err);
    if (st == 0)
        st = host_evaluate(&model, optimizer, &e->dev, &result.dev, err);
    if (st == 0 && e->second_dev.n_rows > 0)
        st = host_evaluate(&model, optimizer, &e->second_dev, &result.second_dev, err);
    describe_optimizer(optimizer, &result);
    if (st == 0)
        *out = result;
    else
        host_run_result_free(&result);
err_optimizer:
    optimizer->ops->destroy(optimizer);
err_model:
    host_model_free(&model);
    return st;
}

void host_run_result_free(host_run_result_t *result) {
    free(result->digests);
    host_train_result_free(&result->train);
    host_predictions_free(&result->dev);
    host_predictions_free(&result->second_dev);
}
