/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/run.h - one set of parameters and one run of training: everything that bind_params makes and that a
 * load, or a bind_params that changes the set, makes a second time and exchanges (state/replace.c).
 *
 * What a checkpoint must hold of it becomes an array or a number of state/saved.h. Arrays lie in the two arenas
 * (memory.c). Data that crosses threads is ordered by the engine's timelines alone (timelines.h). */
#pragma once

#include "base/arena.h"
#include "base/node.h"
#include "instance/engine.h"
#include "launch.h"
#include "plan/bucket.h"
#include "plan/params.h"
#include "plan/plan.h"
#include "zf/ext/stats.h"

enum {
    ZFI_MAX_STEPS_AHEAD = 8, /* steps that the host may submit before the device has finished the oldest */
    ZFI_BATCH_ENTRIES = ZFI_LAUNCH_GRADIENTS, /* deliveries per batch: the unit of waking threads */
    ZFI_N_BATCHES = 32,                       /* batches in flight; a power of two */
    ZFI_BATCH_NBYTES = 1 << 20,               /* a batch is also closed when it holds this many gradient bytes */
    ZFI_RECORD_DEPTH = 4,                     /* parts of importance records in host memory */
    ZFI_READY_DEPTH = 4,                      /* decisions about windows: made two steps ahead */
    ZFI_ENTER_BLOCKS = 4,                     /* blocks of entering state in flight */
    ZFI_ENTER_ELEMS = 4096,                   /* elements of one: 48 KiB of w, m, v */
    ZFI_MOST_BLOCKS = 256,                    /* of entering state that wait for other ranks' elements */
    ZFI_NO_PIECE = -1
};

/* ---- what a step leaves behind ----------------------------------------------------------------------------------- */

/* A cohort's window that closes. */
typedef struct zfi_close {
    uint32_t cohort, table, n_slots;
    uint32_t n_chunks;
    uint64_t step, first_step; /* slots belong to first_step, first_step + 1, ... */
    uint64_t first_job;        /* its chunks' jobs, and with the same numbers their publications */
    uint64_t choice_step;      /* of the selection in force during the window; 0 = none yet */
    uint32_t turn;             /* of the device's masks that say which channels were selected during the window */
    int is_warm_up;
    int publishes_all; /* every channel: none is selected, or FLUSH */
} zfi_close_t;

/* Ring row of one step. The host's thread fills it before pushing what reads it; *scalars is the copy that down makes,
 * *reported the device's own. A row is reused n_step_rows steps later, which every reader has left by then. */
typedef struct zfi_step_row {
    uint64_t t;
    unsigned char *input; /* what goes up with the step: hyper and present, one behind the other */
    zfi_hyper_t *hyper;   /* [n_groups] */
    uint8_t *present;     /* [n_params] a gradient was delivered; cleared by params_changed (everything idle) */
    double unscale, clip_norm;
    const double *host_norm; /* NULL: ours; HOST_THREAD: &host_norm_now */
    double host_norm_now;
    int32_t *cohort_slot;   /* [n_cohorts] this step's slot number in the open window */
    int32_t *cohort_table;  /* [n_cohorts] */
    uint64_t *cohort_first; /* [n_cohorts] first step of the open window */
    int32_t *pieces;        /* [n_cohorts][n_layers] of this step's slots, those that are taken (zfi_row_slot) */
    uint8_t *chooses;       /* [n_cohorts] a choice is due at this step's close */
    uint8_t *closes;        /* [n_cohorts] the window closes at this step */
    int has_choice;
    uint32_t choice_turn;                         /* with a choice: the mask that it fills */
    uint64_t end_job;                             /* jobs <= this are of closes <= t */
    uint32_t n_present, n_missing, first_missing; /* missing: had a gradient in every step before */
    int waits_for_down; /* the host keeps gradients until the report, so the report waits until they are copied */
    zfi_step_scalars_t scalars;  /* down */
    zfi_step_scalars_t reported; /* the device, before stepped */
    uint32_t has_foreign;        /* with it: the step left out a parameter that the host wrote (step/guard.h) */
    /* Several ranks: where sums of the step were not finite, a part that was not, as SUM_PARTS tells it; 0: none. From
     * all that ranks found so, the control thread makes the lowest rank of the norm group, ZF_NO_ID: none is known. */
    uint64_t nonfinite_part;
    uint32_t nonfinite_rank;
} zfi_step_row_t;

/* The ring of steps. */
typedef struct zfi_rows {
    zfi_step_row_t *all; /* of step t: [t % n] */
    uint32_t n, n_params;
} zfi_rows_t;

/* ---- deliveries -------------------------------------------------------------------------------------------------- */

typedef struct zfi_batch {
    uint32_t n;
    uint64_t step;
    uint64_t nbytes;
    uint64_t needs_job;     /* jobs must have reached this before its slots are written (recycled pieces) */
    uint64_t staging_batch; /* batches must have reached this before its staging is written */
    zfi_gradient_t gradients[ZFI_BATCH_ENTRIES];
} zfi_batch_t;

/* The host's deliveries of a parameter's gradient in the step being filled. */
typedef struct zfi_protocol {
    uint8_t delivered; /* ZF_GRAD_PART, ZF_GRAD_TOTAL or 0 */
    uint8_t is_last;   /* nothing more may come but REPLACE */
    uint8_t has_sum;   /* parts are being summed */
    uint32_t from, to; /* delivered by ranges of matrices: those so far; to = 0: not by ranges */
} zfi_protocol_t;

enum { ZFI_EXPECT_UNKNOWN, ZFI_EXPECT_ALWAYS, ZFI_EXPECT_NOT }; /* every step of this run had one; some had none */

/* Host-side state of a parameter. */
typedef struct zfi_grad_state {
    zfi_protocol_t trial;    /* `now` as it would be, while a call is being checked */
    uint64_t trial_call;     /* number of the call that trial belongs to */
    uint64_t shipped_nbytes; /* of the newest shipment: lost if another follows */
    uint64_t staging_batch;  /* number + 1 of the newest batch that uses its staging; 0 = none */
    uint64_t range_batch;    /* the same before the first range of this step */
} zfi_grad_state_t;

/* ---- parts ------------------------------------------------------------------------------------------------------- */

/* The places of a chunk's state. An early replay writes it elsewhere, and the places are exchanged (replay/early.h). */
typedef struct zfi_chunk_state {
    float *w;             /* [n_room], which the chunk's elements are first of */
    unsigned char *m, *v; /* [n_room] moments of zfi_moments_nbytes(); NULL where the rule has none */
    uint32_t n_room;      /* elements */
} zfi_chunk_state_t;

/* The host's optimizer state; written by workers, each a chunk at a time, and while the run rests by what reads and
 * writes state at rest. Of resident matrices it lies on the device (dev.head.all_w ...), and n follows the device's
 * whenever the run rests. replay/state_arrays.h reads and writes it in either place. */
typedef struct zfi_host_state {
    zfi_chunk_state_t *chunks; /* [n_chunks] */
    zfi_chunk_state_t *spares; /* [n_spares] each as large as a chunk */
    uint32_t n_spares;
    uint32_t *n;                 /* [plan.n_counts] applied updates */
    unsigned char *published;    /* a ring, [max_close_chunks][publish_piece_nbytes]: publications on their way up */
    zf_matrix_update_t *updates; /* [plan.n_whole] what the host's function of whole matrices is given */
} zfi_host_state_t;

/* Slot pool (plan.h). The host's thread alone allocates and frees, by the schedule: a freed piece may be written again
 * once the replay that read it is over (its tag). tables[cohort][table][slot][layer] -> piece. */
typedef struct zfi_slots {
    unsigned char *pool; /* [plan.pool_nbytes] */
    struct zfi_free_piece {
        int32_t piece;
        uint64_t needs_job;
    } * free;                    /* [plan.n_pieces] a ring for each layer */
    uint64_t *n_taken, *n_given; /* [plan.n_layers] head and tail of each ring */
    int32_t *tables;
    uint32_t n_tables, n_layers;
    uint64_t interval;         /* slots of a table */
    const zfi_layer_t *layers; /* the plan's */
    uint32_t in_use;
    _Atomic uint64_t *peak; /* the most that were, for zf.stats/1 */
} zfi_slots_t;

/* Choices: sums and host maps belong to control; maps of channels on their way in are read by the device. */
typedef struct zfi_selection {
    double *records;                               /* [ZFI_RECORD_DEPTH][plan.record_sums] written by down */
    double *importance;                            /* [n_sums] */
    uint32_t *index;                               /* [n_index] selected channels by position */
    uint8_t *mask;                                 /* [n_masked] of the channels */
    uint64_t n_masked;                             /* channels, where any may be selected or not; else 0 */
    uint32_t *enter_pos, *enter_channel, *enter_n; /* [n_index] per matrix its first n_enter[]; enter_n: their counts,
                                                    * NULL where a matrix has one for all */
    uint32_t *n_enter;                             /* [n_matrices] */
    uint32_t *order;                               /* [max channels] in dev.exchange: channels by rank */
    uint8_t *moves;                                /* [max channels] what becomes of each */
    uint64_t enter_block;                          /* blocks produced so far */
    uint64_t last_choice;                          /* step of the newest choice of any cohort */
    uint8_t *is_counted; /* [n_matrices] its records are counted on this rank; NULL: all are (ranks/importance.h) */
    double *deferred, *selected;     /* [n_matrices] automatic interval: SCHEDULE.md's sums of d and of p */
    uint64_t *choice_step;           /* [n_cohorts] ... q */
    uint32_t *n_ready;               /* [n_cohorts] ... of each, the matrices that are ready; of all ranks */
    uint8_t *ready[ZFI_READY_DEPTH]; /* [n_cohorts] ... whether a window may close at step t % depth; read by hooks */
    unsigned char *staging;          /* [ZFI_ENTER_BLOCKS][dev.enter_block_nbytes] blocks on their way up */
} zfi_selection_t;

/* The state on the device: addresses of device memory but where it says host. */
typedef struct zfi_device_state {
    zfi_data_t head;  /* host: what *data holds */
    zfi_data_t *data; /* the tables that kernels are given */
    zfi_data_t
        *own; /* the tables for statistics: where this rank has sums of its slices alone, those are the matrices */
    zfi_data_matrix_t *own_matrices;
    zfi_data_param_t *own_params;
    zfi_data_matrix_t *matrices; /* host: the table of matrices as it was sent last */
    int64_t *columns;            /* column maps of parameters that are not contiguous */
    uint64_t columns_nbytes;     /* of `columns`, which is an allocation of its own */
    unsigned char *inputs;       /* [n_rows][input_nbytes] what the host sent with each step */
    uint64_t input_nbytes;
    int checks_itself;           /* digests are compared before visible values are written (step/guard.h) */
    int checks_afresh;           /* a check forgets what was found before: on_overwrite = hold */
    uint8_t *overwritten;        /* host: [n_params] the host changed it unannounced (zfi_found_t): set by the device,
                                  * cleared by params_changed */
    zfi_step_scalars_t *scalars; /* [n_rows] */
    uint32_t n_rows, n_groups;
    zfi_norm_part_t *part;       /* of the norm, where every rank has all gradients */
    unsigned char *ring;         /* [plan.ring_chunks][publish_piece_nbytes] */
    unsigned char *enter_blocks; /* [ZFI_ENTER_BLOCKS][enter_block_nbytes] */
    uint64_t enter_block_nbytes;
    uint32_t *enter_n;                                      /* [n_matrices] */
    uint32_t *enter_position, *enter_channel, *enter_count; /* [n_index] */
    void *scratch;                                          /* exchange_elems of four bytes, or a piece that travels */
    uint64_t scratch_nbytes;
    zfi_arena_t apart;       /* host: what is to become the weights that are their own masters, while a load or another
                              * set of parameters is made: [plan.n_resident_elems - n_resident_masters] */
    int is_apart;            /* `apart` is used: what the model reads has nothing to do with this run yet */
    float *exchange;         /* host: [2][exchange_elems] of hooks while everything rests, else of control's choices */
    uint64_t exchange_elems; /* of the largest matrix */
} zfi_device_state_t;

/* A copy in page-locked host memory of what ranks exchange, byte for byte (ranks/mirror.h). */
typedef struct zfi_mirror {
    zfi_arena_t arena;
    const void *device; /* the memory that it mirrors; NULL: there is none */
    uint64_t nbytes;    /* of that memory */
} zfi_mirror_t;

/* The plan of both arenas (zf.plan/0 says what each is). */
typedef struct zfi_layout {
    uint64_t host_nbytes, host_state_nbytes, host_slots_nbytes, host_publish_nbytes, device_nbytes;
    uint64_t n_elems, n_matrices, n_channels, n_selected_elems, n_resident_elems, slots_peak_milli, slots_mean_milli;
    uint64_t n_pieces; /* of the slot pool */
} zfi_layout_t;

/* Arenas, and what lies in them. */
typedef struct zfi_run_memory {
    zfi_arena_t host_arena, device_arena;
    zfi_arena_t staging_arena, sum_arena; /* mapped when the first hook needs them */
    uint64_t extra_device_nbytes;         /* of the two arenas */
    zfi_mirror_t staging_mirror;
    zfi_mirror_t selected_mirror; /* of the compact gradient and the selected channels' list */
    zfi_mirror_t moves;         /* no mirror: where what ranks exchange is packed and unpacked by the device, the table
                                 * of it, zfi_memory_n_moves of each bucket */
    zfi_mirror_t cut;           /* no mirror: sharded, from the flat memory of buckets to parts, and back */
    zfi_mirror_t pieces;        /* no mirror: sharded, from visible values to the memory of values, and back */
    zfi_mirror_t values;        /* no mirror: that memory, where values wait there to be fetched */
    uint64_t extra_host_nbytes; /* of mirrors and room, mapped */
    int is_bound;               /* all that is planned is mapped; since then hooks have asked for so much: */
    uint64_t asked_host_nbytes, asked_device_nbytes;
    uint64_t limit_mib;   /* [host] memory_limit_mib; 0: what the machine has */
    zfi_node_t node;      /* the machine, and the ranks that share it */
    uint64_t room_nbytes; /* of what ranks agree on and gather in host memory, planned */
    int is_pageable;      /* the host arena could not be page-locked: copies are slower */
    zfi_layout_t layout;
    uint64_t *param_base; /* [n_params] element offset of a parameter in staging and sums */
} zfi_run_memory_t;

/* Marks on the device stream of the newest visible writes; 0: none since it is this stream. */
typedef struct zfi_writes {
    uint64_t any;        /* the newest of all */
    uint64_t entered;    /* entering channels, of any matrix */
    uint64_t *run_ahead; /* [plan.n_launches] */
    uint64_t *publish;   /* [plan.n_cohorts] */
    uint64_t *fetched;   /* [n_matrices] publishing at fetch; else NULL */
} zfi_writes_t;

/* When windows close and channels are chosen: SCHEDULE.md's constants, as the configuration says. */
typedef struct zfi_pace {
    int selects;           /* channels are chosen; else W = 0, and a close publishes every channel */
    uint64_t warm_up;      /* W */
    uint64_t interval;     /* most steps of a window */
    uint64_t choose_every; /* steps between choices; 0: epochs say */
    int is_auto;           /* windows may close earlier, by their records */
    int keeps_sets;        /* a choice leaves selected channels that hold nearly as much as the best would */
} zfi_pace_t;

/* The host thread's clocks. */
typedef struct zfi_clock {
    zfi_pace_t pace;                      /* the same for as long as the run lives; any thread may read it */
    uint64_t t;                           /* submitted steps of this schedule */
    uint64_t steps_before;                /* of the schedules before it: reports count on (a load, bind_params again) */
    uint64_t n_applied, n_skipped;        /* of all steps before this run, or loaded: where its statistics begin */
    int has_loaded;                       /* its state is not what the visible values and no step give */
    uint64_t base;                        /* SCHEDULE.md: b */
    uint64_t epoch_end;                   /* newest step that ended an epoch; 0 = none */
    uint64_t next_job;                    /* and publication */
    uint64_t *window_first, *last_choice; /* [n_cohorts] */
    uint32_t *window_table;               /* [n_cohorts] */
    int has_begun;                        /* begin(t+1) was pushed */
    uint64_t waiting_choice;              /* step of a choice whose channels have not yet become visible; 0 = none */
    uint64_t n_choices;                   /* steps with a choice: masks take turns */
    /* [n_cohorts + 1] closes that are published at the next step, or when they are fetched; of what is resident
     * (cohort n_cohorts, no chunks) what other ranks have */
    zfi_close_t *due;
    uint32_t n_due;
    uint64_t *skip_publish_below; /* [n_matrices] jobs below this are not published (params_changed) */
} zfi_clock_t;

/* Publishing at fetch (step/at_fetch.c), or by gathering: what is left of the closes that are due. The host's
 * thread's. */
typedef struct zfi_unfetched {
    uint64_t merged;  /* publications below it: the device stream has their merges, or up their copies */
    uint32_t *n_left; /* [plan.max_close_chunks] by publication: segments that are not merged, or copied */
    uint8_t *is_done; /* [n_matrices] of these closes merged, or dropped; NULL: nothing waits so */
} zfi_unfetched_t;

/* Gradients on their way from the host. What every step goes through has arrays of its own. */
typedef struct zfi_incoming {
    zfi_grad_state_t *grads; /* [n_params] */
    zfi_protocol_t *now;     /* [n_params] deliveries of the step being filled */
    uint8_t *is_shipped;     /* [n_params] the newest delivery is on its way down */
    uint8_t *is_expected;    /* [n_params] ZFI_EXPECT_...: whether steps without a gradient are missing one */
    int has_ranges;          /* something was delivered by ranges of matrices in that step */
    zfi_batch_t *batch_ring; /* [ZFI_N_BATCHES] */
} zfi_incoming_t;

/* The words of a rank to the others before a step, or a call between steps. Behind it, a bit per parameter: it has a
 * gradient here. */
typedef struct zfi_agreement {
    uint64_t step;
    uint32_t is_discarded;
    uint32_t arguments; /* digest of what step was given */
    uint32_t events;    /* digest of what was called between steps */
    uint16_t update_interval, publish_lag;
    uint32_t n_sent, n_awaited; /* in such a call: buckets that are handed over, and that the device waits for */
} zfi_agreement_t;
static inline uint64_t zfi_agreement_nbytes(uint32_t n_params) {
    return sizeof(zfi_agreement_t) + (n_params + 63ull) / 64 * 8;
}

enum { ZFI_LEAST_BUFFERS = 2 };

/* Memory that buckets take in turn for the gradients on their way to the ranks that sum them. */
typedef struct zfi_bucket_buffer {
    zfi_arena_t arena;
    zfi_mirror_t mirror;
    uint64_t number; /* it is free when `exchanged` reaches this */
    int is_taken;
} zfi_bucket_buffer_t;

/* A bucket's place. */
typedef struct zfi_opened {
    uint32_t buffer;     /* ZF_NO_ID: it has none, so nothing of it was delivered, or it is on its way */
    uint64_t after;      /* with a buffer: its memory may be written when `exchanged` has reached this */
    uint64_t kept_at;    /* what this rank keeps of the sums, its part: bytes from the start of all */
    uint64_t trial_call; /* n_final and whether it has a buffer, as the call that is being checked leaves them */
    uint32_t trial_n_final;
    int trial_is_open;
} zfi_opened_t;

/* The parameters of a process group (ranks/groups.h). */
typedef struct zfi_group_list {
    int which;            /* 0: it is their group in place of group 0; 1: their second one */
    uint32_t name, index; /* the host's number, and the transport's */
    zfi_member_t place;
    uint32_t n;
    const uint32_t *ids;
    uint32_t events; /* what was done to them between steps, as zfi_reduction_t.events */
} zfi_group_list_t;

typedef struct zfi_group_lists {
    uint32_t n;
    zfi_group_list_t all[2 * ZFI_MAX_GROUPS];
    uint32_t *ids;
} zfi_group_lists_t;

/* Several ranks: gradients of the step being filled, on their way to the other ranks (hooks/reduce.h). The host's
 * thread's, but for the agreements of others. */
typedef struct zfi_reduction {
    uint32_t next;             /* the first bucket that is not handed over */
    uint32_t *n_final;         /* [buckets] of its parameters, delivered for good */
    uint8_t *has_landed;       /* [buckets] its sums are in their slots when they are there (ranks/landing.h) */
    uint8_t *is_final;         /* [n_params] */
    uint64_t *number;          /* [buckets] what `exchanged` reaches; 0: not handed over */
    uint64_t former_number;    /* what `exchanged` reaches with the last bucket of the step before */
    zfi_arena_t arena;         /* holds agreements, room and blocks */
    unsigned char *agreements; /* [most ranks of a group][agreement_nbytes] */
    uint64_t agreement_nbytes;
    uint64_t *nonfinite; /* [most ranks of a group] the control thread's: what each found (ranks/nonfinite.h) */
    uint32_t events;
    zfi_group_lists_t groups;
    /* where each rank keeps a part of the state: */
    uint64_t selected_number; /* what `exchanged` reaches with the newest step's selected channels of the last bucket */
    zfi_cohorts_t published;  /* in this step, and not shared yet */
    uint64_t *value_number;   /* [buckets] what `shared` reaches; 0: nothing of it was published */
    uint64_t *value_nbytes;   /* [buckets] that each rank sends of it */
    uint64_t *listed;         /* [n_matrices] its first entry in the table of pieces (ranks/value_pieces.h) */
    uint64_t *first_listed;   /* [2 buckets + 1] a bucket's first there, and its first resident one */
    unsigned char *to_send;   /* [most_ranks][room_nbytes] what goes to each rank by itself */
    unsigned char *room;      /* [most_ranks][room_nbytes] what is gathered in host memory: the control thread's, or the
                                 hooks' while it rests */
    uint64_t room_nbytes;     /* of one rank in `room` */
    unsigned char *blocks;    /* [n_blocks][block_nbytes] entering state before it is that of all ranks */
    uint64_t block_nbytes;
    uint32_t n_blocks;
    /* where each rank has the sums of its part (ranks/buffers.h); else NULL: */
    zfi_bucket_buffer_t *buffers; /* [buckets] the first n_buffers are mapped */
    /* Written by hooks; the communication thread looks for mirrors among them. From bind_params on at least
     * ZFI_LEAST_BUFFERS, if there are as many buckets. */
    _Atomic uint32_t n_buffers;
    zfi_opened_t *opened; /* [buckets] */
    uint32_t n_open;
    uint64_t trial_call; /* of the call that is being checked: */
    uint32_t trial_next, trial_n_open, trial_most, trial_n_on_way;
} zfi_reduction_t;

/* Memory of a whole bucket of parameters. */
typedef struct zfi_fetch_buffer {
    zfi_arena_t arena;
    uint32_t bucket; /* whose values it has; ZF_NO_ID: nobody's */
    uint64_t used;   /* the larger, the later */
} zfi_fetch_buffer_t;

/* Memory of the parts of a bucket that is being gathered. */
typedef struct zfi_fetch_parts {
    zfi_arena_t arena;
    zfi_mirror_t mirror;
    uint32_t bucket; /* whose; ZF_NO_ID: nobody's */
    uint64_t number; /* they are there, or it is free, when `shared` reaches this */
} zfi_fetch_parts_t;

/* A bucket of parameters. */
typedef struct zfi_shard {
    uint32_t buffer;            /* ZF_NO_ID: not fetched */
    uint32_t n_sharded, n_held; /* parameters; tied ones are held each by itself */
    uint64_t at;                /* of this rank's part: bytes from the arena's start */
} zfi_shard_t;

/* Stage 3: parameters live as shards (ranks/shards.h). The host's thread's. */
typedef struct zfi_shards {
    zfi_arena_t arena;           /* this rank's parts */
    uint64_t nbytes;             /* of it */
    zfi_shard_t *all;            /* [buckets]; NULL: nothing is sharded */
    uint8_t *is_held;            /* [n_params] fetched, not released */
    uint32_t *n_holders;         /* [n_params] of an owner: held, of itself and what is tied to it */
    zfi_fetch_buffer_t *buffers; /* [buckets] the first n_buffers are mapped */
    uint32_t n_buffers;
    zfi_fetch_parts_t parts;
    uint32_t n_whole;                     /* buckets with a sharded parameter */
    uint64_t buffer_nbytes, parts_nbytes; /* the most that one takes in a buffer, and its parts */
    uint32_t active;                      /* the bucket that was fetched last, or ZF_NO_ID */
    int direction; /* from the active bucket to the next one: -1 in forward, 1 in backward order */
    uint64_t n_uses;
    uint64_t newest; /* mark on the device stream: what was fetched is there */
} zfi_shards_t;

struct zfi_workers;
struct zfi_early;
struct zfi_updater;
struct zfi_publisher;

/* ---- what the rooms take of a run --------------------------------------------------------------------------------
 * Made once, with the run (run.c): each points to the parts that its functions work on, and to no other. */

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

/* ---- the run ----------------------------------------------------------------------------------------------------- */

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

/* SCHEDULE.md's constants of a configuration. */
zfi_pace_t zfi_pace_of(const zfi_config_t *config);

static inline int zfi_is_warm_up(const zfi_clock_t *clock, uint64_t t) { return t <= clock->pace.warm_up; }
static inline zfi_step_row_t *zfi_row(const zfi_rows_t *rows, uint64_t t) { return &rows->all[t % rows->n]; }
/* [n_layers] The pieces of a cohort's slot. */
static inline int32_t *zfi_slot_pieces(const zfi_slots_t *slots, uint32_t cohort, uint32_t table, uint32_t slot) {
    uint64_t row = (uint64_t)cohort * slots->n_tables + table;
    return slots->tables + (row * slots->interval + slot) * slots->n_layers;
}
/* Parts of records are numbered through, from 0: the first of step t. */
static inline uint64_t zfi_first_record_part(const zfi_plan_t *plan, uint64_t t) {
    return (t - 1) * plan->n_record_parts;
}
static inline double *zfi_record_part(const zfi_plan_t *plan, const zfi_selection_t *sel, uint64_t number) {
    return sel->records + number % ZFI_RECORD_DEPTH * plan->record_sums;
}
/* The slot of a chunk, which has a piece: its cohort's [n_layers]. */
static inline unsigned char *zfi_slot_in(const zfi_slots_t *slots, const zfi_chunk_t *chunk, const int32_t *pieces) {
    const zfi_layer_t *layer = &slots->layers[chunk->layer];
    uint32_t piece = (uint32_t)pieces[chunk->layer] - layer->first_piece;
    return slots->pool + layer->pool_offset + piece * layer->piece_nbytes + chunk->slot_offset;
}
static inline unsigned char *zfi_slot(const zfi_slots_t *slots, const zfi_chunk_t *chunk, uint32_t table,
                                      uint32_t slot) {
    return zfi_slot_in(slots, chunk, zfi_slot_pieces(slots, chunk->cohort, table, slot));
}
/* The same of a row's step. FLUSH gives the step that is being filled another table, and moves no slot: so other
 * threads find it here. */
static inline unsigned char *zfi_row_slot(const zfi_slots_t *slots, const zfi_chunk_t *chunk,
                                          const zfi_step_row_t *row) {
    return zfi_slot_in(slots, chunk, row->pieces + (uint64_t)chunk->cohort * slots->n_layers);
}

/* The memory where the device keeps what a step brings and its scalars. */
static inline void *zfi_device_input_memory(const zfi_device_state_t *dev, uint64_t t) {
    return dev->inputs + t % dev->n_rows * dev->input_nbytes;
}
static inline zfi_step_input_t zfi_device_input(const zfi_device_state_t *dev, uint64_t t) {
    const zfi_hyper_t *hyper = zfi_device_input_memory(dev, t);
    return (zfi_step_input_t){hyper, (const uint8_t *)(hyper + dev->n_groups)};
}
static inline zfi_step_scalars_t *zfi_device_scalars(const zfi_device_state_t *dev, uint64_t t) {
    return dev->scalars + t % dev->n_rows;
}
/* A table in device memory, to be written by a copy. */
static inline void *zfi_device_table(const void *table) { return (void *)(uintptr_t)table; }
