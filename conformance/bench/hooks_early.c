/* SPDX-License-Identifier: Apache-2.0 */
/* hooks_early.c - what a host waits for where every step is exact (update_interval = 1, publish_lag = 0): with replays
 * that begin while its backward goes on, and without ([host] early_mib = 0).
 *
 * The host is a fetcher (fetcher.h) with paced workers: what it waits for depends on the order of work alone, not on
 * the machine. Forward is a third of a step's compute, backward two thirds; a replay of the whole state takes `replay`
 * of it. Two limits. What arrives last, the first layer's gradients, is needed first: its replay is waited for, the
 * layers-th part of all. And a step cannot be shorter than its replays and the last layer's forward and backward, in
 * which there is nothing to replay. Layers are as many as a large model has. A step is so long that the threads of the
 * CPU's device, which a real one does not have, take little of it. */
#include "harness/fetcher.h"
#include "hooks.h"
#include "table.h"

enum { LAYERS = 64, PER_LAYER = 4, SETTLE = 3, N_STEPS = 5, ROWS = 64, COLUMNS = 150, FORWARD_MS = 320 };

#define EARLY_CONFIG "[zenflow]\nmode = exact\n[host]\nthreads = 1\n"

static const double replays[] = {0.3, 0.5, 0.7, 0.9, 1.1, 1.5};
enum { N_REPLAYS = sizeof replays / sizeof replays[0] };

/* Milliseconds per step that the host waits. */
static quartiles_t measure(const hooks_t *hooks, double replay, int is_early) {
    const double n_elems = (double)LAYERS * PER_LAYER * ROWS * COLUMNS;
    static const char *const configs[] = {EARLY_CONFIG "early_mib = 0\n", EARLY_CONFIG};
    const fetcher_spec_t spec = {.n_layers = LAYERS,
                                 .per_layer = PER_LAYER,
                                 .shape = {ROWS, COLUMNS},
                                 .dtype = zf_dtype_bfloat16(),
                                 .n_passes = 1,
                                 .forward_ns = FORWARD_MS * UINT64_C(1000000) / LAYERS,
                                 .backward_ns = 2 * FORWARD_MS * UINT64_C(1000000) / LAYERS,
                                 .ns_per_elem = replay * 3e6 * FORWARD_MS / n_elems,
                                 .does_not_clip = 1,
                                 .config = configs[is_early]};
    static fetcher_t host;
    samples_t waited = {0};
    fetcher_open(&host, hooks->loader, &spec);
    for (int t = 0; t < SETTLE; t++)
        fetcher_step(&host);
    for (int t = 0; t < N_STEPS; t++) {
        fetcher_step(&host);
        samples_add(&waited, 1e-6 * (double)host.waited_ns);
    }
    fetcher_close(&host);
    return samples_quartiles(&waited);
}

void hooks_early(hooks_t *hooks) {
    static const column_t columns[] = {{"replay", 1},     {"at_step_pct", 1}, {"at_step_q1", 1},
                                       {"at_step_q3", 1}, {"early_pct", 1},   {"early_q1", 1},
                                       {"early_q3", 1},   {"limit_pct", 1},   {NULL, 0}};
    const double percent = 100 / (3.0 * FORWARD_MS);
    table_t table =
        table_begin(hooks->json, "early", "every step exact; what a host waits for, in % of its compute", columns);
    for (int i = 0; i < N_REPLAYS; i++) {
        const quartiles_t at_step = measure(hooks, replays[i], 0), early = measure(hooks, replays[i], 1);
        const double beyond = replays[i] - 1 + 1.0 / LAYERS, first_layer = replays[i] / LAYERS;
        table_row(&table, NULL,
                  (const double[]){replays[i], percent * at_step.median, percent * at_step.q1, percent * at_step.q3,
                                   percent * early.median, percent * early.q1, percent * early.q3,
                                   100 * (beyond > first_layer ? beyond : first_layer)},
                  NULL);
    }
    table_end(&table, (const figure_t[]){{"steps", N_STEPS}, {"step_ms", 3.0 * FORWARD_MS}, {NULL, 0}});
}
