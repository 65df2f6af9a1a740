/* SPDX-License-Identifier: Apache-2.0 */
/* train.h - the training loop and evaluation, the same for every optimizer.
 *
 * Per step: `accumulation` micro-batches of `batch` rows each; gradients of the mean loss over all their rows;
 * gradients handed to the optimizer layer by layer DURING the last backward (or, with deliver_parts, during every
 * backward); then the optimizer's step with this step's learning rate. Everything that is random comes from the seed:
 * data order (shuffled anew each epoch, rows are drawn from the endless sequence of epochs) and dropout. A run is
 * reproducible to the bit on one machine. */
#pragma once

#include "corpus.h"
#include "optimizer.h"

#include <stdio.h>

typedef struct host_train_options {
    uint64_t seed;
    size_t n_steps, batch, accumulation; /* batch: rows of one micro-batch */
    host_hyper_t hyper;                  /* lr is the peak; weight_decay that of the decay group */
    double clip_norm;
    double warmup_share; /* of n_steps: the rate rises linearly to its peak, then falls linearly to 0 */
    int deliver_parts;   /* with accumulation: deliver every micro-batch's share instead of the total */
    FILE *progress;      /* a line every 10 % of the steps; NULL = silent */
} host_train_options_t;

typedef struct host_train_result {
    double *losses; /* [n_steps] mean training loss of each step; release with host_train_result_free */
    size_t n_steps;
    double seconds;      /* of all steps */
    double step_seconds; /* median of the last half of them */
} host_train_result_t;

/* Trains the model with the optimizer, which is finished at the end. *out is written on success only. A loss that is
 * not finite is an error that names the step. */
int host_train(host_model_t *model, host_optimizer_t *optimizer, const host_corpus_t *corpus,
               const host_train_options_t *options, host_train_result_t *out, glue_error_t *err);
void host_train_result_free(host_train_result_t *result);

/* The learning rate of a step from 0: linear warm-up, then linear decay. */
double host_learning_rate(const host_train_options_t *options, size_t step);

/* What a model says of each row of a corpus. */
typedef struct host_predictions {
    double *values; /* [n_rows] the class of the largest logit, or the logit of a regression */
    size_t n_rows;
    double loss; /* mean */
} host_predictions_t;

/* Asks the model as it is. optimizer may be NULL; else it is told before a parameter is read. *out is written on
 * success only; release with host_predictions_free. */
int host_evaluate(host_model_t *model, host_optimizer_t *optimizer, const host_corpus_t *corpus,
                  host_predictions_t *out, glue_error_t *err);
void host_predictions_free(host_predictions_t *predictions);
