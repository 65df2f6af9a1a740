/* SPDX-License-Identifier: Apache-2.0 */
/* hooks_shapes.c - a step of 4 M parameters by shape: flat vectors, single columns, single rows, thin adapters.
 *
 * One instance per shape makes a step in turn. The figures are the wall time and the CPU time of the process from the
 * delivery of gradients that are there to the end of everything that the step has started: statistics, run-ahead,
 * replay, merge. No forward or backward pass is in it. Beside them stands the same for a square matrix of as many
 * elements and the same share of selected channels: vectors are selected whole, so their limit is topk_ratio = 1. */
#include <time.h>

#include "hooks.h"
#include "rig.h"
#include "samples.h"

enum { SIDE = 2048, N_ELEMS = SIDE * SIDE, N_WARM = 2 * HOOKS_WINDOW };

#define ALL_SELECTED HOOKS_CONFIG "topk_ratio = 1\n"

typedef struct kind {
    const char *name;
    uint32_t n_tensors;
    int32_t ndim;
    int64_t shape[2];
    const char *config;
    int limit; /* the row that it is compared with */
} kind_t;

static const kind_t kinds[] = {{"matrix", 1, 2, {SIDE, SIDE}, HOOKS_CONFIG, 0},
                               {"matrix, all selected", 1, 2, {SIDE, SIDE}, ALL_SELECTED, 1},
                               {"vector", 1, 1, {N_ELEMS}, HOOKS_CONFIG, 1},
                               {"one column", 1, 2, {N_ELEMS, 1}, HOOKS_CONFIG, 1},
                               {"one row", 1, 2, {1, N_ELEMS}, HOOKS_CONFIG, 0},
                               {"64 rows", 1, 2, {64, N_ELEMS / 64}, HOOKS_CONFIG, 0},
                               {"64 of 4096 x 16", 64, 2, {4096, 16}, HOOKS_CONFIG, 0}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

typedef struct shapes {
    rig_t rigs[N_KINDS];
    samples_t wall[N_KINDS], cpu[N_KINDS], ratio[N_KINDS], lost;
} shapes_t;

static uint64_t process_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Mean over one window: its steps differ. */
static void time_window(rig_t *rig, double *out_wall, double *out_cpu) {
    const uint64_t wall = samples_now_ns(), cpu = process_ns();

    for (int s = 0; s < HOOKS_WINDOW; s++) {
        rig_deliver(rig, 0, rig->spec.n_tensors, 64, NULL);
        rig_step(rig, ZF_STEP_WAIT);
        rig_drain(rig);
    }
    *out_wall = (double)(samples_now_ns() - wall) / HOOKS_WINDOW;
    *out_cpu = (double)(process_ns() - cpu) / HOOKS_WINDOW;
}

static void repeat(shapes_t *shapes) {
    double wall[N_KINDS], cpu[N_KINDS];

    for (int i = 0; i < N_KINDS; i++) {
        time_window(&shapes->rigs[i], &wall[i], &cpu[i]);
        samples_add(&shapes->wall[i], wall[i]);
        samples_add(&shapes->cpu[i], cpu[i] / N_ELEMS);
        samples_add(&shapes->ratio[i], cpu[i] / cpu[kinds[i].limit]);
    }
    samples_add(&shapes->lost, samples_lost_share(5000000));
}

static void print_row(const hooks_t *hooks, const shapes_t *shapes, int i) {
    const quartiles_t ratio = samples_quartiles(&shapes->ratio[i]);
    const double wall = samples_median(&shapes->wall[i]), cpu = samples_median(&shapes->cpu[i]);

    printf("%20s | %9.2f %9.3f | %6.2f %6.2f..%-6.2f of %s\n", kinds[i].name, 1e-6 * wall, cpu, ratio.median, ratio.q1,
           ratio.q3, kinds[kinds[i].limit].name);
    if (hooks->json)
        fprintf(
            hooks->json,
            "%s\n  {\"shape\": \"%s\", \"step_ns\": %.0f, \"cpu_ns_per_elem\": %.4f, \"ratio\": %.3f, \"of\": \"%s\"}",
            i ? "," : "", kinds[i].name, wall, cpu, ratio.median, kinds[kinds[i].limit].name);
}

void hooks_shapes(hooks_t *hooks) {
    static shapes_t shapes;

    for (int i = 0; i < N_KINDS; i++) {
        const rig_spec_t spec = {.n_tensors = kinds[i].n_tensors,
                                 .ndim = kinds[i].ndim,
                                 .shape = {kinds[i].shape[0], kinds[i].shape[1]},
                                 .dtype = zf_dtype_float32(),
                                 .mode = RIG_ASYNC,
                                 .config = kinds[i].config};
        double ignored[2];

        rig_open(&shapes.rigs[i], hooks->loader, &spec);
        for (int w = 0; w < N_WARM; w += HOOKS_WINDOW)
            time_window(&shapes.rigs[i], &ignored[0], &ignored[1]);
    }
    for (int r = 0; r < hooks->n_repeats; r++)
        repeat(&shapes);
    printf("shapes: a step of %d fp32 parameters to its end, medians of %d windows; others took %.0f %% of this CPU\n",
           N_ELEMS, hooks->n_repeats, 100.0 * samples_median(&shapes.lost));
    printf("%20s | %9s %9s | %s\n", "", "ms", "cpu ns/el", "cpu time, times that");
    if (hooks->json)
        fprintf(hooks->json, "\"shapes\": {\"elems\": %d, \"repeats\": %d, \"rows\": [", N_ELEMS, hooks->n_repeats);
    for (int i = 0; i < N_KINDS; i++)
        print_row(hooks, &shapes, i);
    if (hooks->json)
        fprintf(hooks->json, "\n]}");
    for (int i = 0; i < N_KINDS; i++)
        rig_close(&shapes.rigs[i]);
}
