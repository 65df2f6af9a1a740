/* SPDX-License-Identifier: Apache-2.0 */
/* glue_run.h - training runs of the reference host: which, how many at a time, and what is kept of them.
 *
 * Model: a campaign is a set of arms (an optimizer with its configuration) times seeds 1..n. Everything else - task,
 * data, model, steps, learning rate - is the same for all, and a seed fixes initial weights and data order, so runs of
 * one seed are pairs. Every run is a process of zf-host of its own, with one thread of matrix products; with n_ranks, a
 * run through the plugin is an mpirun of that many.
 *
 * A finished run is kept in OUT/runs under a name that holds the SHA-256 of everything that decides its result: the
 * arguments, the contents of the data files and of a pretrained encoder's, the host's program, the plugin, its INI
 * file, and the machine's processor (matrix products round differently on another). What is kept is not run again. */
#ifndef ZF_CONFORMANCE_CASES_GLUE_RUN_H
#define ZF_CONFORMANCE_CASES_GLUE_RUN_H

#include "glue/error.h"
#include "glue/sha256.h"
#include "glue/task.h"

#include <jansson.h>
#include <stddef.h>

enum { ZG_MAX_SETS = 72, ZG_MAX_PATH = 4096 };

typedef struct zg_arm {
    const char *name;              /* in file names and JSON: letters, digits, "-" */
    const char *title;             /* in tables and plots */
    int is_plugin;                 /* else the host's own AdamW */
    const char *sets[ZG_MAX_SETS]; /* "section.key=value", in order */
    size_t n_sets;
    size_t n_seeds; /* seeds 1..n_seeds */
    const char *lr; /* NULL = the campaign's */
} zg_arm_t;

typedef struct zg_campaign {
    const glue_task_t *task;
    const char *data_dir;  /* official files; NULL = the generated corpus */
    const char *model_dir; /* pretrained encoder; NULL = from scratch */
    const char *plugin_path, *config_path, *host_path;
    const char *out_dir;
    char synthetic_dir[ZG_MAX_PATH];
    size_t n_steps, batch, n_jobs;
    size_t n_ranks;                            /* of plugin arms, under mpirun; 0 = one process without MPI */
    const char *mpi_path;                      /* libzf_mpi.so, of n_ranks > 0 */
    const char *lr, *dtype, *products;         /* as on zf-host's command line */
    const char *max_tokens, *warmup, *dropout; /* the same, NULL = its default */
    const char *device, *blas;                 /* the same; NULL = the processor */
    int goes_on;                               /* a failed run of a plugin arm is a result (failure), not the end */
    const zg_arm_t *arms;
    size_t n_arms;
    /* Filled by zg_campaign_prepare. */
    size_t n_train, n_dev, n_second_dev, n_skipped;
    char train_hash[GLUE_SHA256_HEX_NBYTES], dev_hash[GLUE_SHA256_HEX_NBYTES], vocab_hash[GLUE_SHA256_HEX_NBYTES];
    char plugin_hash[GLUE_SHA256_HEX_NBYTES], host_hash[GLUE_SHA256_HEX_NBYTES], config_hash[GLUE_SHA256_HEX_NBYTES];
    char second_dev_hash[GLUE_SHA256_HEX_NBYTES];
    char mpi_hash[GLUE_SHA256_HEX_NBYTES]; /* empty without ranks */
    /* Of the encoder: config.json, model.safetensors, tokenizer_config.json; empty where there is none. */
    char model_hash[3][GLUE_SHA256_HEX_NBYTES];
} zg_campaign_t;

/* One finished run. */
typedef struct zg_result {
    int is_kept;   /* it was there already */
    json_t *json;  /* {"peak_rss_bytes": N, "report": what zf-host wrote}; owned */
    double metric; /* the task's, x 100 */
    double second; /* the score that GLUE reports beside it, x 100; NAN where the task has one */
    double dev_loss;
    double last_quarter; /* mean training loss of the last quarter of the steps */
    double seconds, peak_rss_nbytes, n_params;
    double *losses; /* [n_steps]; owned; NULL where the run failed */
    char *failure;  /* its last line, where the campaign goes on; owned */
} zg_result_t;

typedef enum zg_status { ZG_DONE, ZG_PLUGIN_FAILED, ZG_NOT_RUN } zg_status_t;

/* Generates the corpus where there is no data_dir, reads all data files once (their first fault is *err) and hashes
 * what decides the results. */
int zg_campaign_prepare(zg_campaign_t *campaign, glue_error_t *err);

/* Runs what is not kept; a progress bar on a terminal, else one line per run, both on stderr. *out_results
 * [arm * n_seeds_max + seed - 1] is allocated; entries of seeds that an arm does not have stay zero. A run of a plugin
 * arm that ends with a failure is ZG_PLUGIN_FAILED (unless the campaign goes_on), anything else that goes wrong
 * ZG_NOT_RUN; both fill *err. */
zg_status_t zg_campaign_run(const zg_campaign_t *campaign, zg_result_t **out_results, glue_error_t *err);
/* zf-conform's exit status for it; 0 of ZG_DONE means that there is something to judge. */
int zg_exit_status(zg_status_t status);
void zg_results_free(const zg_campaign_t *campaign, zg_result_t *results);

size_t zg_campaign_max_seeds(const zg_campaign_t *campaign);
const zg_result_t *zg_result_of(const zg_campaign_t *campaign, const zg_result_t *results, size_t arm, size_t seed);

/* A counter of the optimizer, mean over the arm's seeds; NaN where zf-host does not report it. */
double zg_mean_counter(const zg_campaign_t *campaign, const zg_result_t *results, size_t arm, const char *name);
/* Mean over the arm's seeds of the first n_seeds; member: offsetof a double of zg_result_t. */
double zg_mean(const zg_campaign_t *campaign, const zg_result_t *results, size_t arm, size_t n_seeds, size_t member);

/* The host program: path if given, else zf-host or host/zf-host beside this program. */
int zg_find_host(const char *path, char *out, size_t out_nbytes, glue_error_t *err);

/* Makes a folder and those above it. */
int zg_make_folder(const char *path, glue_error_t *err);

#endif
