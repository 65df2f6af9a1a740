/* SPDX-License-Identifier: Apache-2.0 */
/* examples.h - what a run trains on: the file that "zf-conform examples" writes (accuracy/examples.py).
 *
 * A safetensors file. train.ids, train.types (I32) hold the pieces of all rows, one row after the other,
 * train.lengths (I32) the pieces of each row, train.targets (F64) a class number or a score; dev.* and, where the task
 * has a second dev set, second_dev.* likewise. For a fine-tune the encoder's tensors (F32) lie beside them under the
 * model's own names. The metadata say what the model must be. Little-endian machines alone read it. */
#pragma once

#include "corpus.h"
#include "lib/safetensors.h"
#include "model.h"

typedef struct host_examples {
    host_corpus_t train, dev, second_dev; /* the last one without a row where there is none */
    int is_pretrained;
    /* n_pieces, max_positions, n_labels and is_regression; with is_pretrained everything but dropout and dtype. */
    host_model_config_t shape;
    char task[32];
    size_t n_skipped;      /* lines of the task's files that were no rows */
    zf_safetensors_t file; /* holds the weights */
} host_examples_t;

/* *out is written on success only; release with host_examples_close. */
int host_examples_open(const char *path, host_examples_t *out, glue_error_t *err);
void host_examples_close(host_examples_t *examples);

/* Overwrites the model's encoder, and its pooler where the file has one; the classifier is left as it is. The model has
 * examples->shape. */
int host_examples_fill(const host_examples_t *examples, host_model_t *model, glue_error_t *err);
