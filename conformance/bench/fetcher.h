/* SPDX-License-Identifier: Apache-2.0 */
/* fetcher.h - a synthetic host that fetches layer by layer and computes elsewhere, for benchmarks of what it waits for.
 *
 * Model: FETCHER_LAYERS layers of four matrices in bf16. The host's thread sleeps while it computes, as one with an
 * accelerator does. It fetches a layer before its forward and waits for it, and hands over a layer's gradients after
 * its backward. Workers are the plugin's, or paced: an update rule of the bench's own takes a given time per element
 * and update, and sleeps for most of it (which the contract allows no real rule), so that a replay takes as long on a
 * busy machine as on a quiet one. */
#pragma once

#include "harness/rig.h"

enum { FETCHER_LAYERS = 24, FETCHER_PER_LAYER = 4, FETCHER_COLUMNS = 400 };

typedef struct fetcher_spec {
    int64_t rows;       /* of each matrix */
    double ns_per_elem; /* > 0: paced workers, which need topk_ratio = 0; else the plugin's kernels */
    uint64_t forward_ns, backward_ns;
    const char *config;
    int does_not_clip;
    int does_not_fetch; /* what it would wait for then, step waits for */
} fetcher_spec_t;

typedef struct fetcher {
    fetcher_spec_t spec;
    rig_t rig;
    uint64_t waited_ns; /* for fetches, or in step, by the host's clock */
    zf_fence_t done[FETCHER_LAYERS];
} fetcher_t;

void fetcher_open(fetcher_t *host, const zf_loader_t *loader, const fetcher_spec_t *spec);
void fetcher_close(fetcher_t *host);
void fetcher_step(fetcher_t *host);
/* The same without the plugin: forward and backward alone, which take longer than they were given where others hold the
 * CPUs. */
void fetcher_compute(const fetcher_t *host);

/* What the device has waited so far, as zf.stats/1 counts it. */
uint64_t fetcher_stall_ns(const fetcher_t *host);
