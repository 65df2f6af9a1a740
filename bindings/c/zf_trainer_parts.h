/* SPDX-License-Identifier: Apache-2.0 */
/* zf_trainer_parts.h - what the files of zf_trainer share; no header of a trainer's. zf_trainer_bind.c has what comes
 * up to bind(), zf_trainer_step.c what comes after it. Everything is kept in growing arrays until bind(), which
 * describes them to the plugin; from then on no array moves, since descriptors point into them. */
#ifndef ZF_TRAINER_PARTS_H
#define ZF_TRAINER_PARTS_H

#include <pthread.h>

#include "zf_trainer.h"

#define MAX_GROUPS 64
#define MOST_RANGES 1024 /* deliveries of a step by ranges before one of them is waited for */

typedef struct array {
    char *name;
    void *w, *g;
    zf_dtype_t w_dtype, g_dtype;
    int64_t shape[ZF_MAX_NDIM];
    int32_t ndim, n_batch_axes;
    uint32_t group;
    int is_ready; /* handed over in this step, wholly or in part */
} array_t;

struct zf_trainer {
    zf_error_t error;
    zf_status_t status; /* of the first error; 0 = none */
    unsigned flags;
    zf_loader_t *loader;
    const zf_plugin_t *zf;
    zf_instance_t *instance;
    zf_host_t host;
    zf_stream_t stream;
    char *config_path;
    char **settings; /* [n_settings] */
    uint32_t n_settings;
    /* Settings that differ, of the plugin's groups; of each the trainer's own group, which may have a rate of its own.
     */
    zf_group_hyper_t groups[MAX_GROUPS];
    uint32_t of[MAX_GROUPS];
    uint32_t n_groups, group; /* of what is added next */
    double rates[MAX_GROUPS]; /* [n_own]; below 0: step()'s */
    uint32_t n_own;
    zf_dtype_t w_dtype, g_dtype; /* of what is added next */
    double clip_norm, unscale;
    array_t *arrays; /* [n_arrays] */
    uint32_t n_arrays;
    zf_tensor_t *grads;               /* [n_arrays] */
    zf_grad_item_t *items;            /* [n_arrays] of one delivery */
    zf_fence_t *fences;               /* [n_fences] of this step's deliveries that have not been waited for */
    uint32_t *ids;                    /* [n_arrays] of the plugin */
    uint32_t n_fences, n_most_fences; /* room is kept for one more: what step() delivers */
    pthread_mutex_t lock;             /* guards error, items, fences and is_ready while several threads are inside */
    uint64_t n_steps;                 /* submitted, those of a loaded checkpoint too */
    uint64_t n_seen, n_waits;
    uint64_t n_skipped; /* steps that were seen to be skipped */
    zf_step_report_t report;
    zf_bind_report_t bind_report;
    char *note; /* of the checkpoint that was loaded last, or NULL */
};

/* Keeps the first error. */
__attribute__((format(printf, 3, 4))) zf_status_t zf_trainer_fail(zf_trainer_t *t, zf_status_t status,
                                                                  const char *format, ...);
/* Takes what the plugin or the loader returned, with the message in t->error. What may succeed later does not stay. */
zf_status_t zf_trainer_take(zf_trainer_t *t, zf_status_t status);
/* 0 if the call may go on; the stage is that before or after bind(). */
zf_status_t zf_trainer_check(zf_trainer_t *t, int needs_bound, const char *function);

#endif
