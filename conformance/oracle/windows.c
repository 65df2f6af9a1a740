/* SPDX-License-Identifier: Apache-2.0 */
/* oracle/windows.c - SCHEDULE.md, "When windows close". */
#include "state.h"

#include <stdlib.h>
#include <string.h>

/* Appends step t's value: the history of every step is kept, to be added up plainly. */
static void append(double **history, uint64_t t, double value) {
    double *grown = zo_zeros(t + 1, sizeof *grown);
    if (*history)
        memcpy(grown, *history, t * sizeof *grown);
    grown[t] = value;
    free(*history);
    *history = grown;
}

void zo_note_activity(const zo_t *o, zo_matrix_t *x, int has_record) {
    double deferred = 0.0, selected = 0.0;
    if (!o->config.is_interval_auto)
        return;
    for (uint64_t c = 0; has_record && c < x->channels; c++)
        if (x->is_selected[c])
            selected += x->record[c];
        else
            deferred += x->record[c];
    append(&x->deferred, o->t, deferred);
    append(&x->selected, o->t, selected);
}

static double sum_of(const double *history, uint64_t first, uint64_t last) {
    double sum = 0.0;
    for (uint64_t u = first; u <= last; u++)
        sum += history[u];
    return sum;
}

static int has_caught_up(const zo_t *o, const zo_matrix_t *x) {
    uint64_t last = o->t - 2, choice = o->last_choice[x->cohort];
    choice = choice > o->saved ? choice : o->saved;
    double deferred = sum_of(x->deferred, o->opened[x->cohort] + 1, last) / (double)(x->channels - x->k);
    double selected = sum_of(x->selected, choice + 1, last) / (double)x->k / (double)(last - choice);
    return deferred >= selected;
}

static int is_ready(const zo_t *o, uint32_t cohort) {
    uint32_t n = 0, n_ready = 0;
    for (uint32_t i = 0; i < o->n_matrices; i++) {
        const zo_matrix_t *x = &o->matrices[i];
        if (x->cohort != cohort || x->k == 0 || x->k == x->channels)
            continue;
        n++;
        n_ready += (uint32_t)has_caught_up(o, x);
    }
    return n > 0 && (double)n_ready >= 0.5 * (double)n;
}

static int closes_by_data(const zo_t *o, uint32_t cohort) {
    uint64_t length = o->t - o->opened[cohort], bound = o->config.update_interval;
    if (o->opened[cohort] == o->base)
        bound = cohort + 1;
    return length >= bound || (length >= 3 && is_ready(o, cohort));
}

static int closes_by_clock(const zo_t *o, uint32_t cohort) {
    uint64_t interval = o->config.update_interval;
    uint64_t first = o->base + cohort + 1;
    return o->t >= first && (o->t - first) % interval == 0;
}

void zo_decide_closes(zo_t *o) {
    for (uint32_t j = 0; j < o->n_cohorts; j++)
        o->closes[j] =
            o->t <= o->config.warm_up || (o->config.is_interval_auto ? closes_by_data(o, j) : closes_by_clock(o, j));
}
