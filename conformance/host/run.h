/* run.h - one training run from options to scores: the function that zf-host and the GLUE area call per seed.
 *
 * A host_workload_t (tokenized files) is read-only after loading and serves any number of runs. */
#ifndef ZF_CONFORMANCE_HOST_RUN_H
#define ZF_CONFORMANCE_HOST_RUN_H

#include "plugin_opt.h"
#include "train.h"

enum { HOST_MAX_OVERRIDES = 64 };

typedef enum host_optimizer_kind { HOST_OPTIMIZER_ADAMW, HOST_OPTIMIZER_PLUGIN } host_optimizer_kind_t;

typedef struct host_run_options {
    const glue_task_t *task;
    const char *data_dir;      /* official files; exactly one of data_dir and synthetic_dir */
    const char *synthetic_dir; /* generated corpus, written there when missing */
    const char *vocab_path;    /* NULL: vocab.txt in the data directory */
    size_t max_tokens;         /* longer texts are cut; also the number of positions */
    int keeps_vocabulary;      /* no dense renumbering of pieces */
    host_optimizer_kind_t optimizer;
    host_plugin_options_t plugin;
    const char *overrides[HOST_MAX_OVERRIDES]; /* where plugin.overrides may point */
    host_model_config_t model; /* n_pieces, max_positions, n_labels, is_regression come from the workload */
    host_train_options_t train;
} host_run_options_t;

/* Defaults: a small model that learns SST-2 from scratch in some 15 s of one core. */
void host_run_defaults(host_run_options_t *out);

typedef struct host_workload {
    const glue_task_t *task;
    host_corpus_t train, dev;
    int is_synthetic;
    size_t n_pieces;            /* that the model needs */
    size_t n_vocabulary_pieces; /* in the vocabulary file */
    size_t n_unknown_dev;       /* pieces of the dev file that the renumbering made [UNK] */
} host_workload_t;

int host_workload_load(const host_run_options_t *options, host_workload_t *out, glue_error_t *err);
void host_workload_free(host_workload_t *workload);

typedef struct host_run_result {
    host_scores_t scores;
    host_train_result_t train;
    size_t n_param_elems;
    host_counter_t counters[HOST_MAX_COUNTERS];
    size_t n_counters;
    char optimizer_name[64]; /* "adamw", "plugin 0.1.0" */
} host_run_result_t;

/* One run. *out is written on success only; release with host_run_result_free. */
int host_run(const host_workload_t *workload, const host_run_options_t *options, host_run_result_t *out,
             glue_error_t *err);
void host_run_result_free(host_run_result_t *result);

#endif
