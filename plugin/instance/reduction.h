/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/reduction.h - several ranks: gradients on their way to the ranks that sum them, and the process
 * groups of parameters. */
#pragma once

#include "instance/engine.h"
#include "instance/run_memory.h"
#include "plan/bucket.h"

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
