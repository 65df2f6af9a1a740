/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/meter.h - what lateness cost, per step and parameter group: the sums that workers add to and any
 * thread reads. What is added is computed by offload/lateness.c.
 *
 * A step is complete when every cohort's window that holds it has been replayed. Parts are added as whole multiples of
 * 2^-48, so their order, which the workers' timing decides, does not show. */
#ifndef ZFI_METER_H
#define ZFI_METER_H

#include <pthread.h>
#include <stdint.h>

enum { ZFI_METER_ROWS = 256 }; /* steps that are kept: more than any that are open at once */

typedef struct zfi_meter {
    pthread_mutex_t lock; /* guards all below */
    int is_on;
    uint32_t n_groups, n_cohorts;
    uint32_t group_room, cohort_room;   /* what the arrays hold */
    uint64_t *closed;                   /* [cohort_room] newest step whose window is replayed */
    int64_t *parts;                     /* [ZFI_METER_ROWS][group_room] step t: row t % ROWS, in units of 2^-48 ... */
    uint64_t row_step[ZFI_METER_ROWS];  /* ... if this is t */
    double *sums;                       /* [group_room] of all complete steps */
    uint64_t start, newest, n_complete; /* steps counted are later than start; newest: complete */
} zfi_meter_t;

typedef struct zfi_meter_reading {
    uint64_t step, n_steps; /* 0: none */
    double loss, sum;       /* of that step; of all n_steps */
} zfi_meter_reading_t;

void zfi_meter_init(zfi_meter_t *meter);
void zfi_meter_free(zfi_meter_t *meter);

/* [control] Room for a run that is being made; nothing else changes. Returns 0 where there is no memory. */
int zfi_meter_reserve(zfi_meter_t *meter, uint32_t n_groups, uint32_t n_cohorts);

/* [control] A run, for which there is room, begins after `step`: steps are counted from the next one on, sums go on.
 * is_on = 0: nothing is counted until the next call. */
void zfi_meter_start(zfi_meter_t *meter, int is_on, uint32_t n_groups, uint32_t n_cohorts, uint64_t step);

/* [control] From the next step on there are so many cohorts; what was counted stays. Every step is complete. */
void zfi_meter_deal(zfi_meter_t *meter, uint32_t n_cohorts, uint64_t step);

/* [own threads] loss is added to a group's part of a step. */
void zfi_meter_add(zfi_meter_t *meter, uint64_t step, uint32_t group, double loss);
/* [own threads] The cohort's windows are replayed up to this step. Cohorts without elements: UINT64_MAX, once. */
void zfi_meter_close(zfi_meter_t *meter, uint32_t cohort, uint64_t step);

/* [any-thread] step 0: the newest complete one; group UINT32_MAX: all. Returns 0 where the step is not complete, or no
 * longer kept; then loss is 0. */
int zfi_meter_read(zfi_meter_t *meter, uint64_t step, uint32_t group, zfi_meter_reading_t *out);
/* [any-thread] 0 where it is off. */
uint32_t zfi_meter_n_groups(zfi_meter_t *meter);

#endif
