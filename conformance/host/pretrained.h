/* SPDX-License-Identifier: Apache-2.0 */
/* pretrained.h - a pretrained encoder in a folder as Hugging Face's libraries leave it.
 *
 * Read are config.json (what the model is), model.safetensors (weights), vocab.txt and, where it is there,
 * tokenizer_config.json (whether letters are folded). Supported is BERT: post-LayerNorm, learned absolute positions,
 * exact GELU. Anything else that a file states is refused by name instead of being computed wrongly.
 * Tensors may be named with or without "bert." in front, and LayerNorm's "gamma" and "beta" as the first releases had
 * them. Tensors that the encoder does not have (language-model heads, position_ids, another task's classifier) are
 * left unread. */
#ifndef ZF_CONFORMANCE_HOST_PRETRAINED_H
#define ZF_CONFORMANCE_HOST_PRETRAINED_H

#include "model.h"
#include "safetensors.h"

enum { HOST_PRETRAINED_PATH_NBYTES = 4096 };

typedef struct host_pretrained {
    /* As the file has it: all pieces and positions. n_labels, dropout and dtype are the caller's. */
    host_model_config_t config;
    int keeps_case; /* of letters: do_lower_case is false */
    int has_pooler;
    char vocab_path[HOST_PRETRAINED_PATH_NBYTES];
    host_safetensors_t *weights;
} host_pretrained_t;

/* Reads the configuration, opens the weights and checks that every tensor of the encoder is there in its shape. *out is
 * written on success only; release with host_pretrained_free. */
int host_pretrained_open(const char *folder, host_pretrained_t *out, glue_error_t *err);
void host_pretrained_free(host_pretrained_t *pretrained);

/* Overwrites the model's encoder, and its pooler where the file has one; the classifier is left as it is. The model has
 * the file's shapes but may have fewer positions, and fewer pieces when pieces, [config.n_pieces] of the model, says
 * which row of the file each of its rows is; NULL: the first ones. */
int host_pretrained_fill(const host_pretrained_t *pretrained, const int32_t *pieces, host_model_t *model,
                         glue_error_t *err);

#endif
