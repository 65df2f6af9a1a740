/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/plan/slice.c - units of matrices to ranks (contract and picture in slice.h). */
#include "plan/slice.h"

#include <stdlib.h>
#include <string.h>

/* The load of a rank, and with one unit more; the rank with the least gets the next unit. */
typedef struct load {
    uint64_t n_elems;
    uint32_t rank;
} load_t;

typedef struct deal {
    zfi_plan_t *plan;
    const zfi_param_t *params;
    zfi_buckets_t *buckets;
    uint64_t most_ranks;
    uint64_t *of_bucket; /* [buckets][most_ranks] elements so far */
    uint64_t *of_values; /* [buckets][most_ranks] the same of what is not sharded */
    uint64_t *of_cohort; /* [holders][n_cohorts + 1][most_ranks] the same of cohorts; the last: of what is resident */
    uint64_t *costs;     /* [holders][most_ranks] of the rules that take matrices whole */
    load_t *loads;       /* [most_ranks] scratch */
    uint8_t *is_next;    /* [most_ranks] the same */
    uint64_t *rows;      /* [most_ranks] that each gets of a matrix, or more than are left */
} deal_t;

static int has_less(const load_t *a, const load_t *b) {
    return a->n_elems < b->n_elems || (a->n_elems == b->n_elems && a->rank < b->rank);
}

/* The n that have least come first: quickselect, in time that grows as the number of loads. */
static void select_least(load_t *loads, uint64_t n_loads, uint64_t n) {
    while (n > 0 && n < n_loads) {
        load_t pivot = loads[(n_loads - 1) / 2]; /* not the last: it makes progress */
        uint64_t first = 0, end = n_loads;
        for (;; first++) {
            while (has_less(&loads[first], &pivot))
                first++;
            do
                end--;
            while (has_less(&pivot, &loads[end]));
            if (first >= end)
                break;
            load_t swapped = loads[first];
            loads[first] = loads[end];
            loads[end] = swapped;
        }
        end++; /* those before it are at most the pivot, the others at least */
        if (n < end) {
            n_loads = end;
        } else {
            loads += end;
            n_loads -= end;
            n -= end;
        }
    }
}

/* Says of each rank whether it is among the n that have least. of_cohort: NULL where it does not count. */
static void choose_ranks(deal_t *deal, const uint64_t *of_bucket, const uint64_t *of_cohort, uint32_t n_ranks,
                         uint64_t n) {
    memset(deal->is_next, 0, n_ranks);
    for (uint32_t r = 0; r < n_ranks && n; r++)
        deal->loads[r] = (load_t){of_bucket[r] + (of_cohort ? of_cohort[r] : 0), r};
    select_least(deal->loads, n_ranks, n);
    for (uint64_t i = 0; i < n; i++)
        deal->is_next[deal->loads[i].rank] = 1;
}

static uint64_t unit_rows(const zfi_matrix_t *matrix, int is_sharded) {
    if (is_sharded && matrix->channels_are_rows)
        return matrix->rows;
    return (ZFI_SLICE_ALIGN + matrix->cols - 1) / matrix->cols;
}

static uint64_t count_units(const zfi_matrix_t *matrix, uint64_t unit) { return (matrix->rows + unit - 1) / unit; }

uint64_t zfi_slice_most(const zfi_matrix_t *matrix, int is_sharded, uint32_t n_ranks) {
    uint64_t unit = unit_rows(matrix, is_sharded), rows = (count_units(matrix, unit) + n_ranks - 1) / n_ranks * unit;
    return (rows < matrix->rows ? rows : matrix->rows) * matrix->cols;
}

/* Rows of each rank, by units. */
static void deal_rows(deal_t *deal, const zfi_matrix_t *matrix, const uint64_t *of_bucket, const uint64_t *of_cohort,
                      uint32_t n_ranks) {
    uint64_t unit = unit_rows(matrix, deal->params[matrix->param].is_sharded), n_units = count_units(matrix, unit);
    choose_ranks(deal, of_bucket, of_cohort, n_ranks, n_units % n_ranks);
    for (uint32_t r = 0; r < n_ranks; r++)
        deal->rows[r] = (n_units / n_ranks + (uint64_t)deal->is_next[r]) * unit;
}

/* All rows go to the rank that has the least to compute so far, with the first block of a matrix; others follow it. */
static void deal_whole(deal_t *deal, const zfi_matrix_t *matrix, uint64_t *costs, uint32_t n_ranks) {
    const zfi_param_t *param = &deal->params[matrix->param];
    uint64_t n_elems = param->rows * param->cols, least = param->rows < param->cols ? param->rows : param->cols;
    uint32_t owner = 0;
    if (matrix->param_offset % n_elems)
        return;
    for (uint32_t r = 1; r < n_ranks; r++)
        owner = costs[r] < costs[owner] ? r : owner;
    costs[owner] += n_elems * least;
    memset(deal->rows, 0, n_ranks * sizeof *deal->rows);
    deal->rows[owner] = UINT64_MAX;
}

static void deal_matrix(deal_t *deal, uint32_t number) {
    zfi_matrix_t *matrix = &deal->plan->matrices[number];
    int is_sharded = deal->params[matrix->param].is_sharded;
    uint64_t bucket = deal->buckets->of_param[matrix->param];
    uint32_t holders = deal->buckets->all[bucket].holders, n_ranks = deal->buckets->holders[holders].place.n_ranks;
    uint64_t cohort = zfi_listed_cohort(deal->plan, matrix);
    uint64_t row = 0;
    uint64_t *of_bucket = deal->of_bucket + bucket * deal->most_ranks;
    uint64_t *of_values = deal->of_values + bucket * deal->most_ranks;
    uint64_t *of_cohort = deal->of_cohort + (holders * (deal->plan->n_cohorts + 1u) + cohort) * deal->most_ranks;
    zfi_slice_t *slices = deal->plan->slices + number * deal->most_ranks;
    /* other instances deal what they hold too without what else this one has: a bucket has all of it or none */
    int is_alone = !deal->params[matrix->param].group_index[1];
    if (matrix->takes_whole)
        deal_whole(deal, matrix, deal->costs + holders * deal->most_ranks, n_ranks);
    else
        deal_rows(deal, matrix, of_bucket, is_alone ? of_cohort : NULL, n_ranks);
    for (uint32_t r = 0; r < n_ranks; r++) {
        uint64_t n = deal->rows[r] < matrix->rows - row ? deal->rows[r] : matrix->rows - row;
        slices[r] = (zfi_slice_t){.first = row * matrix->cols, .n = n * matrix->cols};
        row += n;
        of_bucket[r] += slices[r].n;
        of_values[r] += is_sharded ? 0 : slices[r].n;
        of_cohort[r] += slices[r].n;
    }
    matrix->slices = slices;
    matrix->holders = holders;
}

/* Its gradient lies in this rank's part of the sums, where its parameter's first slice begins. */
static void own_matrix(const deal_t *deal, zfi_matrix_t *matrix) {
    uint64_t param_at = deal->buckets->own_at[matrix->param];
    matrix->own = matrix->slices[deal->buckets->holders[matrix->holders].place.rank];
    matrix->grad_offset = matrix->own.at - param_at - matrix->own.first; /* may wrap around, and back */
    matrix->is_sharded = deal->params[matrix->param].is_sharded;
    if (!matrix->is_sharded)
        return;
    matrix->held_first = matrix->own.first;
    matrix->held_rows = matrix->own.n / matrix->cols;
}

/* Slices follow each other in the parts of their bucket. Returns how many there are with something in
 * them, of all ranks. */
static uint64_t place_bucket(deal_t *deal, zfi_bucket_t *bucket) {
    uint64_t n_ranks = bucket->place.n_ranks, n = 0, *at = deal->of_cohort; /* what is dealt needs it no more */
    memset(at, 0, n_ranks * sizeof *at);
    for (uint32_t i = 0; i < bucket->n_params; i++) {
        const zfi_param_t *param = &deal->params[deal->buckets->params[bucket->first + i]];
        deal->buckets->own_at[param->id] = at[bucket->place.rank];
        for (uint64_t m = param->first_matrix; m < (uint64_t)param->first_matrix + param->n_matrices; m++)
            for (uint64_t r = 0; r < n_ranks; r++) {
                zfi_slice_t *slice = &deal->plan->slices[m * deal->most_ranks + r];
                slice->at = at[r];
                at[r] += slice->n;
                n += slice->n != 0;
            }
    }
    bucket->own_elems = at[bucket->place.rank];
    return n;
}

static uint64_t most_of(const uint64_t *n, uint32_t n_ranks) {
    uint64_t most = 0;
    for (uint32_t r = 0; r < n_ranks; r++)
        most = n[r] > most ? n[r] : most;
    return most;
}

static void deal_all(deal_t *deal) {
    zfi_buckets_t *buckets = deal->buckets;
    uint64_t n_moves = 0;
    for (uint32_t m = 0; m < deal->plan->n_matrices; m++)
        deal_matrix(deal, m);
    for (uint32_t b = 0; b < buckets->n; b++) {
        zfi_bucket_t *bucket = &buckets->all[b];
        uint64_t at = b * deal->most_ranks;
        bucket->first_move = n_moves;
        bucket->n_moves = place_bucket(deal, bucket);
        n_moves += bucket->n_moves + 1; /* a whole part */
        if (buckets->is_owner)
            zfi_bucket_cut(buckets, b, most_of(deal->of_bucket + at, bucket->place.n_ranks),
                           most_of(deal->of_values + at, bucket->place.n_ranks));
    }
    if (buckets->is_owner)
        zfi_buckets_place_values(buckets);
    for (uint32_t m = 0; m < deal->plan->n_matrices && buckets->is_owner; m++)
        own_matrix(deal, &deal->plan->matrices[m]);
}

zf_status_t zfi_plan_deal_slices(zfi_plan_t *plan, const zfi_param_t *params, zfi_buckets_t *buckets) {
    uint64_t n_ranks = buckets->most_ranks;
    deal_t deal = {.plan = plan, .params = params, .buckets = buckets, .most_ranks = n_ranks};
    zf_status_t st = ZF_ERR_MEMORY;
    deal.of_bucket = calloc(buckets->n * n_ranks, sizeof *deal.of_bucket);
    deal.of_values = calloc(buckets->n * n_ranks, sizeof *deal.of_values);
    deal.of_cohort = calloc(buckets->n_holders * (plan->n_cohorts + 1u) * n_ranks, sizeof *deal.of_cohort);
    deal.costs = calloc(buckets->n_holders * n_ranks, sizeof *deal.costs);
    deal.loads = calloc(n_ranks, sizeof *deal.loads);
    deal.is_next = calloc(n_ranks, 1);
    deal.rows = calloc(n_ranks, sizeof *deal.rows);
    plan->slices = calloc(plan->n_matrices * n_ranks, sizeof *plan->slices);
    if (deal.of_bucket && deal.of_values && deal.of_cohort && deal.costs && deal.loads && deal.is_next && deal.rows &&
        plan->slices) {
        deal_all(&deal);
        st = ZF_OK;
    }
    free(deal.of_bucket);
    free(deal.of_values);
    free(deal.of_cohort);
    free(deal.costs);
    free(deal.rows);
    free(deal.loads);
    free(deal.is_next);
    return st;
}
