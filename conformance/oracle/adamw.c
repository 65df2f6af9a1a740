/* SPDX-License-Identifier: Apache-2.0 */
/* oracle/adamw.c - plain AdamW (or other rules), per parameter and whole, without a schedule: for laws 1 and 6. */
#include "state.h"

#include <stdlib.h>

struct zo_adamw {
    zo_config_t config; /* its rules */
    zo_param_t *params;
    uint32_t *n;
    uint32_t n_params;
};

zo_adamw_t *zo_adamw_create(const zo_config_t *config, const zo_decl_t *decls, uint32_t n_decls) {
    zo_adamw_t *a = zo_zeros(1, sizeof *a);
    a->config = *config;
    a->n_params = n_decls;
    a->params = zo_zeros(n_decls, sizeof *a->params);
    a->n = zo_zeros(n_decls, sizeof *a->n);
    for (uint32_t id = 0; id < n_decls; id++)
        zo_start_param(&a->params[id], &decls[id]);
    return a;
}

void zo_adamw_destroy(zo_adamw_t *a) {
    if (!a)
        return;
    for (uint32_t id = 0; id < a->n_params; id++)
        zo_free_param(&a->params[id]);
    free(a->params);
    free(a->n);
    free(a);
}

void zo_adamw_step(zo_adamw_t *a, const float *const *grads, const zo_hyper_t *groups, float s) {
    for (uint32_t id = 0; id < a->n_params; id++) {
        zo_param_t *p = &a->params[id];
        if (!p->is_trainable || !grads[id])
            continue;
        zo_scalars_t k = zo_scalars_of(&a->config, p->decl.group, &groups[p->decl.group], s, ++a->n[id]);
        for (uint64_t i = 0; i < p->n_elems; i++)
            zo_update(zo_number(id, i), &p->w[i], &p->m[i], &p->v[i], grads[id][i], &k);
    }
}

const float *zo_adamw_w(const zo_adamw_t *a, uint32_t id) { return a->params[id].w; }

const float *zo_adamw_m(const zo_adamw_t *a, uint32_t id) { return a->params[id].m; }

const float *zo_adamw_v(const zo_adamw_t *a, uint32_t id) { return a->params[id].v; }
