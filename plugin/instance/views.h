/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/views.h - the parts of a run that each room takes. A view is made once, with the run (run.c): it
 * points to the parts that its functions work on, and to no other. */
#pragma once

#include "instance/engine.h"
#include "plan/bucket.h"
#include "plan/params.h"
#include "plan/plan.h"

typedef struct zfi_clock zfi_clock_t;
typedef struct zfi_rows zfi_rows_t;
typedef struct zfi_slots zfi_slots_t;
typedef struct zfi_selection zfi_selection_t;
typedef struct zfi_host_state zfi_host_state_t;
typedef struct zfi_device_state zfi_device_state_t;
typedef struct zfi_reduction zfi_reduction_t;
typedef struct zfi_shards zfi_shards_t;
typedef struct zfi_run_memory zfi_run_memory_t;
typedef struct zfi_writes zfi_writes_t;
typedef struct zfi_unfetched zfi_unfetched_t;

/* Which step a slot belongs to, and when windows close (schedule/). The host's thread's. */
typedef struct zfi_windows {
    const zfi_plan_t *plan;
    zfi_clock_t *clock;
    zfi_rows_t *rows;
    zfi_slots_t *slots;
} zfi_windows_t;

/* The parts that workers replay and publish (replay/). */
typedef struct zfi_replays {
    zfi_engine_t *engine;
    const zfi_param_t *params;
    const zfi_plan_t *plan;
    const zfi_windows_t *windows; /* rows, slots; of the clock, what only an idle run changes */
    const zfi_selection_t *sel;   /* mask */
    zfi_host_state_t *host;
    uint32_t n_moments;
} zfi_replays_t;

/* The parts that ranks exchange, and their places (ranks/). The host's thread's and the communication threads'. */
typedef struct zfi_ranks {
    zfi_engine_t *engine;
    zfi_param_t *params;
    uint32_t n_params, n_groups, n_moments;
    zfi_plan_t *plan;
    zfi_buckets_t *buckets;
    zfi_reduction_t *reduction;
    zfi_shards_t *shards;
    zfi_run_memory_t *mem;
    zfi_device_state_t *dev;
    zfi_selection_t *sel;     /* is_counted; what is chosen by becomes that of all ranks */
    const zfi_rows_t *rows;   /* what a step was given */
    const zfi_slots_t *slots; /* the slots of its gradients */
    const zfi_clock_t *clock; /* the newest step */
} zfi_ranks_t;

/* The parts of the work on the device's streams (step/), and the tables that kernels read. */
typedef struct zfi_device_side {
    zfi_engine_t *engine;
    const zfi_param_t *params;
    uint32_t n_params;
    const zfi_plan_t *plan;
    zfi_device_state_t *dev;
} zfi_device_side_t;

/* Values of closed windows on their way to being visible (step/publish.h). The host's thread's. */
typedef struct zfi_publishing {
    zfi_engine_t *engine;
    const zfi_plan_t *plan;
    zfi_device_state_t *dev;
    const zfi_device_side_t *side; /* these three, for the guard */
    zfi_clock_t *clock;            /* due, skip_publish_below; jobs and choices so far */
    const zfi_host_state_t *host;
    zfi_writes_t *writes;
    zfi_unfetched_t *unfetched;
    zfi_ranks_t *ranks;
} zfi_publishing_t;

/* The training state, on the host and on the device: the control thread's, and the hooks' while everything rests. */
typedef struct zfi_state {
    zfi_engine_t *engine;
    const zfi_plan_t *plan;
    zfi_device_state_t *dev;
    const zfi_device_side_t *side; /* these three, and the parameters */
    const zfi_windows_t *windows;
    zfi_host_state_t *host;
    zfi_selection_t *sel;
    zfi_ranks_t *ranks;
    uint32_t n_moments;
} zfi_state_t;
