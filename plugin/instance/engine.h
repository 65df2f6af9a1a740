/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/engine.h - what lives from create to destroy and every thread may reach: the configuration, the rule,
 * timelines and poison, streams, statistics. Nothing here belongs to a set of parameters (run.h). */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/serial.h"
#include "base/trace.h"
#include "comm/comm.h"
#include "config/config.h"
#include "device/device.h"
#include "device/list.h"
#include "instance/held.h"
#include "instance/timelines.h"
#include "kernels.h"
#include "plan/rule.h"
#include "zf/plugin.h"

typedef struct zfi_counters {
    _Atomic uint64_t down_grad_nbytes, down_record_nbytes, up_publish_nbytes, up_enter_nbytes;
    _Atomic uint64_t lost_overlap_nbytes, window_closes, closes_by_data, reselects;
    _Atomic uint64_t channels_entered, channels_left, stall_replay_ns, stall_select_ns, stall_pool_ns, host_wait_ns;
    _Atomic uint64_t host_waits;
    _Atomic uint64_t replay_ns, replay_elems, steps, slots_peak;
    _Atomic uint64_t early_taken, early_lost; /* chunks that were replayed before their step: of use, and not */
    /* of the bound parameters' memory: as planned, as mapped, and pieces of the slot pool (zfi_memory_report) */
    _Atomic uint64_t host_planned_nbytes, host_measured_nbytes, device_planned_nbytes, device_measured_nbytes;
    _Atomic uint64_t slot_pieces;
    /* of several ranks */
    _Atomic uint64_t exchanges, sent_nbytes, exchange_ns, stall_ranks_ns;
} zfi_counters_t;

enum { ZFI_N_COUNTERS = 36 /* of zf.stats/1 (hooks/stats.c) */, ZFI_LONG_BIND_NBYTES = 1 << 30 };

/* [hook] What the steps of the trace took (hooks/trace.h): the device's stall since create and the meter's sums when
 * they began, and the stall at the newest of them. */
typedef struct zfi_traced {
    uint64_t n_steps, began_ns, newest_ns; /* began_ns 0: not yet */
    uint64_t stall_before_ns, stall_ns;
} zfi_traced_t;

/* [any-thread] What the device has waited for this rank's own work: replays, selections, slot memory. */
static inline uint64_t zfi_stalled_ns(const zfi_counters_t *count) {
    return atomic_load(&count->stall_replay_ns) + atomic_load(&count->stall_select_ns) +
           atomic_load(&count->stall_pool_ns);
}

/* The first asynchronous error; partner of every timeline wait. */
typedef struct zfi_poison {
    pthread_mutex_t lock;
    _Atomic int is_set;
    zf_error_t error;
} zfi_poison_t;

/* The rules of the optimizer groups (instance/rules.h). */
typedef struct zfi_rules {
    uint32_t n;
    const zfi_group_rule_t **of; /* [n] */
} zfi_rules_t;

struct zfi_audit;
struct zfi_said;

/* Ranks of group 0 as machines of as many ranks each (ranks/nodes.h). */
typedef struct zfi_nodes {
    uint32_t *part_of;                    /* [n_ranks], of engine_close. NULL: gradients are summed in one level */
    zfi_member_t inside, between;         /* this rank's place in its node, and among nodes */
    uint32_t inside_group, between_group; /* by the transport's numbers */
} zfi_nodes_t;

typedef struct zfi_engine {
    const zf_host_t *host; /* host_copy */
    zf_host_t host_copy;
    char host_name[64], host_version[64];
    zfi_config_t config; /* as create() settled it, */
    zfi_policy_t policy; /* and what it stands for */
    zfi_rules_t rules;   /* of groups that were bound */
    const zfi_kernels_t *kernels;
    const zfi_device_ops_t *ops;
    zfi_device_t *device;
    const zfi_comm_ops_t *comm_ops;
    zfi_comm_t *comm;
    uint32_t norm_group; /* the host's number of the group of all that train one model together; 0: ranks of group 0 */
    uint32_t norm_index; /* the transport's number of that group */
    uint32_t firsts[ZFI_MAX_GROUPS];   /* by the transport's groups: the lowest of each one's members there, which
                                        * tells it from others; from bind_params on */
    uint32_t *members[ZFI_MAX_GROUPS]; /* by the transport's groups: all members, in the order of the group; NULL: each
                                          is its number */
    zfi_nodes_t nodes;
    struct zfi_said *said; /* what ranks say at meetings (state/together.h); NULL: one rank */
    uint32_t flags;        /* ZF_CREATE_CAP_... */
    int32_t device_type, device_id;
    uint64_t timeout_ns;
    _Atomic uint32_t n_workers; /* bind_params writes it, any thread may ask for statistics */
    struct zfi_team *team;      /* the workers (replay/team.h), from bind_params on; NULL: there are none */
    zfi_poison_t poison;
    zfi_timelines_t lines;
    zfi_stream_t *own_stream, *down_stream, *up_stream, *enter_stream;
    zfi_serial_t *control;
    zfi_serial_t *ranks, *values, *steps;       /* the communication threads; NULL on one rank (ranks/ranks.h) */
    zfi_stream_t *ranks_stream, *values_stream; /* their streams, where the device's memory is exchanged */
    /* what is collected for the streams: by hooks, the first three together; by the control thread */
    zfi_list_t to_device, to_down, to_up, to_enter;
    zfi_residency_t residency;
    zfi_arena_t pinned;   /* one page that the device writes: */
    zfi_totals_t *totals; /* what it counts, from create() on */
    /* read and changed by hooks alone */
    zfi_stream_t *stream;           /* device stream of the newest hook */
    pthread_mutex_t watch_lock;     /* guards: */
    zfi_stream_t *watched;          /* the same, for other threads; NULL once streams end */
    uint32_t n_exchanging;          /* exchanges under way, */
    uint64_t exchanged_ns, told_ns; /* how long any exchange was under way, until it was told last */
    uint64_t visible_floor;         /* mark on it: visible writes that former streams were given are over */
    uint64_t n_batches;             /* of gradients, shipped; the next one is being filled */
    uint64_t n_exchanged, n_shared; /* work handed to the communication threads */
    uint64_t n_taken;               /* work of n_shared: what `taken` reaches */
    zfi_counters_t count;           /* they rise from create() on */
    struct zfi_audit *audit;        /* (state/audit.h) NULL: nothing is audited */
    zfi_trace_t *trace;             /* NULL: nothing is traced */
    zfi_traced_t traced;
} zfi_engine_t;

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

static inline uint32_t zfi_n_ranks(const zfi_engine_t *engine) {
    return engine->comm_ops->place(engine->comm, 0).n_ranks;
}
static inline uint32_t zfi_rank(const zfi_engine_t *engine) { return engine->comm_ops->place(engine->comm, 0).rank; }
static inline zfi_member_t zfi_member(const zfi_engine_t *engine, uint32_t group) {
    return engine->comm_ops->place(engine->comm, group);
}
/* The model is spread over instances, of which each trains parameters of its own or shares some with a few. */
static inline int zfi_is_grouped(const zfi_engine_t *engine) { return engine->norm_group != 0; }
static inline int zfi_has_peers(const zfi_engine_t *engine) {
    return zfi_n_ranks(engine) > 1 || zfi_is_grouped(engine);
}
/* Gradients and values of several ranks travel from device to device, on streams of the lanes' own. */
static inline int zfi_exchanges_on_device(const zfi_engine_t *engine) {
    return engine->config.transport & ZFI_TRANSPORT_NCCL && zfi_n_ranks(engine) > 1;
}
/* Ranks exchange host memory, and the device has its own: page-locked copies of it travel (ranks/mirror.h). */
static inline int zfi_has_mirrors(const zfi_engine_t *engine) {
    return engine->ops->has_own_memory && zfi_has_peers(engine) && !zfi_exchanges_on_device(engine);
}
/* Each rank keeps the optimizer's state of its parts of the buckets only. */
static inline int zfi_is_sharded(const zfi_engine_t *engine) {
    return engine->config.stage > 0 && zfi_n_ranks(engine) > 1;
}

/* The transport sums what it moves; else each rank does, by rank index. */
static inline int zfi_transport_sums(const zfi_engine_t *engine) {
    return engine->config.transport & ZFI_TRANSPORT_NATIVE && zfi_exchanges_on_device(engine);
}

static inline int zfi_wants_two_levels(const zfi_engine_t *engine) {
    return (engine->config.transport & ZFI_TRANSPORT_TWO_LEVEL) != 0;
}
/* Whether buckets of a group (the transport's number) are summed in two levels, and where a rank's part of one lies. */
static inline int zfi_has_two_levels(const zfi_engine_t *engine, uint32_t group) {
    return engine->nodes.part_of && group == 0;
}
static inline uint32_t zfi_part_of(const zfi_engine_t *engine, uint32_t group, uint32_t rank) {
    return zfi_has_two_levels(engine, group) ? engine->nodes.part_of[rank] : rank;
}

/* Whether each rank makes a part of the norm, since none has every gradient. */
static inline int zfi_has_norm_parts(const zfi_engine_t *engine) {
    return zfi_is_sharded(engine) || zfi_is_grouped(engine);
}
/* This rank among those of the norm group. */
static inline zfi_member_t zfi_norm_member(const zfi_engine_t *engine) {
    return zfi_member(engine, engine->norm_index);
}

/* Whether parameters themselves are sharded. */
static inline int zfi_shards_params(const zfi_engine_t *engine) {
    return engine->config.stage > 2 && zfi_is_sharded(engine);
}

/* Published values of all ranks travel behind the step that closes their windows (ranks/values_behind.h). At stage 3
 * none but those of whole parameters travel, in the step. */
static inline int zfi_gathers_behind(const zfi_engine_t *engine) {
    return zfi_is_sharded(engine) && !zfi_shards_params(engine) && engine->policy.published != ZFI_PUBLISHED_AT_STEP;
}

/* ---- what the configuration says --------------------------------------------------------------------------------- */

/* Arrays that an entering channel brings: w and its moments. */
static inline uint32_t zfi_enter_arrays(uint32_t n_moments) { return 1u + n_moments; }
/* ---- the device -------------------------------------------------------------------------------------------------- */

static inline zf_status_t zfi_enqueue(zfi_engine_t *engine, zfi_stream_t *stream, const zfi_op_t *ops, uint32_t n) {
    return n ? engine->ops->enqueue(engine->device, stream, ops, n) : ZF_OK;
}
/* [hook] Enqueues what was collected for the device, down and up streams. */
static inline zf_status_t zfi_send(zfi_engine_t *engine) { return zfi_list_send(&engine->to_device); }
/* [hook] Sends; then waits for everything that is enqueued on the device stream; without a deadline where it is our own
 * finite work on memory that may be freed next. */
zf_status_t zfi_synchronise(zfi_engine_t *engine, int has_deadline);

/* [hook] The device stream is this one from now on. */
void zfi_use_stream(zfi_engine_t *engine, zfi_stream_t *stream);

/* [hook] After poison: waits until neither these n streams of the host's nor our own read the host's memory any more,
 * as long as one deadline allows. What stands still behind the host's own work reads nothing once it runs. */
void zfi_engine_settle(zfi_engine_t *engine, zfi_stream_t *const *host_streams, uint32_t n);

/* [control] The device, its streams and the control thread. stop runs what was enqueued and ends them; then the memory
 * of a run can be freed, and last the device closed. Both are legal after an open that failed. */
zf_status_t zfi_engine_open(zfi_engine_t *engine, zf_error_t *err);
void zfi_engine_stop(zfi_engine_t *engine);
void zfi_engine_close(zfi_engine_t *engine);

/* ---- timelines, poison, log -------------------------------------------------------------------------------------- */

/* [control] All timelines, and the lock of the poison. */
void zfi_engine_init(zfi_engine_t *engine);
void zfi_engine_free(zfi_engine_t *engine);

/* [any-thread] The first error ends the instance: every timeline is released. */
void zfi_poison(zfi_engine_t *engine, const zf_error_t *error);
static inline int zfi_is_poisoned(const zfi_engine_t *engine) { return atomic_load(&engine->poison.is_set); }
/* The error that ended the instance. */
zf_status_t zfi_poisoned(zfi_engine_t *engine, zf_error_t *err);

/* [own threads] An exchange begins, or ends: deadlines of waits do not count it. */
void zfi_engine_exchanging(zfi_engine_t *engine, int begins);

/* [any-thread] Waits; a time-out poisons the instance with a dump of all timelines. */
zf_status_t zfi_wait(zfi_engine_t *engine, zfi_timeline_t *timeline, uint64_t value, _Atomic uint64_t *waited_ns);

/* [hook] Formats and logs through the host; nothing below the configured level. */
#define zfi_log(engine, level, component, ...) zfi_log_at(engine, level, component, __FILE__, __LINE__, __VA_ARGS__)
void zfi_log_at(const zfi_engine_t *engine, int32_t level, const char *component, const char *file, int32_t line,
                const char *format, ...) __attribute__((format(printf, 6, 7)));
