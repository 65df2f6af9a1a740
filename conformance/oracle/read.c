/* SPDX-License-Identifier: Apache-2.0 */
/* oracle/read.c - what can be read out of the oracle: state per element, the plan, the invariant of the device copy. */
#include "state.h"

#include <string.h>

uint64_t zo_n_elems(const zo_t *o, uint32_t id) { return o->params[id].n_elems; }

uint64_t zo_n_steps(const zo_t *o) { return o->t + o->steps_before; }

int zo_has_chosen(const zo_t *o) {
    for (uint32_t j = 0; j < o->n_cohorts; j++)
        if (o->t > 0 && o->last_choice[j] == o->t)
            return 1;
    return 0;
}

int zo_is_trainable(const zo_t *o, uint32_t id) { return o->params[id].is_trainable; }

int zo_is_written(const zo_t *o, uint32_t id) { return o->params[id].is_written; }

int zo_sees_edits(const zo_t *o, uint32_t id) { return o->params[id].sees_edits && !o->params[id].decl.is_carried; }

int zo_is_behind(const zo_t *o, uint32_t id) { return o->params[id].is_behind; }

const void *zo_visible(const zo_t *o, uint32_t id) { return o->params[id].visible; }

const float *zo_step_grad(const zo_t *o, uint32_t id) { return o->params[id].was_present ? o->params[id].grad : NULL; }

uint32_t zo_n_matrices(const zo_t *o) { return o->n_matrices; }

void zo_matrix_info(const zo_t *o, uint32_t i, zo_matrix_info_t *out) {
    const zo_matrix_t *x = &o->matrices[i];
    *out = (zo_matrix_info_t){.param = x->param,
                              .cohort = x->cohort,
                              .first = x->first,
                              .rows = x->rows,
                              .cols = x->cols,
                              .channels = x->channels,
                              .n_selected = x->k,
                              .is_sent = x->is_sent,
                              .is_due = x->is_due};
}

static void read_matrix(const zo_matrix_t *x, const zo_state_t *out) {
    for (uint64_t c = 0; c < x->channels; c++)
        for (uint64_t i = 0; i < zo_depth(x); i++) {
            uint64_t e = x->first + zo_at(x, c, i);
            if (out->n)
                out->n[e] = x->n[c];
            if (out->selected)
                out->selected[e] = x->is_selected[c];
            if (out->importance)
                out->importance[e] = x->importance[c];
        }
}

void zo_read(const zo_t *o, uint32_t id, const zo_state_t *out) {
    const zo_param_t *p = &o->params[id];
    if (out->w)
        zo_see_edits(p, out->w);
    if (out->m)
        memcpy(out->m, p->m, p->n_elems * sizeof(float));
    if (out->v)
        memcpy(out->v, p->v, p->n_elems * sizeof(float));
    for (uint32_t i = 0; i < o->n_matrices; i++)
        if (o->matrices[i].param == id)
            read_matrix(&o->matrices[i], out);
}
