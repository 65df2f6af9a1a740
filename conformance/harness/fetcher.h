/* SPDX-License-Identifier: Apache-2.0 */
/* harness/fetcher.h - a synthetic host that fetches layer by layer and computes elsewhere, for what it waits for.
 *
 * Model: layers of equal matrices. The host's thread sleeps while it computes, as one with an accelerator does. It
 * fetches a layer before its forward and waits for it, and hands over a layer's gradients after its backward; or, where
 * it is serial, it fetches all before the first forward and hands over all after the last backward. Of several passes
 * per step the first forward and the last backward, beside which something may be under way, are long, the others
 * short. Workers are the plugin's, or paced: an update rule of the host's own takes a given time per element and
 * update, and sleeps for most of it (which the contract allows no real rule), so that a replay takes as long on a busy
 * machine as on a quiet one. */
#pragma once

#include "rig.h"

enum { FETCHER_MAX_LAYERS = 64 };

typedef struct fetcher_spec {
    uint32_t n_layers, per_layer; /* matrices of a layer, at most RIG_MAX_FETCHED */
    int64_t shape[2];             /* of each */
    zf_dtype_t dtype;
    uint32_t n_passes;                 /* of a step: its gradients are accumulated */
    uint64_t forward_ns, backward_ns;  /* of a layer */
    double ns_per_elem;                /* > 0: paced workers, which need topk_ratio = 0; else the plugin's kernels */
    const char *config;                /* INI text */
    const zf_collectives_ext_t *ranks; /* NULL: there are no others */
    int is_serial, does_not_clip, cannot_fetch;
    int goes_by_shards; /* stage 3: layers are fetched before backward, too, in every pass, and released behind each */
} fetcher_spec_t;

typedef struct fetcher {
    fetcher_spec_t spec;
    rig_t rig;
    uint64_t waited_ns;             /* from the end of a backward pass to that of the next: what was not compute */
    uint64_t since_ns, computed_ns; /* when the last one ended; compute since then */
    zf_fence_t done[FETCHER_MAX_LAYERS];
} fetcher_t;

void fetcher_open(fetcher_t *host, const zf_loader_t *loader, const fetcher_spec_t *spec);
void fetcher_close(fetcher_t *host);
void fetcher_step(fetcher_t *host);
