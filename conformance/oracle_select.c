/* SPDX-License-Identifier: Apache-2.0 */
/* oracle_select.c - SCHEDULE.md, "Step t", 8, and "When windows close": when a cohort chooses its channels anew, how
 * many, and which. */
#include "oracle_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int is_choice_due(const zo_t *o, uint32_t cohort) {
    uint64_t interval = o->config.select_interval;

    if (o->t <= o->config.warm_up)
        return o->t == o->config.warm_up;
    if (o->config.strategy == ZO_SELECT_EPOCH)
        return o->closes[cohort] && o->epoch_end > o->last_choice[cohort];
    if (interval == 0)
        interval = 4 * o->config.update_interval;
    return o->closes[cohort] && o->t - o->last_choice[cohort] >= interval;
}

/* The k channels with the largest importance, ties by lower index. The caller frees it. */
static uint8_t *best_of(const zo_matrix_t *x) {
    uint8_t *is_best = zo_zeros(x->channels, 1);

    for (uint64_t i = 0; i < x->k; i++) {
        uint64_t best = x->channels;

        for (uint64_t c = 0; c < x->channels; c++)
            if (!is_best[c] && (best == x->channels || x->importance[c] > x->importance[best]))
                best = c;
        is_best[best] = 1;
    }
    return is_best;
}

/* One exchange: the most important of the best that is out comes in for the least important that is in and not among
 * the best. 0: there is none left. */
static int exchange(zo_matrix_t *x, const uint8_t *is_best) {
    uint64_t in = x->channels, out = x->channels;

    for (uint64_t c = 0; c < x->channels; c++) {
        if (is_best[c] && !x->is_selected[c] && (in == x->channels || x->importance[c] > x->importance[in]))
            in = c;
        if (!is_best[c] && x->is_selected[c] && (out == x->channels || x->importance[c] <= x->importance[out]))
            out = c;
    }
    if (in == x->channels || out == x->channels)
        return 0;
    x->is_selected[in] = x->is_entering[in] = 1;
    x->is_selected[out] = 0;
    return 1;
}

static void choose(const zo_t *o, zo_matrix_t *x) {
    uint8_t *is_best = best_of(x);
    double swaps = floor(o->config.max_swap_ratio * (double)x->k + 0.5);

    if (o->t == o->config.warm_up)
        for (uint64_t c = 0; c < x->channels; c++)
            x->is_selected[c] = x->is_entering[c] = is_best[c];
    for (double i = 0; i < (swaps < 1 ? 1 : swaps); i++)
        exchange(x, is_best);
    free(is_best);
}

/* Strategy auto: whether the cohort's channels still hold enough of what the best ones would. */
static int is_kept(const zo_t *o, uint32_t cohort) {
    double held = 0.0, best = 0.0;

    if (o->config.strategy != ZO_SELECT_AUTO || o->t == o->config.warm_up)
        return 0;
    for (uint32_t i = 0; i < o->n_matrices; i++) {
        const zo_matrix_t *x = &o->matrices[i];
        double of_selected = 0.0, of_best = 0.0;
        uint8_t *is_best;

        if (x->cohort != cohort || x->k == 0 || x->k == x->channels)
            continue;
        is_best = best_of(x);
        for (uint64_t c = 0; c < x->channels; c++) {
            of_selected += x->is_selected[c] ? x->importance[c] * x->importance[c] : 0.0;
            of_best += is_best[c] ? x->importance[c] * x->importance[c] : 0.0;
        }
        free(is_best);
        held += of_selected;
        best += of_best;
    }
    return held >= o->config.reselect_below * best;
}

static void choose_cohort(zo_t *o, uint32_t cohort) {
    int keeps = is_kept(o, cohort);

    for (uint32_t i = 0; i < o->n_matrices; i++) {
        zo_matrix_t *x = &o->matrices[i];

        if (x->cohort != cohort)
            continue;
        if (!keeps)
            choose(o, x);
        memset(x->importance, 0, x->channels * sizeof *x->importance);
    }
    o->last_choice[cohort] = o->t;
}

/* The smallest k that holds the share j / 64 of the energy. energies: largest first. */
static uint64_t k_of_share(const zo_t *o, const zo_matrix_t *x, const double *energies, int j) {
    double norm = o->config.energy * ((double)j / 64.0), total = 0.0, held = 0.0;
    uint64_t k = 0;

    for (uint64_t c = 0; c < x->channels; c++)
        total += energies[c];
    do
        held += energies[k++];
    while (held < norm * norm * total);
    return k;
}

static int larger_first(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x < y) - (x > y);
}

/* topk_ratio = auto: k of every open matrix. */
static void decide_k(zo_t *o) {
    double **energies = zo_zeros(o->n_matrices, sizeof *energies);
    uint64_t n_elems = 0, n_open = 0;

    for (uint32_t i = 0; i < o->n_matrices; i++) {
        zo_matrix_t *x = &o->matrices[i];

        energies[i] = zo_zeros(x->channels, sizeof(double));
        for (uint64_t c = 0; c < x->channels; c++)
            energies[i][c] = x->importance[c] * x->importance[c];
        qsort(energies[i], x->channels, sizeof(double), larger_first);
        n_open += x->is_open ? x->rows * x->cols : 0;
    }
    for (int j = 64; j >= 0; j--) {
        n_elems = 0;
        for (uint32_t i = 0; i < o->n_matrices; i++) {
            zo_matrix_t *x = &o->matrices[i];

            if (!x->is_open)
                continue;
            x->k = k_of_share(o, x, energies[i], j);
            n_elems += x->k * zo_depth(x);
        }
        if ((double)n_elems <= o->config.max_topk_ratio * (double)n_open)
            break;
    }
    for (uint32_t i = 0; i < o->n_matrices; i++)
        free(energies[i]);
    free(energies);
}

void zo_choose_due(zo_t *o) {
    if (o->t == o->config.warm_up && o->config.is_topk_auto)
        decide_k(o);
    for (uint32_t j = 0; j < o->n_cohorts; j++)
        if (is_choice_due(o, j))
            choose_cohort(o, j);
}
