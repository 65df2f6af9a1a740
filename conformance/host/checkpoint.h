/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h - saves a training run between two steps, and goes on with it in another process to the same bits.
 *
 * DIR/checkpoint-STEP/ holds
 *   zf_host.json       the index: steps done, their losses, what decides the run, size and SHA-256 of the files below,
 *                      and the SHA-256 of the index itself
 *   model.safetensors  fp32 weights and, with it, config.json: Hugging Face's layout. With the plugin they are what a
 *                      FLUSH would leave, so they are a whole model at any step
 *   adamw.safetensors  or plugin/: the optimizer's state
 * Rows, dropout masks and rates of later steps follow from the seed and the step's number and are not saved.
 *
 * Crash-safe: written as checkpoint-STEP.part, every file and folder synced, then renamed; what is dropped is renamed
 * to .part before it is removed. So a checkpoint-STEP is whole whenever the process dies, and a .part is rubbish that
 * the next run removes. One run at a time may save in a folder. Cost: the state is written once and read once more
 * for its digests; training waits. */
#ifndef ZF_CONFORMANCE_HOST_CHECKPOINT_H
#define ZF_CONFORMANCE_HOST_CHECKPOINT_H

#include "run.h"

enum { HOST_CHECKPOINT_PATH_NBYTES = 4096 };

typedef struct host_checkpoint {
    const host_run_options_t *options;
    const host_workload_t *workload;
    host_model_t *model;
    host_optimizer_t *optimizer;
} host_checkpoint_t;

/* Writes options->save_dir/checkpoint-N_DONE and drops all but the newest options->keep. On an error the older ones
 * are as they were. */
int host_checkpoint_save(const host_checkpoint_t *c, size_t n_done, const double *losses, glue_error_t *err);

/* Checks everything in folder, a checkpoint-STEP, against its index and its index against this run, then loads the
 * optimizer and with it the weights. losses has room for all steps of the run. A refusal before the optimizer's own
 * load changes nothing; after it the run must not be used. */
int host_checkpoint_load(const host_checkpoint_t *c, const char *folder, size_t *out_n_done, double *losses,
                         glue_error_t *err);

/* ---- the folder of checkpoints (checkpoint_folder.c) --------------------------------------------------------------
 */

#define HOST_CHECKPOINT_INDEX "zf_host.json"

/* The checkpoint that dir is, or the newest in it. */
int host_checkpoint_find(const char *dir, char out[HOST_CHECKPOINT_PATH_NBYTES], glue_error_t *err);

/* Makes dir ready for saving: makes it where it is missing, removes what a killed process left, and refuses one whose
 * newest checkpoint is not the one that this run resumes (NULL: none), so that no other run's is ever dropped. */
int host_checkpoint_folder_prepare(const char *dir, const char *resumed, glue_error_t *err);

/* Makes dir/checkpoint-STEP.part, empty; and, when its files are in it and synced, makes it the checkpoint. */
int host_checkpoint_folder_begin(const char *dir, size_t step, char out_part[HOST_CHECKPOINT_PATH_NBYTES],
                                 glue_error_t *err);
int host_checkpoint_folder_commit(const char *dir, size_t step, glue_error_t *err);

/* Removes a .part and all that is in it. */
int host_checkpoint_folder_remove(const char *part, glue_error_t *err);

/* Drops all but the newest `keep`. */
int host_checkpoint_folder_drop(const char *dir, size_t keep, glue_error_t *err);

#endif
