/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer.h - what the training loop asks of an optimizer, so that one loop serves the host's own AdamW and a plugin.
 *
 * Order of calls, all on the training thread:
 *   before_forward(param)   before the model reads a parameter, in forward order; also in evaluation
 *   grads_ready(param)      during backward, as soon as a parameter's gradient is complete, last layer first
 *   step                    after the last micro-batch's backward
 *   finish                  once, after the last step: afterwards the parameters hold the final weights
 * Gradients are read from param->grad. With PART they may change when grads_ready has returned (the optimizer sums
 * the parts); with TOTAL they stay as they are until step has returned and, on a device, the parameter's next
 * before_forward. A parameter that is not delivered in a step is
 * left as it is. Functions return 0, or -1 with a message. */
#pragma once

#include "glue/error.h"
#include "param.h"

#include <stddef.h>

/* Flags of grads_ready: one of PART and TOTAL, one of MORE and LAST. */
enum {
    HOST_GRAD_PART = 1,  /* this micro-batch's share */
    HOST_GRAD_TOTAL = 2, /* the sum over the micro-batches so far */
    HOST_GRAD_MORE = 4,  /* further micro-batches follow in this step */
    HOST_GRAD_LAST = 8
};

typedef struct host_hyper {
    double lr, beta1, beta2, eps, weight_decay;
} host_hyper_t;

typedef struct host_step_args {
    host_hyper_t groups[HOST_N_GROUPS];
    double clip_norm; /* clip the global gradient norm to it; 0 = off */
    int is_epoch_end;
} host_step_args_t;

/* A named number for the run's report. */
typedef struct host_counter {
    const char *name; /* static storage */
    double value;
} host_counter_t;

enum { HOST_MAX_COUNTERS = 32 };

typedef struct host_optimizer host_optimizer_t;

typedef struct host_optimizer_ops {
    const char *name;
    int (*before_forward)(host_optimizer_t *optimizer, size_t param, glue_error_t *err); /* may be NULL */
    int (*grads_ready)(host_optimizer_t *optimizer, size_t param, unsigned flags, glue_error_t *err);
    int (*step)(host_optimizer_t *optimizer, const host_step_args_t *args, glue_error_t *err);
    int (*finish)(host_optimizer_t *optimizer, glue_error_t *err); /* may be NULL */
    /* Writes at most HOST_MAX_COUNTERS counters, returns their number. */
    size_t (*counters)(host_optimizer_t *optimizer, host_counter_t out[HOST_MAX_COUNTERS]);
    void (*destroy)(host_optimizer_t *optimizer);
} host_optimizer_ops_t;

/* An implementation's own struct begins with this one. */
struct host_optimizer {
    const host_optimizer_ops_t *ops;
    host_params_t *params; /* borrowed; `param` above is an index into its list */
};
