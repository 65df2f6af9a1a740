/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/meter.h - what lateness cost, per step and parameter group: the sums that workers add to and any
 * thread reads. What is added is computed by replay/lateness.c.
 *
 * A step is complete when every cohort's window that holds it has been replayed. Parts are added as whole multiples of
 * 2^-48, so their order, which the workers' timing decides, does not show.
 *
 * Where each rank keeps a part of the state, it measures that part. With every step the ranks tell each other what has
 * become complete since the one before (a share), and a step counts once all have told: all ranks read the same. */
#pragma once

#include <pthread.h>
#include <stdint.h>

enum {
    ZFI_METER_ROWS = 256, /* steps that are kept: more than any that are open at once */
    ZFI_METER_SHARED = 8  /* steps in a share at most: more wait for the next one */
};

typedef struct zfi_meter_rows {
    int64_t *parts;                    /* [ZFI_METER_ROWS][group_room] step t: row t % ROWS, in units of 2^-48 ... */
    uint64_t row_step[ZFI_METER_ROWS]; /* ... if this is t */
    uint64_t newest;                   /* complete */
} zfi_meter_rows_t;

typedef struct zfi_meter {
    pthread_mutex_t lock; /* guards all below */
    int is_on;
    uint32_t n_groups, n_cohorts, n_ranks;       /* ranks that share; 1: nothing is shared, own is all */
    uint32_t group_room, cohort_room, rank_room; /* what the arrays hold */
    uint64_t *closed;                            /* [cohort_room] newest step whose window is replayed */
    uint64_t *told;                              /* [rank_room] newest step that this rank has told */
    zfi_meter_rows_t own, all;                   /* this rank's parts; those of all */
    double *sums;                                /* [group_room] of all complete steps */
    uint64_t start, shared, n_complete; /* steps counted are later than start; shared: newest of own in a share */
} zfi_meter_t;

typedef struct zfi_meter_reading {
    uint64_t step, n_steps; /* 0: none */
    double loss, sum;       /* of that step; of all n_steps */
} zfi_meter_reading_t;

void zfi_meter_init(zfi_meter_t *meter);
void zfi_meter_free(zfi_meter_t *meter);

/* How large a run is. n_ranks: those that each measure a part, else 1. */
typedef struct zfi_meter_size {
    uint32_t n_groups, n_cohorts, n_ranks;
} zfi_meter_size_t;

/* [control] Room for a run that is being made; nothing else changes. Returns 0 where there is no memory. */
int zfi_meter_reserve(zfi_meter_t *meter, zfi_meter_size_t size);

/* [control] A run, for which there is room, begins after `step`: steps are counted from the next one on, sums go on.
 * is_on = 0: nothing is counted until the next call. */
void zfi_meter_start(zfi_meter_t *meter, int is_on, zfi_meter_size_t size, uint64_t step);

/* [own threads] loss is added to a group's part of a step. */
void zfi_meter_add(zfi_meter_t *meter, uint64_t step, uint32_t group, double loss);
/* [own threads] The cohort's windows are replayed up to this step. Cohorts without elements: UINT64_MAX, once. */
void zfi_meter_close(zfi_meter_t *meter, uint32_t cohort, uint64_t step);

/* What a rank tells the others: steps (newest - n_steps, newest], parts[step][group]. A rank without elements tells
 * UINT64_MAX and none. */
typedef struct zfi_meter_share {
    uint64_t newest, n_steps;
    int64_t parts[];
} zfi_meter_share_t;

static inline uint64_t zfi_meter_share_nbytes(uint32_t n_groups) {
    return sizeof(zfi_meter_share_t) + (uint64_t)ZFI_METER_SHARED * n_groups * sizeof(int64_t);
}

/* [hook] Between two of these calls the shares of all ranks, this one's included, are joined, in order of rank. */
void zfi_meter_share(zfi_meter_t *meter, zfi_meter_share_t *out);
void zfi_meter_join(zfi_meter_t *meter, uint32_t rank, const zfi_meter_share_t *share);

/* [any-thread] step 0: the newest complete one; group UINT32_MAX: all. Returns 0 where the step is not complete, or no
 * longer kept; then loss is 0. */
int zfi_meter_read(zfi_meter_t *meter, uint64_t step, uint32_t group, zfi_meter_reading_t *out);
/* [any-thread] 0 where it is off. */
uint32_t zfi_meter_n_groups(zfi_meter_t *meter);
