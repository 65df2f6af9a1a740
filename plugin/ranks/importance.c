/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/importance.c - channels' sums of all ranks (contract in importance.h). */
#include "ranks/importance.h"

#include <stdlib.h>
#include <string.h>

#include "plan/slice.h"
#include "ranks/collective.h"

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

/* ---- numbers of matrices, packed by rank ------------------------------------------------------------------------- */

typedef enum kind {
    PARTS, /* each rank's, to whoever counts them */
    WHOLE  /* theirs who count, to everyone */
} kind_t;

/* Which numbers travel: values[i - first] is number i, and those in [first, end) are there. */
typedef struct packing {
    zfi_ranks_t *ranks;
    uint32_t holders; /* who exchanges, by their number: each kind of them in turn */
    kind_t kind;
    int is_per_matrix;      /* a number per matrix, else one per channel of those that have something to choose */
    const uint8_t *cohorts; /* those of these cohorts only; NULL: of all */
    double *values;
    uint64_t first, end;
    int is_first;     /* nothing is added up yet */
    uint64_t done, n; /* of what a rank sends: numbers [done, done + n) go in this exchange */
} packing_t;

static int is_sent(const packing_t *packing, uint32_t number, uint32_t rank) {
    zfi_ranks_t *ranks = packing->ranks;
    const zfi_matrix_t *matrix = &ranks->plan->matrices[number];
    if ((!packing->is_per_matrix && !matrix->is_choosable) || (packing->cohorts && !packing->cohorts[matrix->cohort]))
        return 0;
    return matrix->holders == packing->holders && rank == counter_of(ranks, number);
}

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

static void unpack(const packing_t *packing, double *values, double *packed, uint64_t n) {
    (void)packing;
    memcpy(values, packed, n * sizeof *values);
}

/* What one rank counts of it goes in this exchange; fn NULL: nothing is done. Returns how many numbers it counts in
 * all. */
static uint64_t move(const packing_t *packing, uint32_t rank, move_fn fn, double *packed) {
    zfi_ranks_t *ranks = packing->ranks;
    uint64_t at = 0;
    for (uint32_t i = 0; i < ranks->plan->n_matrices; i++) {
        const zfi_matrix_t *matrix = &ranks->plan->matrices[i];
        uint64_t base = packing->is_per_matrix ? i : matrix->sum_base, from, to, first, end;
        if (!is_sent(packing, i, rank))
            continue;
        zfi_overlap(base, packing->is_per_matrix ? 1 : matrix->n_channels, packing->first, packing->end, &from, &to);
        zfi_overlap(at, to - from, packing->done, packing->done + packing->n, &first, &end);
        if (fn && first < end)
            fn(packing, packing->values + (base + from + first - packing->first), packed + (at + first - packing->done),
               end - first);
        at += to - from;
    }
    return at;
}

/* In as many exchanges as the control thread's memory needs. */
static zf_status_t join_holders(packing_t *packing, uint64_t t) {
    zfi_engine_t *engine = packing->ranks->engine;
    const zfi_holders_t *holders = &packing->ranks->buckets->holders[packing->holders];
    uint32_t n_ranks = holders->place.n_ranks, rank = holders->place.rank;
    int is_parts = packing->kind == PARTS;
    uint64_t room = packing->ranks->reduction->room_nbytes / sizeof(double), most = 0;
    double *all = (void *)packing->ranks->reduction->room, *to_send = (void *)packing->ranks->reduction->to_send;
    zfi_exchange_t what = {
        .purpose = ZF_COLLECTIVE_FOR_IMPORTANCE, .bucket = ZF_NO_ID, .step = t, .recv = all, .lane = ZFI_LANE_ENTERING};
    zf_status_t st = ZF_OK;
    what.group = holders->group;
    for (uint32_t r = 0; r < n_ranks; r++) {
        uint64_t n = move(packing, r, NULL, NULL);
        most = n > most ? n : most;
    }
    for (packing->done = 0; packing->done < most && !st; packing->done += packing->n) {
        packing->n = most - packing->done < room ? most - packing->done : room;
        what.nbytes = packing->n * sizeof *all;
        if (is_parts)
            for (uint32_t r = 0; r < n_ranks; r++)
                (void)move(packing, r, pack, to_send + r * packing->n);
        else
            (void)move(packing, rank, pack, all + zfi_part_of(engine, holders->group, rank) * packing->n);
        what.send = is_parts ? to_send : NULL;
        st = is_parts ? zfi_collective(engine, &what) : zfi_gather_parts(engine, &what);
        for (uint32_t r = 0; r < n_ranks && !st; r++) {
            packing->is_first = r == 0;
            if (is_parts)
                (void)move(packing, rank, add, (r == rank ? to_send : all) + r * packing->n);
            else if (r != rank)
                (void)move(packing, r, unpack, all + zfi_part_of(engine, holders->group, r) * packing->n);
        }
    }
    return st;
}

static zf_status_t join(packing_t *packing, uint64_t t) {
    zf_status_t st = ZF_OK;
    for (packing->holders = 0; packing->holders < packing->ranks->buckets->n_holders && !st; packing->holders++)
        st = join_holders(packing, t);
    return st;
}

/* ---- the control thread's ---------------------------------------------------------------------------------------- */

zf_status_t zfi_importance_join_record(zfi_ranks_t *ranks, const zfi_step_row_t *row, uint32_t part) {
    uint64_t first = part * ranks->plan->record_sums, left = ranks->plan->n_sums - first;
    packing_t packing = {.ranks = ranks, .kind = PARTS, .first = first};
    packing.values = zfi_record_part(ranks->plan, ranks->sel, zfi_first_record_part(ranks->plan, row->t) + part);
    packing.end = first + (left < ranks->plan->record_sums ? left : ranks->plan->record_sums);
    return zfi_is_sharded(ranks->engine) && row->scalars.applied ? join(&packing, row->t) : ZF_OK;
}

zf_status_t zfi_importance_join(zfi_ranks_t *ranks, const zfi_step_row_t *row) {
    packing_t packing = {.ranks = ranks,
                         .kind = WHOLE,
                         .cohorts = row->chooses,
                         .values = ranks->sel->importance,
                         .end = ranks->plan->n_sums};
    return zfi_is_sharded(ranks->engine) ? join(&packing, row->t) : ZF_OK;
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
    zf_status_t st;
    if (!zfi_is_sharded(engine))
        return ZF_OK;
    memcpy(all + zfi_rank(engine) * n, ranks->sel->n_ready, n * sizeof *all);
    st = zfi_collective(engine, &what);
    for (uint32_t r = 0; r < zfi_n_ranks(engine) && !st; r++)
        for (uint32_t c = 0; c < n && r != zfi_rank(engine); c++)
            ranks->sel->n_ready[c] += all[r * n + c];
    return st;
}

/* ---- at rest ----------------------------------------------------------------------------------------------------- */

typedef struct rest_args {
    zfi_ranks_t *ranks;
    zf_status_t *out_status;
} rest_args_t;

static void join_all(void *raw) {
    const rest_args_t *args = raw;
    zfi_ranks_t *ranks = args->ranks;
    double *const measures[] = {ranks->sel->deferred, ranks->sel->selected};
    packing_t sums = {.ranks = ranks, .kind = WHOLE, .values = ranks->sel->importance, .end = ranks->plan->n_sums};
    zf_status_t st = zfi_is_poisoned(ranks->engine) ? ZF_ERR_POISONED : join(&sums, 0);
    for (int i = 0; i < 2 && measures[0] && !st; i++) {
        packing_t measure = {.ranks = ranks, .kind = WHOLE, .is_per_matrix = 1, .values = measures[i]};
        measure.end = ranks->plan->n_matrices;
        st = join(&measure, 0);
    }
    *args->out_status = st;
}

zf_status_t zfi_importance_join_at_rest(zfi_ranks_t *ranks) {
    zf_status_t outcome = ZF_ERR_POISONED;
    rest_args_t args = {ranks, &outcome};
    zf_status_t st = zfi_serial_call(ranks->engine->control, join_all, &args, sizeof args);
    return st ? st : outcome;
}
