/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/timeline.h - a step of training as events on the machine's resources: which of them hide behind compute.
 *
 * Model. A bucket is a stretch of the model. Five resources do one thing at a time, each in its own order: the device
 * (forward and backward of a bucket), the network, the link down, the host's workers (replay), the link up. An event
 * begins when its resource is free and what it needs is over:
 *
 *   forward     in forward order; needs the bucket's published values as publish_lag says
 *   backward    in backward order
 *   reduce      needs the bucket's backward: the sum over ranks
 *   down        needs the sum: gradients to the host
 *   replay      in forward order; needs all gradients of the step, for the norm decides the clip factor: what closes in
 *               a step is 1/S of each bucket, with S slots. Of several ranks each waits for all: at every step one of
 *               them closes most_close of what it has, after steps in which it closed less. With spares a bucket may
 *               be replayed once its own gradients are there (plugin/replay/early.h): the newest first, and where no
 *               spare is left in place of the oldest; so does the one that others wait for. No step clips
 *   up, gather  needs the replay: values to the device, and to the other ranks where each has a part
 *
 *   own         after the last backward, on the device: the plugin's own passes (statistics of gradients, the check of
 *               weights, updates of selected channels), which nothing hides; it does not hold up the replay
 *
 * Several steps are run through; the last ones, whole windows, are the answer. Not in the model: reading a batch, and
 * other users of the machine. */
#ifndef ZF_CLI_TIMELINE_H
#define ZF_CLI_TIMELINE_H

#include <stdint.h>

enum { TIMELINE_MAX_BUCKETS = 4096 };

typedef struct timeline_args {
    uint32_t n_buckets;
    const double *bucket_elems;   /* [n_buckets] in forward order */
    double forward_s, backward_s; /* of the whole model and one micro-batch, if nothing is waited for */
    uint32_t n_micro_batches;
    uint32_t update_interval, publish_lag;
    int fetches; /* lag 0: a bucket is waited for when it is used, else all of them before the forward */
    uint32_t n_ranks;
    int is_sharded;                   /* each rank has a part of the state: else all of it */
    double grad_nbytes, value_nbytes; /* of one element, on network and link */
    double reduce_factor;             /* network bytes per gradient byte: 1 reduce-scatter (and the share of what is
                                       * gathered again), 2 all-reduce */
    double down_nbytes_per_s, up_nbytes_per_s;
    double replay_elems_per_s;              /* elements x steps per second, of this rank's workers */
    double spare_elems;                     /* that may be replayed before their step; 0: none */
    double resident_elems;                  /* the first in forward order, which are updated on the device */
    double most_close;                      /* share of a rank's elements that close at one step; 0: 1/S */
    double net_nbytes_per_s, net_latency_s; /* of a rank, and of each collective */
    double own_s;                           /* per step */
} timeline_args_t;

typedef struct timeline {
    double step_s;    /* from one step's end to the next's */
    double compute_s; /* of it, forward and backward */
    /* how long each resource was busy in a step */
    double reduce_s, down_s, replay_s, up_s, gather_s, own_s;
} timeline_t;

/* 0: out of memory. */
int timeline_run(const timeline_args_t *args, timeline_t *out);

#endif
