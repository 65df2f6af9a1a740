/* SPDX-License-Identifier: Apache-2.0 */
/* harness/rig.h - an instance of the plugin with n equal tensors, for what is measured: all of it through the ABI and
 * zf_loader.
 *
 * A rig owns its parameters and gradients (one allocation each, tensors one after the other), the instance and, where
 * the stream is a queue, the queue. Any failure of the plugin ends the program with its message: a measurement that
 * went wrong has no figures. One thread uses a rig at a time. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "zf/ext/cpu.h"
#include "zf/ext/draft/collectives.h"
#include "zf/ext/draft/plan.h"
#include "zf_loader.h"

/* How the host computes and hands over its gradients. */
typedef enum rig_mode {
    RIG_COPY,  /* on the calling thread; the hook has finished with the memory when it returns */
    RIG_ASYNC, /* on the calling thread; memory stays untouched until the fence (ZF_GRAD_ASYNC_READ) */
    RIG_QUEUE, /* on a queue of zf.cpu/1 */
    RIG_N_MODES
} rig_mode_t;

typedef struct rig_spec {
    uint32_t n_tensors;
    int32_t ndim;
    int64_t shape[2]; /* of each tensor */
    zf_dtype_t dtype; /* of parameters and gradients */
    rig_mode_t mode;
    const char *config;             /* INI text; NULL = defaults */
    const zf_rule_callback_t *rule; /* NULL: AdamW */
    const zf_group_decl_t *groups;  /* [n_groups], in place of rule: tensor i is of group i % n_groups; NULL: one */
    uint32_t n_groups;
    uint32_t flags;                    /* ZF_PARAM_... of each tensor */
    int32_t home;                      /* ZF_HOME_... of each */
    uint32_t n_tied;                   /* parameters behind the tensors: second names of the first ones */
    const zf_collectives_ext_t *ranks; /* what the host gives of other ranks; NULL: there are none */
    int does_not_clip;                 /* else every step is clipped */
    int goes_by_shards;                /* ZF_CREATE_CAP_SHARDS */
    int is_planned;                    /* by zf.plan/0, before it is bound */
    int cannot_fetch;                  /* parameters are read in the host's own memory, when step has returned */
} rig_spec_t;

typedef struct rig {
    const zf_loader_t *loader;
    const zf_plugin_t *zf;
    const zf_cpu_ext_t *cpu; /* NULL: the plugin has no queues */
    rig_spec_t spec;
    zf_host_t host;
    zf_create_args_t create;
    zf_plan_t plan; /* zero where the plugin has no zf.plan/0 */
    zf_bind_report_t bound;
    zf_instance_t *instance;
    zf_cpu_queue_t *queue; /* NULL but for RIG_QUEUE */
    zf_stream_t stream;
    size_t tensor_nbytes, nbytes; /* of one tensor, of all */
    void *params, *grads;
    zf_tensor_t *param_tensors, *grad_tensors; /* [n_tensors] */
    zf_grad_item_t *items;                     /* [n_tensors] PART | LAST */
    zf_group_hyper_t hyper;                    /* of the only group */
    const zf_group_hyper_t *hypers;            /* [spec.n_groups] where there are groups */
} rig_t;

/* Memory of whole pages, huge ones where the system has them; ends the program if there is none. */
void *rig_allocate(size_t nbytes);
void rig_free(void *at, size_t nbytes);

/* Ends the program if a call failed. */
void rig_check(zf_status_t st, const zf_error_t *err);

/* Parameters 0.02, gradients uniform in (-0.01, 0.01); bound, nothing delivered. */
void rig_open(rig_t *rig, const zf_loader_t *loader, const rig_spec_t *spec);
void rig_close(rig_t *rig);

/* Writes every gradient again (the same values) on the calling thread, as a backward pass would have. */
void rig_touch(rig_t *rig);

/* grads_ready for tensors [first, first + n), per_call at a time; out_done may be NULL, else it is the last call's. */
void rig_deliver(rig_t *rig, uint32_t first, uint32_t n, uint32_t per_call, zf_fence_t *out_done);

/* Waits up to a minute. */
void rig_wait(const rig_t *rig, const zf_fence_t *fence);

/* param_fetch of tensors [first, first + n), at most RIG_MAX_FETCHED, or n = 0: of all; waits for their values. */
enum { RIG_MAX_FETCHED = 8 };
void rig_fetch(const rig_t *rig, uint32_t first, uint32_t n);

/* param_release of tensors [first, first + n), at most RIG_MAX_FETCHED. */
void rig_release(const rig_t *rig, uint32_t first, uint32_t n);

/* step with ZF_STEP_... flags. */
void rig_step(rig_t *rig, uint32_t flags);

/* ZF_QUIESCE_DRAIN or FLUSH: nothing runs when it returns. */
void rig_quiesce(rig_t *rig, int32_t mode);

/* ns of the smallest possible hook, poll. */
double rig_poll_ns(const rig_t *rig);

uint64_t rig_counter(const rig_t *rig, const char *name);
