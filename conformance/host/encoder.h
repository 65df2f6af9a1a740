/* SPDX-License-Identifier: Apache-2.0 */
/* encoder.h - forward and backward pass of the model over one batch.
 *
 * The sequences of a batch lie back to back without padding: [n_tokens, hidden] arrays and the place where each
 * sequence starts. Token-wise layers do not care, attention is computed per sequence, and nothing is
 * spent on padding. Positions count from 0 in each sequence.
 * A host_encoder_t owns the activations of one batch at a time; its memory grows to the largest batch seen. It lies
 * where the model's parameters do (compute.h), but for the logits. */
#pragma once

#include "glue/rng.h"
#include "model.h"

typedef struct host_batch {
    const int32_t *ids;    /* [n_tokens] below config.n_pieces */
    const int32_t *types;  /* [n_tokens] below config.n_types */
    const int32_t *starts; /* [n_sequences + 1]; starts[0] = 0, starts[n_sequences] = n_tokens */
    const double *targets; /* [n_sequences] class number, or score; may be NULL when no loss is asked */
    size_t n_sequences;
} host_batch_t;

/* Called for a parameter before it is read (forward) or when its gradient is complete (backward). */
typedef struct host_param_hook {
    int (*call)(void *ctx, size_t param, glue_error_t *err);
    void *ctx;
} host_param_hook_t;

/* What LayerNorm keeps for its backward pass. */
typedef struct host_norm_kept {
    host_real_t *normal;            /* [n_tokens, hidden] */
    host_real_t *inverse_deviation; /* [n_tokens] */
} host_norm_kept_t;

typedef struct host_layer_kept {
    host_real_t *q, *k, *v, *context; /* [n_tokens, hidden] */
    host_real_t *probs;               /* compute.h */
    host_norm_kept_t attention_norm, out_norm;
    host_real_t *middle;         /* [n_tokens, hidden] between attention and feed-forward */
    host_real_t *up, *cdf, *act; /* [n_tokens, ffn] before GELU, its cdf, after it */
    host_real_t *out;            /* [n_tokens, hidden] */
} host_layer_kept_t;

/* Scratch of the backward pass. */
typedef struct host_backward_scratch {
    host_real_t *d, *d_branch, *d_context, *dq, *dk, *dv; /* [n_tokens, hidden] */
    host_real_t *d_ffn;                                   /* [n_tokens, ffn] */
    host_real_t *d_probs;                                 /* [longest, longest] */
    host_real_t *d_pooled;                                /* [n_sequences, hidden] */
} host_backward_scratch_t;

typedef struct host_encoder {
    host_model_t *model;
    host_real_t *arena; /* all arrays below lie in it */
    size_t arena_elems;
    size_t n_tokens;
    host_attention_shape_t attention;
    host_real_t *embedded; /* [n_tokens, hidden] */
    host_norm_kept_t embedding_norm;
    host_layer_kept_t *layers;                    /* [n_layers] */
    host_real_t *first, *pooled, *pooled_dropped; /* [n_sequences, hidden]: [CLS] rows, after tanh, after dropout */
    host_real_t *logits_there, *d_logits_there;   /* [n_sequences, n_labels] */
    host_real_t *logits, *d_logits;               /* the same in the host's memory */
    int32_t *positions;                           /* [n_tokens] in its sequence */
    size_t host_nbytes;                           /* of logits, d_logits and positions, one allocation */
    host_backward_scratch_t scratch;
    int has_dropout; /* of the batch in hand, as the next */
    uint64_t dropout_seed;
} host_encoder_t;

/* Where it computes: where the model's parameters lie. */
static inline host_compute_t *host_encoder_compute(const host_encoder_t *encoder) {
    return encoder->model->word_table->compute;
}

int host_encoder_init(host_encoder_t *encoder, host_model_t *model, glue_error_t *err);
void host_encoder_free(host_encoder_t *encoder);

/* Computes encoder->logits. hook may be NULL. dropout_seed is used (a new one for each batch) where is_training and
 * config.dropout > 0. */
int host_encoder_forward(host_encoder_t *encoder, const host_batch_t *batch, int is_training, uint64_t dropout_seed,
                         const host_param_hook_t *hook, glue_error_t *err);

/* Sum over the batch of cross entropy (or squared error); d_logits = its derivative * scale. After forward, which
 * leaves the logits. */
double host_encoder_loss(host_encoder_t *encoder, const host_batch_t *batch, double scale);

/* Adds gradients to every param->grad_sum, last layer first. Once a parameter's gradient is complete it is rounded
 * into param->grad and the hook, which may be NULL, is called. After loss, with the same batch. (backward.c) */
int host_encoder_backward(host_encoder_t *encoder, const host_batch_t *batch, const host_param_hook_t *hook,
                          glue_error_t *err);

/* The dropout stream of one place in the network; backward repeats forward's masks by it. */
enum { HOST_DROPOUT_EMBEDDING, HOST_DROPOUT_POOLED, HOST_DROPOUT_FIRST_LAYER, HOST_DROPOUTS_PER_LAYER = 2 };
void host_encoder_dropout(const host_encoder_t *encoder, uint64_t place, host_real_t *x, size_t n_elems);
