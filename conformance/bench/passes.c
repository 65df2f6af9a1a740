/* SPDX-License-Identifier: Apache-2.0 */
/* passes.c - see passes.h. */
#define _GNU_SOURCE /* madvise */
#include "passes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAD_NBYTES = 320 }; /* between slots: else all streams fall into the same sets of the caches */

static void *allocate(size_t nbytes) {
    void *at = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        fprintf(stderr, "bench: no memory for %zu bytes; try fewer elements\n", nbytes);
        exit(2);
    }
    (void)madvise(at, nbytes, MADV_HUGEPAGE);
    return at;
}

static size_t slots_nbytes(uint64_t n_elems) {
    return (size_t)(n_elems / PASSES_CHUNK_ELEMS + 1) * PASSES_MAX_SLOTS *
           (PASSES_CHUNK_ELEMS * sizeof(float) + PAD_NBYTES);
}

static void fill_share(void *arg, int thread) {
    const passes_t *passes = arg;
    const int has_runs = zfi_has_runs(passes->moments); /* zeros are zeros there */
    const share_t *share = &passes->shares[thread];
    uint32_t state = (uint32_t)thread * 2654435761u + 1u;
    float *slots =
        (float *)share->slots; /* fp32 values; read as bf16 they are ordinary numbers in every second place */
    for (uint64_t i = 0; i < share->n_elems; i++) {
        share->w[i] = 0.02f;
        share->m[i] = has_runs ? 0.0f : 1e-3f;
        share->v[i] = has_runs ? 0.0f : 1e-6f;
        share->visible[i] = 0;
    }
    for (uint64_t i = 0; i < slots_nbytes(share->n_elems) / sizeof *slots; i++) {
        uint16_t upper[2];
        state = state * 1664525u + 1013904223u;
        upper[0] = upper[1] = zfi_f32_to_bf16(((float)(state >> 8) * 0x1p-23f - 1.0f) * 1e-2f);
        memcpy(&slots[i], upper, sizeof upper);
    }
}

void passes_point(const passes_t *passes, const share_t *share, uint64_t first,
                  const void *out_grads[PASSES_MAX_SLOTS]) {
    const size_t chunk_nbytes = PASSES_CHUNK_ELEMS * zfi_dtype_nbytes(passes->dtype) + PAD_NBYTES;
    for (uint32_t k = 0; k < passes->n_slots; k++)
        out_grads[k] = share->slots + (first / PASSES_CHUNK_ELEMS * passes->n_slots + k) * chunk_nbytes;
}

void *passes_moment(const passes_t *passes, zfi_moment_t which, float *array, uint64_t first) {
    return (char *)array + zfi_moment_nbytes(passes->moments, which, first);
}

void passes_piece(const passes_t *passes, const share_t *share, uint64_t first, uint64_t n_elems) {
    const void *grads[PASSES_MAX_SLOTS];
    const zfi_replay_t job = {.w = share->w + first,
                              .m = passes_moment(passes, ZFI_M, share->m, first),
                              .v = zfi_rule_has_v(passes->rule) ? passes_moment(passes, ZFI_V, share->v, first) : NULL,
                              .grads = grads,
                              .scalars = passes->scalars,
                              .n_slots = passes->n_slots,
                              .grad_dtype = passes->dtype,
                              .visible = share->visible + first,
                              .visible_dtype = ZFI_BF16,
                              .n_elems = n_elems,
                              .moments = passes->moments,
                              .key = 1,
                              .first_index = first};
    passes_point(passes, share, first, grads);
    if (passes->kernels->replay[passes->rule](&job) != UINT64_MAX) {
        fprintf(stderr, "bench: replay found a non-finite weight\n");
        exit(2);
    }
}

void passes_replay(void *arg, int thread) {
    const passes_t *passes = arg;
    for (uint64_t first = 0; first < passes->n_elems; first += PASSES_CHUNK_ELEMS)
        passes_piece(passes, &passes->shares[thread], first, PASSES_CHUNK_ELEMS);
}

static void set_scalars(passes_t *passes) {
    for (int k = 0; k < PASSES_MAX_SLOTS; k++) {
        const double n = 1000 + k;
        passes->scalars[k] = (zfi_scalars_t){.s = 1.0f,
                                             .b1 = 0.9f,
                                             .one_minus_b1 = 0.1f,
                                             .b2 = 0.999f,
                                             .one_minus_b2 = 0.001f,
                                             .inv_sqrt_bc2 = (float)(1.0 / sqrt(1.0 - pow(0.999, n))),
                                             .eps = 1e-8f,
                                             .neg_step = -1e-5f,
                                             .decay = 1.0f - 1e-7f,
                                             .l2 = 1e-7f};
    }
}

void passes_open(passes_t *passes, int n_threads, uint64_t n_elems) {
    set_scalars(passes);
    passes->n_threads = n_threads;
    for (int t = 0; t < n_threads; t++) {
        share_t *share = &passes->shares[t];
        share->n_elems = n_elems;
        share->w = allocate(n_elems * sizeof(float));
        share->m = allocate(n_elems * sizeof(float));
        share->v = allocate(n_elems * sizeof(float));
        share->visible = allocate(n_elems * sizeof(uint16_t));
        share->slots = allocate(slots_nbytes(n_elems));
    }
    (void)team_run(n_threads, fill_share, passes);
}

void passes_close(passes_t *passes) {
    for (int t = 0; t < passes->n_threads; t++) {
        share_t *share = &passes->shares[t];
        munmap(share->w, share->n_elems * sizeof(float));
        munmap(share->m, share->n_elems * sizeof(float));
        munmap(share->v, share->n_elems * sizeof(float));
        munmap(share->visible, share->n_elems * sizeof(uint16_t));
        munmap(share->slots, slots_nbytes(share->n_elems));
    }
}
