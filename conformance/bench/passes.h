/* SPDX-License-Identifier: Apache-2.0 */
/* passes.h - passes of the host's replay kernel alone, over arrays that lie as in the engine.
 *
 * Each thread has arrays of its own: w, m, v and the visible values are long, the S slots of a chunk lie together. The
 * caller says what is replayed (kernels, rule, moments, dtype, n_slots) and over how many elements, before a pass. */
#pragma once

#include <kernels.h>

#include "team.h"

enum {
    PASSES_CHUNK_ELEMS = 65536, /* the unit of a replay: its slots lie together */
    PASSES_MAX_SLOTS = 16
};

/* What one thread works on: n_elems of w, m, v and visible, slots as [chunk][slot][PASSES_CHUNK_ELEMS]. */
typedef struct share {
    float *w, *m, *v;
    uint16_t *visible;
    char *slots;
    uint64_t n_elems;
} share_t;

typedef struct passes {
    const zfi_kernels_t *kernels;
    zfi_rule_t rule;
    zfi_moments_t moments;
    zfi_dtype_t dtype; /* of gradients; visible values are bf16 */
    uint32_t n_slots;
    uint64_t n_elems; /* of a pass, per thread: whole chunks, at most what was opened */
    int n_threads;
    zfi_scalars_t scalars[PASSES_MAX_SLOTS];
    share_t shares[TEAM_MAX_THREADS];
} passes_t;

/* Memory of n_elems per thread, filled by team_run()'s threads; ends the program where there is none. */
void passes_open(passes_t *passes, int n_threads, uint64_t n_elems);
void passes_close(passes_t *passes);

/* Gradients of the chunk that begins at element `first`, by slot. */
void passes_point(const passes_t *passes, const share_t *share, uint64_t first,
                  const void *out_grads[PASSES_MAX_SLOTS]);
/* m or v from element `first` on, a multiple of ZFI_RUN. */
void *passes_moment(const passes_t *passes, zfi_moment_t which, float *array, uint64_t first);

/* The kernel on n_elems of a chunk, from element `first` on. */
void passes_piece(const passes_t *passes, const share_t *share, uint64_t first, uint64_t n_elems);
/* For team_run(): the kernel on all n_elems of a thread. */
void passes_replay(void *passes, int thread);
