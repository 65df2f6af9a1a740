/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/schedule/choose.c - which channels a choice takes (contract in choose.h; rules in SCHEDULE.md, step 8).
 *
 * Model: all channels of a matrix are ranked by importance, equal ones by index. The first k of the ranking are its
 * best set; those of them that are not selected enter, in exchange for selected ones that are not in it.
 *
 * Cost: a sort of the channels of each matrix per choice, one more where strategy `auto` asks first; scratch for one
 * matrix. */
#include "schedule/choose.h"

#include <string.h>

/* Strategy auto: a cohort keeps its channels while they hold this share of the squared importance of the best ones. */
static const double reselect_below = 0.8;

enum { MOVE_NONE = 0, MOVE_ENTERS, MOVE_LEAVES };

/* ---- ranking ----------------------------------------------------------------------------------------------------- */

/* 1: channel x comes after y in rank. No two are equal. */
static int is_behind(const double *importance, uint32_t x, uint32_t y) {
    if (importance[x] != importance[y])
        return importance[x] < importance[y];
    return x > y;
}

/* Lets list[root] sink in the heap list[0, n), whose root is the last in rank. */
static void sink(const double *importance, uint32_t *list, uint64_t root, uint64_t n) {
    uint32_t moving = list[root];
    for (uint64_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && is_behind(importance, list[child + 1], list[child]))
            child++;
        if (!is_behind(importance, list[child], moving))
            break;
        list[root] = list[child];
    }
    list[root] = moving;
}

/* Heap sort: in place, where qsort() allocates. */
static void sort(const double *importance, uint32_t *list, uint64_t n) {
    for (uint64_t i = n / 2; i > 0; i--)
        sink(importance, list, i - 1, n);
    for (uint64_t end = n; end > 1; end--) {
        uint32_t last = list[0];
        list[0] = list[end - 1];
        list[end - 1] = last;
        sink(importance, list, 0, end - 1);
    }
}

/* The channels of a matrix by rank; their importance stays where it is, so that scratch is small. */
static const uint32_t *rank(const zfi_selection_t *sel, const zfi_matrix_t *matrix) {
    uint32_t *list = sel->order;
    for (uint32_t c = 0; c < matrix->n_channels; c++)
        list[c] = c;
    sort(sel->importance + matrix->sum_base, list, matrix->n_channels);
    return list;
}

/* ---- exchanges --------------------------------------------------------------------------------------------------- */

static void mark_moves(const zfi_selection_t *sel, const zfi_matrix_t *matrix, const uint32_t *list, uint8_t *moves) {
    const uint8_t *mask = sel->mask + matrix->channel_base;
    memset(moves, MOVE_NONE, matrix->n_channels);
    for (uint32_t i = 0; i < matrix->n_channels; i++)
        if (i < matrix->k && !mask[list[i]])
            moves[list[i]] = MOVE_ENTERS;
        else if (i >= matrix->k && mask[list[i]])
            moves[list[i]] = MOVE_LEAVES;
}

/* Entering channels take the positions of leaving ones, both in rising order. */
static void list_moves(zfi_selection_t *sel, const zfi_matrix_t *matrix, const uint8_t *moves, uint32_t *out_n_enter,
                       zfi_counters_t *count) {
    uint32_t *pos = sel->enter_pos + matrix->index_base, *channel = sel->enter_channel + matrix->index_base;
    uint32_t n = 0, n_left = 0;
    int is_first = sel->last_choice == 0;
    for (uint32_t c = 0; c < matrix->n_channels; c++)
        if (moves[c] == MOVE_ENTERS)
            channel[n++] = c;
    for (uint32_t i = 0; i < matrix->k; i++) {
        if (is_first)
            pos[i] = i;
        else if (moves[sel->index[matrix->index_base + i]] == MOVE_LEAVES)
            pos[n_left++] = i;
    }
    *out_n_enter = n;
    atomic_fetch_add(&count->channels_entered, n);
    atomic_fetch_add(&count->channels_left, n_left);
}

static void choose_matrix(const zfi_plan_t *plan, zfi_selection_t *sel, uint32_t number, zfi_counters_t *count) {
    const zfi_matrix_t *matrix = &plan->matrices[number];
    if (matrix->is_choosable) {
        mark_moves(sel, matrix, rank(sel, matrix), sel->moves);
        list_moves(sel, matrix, sel->moves, &sel->n_enter[number], count);
    } else if (matrix->k && sel->last_choice == 0) { /* all of them, once */
        memset(sel->moves, MOVE_ENTERS, matrix->n_channels);
        list_moves(sel, matrix, sel->moves, &sel->n_enter[number], count);
    }
}

/* ---- strategy auto ----------------------------------------------------------------------------------------------- */

/* Energy (importance squared) that the selected channels hold, and that the best k would; added by rising channel. */
static void weigh(const zfi_selection_t *sel, const zfi_matrix_t *matrix, double *held, double *best) {
    const double *importance = sel->importance + matrix->sum_base;
    const uint8_t *mask = sel->mask + matrix->channel_base;
    const uint32_t *list = rank(sel, matrix);
    uint8_t *is_best = sel->moves;
    double sum_held = 0, sum_best = 0;
    memset(is_best, 0, matrix->n_channels);
    for (uint32_t i = 0; i < matrix->k; i++)
        is_best[list[i]] = 1;
    for (uint32_t c = 0; c < matrix->n_channels; c++) {
        double energy = importance[c] * importance[c];
        if (mask[c])
            sum_held += energy;
        if (is_best[c])
            sum_best += energy;
    }
    *held += sum_held;
    *best += sum_best;
}

static int keeps_its_set(const zfi_plan_t *plan, const zfi_selection_t *sel, uint32_t cohort) {
    double held = 0, best = 0;
    for (uint32_t i = 0; i < plan->n_matrices; i++) {
        const zfi_matrix_t *matrix = &plan->matrices[i];
        if (matrix->cohort == cohort && matrix->is_choosable && matrix->k < matrix->n_channels)
            weigh(sel, matrix, &held, &best);
    }
    return !(held < reselect_below * best);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static void choose_cohort(const zfi_plan_t *plan, zfi_selection_t *sel, uint32_t c, int is_kept,
                          zfi_counters_t *count) {
    const zfi_cohort_plan_t *cohort = &plan->cohorts[c];
    atomic_fetch_add(&count->reselects, 1);
    for (uint32_t i = 0; i < cohort->n_matrices; i++) {
        uint32_t number = plan->cohort_matrices[cohort->first_matrix + i];
        const zfi_matrix_t *matrix = &plan->matrices[number];
        sel->n_enter[number] = 0;
        if (!is_kept)
            choose_matrix(plan, sel, number, count);
        if (matrix->is_choosable)
            memset(sel->importance + matrix->sum_base, 0, matrix->n_channels * sizeof(double));
    }
}

void zfi_choose(const zfi_plan_t *plan, const zfi_pace_t *pace, zfi_selection_t *sel, const zfi_step_row_t *row,
                zfi_counters_t *count) {
    int may_keep = pace->keeps_sets && sel->last_choice > 0;
    for (uint32_t c = 0; c < plan->n_cohorts; c++)
        if (row->chooses[c])
            choose_cohort(plan, sel, c, may_keep && keeps_its_set(plan, sel, c), count);
}
