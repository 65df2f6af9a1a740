/* SPDX-License-Identifier: Apache-2.0 */
/* oracle/state.h - inside the oracle: its state, and what its files share. Others use its functions of single
 * numbers alone. */
#pragma once

#include <stddef.h>

#include "oracle.h"

typedef struct zo_slot {
    float *grad; /* [rows*cols] of the matrix, widened: exact */
    int is_applied;
    float s;
    zo_hyper_t hyper;
} zo_slot_t;

typedef struct zo_matrix {
    uint32_t param, cohort;
    uint64_t first, rows, cols, channels, k;
    int channels_are_rows;
    uint8_t *is_selected, *is_entering; /* [channels] */
    uint8_t *was_selected;              /* [channels] before the choice of the close that is not fetched yet */
    uint32_t *n, *device_n;             /* [channels] */
    double *importance, *record;        /* [channels] */
    double *deferred, *selected;        /* [t] sums of record t over channels not in Sel, and in Sel */
    zo_slot_t *slots;                   /* [update_interval] */
    uint32_t n_slots;
    int is_resident;
    int is_in_runs; /* "Moments": m, or m and v, in 8 bits */
    int is_publish_due;
    zo_sent_t is_sent; /* zo_matrix_info_t */
    int is_due;        /* ... */
    int is_unfetched;  /* "Publishing at fetch": P waits for a fetch */
} zo_matrix_t;

typedef struct zo_param {
    zo_decl_t decl;
    uint64_t n_elems;
    int is_trainable, is_delivered, was_present;
    int always_came;                    /* in every step of this set so far */
    int sees_edits;                     /* "Edits in the host's memory" */
    int is_written, is_held, is_behind; /* on_overwrite = ask */
    float *w, *m, *v, *published;
    float *device_w, *device_m, *device_v;
    float *grad; /* sum of the deliveries */
    void *visible;
} zo_param_t;

struct zo {
    zo_config_t config;
    zo_param_t *params;
    zo_matrix_t *matrices;
    uint32_t n_params, n_matrices, n_cohorts;
    uint64_t t, base, epoch_end;
    int has_stepped;       /* since this set of parameters, or a load */
    uint64_t saved;        /* the newest step after which was a save, or a load */
    uint64_t steps_before; /* of the schedules before this one */
    uint64_t late;         /* zo_late */
    int is_close_due;      /* a cohort's publication, also where the host wrote, or the device keeps, all of it */
    /* by cohort; resident matrices count as one behind the last, which never closes */
    uint64_t last_choice[ZO_MAX_SLOTS + 1];
    uint64_t opened[ZO_MAX_SLOTS + 1]; /* the step before the open window's first */
    int closes[ZO_MAX_SLOTS + 1];      /* at this step */
};

/* Of one update. */
typedef struct zo_scalars {
    const zo_config_t *config;
    const zo_group_t *group;
    float s, b1, one_minus_b1, b2, one_minus_b2, inv_sqrt_bc2, eps, neg_step, decay, l2;
    zo_hyper_t hyper;
    uint32_t n;
} zo_scalars_t;

/* math.c */
/* b^n in double: 1 times the powers b^(2^k) of the bits of n, lowest bit first. */
double zo_power(double b, uint32_t n);
/* n = applied updates, this one included. */
zo_scalars_t zo_scalars_of(const zo_config_t *config, uint32_t group, const zo_hyper_t *h, float s, uint32_t n);
void zo_update(uint64_t number, float *w, float *m, float *v, float grad, const zo_scalars_t *k);
uint32_t zo_steps_ahead(const zo_config_t *config, const zo_group_t *group); /* x of "Prediction"; 0: none */
float zo_predicted(float w, float m, float v, const zo_scalars_t *last);
float zo_round_moment(float x, zo_moments_t moments, uint32_t random16);
/* Runs of 128 values; r: of each. */
void zo_round_run_m(float *m, const uint32_t *r);
void zo_round_run_v(float *v, const uint32_t *r);
uint32_t zo_random32(uint64_t step, uint64_t index);
void zo_run_randoms(uint64_t step, uint64_t index, uint32_t out[128]);
/* Sums of squares of a matrix's units go to the lanes of its gradient, of which n_units are there already. */
void zo_take_squares(double lanes[32], uint64_t *n_units, const float *g, uint64_t rows, uint64_t cols, int by_rows);
double zo_lanes_sum(const double lanes[32]);
double zo_row_sum(const float *g, uint64_t n);                                   /* of |g| */
void zo_column_sums(double *sums, const float *g, uint64_t rows, uint64_t cols); /* of |g| */

/* windows.c */
void zo_decide_closes(zo_t *o);
void zo_note_activity(const zo_t *o, zo_matrix_t *x, int has_record);

/* step.c */
/* w := visible, by element, where that is not round(w), and what is left is in dst: p->w itself, or a copy. */
void zo_see_edits(const zo_param_t *p, float *dst);
void zo_load_device(zo_t *o, zo_matrix_t *x); /* its copies of what is selected, from the state */

/* replay.c */
typedef struct zo_target { /* what a replay updates: the state itself, or a copy of it for export */
    float *w, *m, *v;      /* of the whole parameter */
    uint32_t *n;           /* [channels] of the matrix */
} zo_target_t;
/* The open slots into *to; they stay open. */
void zo_replay(const zo_t *o, const zo_matrix_t *x, const zo_target_t *to);
/* The open slots into the state, which is then published and rounded; they are dropped. */
void zo_replay_matrix(zo_t *o, zo_matrix_t *x, int is_predicted);
/* "Moments": after the closes of step t; has_update: some slot was applied. */
void zo_round_moments(zo_t *o, zo_matrix_t *x, int has_update);
/* ... of a matrix in runs, to nearest. */
void zo_round_runs_to_nearest(zo_t *o, const zo_matrix_t *x);

/* select.c */
void zo_choose_due(zo_t *o); /* "Step t", 8 */

/* plan.c */
void *zo_zeros(uint64_t n, size_t size);
void zo_start_param(zo_param_t *p, const zo_decl_t *decl);
void zo_free_param(zo_param_t *p);
void zo_drop_slots(zo_matrix_t *x);
uint64_t zo_depth(const zo_matrix_t *x);                      /* elements of a channel */
uint64_t zo_at(const zo_matrix_t *x, uint64_t c, uint64_t i); /* index of element i of channel c in the matrix */
