/* SPDX-License-Identifier: Apache-2.0 */
/* oracle/carry.c - SCHEDULE.md, "Between steps": a load, and bind_params with another set. w, m, v, n as FLUSH leaves
 * them go into new parameters. With bind_params the schedule begins again, with a load it goes on where the selection
 * fits. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

/* Moments of another `moments_dtype`: widened, or rounded once to nearest even. */
static float moment_of(const zo_t *to, float x) {
    int is_half = to->config.moments == ZO_MOMENTS_BF16 || to->config.moments == ZO_MOMENTS_STOCHASTIC;
    return is_half ? zo_round_moment(x, ZO_MOMENTS_BF16, 0) : x; /* of those in runs: below */
}

/* n: of each element of the parameter that it comes from. */
static void carry_counts(const zo_t *to, zo_matrix_t *x, const uint32_t *n) {
    uint32_t most = 0;
    for (uint64_t c = 0; c < x->channels; c++)
        for (uint64_t i = 0; i < zo_depth(x); i++) {
            uint32_t found = n[x->first + zo_at(x, c, i)];
            x->n[c] = x->n[c] > found ? x->n[c] : found;
            most = most > found ? most : found;
        }
    for (uint64_t c = 0; (x->is_resident || !to->config.is_mean) && c < x->channels; c++)
        x->n[c] = most;
}

static void carry_param(zo_t *to, uint32_t id, const zo_t *from, uint32_t origin) {
    zo_param_t *p = &to->params[id];
    const zo_param_t *q = &from->params[origin];
    uint32_t *n = zo_zeros(p->n_elems, sizeof *n);
    zo_see_edits(q, q->w);
    for (uint64_t e = 0; e < p->n_elems; e++) {
        p->w[e] = q->w[e];
        p->m[e] = moment_of(to, q->m[e]);
        p->v[e] = moment_of(to, q->v[e]);
        zo_narrow(p->visible, p->decl.dtype, e, p->w[e]);
    }
    zo_read(from, origin, &(zo_state_t){.n = n});
    for (uint32_t i = 0; i < to->n_matrices; i++)
        if (to->matrices[i].param == id) {
            carry_counts(to, &to->matrices[i], n);
            if (to->matrices[i].is_in_runs)
                zo_round_runs_to_nearest(to, &to->matrices[i]);
        }
    free(n);
}

zo_t *zo_carry(zo_t *from, const zo_config_t *config, const zo_decl_t *decls, uint32_t n_decls,
               const uint32_t *origins) {
    zo_t *to = zo_create(config, decls, n_decls);
    zo_flush(from);
    to->steps_before = zo_n_steps(from);
    for (uint32_t id = 0; id < n_decls; id++)
        if (to->params[id].is_trainable && origins[id] != ZO_NO_ID)
            carry_param(to, id, from, origins[id]);
    zo_destroy(from);
    return to;
}

int zo_late(zo_t *o, uint64_t clock, uint32_t counts) {
    int moves = clock > 0 && o->t >= o->config.warm_up;
    o->late += moves ? clock : 0;
    for (uint32_t i = 0; i < o->n_matrices; i++)
        for (uint64_t c = 0; c < o->matrices[i].channels; c++) {
            o->matrices[i].n[c] += counts;
            o->matrices[i].device_n[c] += counts;
        }
    return moves;
}

/* ---- a load: whether the schedule goes on, and how ----------------------------------------------------------------
 */

static int has_choice(const zo_matrix_t *x) { return x->k > 0 && x->k < x->channels; }

/* Matrix i of parameter id; NULL: it has no more. */
static zo_matrix_t *matrix_of(const zo_t *o, uint32_t id, uint32_t i) {
    for (uint32_t m = 0; m < o->n_matrices; m++)
        if (o->matrices[m].param == id && i-- == 0)
            return &o->matrices[m];
    return NULL;
}

static int has_any_choice(const zo_t *o, uint32_t id) {
    const zo_matrix_t *x;
    for (uint32_t i = 0; (x = matrix_of(o, id, i)); i++)
        if (has_choice(x))
            return 1;
    return 0;
}

static int is_cut_alike(const zo_t *a, uint32_t id, const zo_t *b, uint32_t other) {
    const zo_matrix_t *x = matrix_of(a, id, 0), *y = matrix_of(b, other, 0);
    for (uint32_t i = 0; x && y; x = matrix_of(a, id, ++i), y = matrix_of(b, other, i))
        if (x->first != y->first || x->rows != y->rows || x->cols != y->cols ||
            x->channels_are_rows != y->channels_are_rows)
            return 0;
    return !x && !y;
}

static uint64_t count_selected(const zo_matrix_t *x) {
    uint64_t n = 0;
    for (uint64_t c = 0; c < x->channels; c++)
        n += x->is_selected[c];
    return n;
}

static int fits(const zo_t *to, uint32_t id, const zo_t *from, uint32_t origin) {
    const zo_matrix_t *x;
    if (origin == ZO_NO_ID || from->t < from->config.warm_up || !has_any_choice(from, origin) ||
        !is_cut_alike(to, id, from, origin))
        return 0;
    for (uint32_t i = 0; (x = matrix_of(to, id, i)); i++)
        if (count_selected(matrix_of(from, origin, i)) != x->k)
            return 0;
    return 1;
}

static void copy_schedule(zo_t *to, uint32_t id, const zo_t *from, uint32_t origin) {
    int is_alike = origin != ZO_NO_ID && has_any_choice(from, origin) && is_cut_alike(to, id, from, origin);
    zo_matrix_t *x;
    for (uint32_t i = 0; (x = matrix_of(to, id, i)); i++) {
        const zo_matrix_t *y = is_alike ? matrix_of(from, origin, i) : NULL;
        if (to->t >= to->config.warm_up) {
            memset(x->is_selected, x->k == x->channels, x->channels);
            if (y && has_any_choice(to, id))
                memcpy(x->is_selected, y->is_selected, x->channels);
        }
        if (y && has_choice(x) && has_choice(y))
            memcpy(x->importance, y->importance, x->channels * sizeof *x->importance);
        zo_load_device(to, x);
    }
}

zo_t *zo_load(zo_t *from, const zo_config_t *config, const zo_decl_t *decls, uint32_t n_decls, const uint32_t *origins,
              int *out_continues) {
    zo_t *to = zo_create(config, decls, n_decls);
    *out_continues = 1;
    if (from->late && to->config.warm_up > from->t) /* a clock that was moved on is past any warm-up */
        to->config.warm_up = (uint32_t)from->t;
    to->steps_before = zo_n_steps(from);
    for (uint32_t id = 0; id < n_decls; id++) {
        if (!to->params[id].is_trainable)
            continue;
        if (origins[id] != ZO_NO_ID)
            carry_param(to, id, from, origins[id]);
        if (from->t >= to->config.warm_up && has_any_choice(to, id) && !fits(to, id, from, origins[id]))
            *out_continues = 0;
    }
    if (*out_continues) {
        to->t = from->t;
        to->late = from->late;
        to->steps_before = from->steps_before;
        to->base = from->t > to->config.warm_up ? from->t : to->config.warm_up;
        to->epoch_end = from->epoch_end;
        for (uint32_t j = 0; j < to->n_cohorts; j++) {
            uint64_t choice = from->n_cohorts == to->n_cohorts ? from->last_choice[j] : 0;
            to->opened[j] = to->saved = to->t;
            to->last_choice[j] = to->t < to->config.warm_up ? 0 : choice ? choice : to->t;
        }
        for (uint32_t id = 0; id < n_decls; id++)
            if (to->params[id].is_trainable)
                copy_schedule(to, id, from, origins[id]);
    } else if (!config->is_exact) {
        to->config.warm_up = config->warm_up;
    }
    zo_destroy(from);
    return to;
}
