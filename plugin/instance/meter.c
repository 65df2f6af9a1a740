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
    free(meter->told);
    free(meter->own.parts);
    free(meter->all.parts);
    free(meter->sums);
    pthread_mutex_destroy(&meter->lock);
}

/* ---- room -------------------------------------------------------------------------------------------------------- */

static int64_t *grow_parts(const zfi_meter_t *meter, const int64_t *parts, uint32_t group_room) {
    int64_t *out = calloc((size_t)ZFI_METER_ROWS * group_room, sizeof *out);
    for (uint32_t i = 0; out && i < ZFI_METER_ROWS * meter->group_room; i++)
        out[i / meter->group_room * group_room + i % meter->group_room] = parts[i];
    return out;
}

/* Larger arrays of the same contents; meter->... is only read. */
static int grow(const zfi_meter_t *meter, zfi_meter_t *out) {
    out->closed = calloc(out->cohort_room, sizeof *out->closed);
    out->told = calloc(out->rank_room, sizeof *out->told);
    out->sums = calloc(out->group_room, sizeof *out->sums);
    out->own.parts = grow_parts(meter, meter->own.parts, out->group_room);
    out->all.parts = grow_parts(meter, meter->all.parts, out->group_room);
    if (!out->closed || !out->told || !out->sums || !out->own.parts || !out->all.parts)
        return 0;
    for (uint32_t c = 0; c < meter->cohort_room; c++)
        out->closed[c] = meter->closed[c];
    for (uint32_t r = 0; r < meter->rank_room; r++)
        out->told[r] = meter->told[r];
    for (uint32_t g = 0; g < meter->group_room; g++)
        out->sums[g] = meter->sums[g];
    return 1;
}

static void exchange(zfi_meter_t *meter, zfi_meter_t *grown) {
    zfi_meter_t old = *meter;
    meter->closed = grown->closed;
    meter->told = grown->told;
    meter->sums = grown->sums;
    meter->own.parts = grown->own.parts;
    meter->all.parts = grown->all.parts;
    meter->group_room = grown->group_room;
    meter->cohort_room = grown->cohort_room;
    meter->rank_room = grown->rank_room;
    grown->closed = old.closed;
    grown->told = old.told;
    grown->sums = old.sums;
    grown->own.parts = old.own.parts;
    grown->all.parts = old.all.parts;
}

static uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

int zfi_meter_reserve(zfi_meter_t *meter, zfi_meter_size_t size) {
    int has_room;
    pthread_mutex_lock(&meter->lock);
    has_room =
        size.n_groups <= meter->group_room && size.n_cohorts <= meter->cohort_room && size.n_ranks <= meter->rank_room;
    if (!has_room) {
        zfi_meter_t grown = {.group_room = larger(size.n_groups, meter->group_room),
                             .cohort_room = larger(size.n_cohorts, meter->cohort_room),
                             .rank_room = larger(size.n_ranks, meter->rank_room)};
        has_room = grow(meter, &grown);
        if (has_room)
            exchange(meter, &grown);
        free(grown.closed);
        free(grown.told);
        free(grown.sums);
        free(grown.own.parts);
        free(grown.all.parts);
    }
    pthread_mutex_unlock(&meter->lock);
    return has_room;
}

/* ---- counting ---------------------------------------------------------------------------------------------------- */

static void restart(zfi_meter_rows_t *rows, uint64_t step) {
    memset(rows->row_step, 0, sizeof rows->row_step);
    rows->newest = step;
}

void zfi_meter_start(zfi_meter_t *meter, int is_on, zfi_meter_size_t size, uint64_t step) {
    pthread_mutex_lock(&meter->lock);
    meter->is_on = is_on;
    meter->n_groups = size.n_groups;
    meter->n_cohorts = size.n_cohorts;
    meter->n_ranks = size.n_ranks;
    for (uint32_t c = 0; c < size.n_cohorts; c++)
        meter->closed[c] = step;
    for (uint32_t r = 0; r < size.n_ranks; r++)
        meter->told[r] = step;
    restart(&meter->own, step);
    restart(&meter->all, step);
    meter->start = meter->shared = step;
    pthread_mutex_unlock(&meter->lock);
}

/* The row of a step, cleared where it was another's. */
static int64_t *row_of(const zfi_meter_t *meter, zfi_meter_rows_t *rows, uint64_t step) {
    uint64_t at = step % ZFI_METER_ROWS;
    int64_t *row = rows->parts + at * meter->group_room;
    if (rows->row_step[at] != step) {
        memset(row, 0, meter->n_groups * sizeof *row);
        rows->row_step[at] = step;
    }
    return row;
}

void zfi_meter_add(zfi_meter_t *meter, uint64_t step, uint32_t group, double loss) {
    double bounded = loss > most ? most : loss > -most ? loss : -most; /* a NaN too: weights are past saving then */
    pthread_mutex_lock(&meter->lock);
    if (meter->is_on && group < meter->n_groups && step > meter->own.newest)
        add_bounded(&row_of(meter, &meter->own, step)[group], (int64_t)llrint(bounded / unit));
    pthread_mutex_unlock(&meter->lock);
}

static double part_of(const int64_t *row, uint32_t group) { return (double)row[group] * unit; }

/* The next step of these rows is complete, and counts. */
static void count(zfi_meter_t *meter, zfi_meter_rows_t *rows) {
    const int64_t *row = row_of(meter, rows, ++rows->newest);
    for (uint32_t g = 0; g < meter->n_groups; g++)
        meter->sums[g] += part_of(row, g);
    meter->n_complete++;
}

static uint64_t least_of(const uint64_t *steps, uint32_t n) {
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++)
        least = steps[i] < least ? steps[i] : least;
    return least;
}

void zfi_meter_close(zfi_meter_t *meter, uint32_t cohort, uint64_t step) {
    pthread_mutex_lock(&meter->lock);
    if (meter->is_on)
        meter->closed[cohort] = step;
    uint64_t newest = least_of(meter->closed, meter->n_cohorts);
    while (meter->is_on && newest != UINT64_MAX && meter->own.newest < newest)
        if (meter->n_ranks > 1)
            (void)row_of(meter, &meter->own, ++meter->own.newest);
        else
            count(meter, &meter->own);
    pthread_mutex_unlock(&meter->lock);
}

/* ---- several ranks ----------------------------------------------------------------------------------------------- */

void zfi_meter_share(zfi_meter_t *meter, zfi_meter_share_t *out) {
    pthread_mutex_lock(&meter->lock);
    *out = (zfi_meter_share_t){.newest = UINT64_MAX};
    if (meter->is_on && least_of(meter->closed, meter->n_cohorts) != UINT64_MAX) {
        uint64_t n = meter->own.newest - meter->shared;
        out->n_steps = n < ZFI_METER_SHARED ? n : ZFI_METER_SHARED;
        for (uint64_t i = 0; i < out->n_steps; i++)
            memcpy(out->parts + i * meter->n_groups, row_of(meter, &meter->own, ++meter->shared),
                   meter->n_groups * sizeof *out->parts);
        out->newest = meter->shared;
    }
    pthread_mutex_unlock(&meter->lock);
}

void zfi_meter_join(zfi_meter_t *meter, uint32_t rank, const zfi_meter_share_t *share) {
    uint64_t newest;
    pthread_mutex_lock(&meter->lock);
    for (uint64_t i = 0; i < share->n_steps && meter->is_on; i++) {
        int64_t *row = row_of(meter, &meter->all, share->newest - share->n_steps + i + 1);
        for (uint32_t g = 0; g < meter->n_groups; g++)
            add_bounded(&row[g], share->parts[i * meter->n_groups + g]);
    }
    meter->told[rank] = share->newest;
    newest = least_of(meter->told, meter->n_ranks);
    while (meter->is_on && newest != UINT64_MAX && meter->all.newest < newest)
        count(meter, &meter->all);
    pthread_mutex_unlock(&meter->lock);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Under the lock. */
static int read_step(zfi_meter_t *meter, uint64_t step, uint32_t group, zfi_meter_reading_t *out) {
    zfi_meter_rows_t *rows = meter->n_ranks > 1 ? &meter->all : &meter->own;
    uint64_t oldest = rows->newest < ZFI_METER_ROWS / 2 ? 0 : rows->newest - ZFI_METER_ROWS / 2;
    uint64_t wanted = step ? step : rows->newest;
    uint32_t first = group == UINT32_MAX ? 0 : group, end = group == UINT32_MAX ? meter->n_groups : group + 1;
    int is_kept = meter->is_on && wanted > meter->start && wanted > oldest && wanted <= rows->newest;
    out->step = is_kept ? wanted : 0;
    out->n_steps = meter->n_complete;
    for (uint32_t g = first; g < end && g < meter->n_groups; g++) {
        out->loss += is_kept ? part_of(row_of(meter, rows, wanted), g) : 0;
        out->sum += meter->sums[g];
    }
    return is_kept;
}

int zfi_meter_read(zfi_meter_t *meter, uint64_t step, uint32_t group, zfi_meter_reading_t *out) {
    *out = (zfi_meter_reading_t){0};
    pthread_mutex_lock(&meter->lock);
    int is_kept = read_step(meter, step, group, out);
    pthread_mutex_unlock(&meter->lock);
    return is_kept;
}

uint32_t zfi_meter_n_groups(zfi_meter_t *meter) {
    pthread_mutex_lock(&meter->lock);
    uint32_t n = meter->is_on ? meter->n_groups : 0;
    pthread_mutex_unlock(&meter->lock);
    return n;
}
