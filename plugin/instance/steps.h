/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/steps.h - the clocks of a run, and what its steps leave behind: rows and closes. The host's thread
 * fills them; timelines.h orders who reads them. */
#pragma once

#include "instance/engine.h"
#include "launch.h"
#include "plan/plan.h"

enum { ZFI_MAX_STEPS_AHEAD = 8 /* steps that the host may submit before the device has finished the oldest */ };

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

static inline int zfi_is_warm_up(const zfi_clock_t *clock, uint64_t t) { return t <= clock->pace.warm_up; }
static inline zfi_step_row_t *zfi_row(const zfi_rows_t *rows, uint64_t t) { return &rows->all[t % rows->n]; }
