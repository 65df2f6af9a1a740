/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/importance.c - channels' sums of all ranks (contract in importance.h). */
#include "ranks/importance.h"

#include <stdlib.h>
#include <string.h>

#include "plan/slice.h"
#include "ranks/collective.h"
#include "ranks/gathering.h"

/* ---- who owns what ----------------------------------------------------------------------------------------------- */

/* Who adds the sums of a matrix up, of all ranks. */
static uint32_t counter_of(const zfi_ranks_t *ranks, uint32_t matrix) {
    return matrix % ranks->buckets->holders[ranks->plan->matrices[matrix].holders].place.n_ranks;
}

zf_status_t zfi_importance_new(zfi_ranks_t *ranks) {
    uint32_t n = ranks->plan->n_matrices;
    if (!zfi_is_sharded(ranks->engine))
        return ZF_OK;
    ranks->sel->is_counted = calloc(n, 1);
    if (!ranks->sel->is_counted)
        return ZF_ERR_MEMORY;
    for (uint32_t i = 0; i < n; i++)
        ranks->sel->is_counted[i] =
            counter_of(ranks, i) == ranks->buckets->holders[ranks->plan->matrices[i].holders].place.rank;
    return ZF_OK;
}

void zfi_importance_free(zfi_selection_t *sel) { free(sel->is_counted); }

static int is_counted_by(const zfi_ranks_t *ranks, uint32_t matrix, uint32_t holders, uint32_t rank) {
    return ranks->plan->matrices[matrix].holders == holders && rank == counter_of(ranks, matrix);
}

/* ---- each rank's sums, to the rank that counts them -------------------------------------------------------------- */

/* Which numbers travel: values[i - first] is number i, and those in [first, end) are there. */
typedef struct packing {
    zfi_ranks_t *ranks;
    uint32_t holders; /* who exchanges, by their number: each kind of them in turn */
    double *values;
    uint64_t first, end;
    int is_first;     /* nothing is added up yet */
    uint64_t done, n; /* of what a rank sends: numbers [done, done + n) go in this exchange */
} packing_t;

/* n neighbours that a rank sends, of one matrix. */
typedef void (*move_fn)(const packing_t *packing, double *values, double *packed, uint64_t n);

static void pack(const packing_t *packing, double *values, double *packed, uint64_t n) {
    (void)packing;
    memcpy(packed, values, n * sizeof *values);
}

/* By rising rank. */
static void add(const packing_t *packing, double *values, double *packed, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        values[i] = packing->is_first ? packed[i] : values[i] + packed[i];
}

/* What one rank counts of it goes in this exchange; fn NULL: nothing is done. Returns how many numbers it counts. */
static uint64_t move(const packing_t *packing, uint32_t rank, move_fn fn, double *packed) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < packing->ranks->plan->n_matrices; i++) {
        const zfi_matrix_t *matrix = &packing->ranks->plan->matrices[i];
        uint64_t from, to, first, end;
        if (!matrix->is_choosable || !is_counted_by(packing->ranks, i, packing->holders, rank))
            continue;
        zfi_overlap(matrix->sum_base, matrix->n_channels, packing->first, packing->end, &from, &to);
        zfi_overlap(at, to - from, packing->done, packing->done + packing->n, &first, &end);
        if (fn && first < end)
            fn(packing, packing->values + (matrix->sum_base + from + first - packing->first),
               packed + (at + first - packing->done), end - first);
        at += to - from;
    }
    return at;
}

/* In as many exchanges as the control thread's memory needs. */
static zf_status_t join_holders(packing_t *packing, uint64_t t) {
    const zfi_holders_t *holders = &packing->ranks->buckets->holders[packing->holders];
    uint32_t n_ranks = holders->place.n_ranks, rank = holders->place.rank;
    uint64_t room = packing->ranks->reduction->room_nbytes / sizeof(double), most = 0;
    double *all = (void *)packing->ranks->reduction->room, *to_send = (void *)packing->ranks->reduction->to_send;
    zfi_exchange_t what = {.purpose = ZF_COLLECTIVE_FOR_IMPORTANCE,
                           .bucket = ZF_NO_ID,
                           .step = t,
                           .send = to_send,
                           .recv = all,
                           .lane = ZFI_LANE_ENTERING};
    zf_status_t st = ZF_OK;
    what.group = holders->group;
    for (uint32_t r = 0; r < n_ranks; r++) {
        uint64_t n = move(packing, r, NULL, NULL);
        most = n > most ? n : most;
    }
    for (packing->done = 0; packing->done < most && !st; packing->done += packing->n) {
        packing->n = most - packing->done < room ? most - packing->done : room;
        what.nbytes = packing->n * sizeof *all;
        for (uint32_t r = 0; r < n_ranks; r++)
            (void)move(packing, r, pack, to_send + r * packing->n);
        st = zfi_collective(packing->ranks->engine, &what);
        for (uint32_t r = 0; r < n_ranks && !st; r++) {
            packing->is_first = r == 0;
            (void)move(packing, rank, add, (r == rank ? to_send : all) + r * packing->n);
        }
    }
    return st;
}

/* ---- theirs who count, to everyone ------------------------------------------------------------------------------- */

/* A number per matrix, or one per channel of those that have something to choose. */
typedef struct counted {
    double *values;
    int is_per_matrix;
    const uint8_t *cohorts; /* those of these cohorts only; NULL: of all */
} counted_t;

static void walk_counted(zfi_gathering_t *gathering, uint32_t rank) {
    const counted_t *counted = gathering->arg;
    for (uint32_t i = 0; i < gathering->ranks->plan->n_matrices; i++) {
        const zfi_matrix_t *matrix = &gathering->ranks->plan->matrices[i];
        uint64_t n = counted->is_per_matrix ? 1 : matrix->is_choosable ? matrix->n_channels : 0;
        if ((!counted->cohorts || counted->cohorts[matrix->cohort]) &&
            is_counted_by(gathering->ranks, i, gathering->holders, rank))
            zfi_gathering_pass(gathering, counted->values + (counted->is_per_matrix ? i : matrix->sum_base),
                               n * sizeof *counted->values);
    }
}

/* ---- the control thread's ---------------------------------------------------------------------------------------- */

zf_status_t zfi_importance_join_record(zfi_ranks_t *ranks, const zfi_step_row_t *row, uint32_t part) {
    uint64_t first = part * ranks->plan->record_sums, left = ranks->plan->n_sums - first;
    packing_t packing = {.ranks = ranks, .first = first};
    zf_status_t st = ZF_OK;
    packing.values = zfi_record_part(ranks->plan, ranks->sel, zfi_first_record_part(ranks->plan, row->t) + part);
    packing.end = first + (left < ranks->plan->record_sums ? left : ranks->plan->record_sums);
    if (!zfi_is_sharded(ranks->engine) || !row->scalars.applied)
        return ZF_OK;
    for (; packing.holders < ranks->buckets->n_holders && !st; packing.holders++)
        st = join_holders(&packing, row->t);
    return st;
}

zf_status_t zfi_importance_join(zfi_ranks_t *ranks, const zfi_step_row_t *row) {
    counted_t chosen_by = {.values = ranks->sel->importance, .cohorts = row->chooses};
    zfi_gathering_t gathering = {.ranks = ranks, .walk = walk_counted, .arg = &chosen_by};
    return zfi_gathering_by_control(&gathering, ZF_COLLECTIVE_FOR_IMPORTANCE, row->t);
}

zf_status_t zfi_importance_join_ready(zfi_ranks_t *ranks, uint64_t t) {
    zfi_engine_t *engine = ranks->engine;
    uint32_t n = ranks->plan->n_cohorts, *all = (void *)ranks->reduction->room;
    zfi_exchange_t what = {.purpose = ZF_COLLECTIVE_FOR_IMPORTANCE,
                           .bucket = ZF_NO_ID,
                           .step = t,
                           .recv = all,
                           .nbytes = n * sizeof *all,
                           .lane = ZFI_LANE_ENTERING};
    if (!zfi_is_sharded(engine))
        return ZF_OK;
    memcpy(all + zfi_rank(engine) * n, ranks->sel->n_ready, n * sizeof *all);
    zf_status_t st = zfi_collective(engine, &what);
    for (uint32_t r = 0; r < zfi_n_ranks(engine) && !st; r++)
        for (uint32_t c = 0; c < n && r != zfi_rank(engine); c++)
            ranks->sel->n_ready[c] += all[r * n + c];
    return st;
}

/* ---- at rest ----------------------------------------------------------------------------------------------------- */

zf_status_t zfi_importance_join_at_rest(zfi_ranks_t *ranks) {
    counted_t all[] = {{.values = ranks->sel->importance},
                       {.values = ranks->sel->deferred, .is_per_matrix = 1},
                       {.values = ranks->sel->selected, .is_per_matrix = 1}};
    zf_status_t st = ZF_OK;
    for (size_t i = 0; i < sizeof all / sizeof *all && !st; i++) {
        zfi_gathering_t gathering = {.ranks = ranks, .walk = walk_counted, .arg = &all[i]};
        st = all[i].values ? zfi_gathering_at_rest(&gathering) : ZF_OK;
    }
    return st;
}
