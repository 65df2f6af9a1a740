/* SPDX-License-Identifier: Apache-2.0 */
/* zf/ext/stats.h - "zf.stats/1": counters of an instance, for metrics and for the conformance suite.
 * All counters rise from create() on. Bytes are counted where they are copied, not derived from a formula. */
#ifndef ZF_EXT_STATS_H
#define ZF_EXT_STATS_H

#include "zf/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZF_EXT_STATS "zf.stats/1"

typedef struct zf_stats { /* output struct */
    uint32_t struct_size;
    uint32_t n_workers;
    uint64_t steps;         /* submitted */
    uint64_t steps_applied; /* finished and applied */
    uint64_t steps_skipped;
    uint64_t window_closes; /* cohort windows closed */
    uint64_t reselects;     /* cohort selections chosen */
    uint64_t channels_entered;
    uint64_t channels_left;
    uint64_t down_grad_nbytes;    /* link, device to host: gradients */
    uint64_t down_record_nbytes;  /* ... step scalars and importance records */
    uint64_t up_publish_nbytes;   /* link, host to device: published values */
    uint64_t up_enter_nbytes;     /* ... state of entering channels and column maps */
    uint64_t lost_overlap_nbytes; /* gradients shipped early and then replaced (also in down_grad_nbytes) */
    uint64_t host_planned_nbytes;
    uint64_t host_measured_nbytes; /* mapped now */
    uint64_t device_planned_nbytes;
    uint64_t device_measured_nbytes;
    uint64_t slot_chunks_peak; /* pool pieces in use, peak */
    uint64_t slot_chunks_total;
    uint64_t stall_replay_ns; /* device waited for a replay or its publication */
    uint64_t stall_select_ns; /* device waited for a selection or entering state */
    uint64_t stall_pool_ns;   /* down copies waited for a free slot chunk */
    uint64_t host_wait_ns; /* hooks waited: the host was too many steps ahead, or HOST_THREAD waited for the device */
    uint64_t replay_ns;    /* worker time in replays, summed over workers */
    uint64_t replay_elems; /* elements x applied slots */
    uint64_t overwritten_elems; /* of the blocks in which weights were found that the host wrote unannounced */
    uint64_t closes_by_data;    /* of window_closes: before the bound (update_interval = auto) */
    /* The meter of lateness, all parameter groups together (zf_lateness_t); 0 where it is off */
    uint64_t lateness_steps; /* that are counted in lateness_sum */
    double lateness_sum;
    double lateness; /* of the newest of them */
    /* Windows, as the configuration says */
    uint32_t update_interval; /* S, or the longest that auto may make */
    uint32_t publish_lag;     /* 0 or 1 */
    uint64_t reserved0;
    uint64_t reserved1;
    /* Several ranks; all 0 on one */
    uint64_t exchanges;      /* collectives of zf.collectives/1 that are over */
    uint64_t sent_nbytes;    /* by this rank, to all others together */
    uint64_t exchange_ns;    /* time in them, on the plugin's thread for it */
    uint64_t stall_ranks_ns; /* device waited for sums over the ranks */
} zf_stats_t;

/* What lateness cost: with g the loss's gradient at the weights that the model read, unscaled and not clipped, and w
 * the weights that the update rule without lateness would have shown, the sum of g * (visible - w) over the channels
 * that were deferred is loss(visible) - loss(w) to first order. It is an estimate from a sample ([log] lateness). Where
 * the loss curves it says too much, and where the difference is small, as with predict = auto, its sign may be another.
 * It is of single steps: how far a run is from one without lateness, which compounds, it does not tell. Steps of warm-up cost nothing; so does a step that is skipped, and for up to two
 * windows what params_changed, a load or bind_params has changed. Needs deferred = replay and a built-in rule. On
 * several ranks from [shard] stage = 1 on it is the sum over all ranks' parts of the state, the same bits on each: a
 * step is complete once a later step, or DISCARD, has told the others of it. */
typedef struct zf_lateness { /* output struct */
    uint32_t struct_size;
    uint32_t group;   /* of parameters */
    uint64_t step;    /* as in zf_step_report_t */
    double loss;      /* of that step */
    double sum;       /* of all steps counted so far */
    uint64_t n_steps; /* ... how many */
} zf_lateness_t;

/* Where the time of a step went. Counters are what zf_stats_t's grew by from the return of the `step` before (the first
 * one: from create) to this one's, so the records of all steps add up to zf_stats_t. It is the host's view of a step:
 * where the device is behind the host, its stalls and what workers and ranks did for a step may be counted with a later
 * one; what was published at a fetch is counted with the step behind it, as is a DISCARD. */
typedef struct zf_step_record { /* output struct */
    uint32_t struct_size;
    int32_t is_finished;      /* on the device; else what the report of the step says is 0: */
    uint64_t step;            /* as in zf_step_report_t */
    int32_t applied;          /* ... of the report */
    int32_t skip_reason;      /* ... ZF_SKIP_... */
    uint32_t n_present;       /* ... */
    int32_t has_lateness;     /* 1: lateness is known */
    uint32_t update_interval; /* as in zf_stats_t */
    uint32_t publish_lag;
    double grad_norm; /* of the report */
    double clip_factor;
    double lateness;  /* what it cost at this step, all parameter groups together (zf_lateness_t) */
    uint64_t step_ns; /* from return to return */
    uint64_t host_wait_ns;
    uint64_t stall_replay_ns;
    uint64_t stall_select_ns;
    uint64_t stall_pool_ns;
    uint64_t stall_ranks_ns;
    uint64_t replay_ns;
    uint64_t exchange_ns;
    uint64_t replay_elems;
    uint64_t window_closes;
    uint64_t reselects;
    uint64_t down_grad_nbytes;
    uint64_t down_record_nbytes;
    uint64_t up_publish_nbytes;
    uint64_t up_enter_nbytes;
    uint64_t lost_overlap_nbytes;
    uint64_t exchanges;
    uint64_t sent_nbytes;
} zf_step_record_t;

typedef struct zf_stats_ext {
    uint32_t struct_size;
    uint32_t reserved0;
    /* [any-thread] while the instance lives. Reads the counters. They are each correct, not a common snapshot; after
     * DRAIN they are. */
    zf_status_t (*read)(zf_instance_t *instance, zf_stats_t *out, zf_error_t *err);
    /* [any-thread] while the instance lives. What lateness cost: of group `group` at `step`; 0 = the newest step that
     * is complete, which is one whose windows are all replayed: up to two windows behind the trainer. The newest 128
     * are kept. ZF_IN_PROGRESS where the step is not complete, not kept, or there is none yet: then step and loss are
     * 0. ZF_DISABLED where the meter is off; ZF_ERR_ARGUMENT where there is no such group. */
    zf_status_t (*lateness)(zf_instance_t *instance, uint64_t step, uint32_t group, zf_lateness_t *out,
                            zf_error_t *err);
    /* [any-thread] while the instance lives. Where the time of `step` went; 0 = the newest step that a hook has found
     * to be finished. The newest 128 are kept. ZF_IN_PROGRESS where the step is not finished, which the next `step` or
     * `poll` may find out, and where it is not kept, not submitted or there is none yet: then out->step is 0. */
    zf_status_t (*step_record)(zf_instance_t *instance, uint64_t step, zf_step_record_t *out, zf_error_t *err);
} zf_stats_ext_t;

#ifdef __cplusplus
}
#endif
#endif
