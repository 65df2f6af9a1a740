/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/serial.c - the oracle's AdamW, one array at a time (contract in serial.h). */
#include "serial.h"

#include <stdlib.h>
#include <string.h>

#include "oracle/state.h"

static void update(float *w, float *m, float *v, const float *g, size_t n_elems, const zo_hyper_t *hyper, float s,
                   uint32_t n) {
    static const zo_config_t adamw;
    zo_scalars_t scalars = zo_scalars_of(&adamw, 0, hyper, s, n);
    for (size_t i = 0; i < n_elems; i++)
        zo_update(i, &w[i], &m[i], &v[i], g[i], &scalars);
}

void zt_adamw_rule(const zf_rule_update_t *u) {
    update(u->w, u->m, u->v, u->g, u->n_elems, &(zo_hyper_t){u->lr, u->beta1, u->beta2, u->eps, u->weight_decay}, 1.0f,
           (uint32_t)u->n);
}

void zt_serial_start(zt_serial_t *serial, const float *w, size_t n_elems) {
    *serial = (zt_serial_t){.n_elems = n_elems,
                            .w = zo_zeros(n_elems, sizeof(float)),
                            .m = zo_zeros(n_elems, sizeof(float)),
                            .v = zo_zeros(n_elems, sizeof(float))};
    memcpy(serial->w, w, n_elems * sizeof(float));
}

void zt_serial_end(zt_serial_t *serial) {
    free(serial->w);
    free(serial->m);
    free(serial->v);
}

void zt_serial_update(zt_serial_t *serial, const zf_group_hyper_t *h, const float *g, float s) {
    update(serial->w, serial->m, serial->v, g, serial->n_elems,
           &(zo_hyper_t){h->lr, h->beta1, h->beta2, h->eps, h->weight_decay}, s, ++serial->n_updates);
}
