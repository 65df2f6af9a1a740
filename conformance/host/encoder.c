/* SPDX-License-Identifier: Apache-2.0 */
/* encoder.c - activations and forward pass of the model (encoder.h). Post-LayerNorm, as BERT (arXiv 1810.04805). */
#include "encoder.h"

#include <stdlib.h>

int host_encoder_init(host_encoder_t *e, host_model_t *model, glue_error_t *err) {
    *e = (host_encoder_t){.model = model};
    e->layers = calloc(model->config.n_layers, sizeof *e->layers);
    return e->layers != NULL ? 0 : glue_fail(err, "encoder: out of memory");
}

void host_encoder_free(host_encoder_t *e) {
    if (e->model != NULL)
        host_encoder_compute(e)->ops->release(host_encoder_compute(e), e->arena);
    free(e->logits);
    free(e->layers);
    *e = (host_encoder_t){.model = NULL};
}

/* Hands out pieces of an arena; with base = NULL it only counts. */
typedef struct cutter {
    host_real_t *base;
    size_t used;
} cutter_t;

static host_real_t *cut(cutter_t *c, size_t n_elems) {
    host_real_t *piece = c->base != NULL ? c->base + c->used : NULL;
    c->used += (n_elems + 15) / 16 * 16; /* whole cache lines */
    return piece;
}

static host_norm_kept_t cut_norm(cutter_t *c, size_t n_tokens, size_t hidden) {
    return (host_norm_kept_t){.normal = cut(c, n_tokens * hidden), .inverse_deviation = cut(c, n_tokens)};
}

static void cut_layer(cutter_t *c, size_t n_tokens, size_t n_probs, const host_model_config_t *config,
                      host_layer_kept_t *layer) {
    size_t wide = n_tokens * config->hidden, wider = n_tokens * config->ffn;
    layer->q = cut(c, wide);
    layer->k = cut(c, wide);
    layer->v = cut(c, wide);
    layer->context = cut(c, wide);
    layer->probs = cut(c, n_probs);
    layer->attention_norm = cut_norm(c, n_tokens, config->hidden);
    layer->middle = cut(c, wide);
    layer->up = cut(c, wider);
    layer->cdf = cut(c, wider);
    layer->act = cut(c, wider);
    layer->out_norm = cut_norm(c, n_tokens, config->hidden);
    layer->out = cut(c, wide);
}

static size_t longest_sequence(const host_batch_t *batch) {
    int32_t longest = 0;
    for (size_t s = 0; s < batch->n_sequences; s++) {
        int32_t length = batch->starts[s + 1] - batch->starts[s];
        longest = length > longest ? length : longest;
    }
    return (size_t)longest;
}

static void cut_scratch(cutter_t *c, const host_encoder_t *e, const host_batch_t *batch, host_backward_scratch_t *b) {
    const host_model_config_t *config = &e->model->config;
    size_t wide = e->n_tokens * config->hidden, longest = longest_sequence(batch);
    b->d = cut(c, wide);
    b->d_branch = cut(c, wide);
    b->d_context = cut(c, wide);
    b->dq = cut(c, wide);
    b->dk = cut(c, wide);
    b->dv = cut(c, wide);
    b->d_ffn = cut(c, e->n_tokens * config->ffn);
    b->d_probs = cut(c, longest * longest);
    b->d_pooled = cut(c, batch->n_sequences * config->hidden);
}

/* Lays out every array of a batch; returns the elements used. */
static size_t lay_out(host_encoder_t *e, const host_batch_t *batch, host_real_t *base) {
    const host_model_config_t *config = &e->model->config;
    cutter_t c = {.base = base};
    size_t n_probs = host_attention_n_probs(&e->attention);
    e->embedded = cut(&c, e->n_tokens * config->hidden);
    e->embedding_norm = cut_norm(&c, e->n_tokens, config->hidden);
    for (size_t i = 0; i < config->n_layers; i++)
        cut_layer(&c, e->n_tokens, n_probs, config, &e->layers[i]);
    e->first = cut(&c, batch->n_sequences * config->hidden);
    e->pooled = cut(&c, batch->n_sequences * config->hidden);
    e->pooled_dropped = cut(&c, batch->n_sequences * config->hidden);
    e->logits_there = cut(&c, batch->n_sequences * config->n_labels);
    e->d_logits_there = cut(&c, batch->n_sequences * config->n_labels);
    cut_scratch(&c, e, batch, &e->scratch);
    return c.used;
}

/* What a batch needs in the host's memory. */
static int prepare_host(host_encoder_t *e, const host_batch_t *batch, glue_error_t *err) {
    size_t n_logits = batch->n_sequences * e->model->config.n_labels;
    size_t nbytes = 2 * n_logits * sizeof *e->logits + e->n_tokens * sizeof *e->positions;
    if (nbytes > e->host_nbytes) {
        free(e->logits);
        e->logits = malloc(nbytes);
        e->host_nbytes = e->logits != NULL ? nbytes : 0;
        if (e->logits == NULL)
            return glue_fail(err, "encoder: out of memory for a batch of %zu tokens", e->n_tokens);
    }
    e->d_logits = e->logits + n_logits;
    e->positions = (int32_t *)(e->d_logits + n_logits);
    for (size_t s = 0; s < batch->n_sequences; s++)
        for (int32_t t = batch->starts[s]; t < batch->starts[s + 1]; t++)
            e->positions[t] = t - batch->starts[s];
    return 0;
}

static int prepare(host_encoder_t *e, const host_batch_t *batch, glue_error_t *err) {
    const host_model_config_t *config = &e->model->config;
    if (longest_sequence(batch) > config->max_positions)
        return glue_fail(err, "encoder: found a sequence of %zu tokens; the model has %zu positions",
                         longest_sequence(batch), config->max_positions);
    e->n_tokens = (size_t)batch->starts[batch->n_sequences];
    e->attention = (host_attention_shape_t){.starts = batch->starts,
                                            .n_sequences = batch->n_sequences,
                                            .n_heads = config->n_heads,
                                            .head_width = config->hidden / config->n_heads};
    size_t n_needed = lay_out(e, batch, NULL);
    if (n_needed > e->arena_elems) {
        host_compute_t *c = host_encoder_compute(e);
        c->ops->release(c, e->arena);
        e->arena_elems = n_needed + n_needed / 4;
        e->arena = c->ops->allocate(c, e->arena_elems * sizeof *e->arena);
        if (e->arena == NULL) {
            e->arena_elems = 0;
            return glue_fail(err, "encoder: out of memory for a batch of %zu tokens", e->n_tokens);
        }
    }
    (void)lay_out(e, batch, e->arena);
    return prepare_host(e, batch, err);
}

void host_encoder_dropout(const host_encoder_t *e, uint64_t place, host_real_t *x, size_t n_elems) {
    if (e->has_dropout)
        host_encoder_compute(e)->ops->dropout(host_encoder_compute(e), x, n_elems, e->model->config.dropout,
                                              glue_rng(e->dropout_seed, place));
}

/* Announces one parameter to the hook, then makes its current value readable. */
static int use_param(host_encoder_t *e, host_param_t *param, const host_param_hook_t *hook, glue_error_t *err) {
    if (hook != NULL && hook->call(hook->ctx, (size_t)(param - e->model->params.list), err) != 0)
        return -1;
    host_param_widen(param);
    return 0;
}

static int use_pair(host_encoder_t *e, const host_affine_t *pair, const host_param_hook_t *hook, glue_error_t *err) {
    return use_param(e, pair->weight, hook, err) != 0 ? -1 : use_param(e, pair->bias, hook, err);
}

static host_affine_arrays_t wide_of(const host_affine_t *pair) {
    return (host_affine_arrays_t){pair->weight->wide, pair->bias->wide};
}

static void linear(const host_affine_t *pair, const host_real_t *x, size_t n, host_real_t *y) {
    host_compute_linear(pair->weight->compute, x, wide_of(pair), n, (size_t)pair->weight->shape[1],
                        (size_t)pair->weight->shape[0], y);
}

static void norm(const host_encoder_t *e, const host_affine_t *pair, host_real_t *x, host_norm_kept_t *kept) {
    host_compute_t *c = host_encoder_compute(e);
    c->ops->norm_forward(c, wide_of(pair), e->n_tokens, e->model->config.hidden, e->model->config.layer_norm_eps, x,
                         kept->normal, kept->inverse_deviation);
}

static void add_rows_of(const host_encoder_t *e, const host_param_t *table, const int32_t *rows) {
    host_compute_t *c = host_encoder_compute(e);
    c->ops->add_chosen(c, table->value, table->dtype, rows, e->n_tokens, e->model->config.hidden, e->embedded);
}

static int embed(host_encoder_t *e, const host_batch_t *batch, const host_param_hook_t *hook, glue_error_t *err) {
    host_model_t *model = e->model;
    host_compute_t *c = host_encoder_compute(e);
    size_t n_elems = e->n_tokens * model->config.hidden;
    if (use_param(e, model->word_table, hook, err) != 0 || use_param(e, model->position_table, hook, err) != 0 ||
        use_param(e, model->type_table, hook, err) != 0 || use_pair(e, &model->embedding_norm, hook, err) != 0)
        return -1;
    c->ops->zero(c, e->embedded, n_elems * sizeof *e->embedded);
    add_rows_of(e, model->word_table, batch->ids);
    add_rows_of(e, model->position_table, e->positions);
    add_rows_of(e, model->type_table, batch->types);
    norm(e, &model->embedding_norm, e->embedded, &e->embedding_norm);
    host_encoder_dropout(e, HOST_DROPOUT_EMBEDDING, e->embedded, n_elems);
    return 0;
}

static int use_layer(host_encoder_t *e, const host_layer_t *layer, const host_param_hook_t *hook, glue_error_t *err) {
    const host_affine_t *pairs[] = {&layer->query,          &layer->key, &layer->value, &layer->attention_out,
                                    &layer->attention_norm, &layer->up,  &layer->down,  &layer->out_norm};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if (use_pair(e, pairs[i], hook, err) != 0)
            return -1;
    return 0;
}

static void run_layer(host_encoder_t *e, size_t i, const host_real_t *in) {
    const host_layer_t *layer = &e->model->layers[i];
    host_layer_kept_t *kept = &e->layers[i];
    size_t n = e->n_tokens, n_elems = n * e->model->config.hidden;
    uint64_t place = HOST_DROPOUT_FIRST_LAYER + HOST_DROPOUTS_PER_LAYER * i;
    host_compute_t *c = host_encoder_compute(e);
    linear(&layer->query, in, n, kept->q);
    linear(&layer->key, in, n, kept->k);
    linear(&layer->value, in, n, kept->v);
    c->ops->attention_forward(c, &e->attention, kept->q, kept->k, kept->v, kept->probs, kept->context);
    linear(&layer->attention_out, kept->context, n, kept->middle);
    host_encoder_dropout(e, place, kept->middle, n_elems);
    c->ops->add(c, kept->middle, in, n_elems);
    norm(e, &layer->attention_norm, kept->middle, &kept->attention_norm);

    linear(&layer->up, kept->middle, n, kept->up);
    c->ops->gelu_forward(c, kept->up, n * e->model->config.ffn, kept->act, kept->cdf);
    linear(&layer->down, kept->act, n, kept->out);
    host_encoder_dropout(e, place + 1, kept->out, n_elems);
    c->ops->add(c, kept->out, kept->middle, n_elems);
    norm(e, &layer->out_norm, kept->out, &kept->out_norm);
}

static int classify(host_encoder_t *e, const host_batch_t *batch, const host_real_t *encoded,
                    const host_param_hook_t *hook, glue_error_t *err) {
    size_t hidden = e->model->config.hidden, n_elems = batch->n_sequences * hidden;
    host_compute_t *c = host_encoder_compute(e);
    if (use_pair(e, &e->model->pooler, hook, err) != 0 || use_pair(e, &e->model->classifier, hook, err) != 0)
        return -1;
    c->ops->take_chosen(c, encoded, batch->starts, batch->n_sequences, hidden, e->first);
    linear(&e->model->pooler, e->first, batch->n_sequences, e->pooled);
    c->ops->tanh_forward(c, e->pooled, n_elems);
    c->ops->copy(c, e->pooled_dropped, e->pooled, n_elems * sizeof *e->pooled);
    host_encoder_dropout(e, HOST_DROPOUT_POOLED, e->pooled_dropped, n_elems);
    linear(&e->model->classifier, e->pooled_dropped, batch->n_sequences, e->logits_there);
    c->ops->copy_out(c, e->logits, e->logits_there, batch->n_sequences * e->model->config.n_labels * sizeof *e->logits);
    return host_compute_check(c, err);
}

int host_encoder_forward(host_encoder_t *e, const host_batch_t *batch, int is_training, uint64_t dropout_seed,
                         const host_param_hook_t *hook, glue_error_t *err) {
    if (prepare(e, batch, err) != 0)
        return -1;
    e->has_dropout = is_training && e->model->config.dropout > 0.0;
    e->dropout_seed = dropout_seed;
    if (embed(e, batch, hook, err) != 0)
        return -1;
    const host_real_t *x = e->embedded;
    for (size_t i = 0; i < e->model->config.n_layers; i++) {
        if (use_layer(e, &e->model->layers[i], hook, err) != 0)
            return -1;
        run_layer(e, i, x);
        x = e->layers[i].out;
    }
    return classify(e, batch, x, hook, err);
}

/* Cross entropy of one row of logits; d = softmax - one-hot, times scale. */
static double cross_entropy(const host_real_t *logits, size_t n_labels, size_t label, double scale, host_real_t *d) {
    double largest = (double)logits[0], sum = 0.0;
    for (size_t j = 1; j < n_labels; j++)
        largest = (double)logits[j] > largest ? (double)logits[j] : largest;
    for (size_t j = 0; j < n_labels; j++)
        sum += exp((double)logits[j] - largest);
    for (size_t j = 0; j < n_labels; j++) {
        double probability = exp((double)logits[j] - largest) / sum;
        d[j] = (host_real_t)(scale * (probability - (j == label ? 1.0 : 0.0)));
    }
    return log(sum) + largest - (double)logits[label];
}

double host_encoder_loss(host_encoder_t *e, const host_batch_t *batch, double scale) {
    size_t n_labels = e->model->config.n_labels;
    double sum = 0.0;
    for (size_t s = 0; s < batch->n_sequences; s++) {
        const host_real_t *logits = e->logits + s * n_labels;
        host_real_t *d = e->d_logits + s * n_labels;
        if (e->model->config.is_regression) {
            double error = (double)logits[0] - batch->targets[s];
            d[0] = (host_real_t)(scale * 2.0 * error);
            sum += error * error;
        } else {
            sum += cross_entropy(logits, n_labels, (size_t)batch->targets[s], scale, d);
        }
    }
    host_encoder_compute(e)->ops->copy_in(host_encoder_compute(e), e->d_logits_there, e->d_logits,
                                          batch->n_sequences * n_labels * sizeof *e->d_logits);
    return sum;
}
