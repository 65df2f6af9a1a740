/* SPDX-License-Identifier: Apache-2.0 */
/* train.c - the training loop (train.h). */
#define _POSIX_C_SOURCE 200809L
#include "train.h"

#include "glue/rng.h"
#include "harness/clock.h"

#include <math.h>
#include <stdlib.h>

/* Streams of the seed; initial weights have their own (init.c). */
enum { STREAM_ORDER = 1000, STREAM_DROPOUT = 1 };

/* The endless sequence of shuffled epochs. */
typedef struct row_source {
    const host_corpus_t *corpus;
    uint64_t seed, epoch;
    uint32_t *order; /* [n_rows] of the epoch in hand */
    size_t used;
} row_source_t;

typedef struct loop {
    host_model_t *model;
    host_optimizer_t *optimizer;
    const host_train_options_t *options;
    host_encoder_t encoder;
    host_batch_buffer_t buffer;
    row_source_t source;
    uint32_t *rows;      /* [batch] of the micro-batch in hand */
    uint64_t n_batches;  /* so far; numbers the dropout masks */
    unsigned grad_flags; /* of the micro-batch in hand */
    double *seconds;     /* [n_steps] */
} loop_t;

static double now_seconds(void) { return 1e-9 * (double)zc_now_ns(); }

double host_learning_rate(const host_train_options_t *o, size_t step) {
    double n_steps = (double)o->n_steps, n_warmup = floor(o->warmup_share * n_steps);
    double t = (double)step;
    if (t < n_warmup)
        return o->hyper.lr * (t + 1.0) / n_warmup;
    return o->hyper.lr * (n_steps - t) / (n_steps - n_warmup);
}

static void start_epoch(row_source_t *s) {
    for (size_t i = 0; i < s->corpus->n_rows; i++)
        s->order[i] = (uint32_t)i;
    glue_rng_shuffle(glue_rng(s->seed, STREAM_ORDER + s->epoch), s->order, s->corpus->n_rows);
    s->used = 0;
}

/* Takes the next n rows. Returns 1 when an epoch's last row was among them. */
static int take_rows(row_source_t *s, size_t n, uint32_t *out_rows) {
    int is_epoch_end = 0;
    for (size_t i = 0; i < n; i++) {
        out_rows[i] = s->order[s->used++];
        if (s->used == s->corpus->n_rows) {
            s->epoch++;
            start_epoch(s);
            is_epoch_end = 1;
        }
    }
    return is_epoch_end;
}

static int before_forward(void *ctx, size_t param, glue_error_t *err) {
    host_optimizer_t *optimizer = ctx;
    return optimizer->ops->before_forward(optimizer, param, err);
}

static int grads_ready(void *ctx, size_t param, glue_error_t *err) {
    loop_t *l = ctx;
    return l->optimizer->ops->grads_ready(l->optimizer, param, l->grad_flags, err);
}

static void zero_grads(host_params_t *params) {
    for (size_t i = 0; i < params->n; i++)
        host_param_zero_grad(&params->list[i]);
}

static int forward(loop_t *l, const host_batch_t *batch, int is_training, glue_error_t *err) {
    host_param_hook_t hook = {.call = before_forward, .ctx = l->optimizer};
    int has_hook = l->optimizer != NULL && l->optimizer->ops->before_forward != NULL;
    uint64_t dropout_seed = is_training ? glue_rng_bits(glue_rng(l->source.seed, STREAM_DROPOUT), l->n_batches++) : 0;
    return host_encoder_forward(&l->encoder, batch, is_training, dropout_seed, has_hook ? &hook : NULL, err);
}

/* One micro-batch: forward, loss, backward with delivery. Adds the sum of its rows' losses to *loss. */
static int run_micro_batch(loop_t *l, size_t i, int *out_is_epoch_end, double *loss, glue_error_t *err) {
    const host_train_options_t *o = l->options;
    host_param_hook_t hook = {.call = grads_ready, .ctx = l};
    int is_last = i + 1 == o->accumulation, has_delivery = is_last || o->deliver_parts;
    host_batch_t batch;
    if (take_rows(&l->source, o->batch, l->rows))
        *out_is_epoch_end = 1;
    if (host_corpus_gather(l->source.corpus, l->rows, o->batch, &l->buffer, &batch, err) != 0 ||
        forward(l, &batch, 1, err) != 0)
        return -1;
    *loss += host_encoder_loss(&l->encoder, &batch, 1.0 / (double)(o->batch * o->accumulation));
    if (i == 0 || o->deliver_parts)
        zero_grads(&l->model->params);
    l->grad_flags = (o->deliver_parts ? HOST_GRAD_PART : HOST_GRAD_TOTAL) | (is_last ? HOST_GRAD_LAST : HOST_GRAD_MORE);
    return host_encoder_backward(&l->encoder, &batch, has_delivery ? &hook : NULL, err);
}

static int run_step(loop_t *l, size_t step, double *out_loss, glue_error_t *err) {
    const host_train_options_t *o = l->options;
    host_step_args_t args = {.groups = {o->hyper, o->hyper}, .clip_norm = o->clip_norm};
    double loss = 0.0;
    for (size_t i = 0; i < o->accumulation; i++)
        if (run_micro_batch(l, i, &args.is_epoch_end, &loss, err) != 0)
            return -1;
    loss /= (double)(o->batch * o->accumulation);
    if (!isfinite(loss))
        return glue_fail(err, "train: found loss %g at step %zu; training has diverged", loss, step + 1);
    args.groups[HOST_GROUP_DECAY].lr = args.groups[HOST_GROUP_NO_DECAY].lr = host_learning_rate(o, step);
    args.groups[HOST_GROUP_NO_DECAY].weight_decay = 0.0;
    *out_loss = loss;
    return l->optimizer->ops->step(l->optimizer, &args, err);
}

static void show_progress(const host_train_options_t *o, size_t step, const double *losses) {
    size_t period = o->n_steps >= 10 ? o->n_steps / 10 : 1, first;
    double sum = 0.0;
    if (o->progress == NULL || (step + 1) % period != 0)
        return;
    first = step + 1 - period;
    for (size_t i = first; i <= step; i++)
        sum += losses[i];
    (void)fprintf(o->progress, "step %zu of %zu: mean loss of the last %zu: %.4f\n", step + 1, o->n_steps, period,
                  sum / (double)period);
}

static int check_options(const host_train_options_t *o, const host_corpus_t *corpus, glue_error_t *err) {
    if (o->n_steps == 0 || o->batch == 0 || o->accumulation == 0)
        return glue_fail(err, "train: steps, batch and accumulation must be at least 1");
    if (!(o->warmup_share >= 0.0 && o->warmup_share <= 1.0))
        return glue_fail(err, "train: warm-up share %g; a number from 0 to 1 is needed", o->warmup_share);
    if (corpus->n_rows == 0)
        return glue_fail(err, "train: the corpus has no row");
    return 0;
}

static int run_steps(loop_t *l, double *losses, glue_error_t *err) {
    const host_train_options_t *o = l->options;
    for (size_t step = 0; step < o->n_steps; step++) {
        double start = now_seconds();
        if (run_step(l, step, &losses[step], err) != 0)
            return -1;
        l->seconds[step] = now_seconds() - start;
        show_progress(o, step, losses);
    }
    if (l->optimizer->ops->finish != NULL)
        return l->optimizer->ops->finish(l->optimizer, err);
    return 0;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Sorts them. */
static double median(double *x, size_t n) {
    qsort(x, n, sizeof *x, by_size);
    return n > 0 ? x[n / 2] : 0.0;
}

int host_train(host_model_t *model, host_optimizer_t *optimizer, const host_corpus_t *corpus,
               const host_train_options_t *options, host_train_result_t *out, glue_error_t *err) {
    loop_t l = {.model = model,
                .optimizer = optimizer,
                .options = options,
                .source = {.corpus = corpus, .seed = options->seed}};
    double *losses = NULL;
    double start = now_seconds();
    int st = -1;
    if (check_options(options, corpus, err) != 0 || host_encoder_init(&l.encoder, model, err) != 0)
        return -1;
    l.source.order = malloc(corpus->n_rows * sizeof *l.source.order);
    l.rows = malloc(options->batch * sizeof *l.rows);
    losses = calloc(options->n_steps, sizeof *losses);
    l.seconds = calloc(options->n_steps, sizeof *l.seconds);
    if (l.source.order == NULL || l.rows == NULL || losses == NULL || l.seconds == NULL) {
        (void)glue_fail(err, "train: out of memory");
        goto out;
    }
    start_epoch(&l.source);
    st = run_steps(&l, losses, err);
    if (st == 0) {
        size_t half = options->n_steps / 2;
        *out = (host_train_result_t){.losses = losses,
                                     .n_steps = options->n_steps,
                                     .seconds = now_seconds() - start,
                                     .step_seconds = median(l.seconds + half, options->n_steps - half)};
        losses = NULL;
    }
out:
    free(losses);
    free(l.seconds);
    free(l.rows);
    free(l.source.order);
    host_batch_buffer_free(&l.buffer);
    host_encoder_free(&l.encoder);
    return st;
}

void host_train_result_free(host_train_result_t *result) {
    free(result->losses);
    *result = (host_train_result_t){.losses = NULL};
}

/* Of one row. */
static double prediction_of(const host_model_config_t *config, const host_real_t *logits) {
    size_t best = 0;
    for (size_t j = 1; j < config->n_labels; j++)
        if (logits[j] > logits[best])
            best = j;
    return config->is_regression ? (double)logits[0] : (double)best;
}

static int predict(loop_t *l, const host_corpus_t *corpus, host_predictions_t *p, glue_error_t *err) {
    enum { EVALUATION_ROWS = 64 };
    size_t n_labels = l->model->config.n_labels, n;
    uint32_t rows[EVALUATION_ROWS];
    host_batch_t batch;

    for (size_t first = 0; first < corpus->n_rows; first += n) {
        n = corpus->n_rows - first < EVALUATION_ROWS ? corpus->n_rows - first : EVALUATION_ROWS;
        for (size_t i = 0; i < n; i++)
            rows[i] = (uint32_t)(first + i);
        if (host_corpus_gather(corpus, rows, n, &l->buffer, &batch, err) != 0 || forward(l, &batch, 0, err) != 0)
            return -1;
        p->loss += host_encoder_loss(&l->encoder, &batch, 0.0) / (double)corpus->n_rows;
        for (size_t i = 0; i < n; i++)
            p->values[first + i] = prediction_of(&l->model->config, l->encoder.logits + i * n_labels);
    }
    return 0;
}

int host_evaluate(host_model_t *model, host_optimizer_t *optimizer, const host_corpus_t *corpus,
                  host_predictions_t *out, glue_error_t *err) {
    loop_t l = {.model = model, .optimizer = optimizer};
    host_predictions_t p = {.values = calloc(corpus->n_rows, sizeof *p.values), .n_rows = corpus->n_rows};
    int st = -1;
    if (p.values == NULL)
        (void)glue_fail(err, "evaluate: out of memory for %zu rows", corpus->n_rows);
    else if (host_encoder_init(&l.encoder, model, err) == 0)
        st = predict(&l, corpus, &p, err);
    if (st == 0)
        *out = p;
    else
        host_predictions_free(&p);
    host_batch_buffer_free(&l.buffer);
    host_encoder_free(&l.encoder);
    return st;
}

void host_predictions_free(host_predictions_t *predictions) {
    free(predictions->values);
    *predictions = (host_predictions_t){.values = NULL};
}
