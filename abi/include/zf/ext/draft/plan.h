/* SPDX-License-Identifier: Apache-2.0 */
/* zf/ext/draft/plan.h - "zf.plan/0": what an instance would need, asked without making one: no thread, no memory of
 * its size, no device. The figures come from the functions that lay out the memory of bind_params.
 * Draft: may change or go with any release. */
#ifndef ZF_EXT_DRAFT_PLAN_H
#define ZF_EXT_DRAFT_PLAN_H

#include "zf/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZF_EXT_PLAN "zf.plan/0"

typedef struct zf_plan_args {
    uint32_t struct_size;
    uint32_t n_ranks; /* of the training job; 0 = 1 */
    uint32_t rank;    /* whose plan it is, below n_ranks */
    uint32_t reserved0;
    const zf_create_args_t *create; /* as create takes them; of its host `group` of zf.collectives/0 alone is called,
                                     * for the process groups that are declared */
    const zf_bind_args_t *bind;     /* as bind_params takes them */
    const void *next;               /* zf_chained_t, or NULL */
} zf_plan_args_t;

typedef struct zf_plan { /* output struct; of one rank. Bytes of host and device are those of zf.stats/1 */
    uint32_t struct_size;
    uint32_t n_buckets;       /* several ranks: exchanged by themselves; one rank: 0 */
    uint32_t update_interval; /* S, or the longest that auto may make */
    uint32_t publish_lag;
    uint64_t host_nbytes;         /* everything in host memory; the next three are of it: */
    uint64_t host_state_nbytes;   /* w, m, v of what is not resident */
    uint64_t host_slots_nbytes;   /* gradient slots */
    uint64_t host_publish_nbytes; /* what waits to be published */
    uint64_t device_nbytes;       /* from bind_params on, besides the host's own parameters and gradients */
    uint64_t staging_nbytes;      /* more of it, once gradients are borrowed for a hook alone, strided, or exchanged
                                   * (stage 2: by a host that delivers them bucket by bucket) */
    uint64_t sums_nbytes;         /* more of it, once a step's gradient comes in several parts */
    uint64_t largest_bucket_nbytes;
    uint64_t n_elems;       /* trainable, of all ranks together */
    uint64_t n_owned_elems; /* whose state this rank keeps */
    uint64_t n_matrices;
    uint64_t n_channels;
    uint64_t n_selected_elems;
    uint64_t slots_peak_milli; /* slots per parameter x 1000, in a model of the schedule */
    uint64_t slots_mean_milli;
    uint64_t least_close_elems; /* of n_owned_elems, those whose windows close at one step: the fewest over the steps */
    uint64_t most_close_elems;  /* the most over the steps; 0 where all is resident */
    uint64_t host_exchange_nbytes; /* of host_nbytes: what ranks gather there; copies of what they exchange, of a device
                                    * with memory of its own */
} zf_plan_t;

typedef struct zf_plan_ext {
    uint32_t struct_size;
    uint32_t reserved0;
    /* Plans what bind_params would, and says what it would map. The device need not be there. Data of the tensors is
     * not read: their addresses have to be distinct, as bind_params wants it, and may be reserved address space. Memory
     * of the machine does not count; [host] memory_limit_mib takes room from early replays, and refuses nothing.
     * Takes memory of some dozen bytes per 65,536 elements, and some hundred per parameter, while it runs.
     * [any-thread] */
    zf_status_t (*plan)(const zf_plan_args_t *args, zf_plan_t *out, zf_error_t *err);
} zf_plan_ext_t;

#ifdef __cplusplus
}
#endif
#endif
