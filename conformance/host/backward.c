/* SPDX-License-Identifier: Apache-2.0 */
/* backward.c - the backward pass: host_encoder_backward of encoder.h, the mirror of encoder.c.
 *
 * The running derivative of the loss with respect to the current place is scratch.d, [n_tokens, hidden]; a residual
 * branch gets a copy in scratch.d_branch and adds its part back to d. */
#include "encoder.h"

static host_affine_arrays_t grads_of(const host_affine_t *pair) {
    return (host_affine_arrays_t){pair->weight->grad_sum, pair->bias->grad_sum};
}

/* Adds the gradients of y = linear(x) to the pair and writes dx, or adds to it with keep_dx. */
static void linear_back(const host_affine_t *pair, const host_real_t *x, const host_real_t *dy, size_t n, int keep_dx,
                        host_real_t *dx) {
    host_compute_linear_back(pair->weight->compute, x, pair->weight->wide, dy, n, (size_t)pair->weight->shape[1],
                             (size_t)pair->weight->shape[0], keep_dx, dx, grads_of(pair));
}

static void norm_back(const host_encoder_t *e, const host_affine_t *pair, const host_norm_kept_t *kept,
                      host_real_t *d) {
    host_compute_t *c = host_encoder_compute(e);
    c->ops->norm_backward(c, pair->weight->wide, kept->normal, kept->inverse_deviation, e->n_tokens,
                          e->model->config.hidden, d, grads_of(pair));
}

static int deliver(const host_encoder_t *e, host_param_t *param, const host_param_hook_t *hook, glue_error_t *err) {
    host_param_round_grad(param);
    return hook != NULL ? hook->call(hook->ctx, (size_t)(param - e->model->params.list), err) : 0;
}

static int deliver_pair(const host_encoder_t *e, const host_affine_t *pair, const host_param_hook_t *hook,
                        glue_error_t *err) {
    return deliver(e, pair->bias, hook, err) != 0 ? -1 : deliver(e, pair->weight, hook, err);
}

/* From d_logits to the derivative of the encoder's output, which is zero but for the [CLS] rows. */
static int classify_back(host_encoder_t *e, const host_batch_t *batch, const host_param_hook_t *hook,
                         glue_error_t *err) {
    host_backward_scratch_t *b = &e->scratch;
    size_t hidden = e->model->config.hidden, n = batch->n_sequences;
    host_compute_t *c = host_encoder_compute(e);
    linear_back(&e->model->classifier, e->pooled_dropped, e->d_logits_there, n, 0, b->d_pooled);
    if (deliver_pair(e, &e->model->classifier, hook, err) != 0)
        return -1;
    host_encoder_dropout(e, HOST_DROPOUT_POOLED, b->d_pooled, n * hidden);
    c->ops->tanh_backward(c, e->pooled, n * hidden, b->d_pooled);
    linear_back(&e->model->pooler, e->first, b->d_pooled, n, 0, e->pooled_dropped); /* no longer needed: takes dx */
    c->ops->zero(c, b->d, e->n_tokens * hidden * sizeof *b->d);
    c->ops->add_to_chosen(c, b->d, batch->starts, n, hidden, e->pooled_dropped);
    return deliver_pair(e, &e->model->pooler, hook, err);
}

/* out = norm(middle + dropout(down(gelu(up(middle))))) */
static void feed_forward_back(host_encoder_t *e, size_t i) {
    const host_layer_t *layer = &e->model->layers[i];
    const host_layer_kept_t *kept = &e->layers[i];
    host_backward_scratch_t *b = &e->scratch;
    size_t n = e->n_tokens, n_elems = n * e->model->config.hidden;
    host_compute_t *c = host_encoder_compute(e);
    norm_back(e, &layer->out_norm, &kept->out_norm, b->d);
    c->ops->copy(c, b->d_branch, b->d, n_elems * sizeof *b->d);
    host_encoder_dropout(e, HOST_DROPOUT_FIRST_LAYER + HOST_DROPOUTS_PER_LAYER * i + 1, b->d_branch, n_elems);
    linear_back(&layer->down, kept->act, b->d_branch, n, 0, b->d_ffn);
    c->ops->gelu_backward(c, kept->up, kept->cdf, n * e->model->config.ffn, b->d_ffn);
    linear_back(&layer->up, kept->middle, b->d_ffn, n, 1, b->d);
}

/* middle = norm(in + dropout(attention_out(attention(in)))) */
static void attention_back(host_encoder_t *e, size_t i, const host_real_t *in) {
    const host_layer_t *layer = &e->model->layers[i];
    const host_layer_kept_t *kept = &e->layers[i];
    host_backward_scratch_t *b = &e->scratch;
    size_t n = e->n_tokens, n_elems = n * e->model->config.hidden;
    host_compute_t *c = host_encoder_compute(e);
    norm_back(e, &layer->attention_norm, &kept->attention_norm, b->d);
    c->ops->copy(c, b->d_branch, b->d, n_elems * sizeof *b->d);
    host_encoder_dropout(e, HOST_DROPOUT_FIRST_LAYER + HOST_DROPOUTS_PER_LAYER * i, b->d_branch, n_elems);
    linear_back(&layer->attention_out, kept->context, b->d_branch, n, 0, b->d_context);
    c->ops->attention_backward(c, &e->attention, kept->q, kept->k, kept->v, kept->probs, b->d_context, b->d_probs,
                               b->dq, b->dk, b->dv);
    linear_back(&layer->value, in, b->dv, n, 1, b->d);
    linear_back(&layer->key, in, b->dk, n, 1, b->d);
    linear_back(&layer->query, in, b->dq, n, 1, b->d);
}

/* The layer's parameters, last used first. Each half is delivered as soon as it is complete. */
static int layer_back(host_encoder_t *e, size_t i, const host_real_t *in, const host_param_hook_t *hook,
                      glue_error_t *err) {
    const host_layer_t *layer = &e->model->layers[i];
    const host_affine_t *late[] = {&layer->out_norm, &layer->down, &layer->up};
    const host_affine_t *early[] = {&layer->attention_norm, &layer->attention_out, &layer->value, &layer->key,
                                    &layer->query};
    feed_forward_back(e, i);
    for (size_t j = 0; j < sizeof late / sizeof late[0]; j++)
        if (deliver_pair(e, late[j], hook, err) != 0)
            return -1;
    attention_back(e, i, in);
    for (size_t j = 0; j < sizeof early / sizeof early[0]; j++)
        if (deliver_pair(e, early[j], hook, err) != 0)
            return -1;
    return 0;
}

static void add_to_table(const host_encoder_t *e, host_param_t *table, const int32_t *rows) {
    host_compute_t *c = host_encoder_compute(e);
    c->ops->add_to_chosen(c, table->grad_sum, rows, e->n_tokens, e->model->config.hidden, e->scratch.d);
}

static int embed_back(host_encoder_t *e, const host_batch_t *batch, const host_param_hook_t *hook, glue_error_t *err) {
    host_model_t *model = e->model;
    host_backward_scratch_t *b = &e->scratch;
    host_encoder_dropout(e, HOST_DROPOUT_EMBEDDING, b->d, e->n_tokens * model->config.hidden);
    norm_back(e, &model->embedding_norm, &e->embedding_norm, b->d);
    add_to_table(e, model->word_table, batch->ids);
    add_to_table(e, model->position_table, e->positions);
    add_to_table(e, model->type_table, batch->types);
    if (deliver_pair(e, &model->embedding_norm, hook, err) != 0 || deliver(e, model->type_table, hook, err) != 0 ||
        deliver(e, model->position_table, hook, err) != 0)
        return -1;
    return deliver(e, model->word_table, hook, err);
}

int host_encoder_backward(host_encoder_t *e, const host_batch_t *batch, const host_param_hook_t *hook,
                          glue_error_t *err) {
    if (classify_back(e, batch, hook, err) != 0)
        return -1;
    for (size_t i = e->model->config.n_layers; i-- > 0;) {
        const host_real_t *in = i == 0 ? e->embedded : e->layers[i - 1].out;
        if (layer_back(e, i, in, hook, err) != 0)
            return -1;
    }
    return embed_back(e, batch, hook, err);
}
