/* SPDX-License-Identifier: Apache-2.0 */
/* exact_shapes.c - the shapes of parameters. */
#include "exact_case.h"

enum { MOST_MATRICES = 512 }; /* of a tensor: what a device in software walks through in seconds */

static void draw_common(zx_case_t *c, zo_decl_t *d, zx_size_t size) {
    zx_rng_t *r = &c->rng;
    int is_big = size == ZX_BIG || size == ZX_MEDIUM;
    static const uint32_t ndims[] = {0, 1, 1, 2, 2, 2, 2, 2, 3, 3, 4};
    uint64_t n = 1, cap = zx_chance(r, 20) ? 20000 : 600;
    d->ndim = is_big ? 2 : ndims[zx_below(r, 11)];
    for (uint32_t i = 0; i < d->ndim; i++) {
        uint32_t limit = zx_chance(r, 30) ? 150 : 9;
        d->shape[i] = size == ZX_BIG      ? zx_between(r, c->is_some ? 430 : 250, c->is_some ? 480 : 600)
                      : size == ZX_MEDIUM ? zx_between(r, 48, 140)
                                          : zx_between(r, 1, limit);
        if (!is_big && n * (uint64_t)d->shape[i] > cap)
            d->shape[i] = 1;
        n *= (uint64_t)d->shape[i];
    }
    if (!is_big && c->n_params > 0 && d->ndim > 0 && zx_chance(r, 4)) /* the first has elements */
        d->shape[zx_below(r, d->ndim)] = 0;
    d->n_batch_axes = d->ndim > 1 && zx_chance(r, 35) ? zx_between(r, 1, d->ndim - 1) : 0;
    if (d->ndim == 4 && zx_chance(r, 50))
        d->n_batch_axes = 0; /* a convolution */
    zx_wide_shape(c, d);
    while (zx_n_matrices(d) > MOST_MATRICES)
        d->n_batch_axes--;
    d->channels_are_rows = zx_chance(r, 25);
}

/* Rows of whole runs, of batches too; or of one element less, or fewer rows, than runs need. */
static void draw_runs(zx_case_t *c, zo_decl_t *d) {
    zx_rng_t *r = &c->rng;
    d->n_batch_axes = zx_chance(r, 30) ? 1 : 0;
    d->ndim = 2 + d->n_batch_axes;
    d->shape[0] = 2;
    d->shape[d->ndim - 2] =
        (zx_chance(r, 25) ? zx_between(r, 12, 28) : zx_between(r, 32, 45)) / (d->n_batch_axes ? 2 : 1);
    d->shape[d->ndim - 1] = 128 * zx_between(r, 1, 2) - (zx_chance(r, 10) ? 1 : 0);
    d->channels_are_rows = zx_chance(r, 25);
}

/* Of a stack, with elements enough to be stored in ranges; of group 0, which then takes matrices whole. */
static void draw_stack(zx_case_t *c, zo_decl_t *d) {
    zx_rng_t *r = &c->rng;
    d->ndim = 3;
    d->n_batch_axes = 1;
    d->shape[0] = zx_between(r, 2, 4);
    d->shape[1] = zx_between(r, 12, 40);
    d->shape[2] = zx_between(r, 12, 40);
}

void zx_draw_shape(zx_case_t *c, zo_decl_t *d, zx_size_t size) {
    draw_common(c, d, size);
    if (size == ZX_RUNS)
        draw_runs(c, d);
    if (size == ZX_STACK)
        draw_stack(c, d);
}
