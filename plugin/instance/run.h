/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/run.h - one set of parameters and one run of training: everything that bind_params makes and that a
 * load, or a bind_params that changes the set, makes a second time and exchanges (state/replace.c).
 *
 * What a checkpoint must hold of it becomes an array or a number of state/saved.h. Arrays lie in the two arenas
 * (memory.c). Data that crosses threads is ordered by the engine's timelines alone (timelines.h). */
#pragma once

#include "instance/device_state.h"
#include "instance/host_state.h"
#include "instance/incoming.h"
#include "instance/param_shards.h"
#include "instance/reduction.h"
#include "instance/run_memory.h"
#include "instance/selection.h"
#include "instance/steps.h"
#include "instance/views.h"
#include "zf/ext/stats.h"

struct zfi_workers;
struct zfi_early;
struct zfi_updater;
struct zfi_publisher;

typedef struct zfi_run {
    zfi_engine_t *engine;
    zfi_param_t *params;
    uint32_t n_params, n_groups;
    uint32_t n_moments; /* kept of every element: 0, 1 (m) or 2 (m, v) */
    zfi_plan_t plan;
    zfi_buckets_t buckets; /* none on one rank */
    zfi_reduction_t reduction;
    zfi_shards_t shards;
    zfi_run_memory_t mem;
    struct zfi_workers *workers;
    struct zfi_early *early;               /* NULL: no replay begins before its step */
    const struct zfi_updater *updater;     /* what a step does with gradients (step/updater.h) */
    const struct zfi_publisher *publisher; /* when windows become visible (step/publisher.h) */
    /* The host's thread's own part of step t, before its values are published (step/matrices.h); NULL: none. */
    zf_status_t (*by_host)(const zfi_state_t *state, uint64_t t);

    zfi_clock_t clock;
    zfi_rows_t rows;
    zfi_incoming_t incoming;
    zfi_writes_t writes; /* the host's thread alone */
    zfi_unfetched_t unfetched;

    zfi_host_state_t hs;
    zfi_slots_t slots;
    zfi_selection_t sel;
    zfi_device_state_t dev;

    /* views of the above: */
    zfi_windows_t windows;
    zfi_replays_t replays;
    zfi_ranks_t ranks;
    zfi_device_side_t side;
    zfi_publishing_t publishing;
    zfi_state_t state;
} zfi_run_t;

/* [control] A run of these parameters with nothing in it but its views, and what the configuration says of it. Freed by
 * free() as long as nothing else is. NULL: no memory. */
zfi_run_t *zfi_run_make(zfi_engine_t *engine, zfi_param_t *params, uint32_t n_params);
