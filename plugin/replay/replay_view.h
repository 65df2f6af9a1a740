/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/replay_view.h - what the replay of a chunk reads, and where it works. */
#pragma once

#include "instance/run.h"

/* The parts of a run that a replay reads: the arrays' comments are in instance/ and plan.h. */
typedef struct zfi_replay_view {
    const struct zfi_deferral *deferral; /* deferral.h */
    uint32_t predict;                    /* steps that what a replay publishes looks ahead; 0 = none */
    const zfi_kernels_t *kernels;
    const zfi_param_t *params; /* id, group, rule, grad_dtype */
    const zfi_matrix_t *matrices;
    const zfi_segment_t *segments;
    const zfi_chunk_t *chunks;
    const zfi_cohort_plan_t *cohorts;
    const uint32_t *cohort_matrices;
    uint32_t *n; /* as zfi_host_state_t.n */
    const uint8_t *mask;
    const zfi_rows_t *rows;
    const zfi_slots_t *slots;
    const zfi_step_row_t *expected; /* in place of the row of its step, which is not known yet; NULL: none (early.h) */
} zfi_replay_view_t;

/* The memory that the pass works on: the chunk's own state, or copies of it (export). */
typedef struct zfi_replay_target {
    float *w;                      /* [chunk elements] */
    void *m, *v;                   /* [chunk elements] moments as the chunk's; NULL where it has none */
    unsigned char *visible;        /* [chunk elements] round(w) in the parameter's type, or NULL */
    float *scratch;                /* zfi_replay_scratch() of the chunk */
    unsigned char *gathered;       /* where matrices carry: room for the chunk's gradients; else NULL */
    const zfi_chunk_state_t *from; /* not mode = mean: read there, written above. NULL: in place */
} zfi_replay_target_t;
