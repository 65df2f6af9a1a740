/* plugin/instance.h - one instance: everything it owns, who writes it, and what orders the threads.
 *
 * Threads. The host's thread runs hooks: it keeps the clocks and pushes commands, and never computes. Commands run on
 * streams, in order:
 *   device   the host's stream (or, for HOST_THREAD hosts, a queue of our own): statistics, norm, run-ahead, publish
 *   down     device -> host copies: gradients into slots, step scalars, importance records
 *   up       host -> device copies: published values
 *   control  choices and the state of entering channels
 * and workers replay closed windows. Data that crosses threads is ordered by timelines alone (timeline.h):
 *   name        value                      by        means
 *   shipped     batch number + 1           device    its gradients' statistics are taken
 *   batches     batch number + 1           down      ... and its gradients are in slots: the host's buffers are free
 *   finished    step t                     device    applied, norm and s of t are known
 *   down        step t                     down      slots, scalars and record of t are in host memory
 *   jobs        chunk job q + 1            workers   all chunk jobs <= q are replayed
 *   up          publication p + 1          up        its values are in the device's ring
 *   merged      publication p + 1          device    ... and visible; the ring's piece is free
 *   chosen      step t                     control   choices of step t are made (maps may be read)
 *   host_sel    step t                     control   ... the host's own maps follow them, and what enters has been
 *                                                    read from w, m, v: the next window may be replayed
 *   enter_up    entering block e + 1       control   it is in the device's staging ring
 *   enter_done  entering block e + 1       device    ... and in the compact state
 *   entered     step t                     device    channels chosen at t-1 are visible
 *   control     step t                     control   everything of step t is done there, its record is counted
 *   stepped     step t                     device    every visible write of step t is done, its report is written
 *   publish_due publication p + 1          host      it is on the device stream
 *   enter_due   step t                     host      the entering of channels chosen at t is on the device stream
 *   summed      step t                     device    moments mode summed there: its gradients are in the sums
 *   rounded     transfer of sums           device    ... a window's sums are ready to travel
 *   sums        transfer of sums           down      ... and in host memory: the device may write them again
 *   decided     step t                     control   automatic interval: which windows may close at t; a hook waits for
 *                                                    it, which is made from records <= t-2
 *
 * A publication is a chunk job that publishes: all of them but those which only add a slot to sums.
 *
 * Every wait has a deadline ([host] deadline_ms) but those for publish_due and enter_due, which last as long as the
 * host does something else between two steps. A waiting graph without cycles: device waits for down (t-2), chosen,
 * enter_up, up, sums (of closes before t); down for device, jobs (recycled pieces), control (t-4); up for jobs and
 * merged; workers for down, sums, up (their ring) and host_sel; control for down, jobs, entered and enter_done. Each of
 * these refers to work that the host pushed before.
 */
#ifndef ZFI_INSTANCE_H
#define ZFI_INSTANCE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "arena.h"
#include "config.h"
#include "kernels.h"
#include "params.h"
#include "plan.h"
#include "queue.h"
#include "rule.h"
#include "timeline.h"
#include "zf/ext/stats.h"
#include "zf/plugin.h"

enum {
    ZFI_BATCH_ENTRIES = 64,     /* deliveries per batch: the unit of waking threads */
    ZFI_N_BATCHES = 32,         /* batches in flight; a power of two */
    ZFI_BATCH_NBYTES = 1 << 20, /* a batch is also closed when it holds this many gradient bytes */
    ZFI_RECORD_DEPTH = 4,       /* importance records in host memory */
    ZFI_READY_DEPTH = 4,        /* decisions about windows: made two steps ahead */
    ZFI_ENTER_BLOCKS = 4,       /* blocks of entering state in flight */
    ZFI_ENTER_ELEMS = 4096,     /* elements of one: 48 KiB of w, m, v */
    ZFI_RING_CHUNKS = 8,        /* published chunks in the device's ring */
    ZFI_MOST_QUEUES = 64,       /* queues of the host's that one instance may be used with */
    ZFI_NO_PIECE = -1
};

/* ---- what a step leaves behind ----------------------------------------------------------------------------------- */

/* Scalars of a step, made on the device and copied down. */
typedef struct zfi_step_scalars {
    int32_t applied;
    uint32_t nonfinite_param;
    double norm, clip_factor, s_exact; /* s_exact = unscale * clip_factor */
    float s;
} zfi_step_scalars_t;

/* A cohort's window that closes. */
typedef struct zfi_close {
    uint32_t cohort, table, n_slots;
    uint32_t n_chunks;
    uint64_t step, first_step; /* slots belong to first_step, first_step + 1, ... */
    uint64_t first_job;
    uint64_t first_publish; /* its chunks' places in the order of publications */
    uint64_t choice_step;   /* of the selection in force during the window; 0 = none yet */
    uint64_t sums;          /* sums made on the device: number of their transfer; else 0 */
    uint64_t needs_job;     /* ... jobs that must be over before it writes its pieces */
    int is_warm_up;
    int publishes_all; /* FLUSH: selected channels too */
    int takes_slot;    /* sums made on the host: the slot of this step is added to them */
    int is_sums_only;  /* ... and nothing else: the window stays open, nothing is published or counted */
} zfi_close_t;

/* Ring row of one step. The host's thread fills it before pushing what reads it; *dev is the device's, *scalars the
 * copy that down makes. A row is reused n_step_rows steps later, which every reader has left by then. */
typedef struct zfi_step_row {
    uint64_t t;
    uint8_t *present;   /* [n_params] a gradient was delivered; cleared by params_changed (everything idle) */
    zfi_hyper_t *hyper; /* [n_groups] */
    double unscale, clip_norm;
    const double *host_norm; /* NULL: ours; HOST_THREAD: &host_norm_now */
    double host_norm_now;
    int32_t *cohort_slot;   /* [n_cohorts] this step's slot number in the open window */
    int32_t *cohort_table;  /* [n_cohorts] */
    uint64_t *cohort_first; /* [n_cohorts] first step of the open window */
    uint64_t *cohort_sums;  /* [n_cohorts] newest transfer of the device's sums, which this step may overwrite */
    uint8_t *chooses;       /* [n_cohorts] a choice is due at this step's close */
    uint8_t *closes;        /* [n_cohorts] the window closes at this step */
    int has_choice;
    uint64_t end_job; /* jobs <= this are of closes <= t */
    uint32_t n_present;
    int waits_for_down; /* the host keeps gradients until the report, so the report waits until they are copied */
    zfi_step_scalars_t dev, scalars;
    zf_step_report_t report; /* written by the device before stepped */
} zfi_step_row_t;

/* ---- deliveries -------------------------------------------------------------------------------------------------- */

enum {
    ZFI_DELIVER_SHIP = 1,      /* take statistics and copy down */
    ZFI_DELIVER_SUM = 2,       /* add to the parameter's fp32 sum first */
    ZFI_DELIVER_SUM_FIRST = 4, /* ... of which this is the first */
    ZFI_DELIVER_FROM_SUM = 8,  /* no source: ship the sum */
    ZFI_DELIVER_STRIDED = 16,
    ZFI_DELIVER_KEEP = 32 /* copy to staging: the host takes its memory back before the step reads it again */
};

typedef struct zfi_delivery {
    uint32_t param, flags;
    const void *source;     /* the host's memory or our staging */
    const void *grad;       /* contiguous gradient to copy down; set by the device */
    uint64_t staging_batch; /* batches must have reached this before staging is written */
    int64_t strides[ZF_MAX_NDIM];
} zfi_delivery_t;

typedef struct zfi_batch {
    uint32_t n;
    uint64_t step;
    uint64_t nbytes;
    uint64_t needs_job; /* jobs must have reached this before its slots are written (recycled pieces) */
    zfi_delivery_t entries[ZFI_BATCH_ENTRIES];
} zfi_batch_t;

/* What the host has delivered of a parameter's gradient in the step being filled. */
typedef struct zfi_protocol {
    uint8_t delivered; /* ZF_GRAD_PART, ZF_GRAD_TOTAL or 0 */
    uint8_t is_last;   /* nothing more may come but REPLACE */
    uint8_t has_sum;   /* parts are being summed */
} zfi_protocol_t;

/* Host-side state of a parameter. */
typedef struct zfi_grad_state {
    zfi_protocol_t now, trial; /* trial: the same while a call is being checked */
    uint8_t is_shipped;        /* the newest delivery is on its way down */
    uint64_t trial_call;       /* number of the call that trial belongs to */
    uint64_t shipped_nbytes;   /* of the newest shipment: lost if another follows */
    uint64_t staging_batch;    /* number + 1 of the newest batch that uses its staging; 0 = none */
    uint64_t visible_seq;      /* sequence number, on the stream of visible_epoch, of the newest visible write */
    uint64_t visible_epoch;
} zfi_grad_state_t;

/* ---- parts ------------------------------------------------------------------------------------------------------- */

/* The host's optimizer state; written by workers (one per chunk) and, when all is idle, by quiesce.c. */
typedef struct zfi_host_state {
    float *w;             /* [plan.n_state_elems] */
    unsigned char *m, *v; /* the same many moments of zfi_moment_nbytes(); NULL where the rule has none */
    uint32_t *n;          /* applied updates: [n_matrices], or in mean mode [n_channels] */
    float *sum1, *sum2;   /* [plan.n_state_elems] of the open windows (SCHEDULE.md); moments mode summed on the host */
} zfi_host_state_t;

/* Slot pool. The host's thread alone allocates and frees, by the schedule: a freed piece may be written again once the
 * replay that read it is over (its tag). tables[chunk][table][slot] -> piece. */
typedef struct zfi_slots {
    unsigned char *pieces;
    uint32_t n_pieces;
    struct zfi_free_piece {
        int32_t piece;
        uint64_t needs_job;
    } * free; /* ring [n_pieces] */
    uint64_t free_head, free_tail;
    int32_t *tables;
    uint32_t n_tables;
    uint32_t in_use;
} zfi_slots_t;

/* Choices: sums and host maps belong to control; maps of channels on their way in are read by the device. */
typedef struct zfi_selection {
    double *records[ZFI_RECORD_DEPTH];             /* [n_sums] written by down */
    double *importance;                            /* [n_sums] */
    uint32_t *index;                               /* [n_index] selected channels by position */
    uint8_t *mask;                                 /* [n_channels] */
    uint32_t *enter_pos, *enter_channel, *enter_n; /* [n_index] per matrix its first n_enter[] */
    uint32_t *n_enter;                             /* [n_matrices] */
    uint64_t *order;                 /* [3 x max channels] scratch of the choice: ranked channels and a mask */
    uint64_t enter_block;            /* blocks produced so far */
    uint64_t last_choice;            /* step of the newest choice of any cohort */
    double *deferred, *selected;     /* [n_matrices] automatic interval: SCHEDULE.md's sums of d and of p */
    uint64_t *choice_step;           /* [n_cohorts] ... q */
    uint8_t *ready[ZFI_READY_DEPTH]; /* [n_cohorts] ... whether a window may close at step t % depth; read by hooks */
    float *staging;                  /* [ZFI_ENTER_BLOCKS][zfi_enter_arrays()][ZFI_ENTER_ELEMS] host side */
} zfi_selection_t;

/* What lives on the device. */
typedef struct zfi_device_state {
    float *w, *m, *v;                   /* [n_sel_elems] compact, run ahead; m, v NULL where the rule has none */
    unsigned char *grad;                /* [n_sel_grad_nbytes] compact gradient of this step */
    uint64_t *grad_base;                /* [n_matrices] byte offset into grad (host memory); follows k */
    uint32_t *index;                    /* [n_index] */
    uint8_t *mask;                      /* [n_channels] */
    uint32_t *n;                        /* [n_matrices], or in mean mode [n_index] */
    double *sums[2];                    /* [n_sums] importance sums of even and odd steps */
    double *sum_squares;                /* [n_params] of this step */
    uint8_t *has_nonfinite;             /* [n_params] */
    unsigned char *ring;                /* [ZFI_RING_CHUNKS][publish_piece_nbytes] */
    float *enter;                       /* [ZFI_ENTER_BLOCKS][zfi_enter_arrays()][ZFI_ENTER_ELEMS] */
    uint64_t enter_block;               /* blocks taken so far */
    float *sum1, *sum2;                 /* [plan.n_state_elems] moments mode summed here: of the open windows */
    const void **held;                  /* [n_params] ... this step's gradients, until s is known */
    zfi_scalars_t *scalars;             /* [max k_most] scratch: mean mode's scalars per channel */
    zfi_stats_matrix_t *stats_matrices; /* [n_matrices] scratch of ship */
} zfi_device_state_t;

typedef struct zfi_counters {
    _Atomic uint64_t down_grad_nbytes, down_record_nbytes, up_publish_nbytes, up_enter_nbytes;
    _Atomic uint64_t lost_overlap_nbytes, steps_applied, steps_skipped, window_closes, closes_by_data, reselects;
    _Atomic uint64_t channels_entered, channels_left, stall_replay_ns, stall_select_ns, stall_pool_ns, host_wait_ns;
    _Atomic uint64_t replay_ns, replay_elems, overwritten_elems, steps, slots_peak;
} zfi_counters_t;

enum { ZFI_N_TIMELINES = 20 };
enum { ZFI_STATE_CREATED, ZFI_STATE_BOUND, ZFI_STATE_ACTIVE, ZFI_STATE_QUIESCED };

struct zfi_device_ops;
struct zfi_workers;

struct zf_instance {
    uint64_t magic;
    const zf_host_t *host;
    zfi_config_t config;
    uint32_t rule;               /* ZF_RULE_... */
    zf_rule_callback_t callback; /* with ZF_RULE_CALLBACK; its name is rule_name */
    char rule_name[64];
    const zfi_kernels_t *kernels;
    const struct zfi_device_ops *device;
    uint32_t flags; /* ZF_CREATE_CAP_... */
    int32_t device_type, device_id;
    int state;
    _Atomic int is_busy;        /* a hook runs */
    const unsigned char *alive; /* 1; a page that fork() wipes in the child */
    uint64_t timeout_ns;

    /* poison: the first asynchronous error; partner of every timeline wait */
    pthread_mutex_t poison_lock;
    _Atomic int is_poisoned;
    zf_error_t poison;

    zfi_timeline_t shipped, batches, finished, down, jobs, up, merged, chosen, host_sel, enter_up, enter_done, entered,
        control, stepped, publish_due, enter_due, summed, rounded, sums, decided;
    zfi_queue_t *own_stream, *down_stream, *up_stream, *control_stream;
    zfi_queue_t *stream; /* device stream of the newest hook */
    zfi_queue_t
        *host_queues[ZFI_MOST_QUEUES]; /* of the host, that have held commands of ours: destroy waits for them */
    uint32_t n_host_queues;
    uint64_t n_batches;    /* pushed; entry n_batches is being filled */
    uint64_t n_calls;      /* of grads_ready */
    uint64_t stream_epoch; /* changes of stream; visible writes of earlier ones are over at visible_floor of this one */
    uint64_t visible_floor;
    uint32_t n_workers;

    /* Bound parts, from here to `count`: what belongs to one set of parameters and one run. A load, and a bind_params
     * that changes the set, build them a second time and exchange them in one go (state_replace.c), so whatever is
     * added for the training state goes between `params` and `count`; what a checkpoint must hold of it becomes a row
     * of state_table.c. Arrays live in the two arenas (memory.c). */
    zfi_param_t *params;
    uint32_t n_params, n_groups;
    struct zfi_workers *workers;
    _Atomic uint32_t n_overwritten; /* parameters the host changed unannounced ... */
    _Atomic uint8_t *overwritten;   /* ... [n_params] which; set by the device, cleared by params_changed */
    zfi_plan_t plan;
    zfi_arena_t host_arena, device_arena;
    _Atomic uint64_t extra_device_nbytes; /* staging and sums, mapped when the first hook needs them */
    zf_layout_t layout;

    zfi_host_state_t hs;
    zfi_slots_t slots;
    zfi_selection_t sel;
    zfi_device_state_t dev;
    unsigned char *publish; /* host ring [max_close_chunks][publish_piece_nbytes] */
    zfi_arena_t staging_arena, sum_arena;
    uint64_t *param_base; /* [n_params] element offset of a parameter in staging and sums */

    /* the host thread's clocks */
    uint64_t t;            /* submitted steps of this schedule */
    uint64_t steps_before; /* of the schedules before it: reports count on (compact load, bind_params again) */
    int has_loaded;        /* its state is not what the visible values and no step give */
    uint64_t clock_base;   /* SCHEDULE.md: b */
    uint64_t epoch_end;    /* newest step that ended an epoch; 0 = none */
    uint64_t next_job, next_publish;      /* equal but for moments mode summed on the host */
    uint64_t n_sums;                      /* transfers of the device's sums */
    uint64_t *cohort_sums;                /* [n_cohorts] the newest of a cohort */
    uint64_t *window_first, *last_choice; /* [n_cohorts] */
    uint32_t *window_table;               /* [n_cohorts] */
    zfi_step_row_t *rows;
    uint32_t n_rows;
    zfi_grad_state_t *grads; /* [n_params] */
    zfi_batch_t *batch_ring; /* [ZFI_N_BATCHES] */
    int has_begun;           /* begin(t+1) was pushed */
    uint64_t waiting_choice; /* step of a choice whose channels have not yet become visible; 0 = none */
    int enter_state_pushed;  /* ... but their state is already on its way into the compact arrays (quiesce) */
    zfi_close_t *due;        /* [n_cohorts] closes that are published at the next step */
    uint32_t n_due;
    uint64_t *skip_publish_below; /* [n_matrices] jobs below this are not published (params_changed) */

    zfi_counters_t count; /* not a bound part: they rise from create() on */
};

#define ZFI_INSTANCE_MAGIC 0x7A66696E7374ull

/* ---- shared by the modules --------------------------------------------------------------------------------------- */

static inline zfi_step_row_t *zfi_row(zf_instance_t *inst, uint64_t t) { return &inst->rows[t % inst->n_rows]; }
static inline int zfi_is_mean(const zf_instance_t *inst) { return inst->config.deferred == ZFI_DEFERRED_MEAN; }
static inline int zfi_is_warm_up(const zf_instance_t *inst, uint64_t t) {
    return t <= inst->config.full_warm_up_rounds;
}
/* Windows keep sums instead of slots (SCHEDULE.md, "deferred = moments"): at all; on which side. */
static inline int zfi_is_moments(const zf_instance_t *inst) {
    return inst->config.deferred == ZFI_DEFERRED_MOMENTS && inst->config.update_interval > 1;
}
static inline int zfi_sums_on_device(const zf_instance_t *inst) {
    return zfi_is_moments(inst) && inst->config.accumulate_on == ZFI_ACCUMULATE_DEVICE;
}
/* How a chunk's sums travel. */
static inline zfi_dtype_t zfi_sum_dtype(const zfi_chunk_t *chunk) {
    return zfi_dtype_nbytes(chunk->grad_dtype) == 4 ? ZFI_F32 : ZFI_BF16;
}
static inline int zfi_sums_on_host(const zf_instance_t *inst) {
    return zfi_is_moments(inst) && inst->config.accumulate_on == ZFI_ACCUMULATE_HOST;
}
static inline int32_t *zfi_slot_table(const zf_instance_t *inst, uint32_t chunk, uint32_t table) {
    return inst->slots.tables + ((uint64_t)chunk * inst->slots.n_tables + table) * inst->config.update_interval;
}
static inline unsigned char *zfi_piece(const zf_instance_t *inst, int32_t piece) {
    return inst->slots.pieces + (uint64_t)piece * inst->plan.piece_stride;
}
/* Moments that the rule keeps per element: 0, 1 (m) or 2 (m, v). */
static inline uint32_t zfi_n_moments(const zf_instance_t *inst) {
    if (inst->rule == ZF_RULE_CALLBACK)
        return inst->callback.n_moments;
    return zfi_rule_has_v((zfi_rule_t)inst->rule) ? 2 : 1;
}
/* Arrays that an entering channel brings: w and its moments. */
static inline uint32_t zfi_enter_arrays(const zf_instance_t *inst) { return 1u + zfi_n_moments(inst); }
static inline size_t zfi_moment_nbytes(const zf_instance_t *inst) {
    return zfi_moments_nbytes((zfi_moments_t)inst->config.moments);
}
/* Address of moment i of an array of moments; NULL of none. */
static inline void *zfi_moment_at(const zf_instance_t *inst, void *moments, uint64_t i) {
    return moments ? (unsigned char *)moments + i * zfi_moment_nbytes(inst) : NULL;
}
/* Its value; 0 of none. */
static inline float zfi_moment(const zf_instance_t *inst, const void *moments, uint64_t i) {
    if (!moments)
        return 0.0f;
    return inst->config.moments == ZFI_MOMENTS_F32 ? ((const float *)moments)[i]
                                                   : zfi_bf16_to_f32(((const uint16_t *)moments)[i]);
}
/* Moments [first, first + n) as fp32 (zeros of none), and back: to nearest even where they are kept in bf16. */
static inline void zfi_moments_get(const zf_instance_t *inst, const void *moments, uint64_t first, uint64_t n,
                                   float *out) {
    for (uint64_t i = 0; i < n; i++)
        out[i] = zfi_moment(inst, moments, first + i);
}
static inline void zfi_moments_put(const zf_instance_t *inst, void *moments, uint64_t first, uint64_t n,
                                   const float *values) {
    if (moments)
        inst->kernels->narrow(zfi_moment_at(inst, moments, first),
                              inst->config.moments == ZFI_MOMENTS_F32 ? ZFI_F32 : ZFI_BF16, values, n);
}
/* Elements of one selected channel of a matrix. */
static inline uint64_t zfi_channel_elems(const zfi_matrix_t *matrix) {
    return matrix->channels_are_rows ? matrix->cols : matrix->rows;
}

/* [hook] Entry and exit of every hook: validity, fork, re-entrance, poison, state bits (1 << ZFI_STATE_...). */
zf_status_t zfi_enter(zf_instance_t *inst, unsigned states, const char *origin, zf_error_t *err);
void zfi_leave(zf_instance_t *inst);

/* [control] All timelines of an instance. */
void zfi_timelines_init(zf_instance_t *inst);
void zfi_timelines_free(zf_instance_t *inst);

/* [any-thread] The first error ends the instance: every timeline is released. */
void zfi_poison(zf_instance_t *inst, const zf_error_t *error);

/* [own threads] Waits for something that the host alone decides; only poison ends it early. */
zf_status_t zfi_wait_for_host(zf_instance_t *inst, zfi_timeline_t *timeline, uint64_t value);

/* [any-thread] Waits; a time-out poisons the instance with a dump of all timelines. */
zf_status_t zfi_wait(zf_instance_t *inst, zfi_timeline_t *timeline, uint64_t value, _Atomic uint64_t *waited_ns);

/* [hook] Formats and logs through the host; nothing below the configured level. */
#define zfi_log(inst, level, component, ...) zfi_log_at(inst, level, component, __FILE__, __LINE__, __VA_ARGS__)
void zfi_log_at(zf_instance_t *inst, int32_t level, const char *component, const char *file, int32_t line,
                const char *format, ...) __attribute__((format(printf, 6, 7)));

#endif
