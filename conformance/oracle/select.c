/* SPDX-License-Identifier: Apache-2.0 */
/* oracle/select.c - SCHEDULE.md, "Step t", 8, and "When windows close": when a cohort chooses its channels anew, how
 * many, and which. */
#include "state.h"

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

/* The best become the selected ones; those that were not enter. */
static void choose(zo_matrix_t *x) {
    uint8_t *is_best = best_of(x);
    for (uint64_t c = 0; c < x->channels; c++) {
        x->is_entering[c] |= is_best[c] && !x->is_selected[c];
        x->is_selected[c] = is_best[c];
    }
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
        if (x->cohort != cohort || x->k == 0 || x->k == x->channels)
            continue;
        uint8_t *is_best = best_of(x);
        for (uint64_t c = 0; c < x->channels; c++) {
            of_selected += x->is_selected[c] ? x->importance[c] * x->importance[c] : 0.0;
            of_best += is_best[c] ? x->importance[c] * x->importance[c] : 0.0;
        }
        free(is_best);
        held += of_selected;
        best += of_best;
    }
    return held >= 0.8 * best;
}

static void choose_cohort(zo_t *o, uint32_t cohort) {
    int keeps = is_kept(o, cohort);
    for (uint32_t i = 0; i < o->n_matrices; i++) {
        zo_matrix_t *x = &o->matrices[i];
        if (x->cohort != cohort)
            continue;
        if (!keeps)
            choose(x);
        memset(x->importance, 0, x->channels * sizeof *x->importance);
    }
    o->last_choice[cohort] = o->t;
}

void zo_choose_due(zo_t *o) {
    for (uint32_t j = 0; j < o->n_cohorts; j++)
        if (is_choice_due(o, j))
            choose_cohort(o, j);
}
