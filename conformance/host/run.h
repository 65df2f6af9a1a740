/* SPDX-License-Identifier: Apache-2.0 */
/* run.h - one training run from options to scores: the function that zf-host and the GLUE area call per seed.
 *
 * A host_workload_t (tokenized files) is read-only after loading and serves any number of runs. */
#ifndef ZF_CONFORMANCE_HOST_RUN_H
#define ZF_CONFORMANCE_HOST_RUN_H

#include "plugin_opt.h"
#include "pretrained.h"
#include "train.h"

typedef enum host_optimizer_kind { HOST_OPTIMIZER_ADAMW, HOST_OPTIMIZER_PLUGIN } host_optimizer_kind_t;

typedef struct host_run_options {
    const glue_task_t *task;
    const char *data_dir;      /* official files; exactly one of data_dir and synthetic_dir */
    const char *synthetic_dir; /* generated corpus, written there when missing */
    const char *model_dir;     /* fine-tune this encoder (pretrained.h); NULL: from scratch */
    const char *vocab_path;    /* NULL: vocab.txt of the model, else in the data directory */
    size_t max_tokens;         /* longer texts are cut; also the number of positions */
    int keeps_vocabulary;      /* no dense renumbering of pieces (corpus.h) */
    host_optimizer_kind_t optimizer;
    host_plugin_options_t plugin;
    host_model_config_t model; /* n_pieces, max_positions, n_labels, is_regression come from the workload; with a
                                  model_dir all but dropout and dtype come from there */
    host_train_options_t train;
    host_compute_t *compute; /* a device to train on, which outlives the run; NULL: the processor */
} host_run_options_t;

/* Defaults: a small model that learns SST-2 from scratch in some 15 s of one core. */
void host_run_defaults(host_run_options_t *out);

/* What a fine-tune from a pretrained encoder does otherwise: rate, steps and length of the texts, by options->task. */
void host_run_fine_tune_defaults(host_run_options_t *options);

typedef struct host_workload {
    const glue_task_t *task;
    host_corpus_t train, dev;
    host_corpus_t second_dev; /* of a task with a second_dev_file; else no row */
    int is_pretrained;
    host_pretrained_t pretrained;
    int32_t *kept_pieces; /* [n_pieces] place in the vocabulary file; NULL: all are kept, in order */
    int is_synthetic;
    size_t n_pieces;            /* that the model needs */
    size_t n_vocabulary_pieces; /* in the vocabulary file */
    size_t n_unknown_dev;       /* pieces of the dev file that the renumbering made [UNK]; from scratch only */
} host_workload_t;

int host_workload_load(const host_run_options_t *options, host_workload_t *out, glue_error_t *err);
void host_workload_free(host_workload_t *workload);

typedef struct host_run_result {
    host_scores_t scores;
    host_scores_t second_scores; /* on second_dev, where there is one */
    host_train_result_t train;
    host_model_config_t model; /* as it was trained */
    size_t n_param_elems;
    host_counter_t counters[HOST_MAX_COUNTERS];
    size_t n_counters;
    char optimizer_name[64]; /* "adamw", "plugin 0.1.0" */
} host_run_result_t;

/* One run. *out is written on success only; release with host_run_result_free. */
int host_run(const host_workload_t *workload, const host_run_options_t *options, host_run_result_t *out,
             glue_error_t *err);
void host_run_result_free(host_run_result_t *result);

/* The score beside the task's metric, x 100: of second_metric or on second_dev. Returns its name, or NULL where the
 * task has one score. */
const char *host_run_second_score(const host_workload_t *workload, const host_run_result_t *result, double *out_value);

#endif
