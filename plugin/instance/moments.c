/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/moments.c - arrays of moments by elements (contract in moments.h). */
#include "instance/moments.h"

#include <string.h>

/* A walk over the runs that hold elements [first, first + n). */
typedef struct walk {
    uint64_t run;      /* its number in the array */
    uint64_t at, n;    /* the elements of the walk that it holds: [at, at + n) of the run, */
    uint64_t done;     /* which are these of the walk's */
    uint64_t n_wanted; /* of the walk */
} walk_t;

static int next_run(walk_t *walk, uint64_t first) {
    walk->done += walk->n;
    walk->run = (first + walk->done) / ZFI_RUN;
    walk->at = (first + walk->done) % ZFI_RUN;
    walk->n = ZFI_RUN - walk->at;
    if (walk->n > walk->n_wanted - walk->done)
        walk->n = walk->n_wanted - walk->done;
    return walk->n > 0;
}

void zfi_moments_get(zfi_moments_t kind, zfi_moment_t which, const void *moments, uint64_t first, uint64_t n,
                     float *out) {
    float values[ZFI_RUN];
    if (!moments) {
        memset(out, 0, n * sizeof *out);
    } else if (zfi_is_in_runs(kind, which)) {
        for (walk_t walk = {.n_wanted = n}; next_run(&walk, first);) {
            zfi_run8_get((const zfi_run8_t *)moments + walk.run, which, values);
            memcpy(out + walk.done, values + walk.at, walk.n * sizeof *out);
        }
    } else if (kind == ZFI_MOMENTS_F32) {
        memcpy(out, (const float *)moments + first, n * sizeof *out);
    } else {
        for (uint64_t i = 0; i < n; i++)
            out[i] = zfi_bf16_to_f32(((const uint16_t *)moments)[first + i]);
    }
}

void zfi_moments_put(zfi_moments_t kind, zfi_moment_t which, const zfi_kernels_t *kernels, void *moments,
                     uint64_t first, uint64_t n, const float *values) {
    float mixed[ZFI_RUN];
    if (!moments)
        return;
    if (!zfi_is_in_runs(kind, which)) {
        kernels->narrow(zfi_moment_at(kind, which, moments, first), kind == ZFI_MOMENTS_F32 ? ZFI_F32 : ZFI_BF16,
                        values, n);
        return;
    }
    for (walk_t walk = {.n_wanted = n}; next_run(&walk, first);) {
        zfi_run8_t *run = (zfi_run8_t *)moments + walk.run;
        if (walk.n < ZFI_RUN)
            zfi_run8_get(run, which, mixed);
        memcpy(mixed + walk.at, values + walk.done, walk.n * sizeof *mixed);
        zfi_run8_put(run, which, mixed, NULL);
    }
}
