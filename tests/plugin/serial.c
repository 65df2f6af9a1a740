/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/serial.c - AdamW, one element after the other (contract in serial.h). */
#include "serial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* b^n, low bit of n first (SCHEDULE.md: never libm's pow). */
static double power(double b, uint32_t n) {
    double result = 1.0;
    while (n) {
        if (n & 1u)
            result *= b;
        b *= b;
        n >>= 1;
    }
    return result;
}

typedef struct factors {
    float b1, c1, b2, c2, inv, eps, step, decay;
} factors_t;

static factors_t factors_of(const zf_group_hyper_t *h, uint32_t n) {
    return (factors_t){
        .b1 = (float)h->beta1,
        .c1 = (float)(1.0 - h->beta1),
        .b2 = (float)h->beta2,
        .c2 = (float)(1.0 - h->beta2),
        .inv = (float)(1.0 / sqrt(1.0 - power(h->beta2, n))),
        .eps = (float)h->eps,
        .step = (float)(-h->lr / (1.0 - power(h->beta1, n))),
        .decay = (float)(1.0 - h->lr * h->weight_decay),
    };
}

static void update(float *w, float *m, float *v, float g, float s, const factors_t *f) {
    float scaled = g * s, d;
    *m = fmaf(f->b1, *m, f->c1 * scaled);
    *v = fmaf(f->b2, *v, (f->c2 * scaled) * scaled);
    d = fmaf(sqrtf(*v), f->inv, f->eps);
    *w = fmaf(f->step, *m / d, *w * f->decay);
}

void zt_adamw_rule(const zf_rule_update_t *u) {
    zf_group_hyper_t hyper = {sizeof hyper, 0, u->lr, u->beta1, u->beta2, u->eps, u->weight_decay};
    factors_t factors = factors_of(&hyper, (uint32_t)u->n);
    for (uint64_t i = 0; i < u->n_elems; i++)
        update(&u->w[i], &u->m[i], &u->v[i], u->g[i], 1.0f, &factors);
}

void zt_serial_start(zt_serial_t *serial, const float *w, size_t n_elems) {
    *serial = (zt_serial_t){.n_elems = n_elems};
    serial->w = malloc((n_elems ? n_elems : 1) * sizeof(float));
    serial->m = calloc(n_elems ? n_elems : 1, sizeof(float));
    serial->v = calloc(n_elems ? n_elems : 1, sizeof(float));
    if (!serial->w || !serial->m || !serial->v)
        abort();
    memcpy(serial->w, w, n_elems * sizeof(float));
}

void zt_serial_end(zt_serial_t *serial) {
    free(serial->w);
    free(serial->m);
    free(serial->v);
}

void zt_serial_update(zt_serial_t *serial, const zf_group_hyper_t *hyper, const float *g, float s) {
    factors_t factors = factors_of(hyper, ++serial->n_updates);
    for (size_t i = 0; i < serial->n_elems; i++)
        update(&serial->w[i], &serial->m[i], &serial->v[i], g[i], s, &factors);
}

uint16_t zt_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x))
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

float zt_from_bf16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}
