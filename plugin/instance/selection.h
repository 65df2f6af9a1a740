/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/selection.h - choices of channels: sums that decide, what is selected, and what enters. */
#pragma once

#include "instance/engine.h"
#include "plan/plan.h"

enum {
    ZFI_RECORD_DEPTH = 4,   /* parts of importance records in host memory */
    ZFI_READY_DEPTH = 4,    /* decisions about windows: made two steps ahead */
    ZFI_ENTER_BLOCKS = 4,   /* blocks of entering state in flight */
    ZFI_ENTER_ELEMS = 4096, /* elements of one: 48 KiB of w, m, v */
    ZFI_MOST_BLOCKS = 256   /* of entering state that wait for other ranks' elements */
};

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

/* Parts of records are numbered through, from 0: the first of step t. */
static inline uint64_t zfi_first_record_part(const zfi_plan_t *plan, uint64_t t) {
    return (t - 1) * plan->n_record_parts;
}

static inline double *zfi_record_part(const zfi_plan_t *plan, const zfi_selection_t *sel, uint64_t number) {
    return sel->records + number % ZFI_RECORD_DEPTH * plan->record_sums;
}
