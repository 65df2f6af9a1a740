/* SPDX-License-Identifier: Apache-2.0 */
/* hooks.h - the sections of zf-bench-hooks: each prints one table and writes one JSON member. */
#pragma once

#include <stdio.h>

#include "zf_loader.h"

enum {
    HOOKS_SMALL_ELEMS = 1000, /* a small tensor */
    HOOKS_WINDOW = 4          /* S */
};

/* Window of S steps, no more warm-up than one step: figures are of the steady state. */
#define HOOKS_CONFIG "[zenflow]\nupdate_interval = 4\nfull_warm_up_rounds = 1\n"

typedef struct hooks {
    const zf_loader_t *loader;
    const char *config; /* INI text of grads, replay and step */
    int n_repeats;
    FILE *json;        /* NULL: none. Sections write "name": {...} */
    int n_bars_failed; /* rows above their bar, over all sections */
} hooks_t;

/* "" or "above", counted. */
const char *hooks_verdict(hooks_t *hooks, int is_met);

/* What a host waits for where every step is exact, with early replays and without. */
void hooks_early(hooks_t *hooks);

/* grads_ready per small tensor on the calling thread: dtypes, ways of handing over, tensors per call. */
void hooks_grads(hooks_t *hooks);

/* Worker time per element: 10,000 small tensors against one of as many elements. */
void hooks_replay(hooks_t *hooks);

/* The step hook on the calling thread against the number of tensors. */
void hooks_step(hooks_t *hooks);
