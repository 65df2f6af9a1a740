/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/meter.c - sums of lateness (contract in meter.h). */
#include "instance/meter.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double unit = 0x1p-48, most = 0x1p14;

/* A sum that does not fit stays at the end: weights are past saving then. */
static void add_bounded(int64_t *sum, int64_t part) {
    if (__builtin_add_overflow(*sum, part, sum))
        *sum = part > 0 ? INT64_MAX : INT64_MIN;
}

void zfi_meter_init(zfi_meter_t *meter) { pthread_mutex_init(&meter->lock, NULL); }

void zfi_meter_free(zfi_meter_t *meter) {
    free(meter->closed);
    free(meter->parts);
    free(meter->sums);
    pthread_mutex_destroy(&meter->lock);
}

/* Larger arrays of the same contents; meter->... is only read. */
static int grow(const zfi_meter_t *meter, zfi_meter_t *out) {
    out->closed = calloc(out->cohort_room, sizeof *out->closed);
    out->sums = calloc(out->group_room, sizeof *out->sums);
    out->parts = calloc((size_t)ZFI_METER_ROWS * out->group_room, sizeof *out->parts);
    if (!out->closed || !out->sums || !out->parts)
        return 0;
    for (uint32_t c = 0; c < meter->cohort_room; c++)
        out->closed[c] = meter->closed[c];
    for (uint32_t g = 0; g < meter->group_room; g++)
        out->sums[g] = meter->sums[g];
    for (uint32_t i = 0; i < ZFI_METER_ROWS * meter->group_room; i++)
        out->parts[i / meter->group_room * out->group_room + i % meter->group_room] = meter->parts[i];
    return 1;
}

static void exchange(zfi_meter_t *meter, zfi_meter_t *grown) {
    zfi_meter_t old = *meter;
    meter->closed = grown->closed;
    meter->sums = grown->sums;
    meter->parts = grown->parts;
    meter->group_room = grown->group_room;
    meter->cohort_room = grown->cohort_room;
    grown->closed = old.closed;
    grown->sums = old.sums;
    grown->parts = old.parts;
}

int zfi_meter_reserve(zfi_meter_t *meter, uint32_t n_groups, uint32_t n_cohorts) {
    int has_room;
    pthread_mutex_lock(&meter->lock);
    has_room = n_groups <= meter->group_room && n_cohorts <= meter->cohort_room;
    if (!has_room) {
        zfi_meter_t grown = {.group_room = n_groups > meter->group_room ? n_groups : meter->group_room,
                             .cohort_room = n_cohorts > meter->cohort_room ? n_cohorts : meter->cohort_room};
        has_room = grow(meter, &grown);
        if (has_room)
            exchange(meter, &grown);
        free(grown.closed);
        free(grown.sums);
        free(grown.parts);
    }
    pthread_mutex_unlock(&meter->lock);
    return has_room;
}

void zfi_meter_start(zfi_meter_t *meter, int is_on, uint32_t n_groups, uint32_t n_cohorts, uint64_t step) {
    pthread_mutex_lock(&meter->lock);
    meter->is_on = is_on;
    meter->n_groups = n_groups;
    meter->n_cohorts = n_cohorts;
    memset(meter->row_step, 0, sizeof meter->row_step);
    for (uint32_t c = 0; c < n_cohorts; c++)
        meter->closed[c] = step;
    meter->start = meter->newest = step;
    pthread_mutex_unlock(&meter->lock);
}

void zfi_meter_deal(zfi_meter_t *meter, uint32_t n_cohorts, uint64_t step) {
    pthread_mutex_lock(&meter->lock);
    meter->n_cohorts = n_cohorts;
    for (uint32_t c = 0; c < n_cohorts; c++)
        meter->closed[c] = step;
    pthread_mutex_unlock(&meter->lock);
}

/* The row of a step, cleared where it was another's. */
static int64_t *row_of(zfi_meter_t *meter, uint64_t step) {
    uint64_t at = step % ZFI_METER_ROWS;
    int64_t *row = meter->parts + at * meter->group_room;
    if (meter->row_step[at] != step) {
        memset(row, 0, meter->n_groups * sizeof *row);
        meter->row_step[at] = step;
    }
    return row;
}

void zfi_meter_add(zfi_meter_t *meter, uint64_t step, uint32_t group, double loss) {
    double bounded = loss > most ? most : loss > -most ? loss : -most; /* a NaN too: weights are past saving then */
    pthread_mutex_lock(&meter->lock);
    if (meter->is_on && group < meter->n_groups && step > meter->newest)
        add_bounded(&row_of(meter, step)[group], (int64_t)llrint(bounded / unit));
    pthread_mutex_unlock(&meter->lock);
}

static double part_of(const int64_t *row, uint32_t group) { return (double)row[group] * unit; }

void zfi_meter_close(zfi_meter_t *meter, uint32_t cohort, uint64_t step) {
    uint64_t newest = UINT64_MAX;
    pthread_mutex_lock(&meter->lock);
    if (meter->is_on)
        meter->closed[cohort] = step;
    for (uint32_t c = 0; c < meter->n_cohorts; c++)
        newest = meter->closed[c] < newest ? meter->closed[c] : newest;
    while (meter->is_on && newest != UINT64_MAX && meter->newest < newest) {
        const int64_t *row = row_of(meter, ++meter->newest);
        for (uint32_t g = 0; g < meter->n_groups; g++)
            meter->sums[g] += part_of(row, g);
        meter->n_complete++;
    }
    pthread_mutex_unlock(&meter->lock);
}

/* Under the lock. */
static int read_step(zfi_meter_t *meter, uint64_t step, uint32_t group, zfi_meter_reading_t *out) {
    uint64_t oldest = meter->newest < ZFI_METER_ROWS / 2 ? 0 : meter->newest - ZFI_METER_ROWS / 2;
    uint64_t wanted = step ? step : meter->newest;
    uint32_t first = group == UINT32_MAX ? 0 : group, end = group == UINT32_MAX ? meter->n_groups : group + 1;
    int is_kept = meter->is_on && wanted > meter->start && wanted > oldest && wanted <= meter->newest;
    out->step = is_kept ? wanted : 0;
    out->n_steps = meter->n_complete;
    for (uint32_t g = first; g < end && g < meter->n_groups; g++) {
        out->loss += is_kept ? part_of(row_of(meter, wanted), g) : 0;
        out->sum += meter->sums[g];
    }
    return is_kept;
}

int zfi_meter_read(zfi_meter_t *meter, uint64_t step, uint32_t group, zfi_meter_reading_t *out) {
    int is_kept;
    *out = (zfi_meter_reading_t){0};
    pthread_mutex_lock(&meter->lock);
    is_kept = read_step(meter, step, group, out);
    pthread_mutex_unlock(&meter->lock);
    return is_kept;
}

uint32_t zfi_meter_n_groups(zfi_meter_t *meter) {
    uint32_t n;
    pthread_mutex_lock(&meter->lock);
    n = meter->is_on ? meter->n_groups : 0;
    pthread_mutex_unlock(&meter->lock);
    return n;
}
