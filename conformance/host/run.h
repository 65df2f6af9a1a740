/* SPDX-License-Identifier: Apache-2.0 */
/* run.h - one training run from options to predictions. Its examples are read only and serve any number of runs. */
#pragma once

#include "examples.h"
#include "plugin_opt.h"
#include "train.h"

typedef enum host_optimizer_kind {
    HOST_OPTIMIZER_ADAMW,
    HOST_OPTIMIZER_DOCUMENTED,
    HOST_OPTIMIZER_PLUGIN
} host_optimizer_kind_t;

typedef struct host_run_options {
    host_optimizer_kind_t optimizer;
    host_plugin_options_t plugin;
    host_model_config_t model; /* what the examples' shape leaves open */
    host_train_options_t train;
    host_compute_t *compute; /* a device to train on, which outlives the run; NULL: the processor */
} host_run_options_t;

/* Defaults: a small model that learns SST-2 from scratch in some 15 s of one core. */
void host_run_defaults(host_run_options_t *out);

typedef struct host_run_result {
    host_predictions_t dev, second_dev; /* the last one empty where there is no such set */
    host_train_result_t train;
    host_model_config_t model; /* as it was trained */
    size_t n_param_elems;
    host_counter_t counters[HOST_MAX_COUNTERS];
    size_t n_counters;
    char optimizer_name[64]; /* "adamw", "plugin VERSION" */
    uint64_t *digests;       /* [n_digests] of each parameter's values after the last step; on a device 0 of them */
    size_t n_digests;
} host_run_result_t;

/* One run. *out is written on success only; release with host_run_result_free. */
int host_run(const host_examples_t *examples, const host_run_options_t *options, host_run_result_t *out,
             glue_error_t *err);
void host_run_result_free(host_run_result_t *result);
