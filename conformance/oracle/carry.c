/* SPDX-License-Identifier: Apache-2.0 */
/* oracle/carry.c - SCHEDULE.md, "Between steps": a checkpoint that does not fit what it is loaded into, and bind_params
 * with another set. Both are one thing: w, m, v, n as FLUSH leaves them go into new parameters, and the schedule begins
 * anew. */
#include "state.h"

#include <stdlib.h>

/* Moments of another `moments_dtype`: widened, or rounded once to nearest even. */
static float moment_of(const zo_t *to, float x) {
    return to->config.moments == ZO_MOMENTS_F32 ? x : zo_round_moment(x, ZO_MOMENTS_BF16, 0);
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
    for (uint64_t e = 0; e < p->n_elems; e++) {
        p->w[e] = q->w[e];
        p->m[e] = moment_of(to, q->m[e]);
        p->v[e] = moment_of(to, q->v[e]);
        zo_narrow(p->visible, p->decl.dtype, e, p->w[e]);
        zo_narrow(p->shown, p->decl.dtype, e, p->w[e]);
    }
    zo_read(from, origin, &(zo_state_t){.n = n});
    for (uint32_t i = 0; i < to->n_matrices; i++)
        if (to->matrices[i].param == id)
            carry_counts(to, &to->matrices[i], n);
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
