/* SPDX-License-Identifier: Apache-2.0 */
/* hooks_replay.c - replay of many small tensors against one large one.
 *
 * Two instances with the same number of elements; a repetition makes one window of each, in turn. After every step the
 * instance drains, so that the workers replay while nothing else of it runs. Time per element and update is the
 * workers' on a CPU, over replay_elems of zf.stats/1: what waits for a core that others use does not count. The large
 * one is the limit of the small ones; its own is zf-bench-host's. */
#include "harness/rig.h"
#include "hooks.h"
#include "table.h"

enum { N_SMALL = 10000, ROWS = 20, N_RIGS = 2 };

static const double bar = 1.3;

typedef struct replay {
    rig_t rigs[N_RIGS];                      /* many small tensors, one large */
    samples_t per_elem[N_RIGS], ratio, lost; /* ns per element and update; small / large */
} replay_t;

/* One window; ns of the workers' time on a CPU per element and update. */
static double window_ns(rig_t *rig) {
    const uint64_t elems = rig_counter(rig, "replay_elems"), ns = samples_named_cpu_ns("zf-worker");
    for (int s = 0; s < HOOKS_WINDOW; s++) {
        rig_deliver(rig, 0, rig->spec.n_tensors, 64, NULL);
        rig_step(rig, ZF_STEP_WAIT);
        rig_quiesce(rig, ZF_QUIESCE_DRAIN);
    }
    return (double)(samples_named_cpu_ns("zf-worker") - ns) / (double)(rig_counter(rig, "replay_elems") - elems);
}

static void repeat(replay_t *replay) {
    double ns[N_RIGS];
    for (int i = 0; i < N_RIGS; i++) {
        ns[i] = window_ns(&replay->rigs[i]);
        samples_add(&replay->per_elem[i], ns[i]);
    }
    samples_add(&replay->ratio, ns[0] / ns[1]);
    samples_add(&replay->lost, samples_lost_share(5000000));
}

static void print_all(hooks_t *hooks, const replay_t *replay) {
    static const column_t columns[] = {{"tensors", 0}, {"elems", 0}, {"ns_per_elem_update", 4},
                                       {"q1_ns", 4},   {"q3_ns", 4}, {NULL, 0}};
    const quartiles_t ratio = samples_quartiles(&replay->ratio);
    table_t table =
        table_begin(hooks->json, "replay", "CPU time of the workers per element and update, bf16, S = 4", columns);
    for (int i = 0; i < N_RIGS; i++) {
        const quartiles_t ns = samples_quartiles(&replay->per_elem[i]);
        const rig_spec_t *spec = &replay->rigs[i].spec;
        table_row(&table, NULL,
                  (const double[]){spec->n_tensors, (double)(spec->shape[0] * spec->shape[1]), ns.median, ns.q1, ns.q3},
                  i ? NULL : hooks_verdict(hooks, ratio.median <= bar));
    }
    table_end(&table, (const figure_t[]){{"workers", (double)rig_counter(&replay->rigs[0], "n_workers")},
                                         {"repeats", hooks->n_repeats},
                                         {"small_over_large", ratio.median},
                                         {"small_over_large_q1", ratio.q1},
                                         {"small_over_large_q3", ratio.q3},
                                         {"bar", bar},
                                         {"cpu_lost_share", samples_median(&replay->lost)},
                                         {NULL, 0}});
}

void hooks_replay(hooks_t *hooks) {
    static replay_t replay;
    for (int i = 0; i < N_RIGS; i++) {
        const int64_t rows = i ? (int64_t)ROWS * 100 : ROWS; /* 20 x 50 and 2,000 x 5,000 */
        const rig_spec_t spec = {
            .n_tensors = i ? 1 : N_SMALL,
            .ndim = 2,
            .shape = {rows, i ? (int64_t)N_SMALL * HOOKS_SMALL_ELEMS / rows : HOOKS_SMALL_ELEMS / rows},
            .dtype = zf_dtype_bfloat16(),
            .mode = RIG_ASYNC,
            .config = hooks->config};
        rig_open(&replay.rigs[i], hooks->loader, &spec);
    }
    for (int i = 0; i < N_RIGS; i++)
        for (int warm = 0; warm < 3; warm++) /* past the warm-up and the first touch of every slot */
            (void)window_ns(&replay.rigs[i]);
    for (int r = 0; r < hooks->n_repeats; r++)
        repeat(&replay);
    print_all(hooks, &replay);
    for (int i = 0; i < N_RIGS; i++)
        rig_close(&replay.rigs[i]);
}
