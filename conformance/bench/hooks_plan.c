/* SPDX-License-Identifier: Apache-2.0 */
/* hooks_plan.c - steps of a host whose times are known, for `zf plan` to be put beside (plan.py).
 *
 * The host is a fetcher (fetcher.h): forward as given, backward twice that, so what is beyond their sum is waiting and
 * the plugin's own work. Workers are paced, or the plugin's kernels. Each row is run N_ROUNDS times, all rows in turn;
 * the figure is the median of means over PERIOD steps, whole windows each. speed is what the workers did in these runs,
 * elements x steps per second of all of them. */
#include <string.h>

#include "fetcher.h"
#include "harness/clock.h"
#include "hooks.h"
#include "table.h"

enum { WARM_UP = 1, SETTLE = 8, N_STEPS = 16, PERIOD = 4, N_ROUNDS = 3, PACED_ROWS = 64, KERNEL_ROWS = 256 };

/* pace 0: kernels. */
typedef struct plan_case {
    double pace_ns;
    double forward_ms;
    uint32_t interval;
    int lag, does_not_fetch;
} plan_case_t;

static const plan_case_t cases[] = {
    {20, 20, 1, 0, 0}, {20, 20, 2, 0, 0}, {20, 20, 4, 0, 1}, {40, 20, 2, 1, 0}, {40, 30, 4, 0, 0}, {80, 30, 4, 1, 0},
    {0, 40, 1, 0, 0},  {0, 40, 2, 0, 0},  {0, 40, 2, 1, 0},  {0, 40, 4, 0, 1},  {0, 40, 4, 0, 0},  {0, 40, 4, 1, 0},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

typedef struct plan_row {
    samples_t step_ns, stall_ns, alone_ns;
    uint64_t device_ns; /* CPU time of the thread that is the device */
    uint64_t replay_ns, replay_elems;
    uint32_t n_workers;
} plan_row_t;

static void measure(const hooks_t *hooks, const plan_case_t *kind, plan_row_t *out) {
    char config[160];
    const uint64_t forward_ns = (uint64_t)(1e6 * kind->forward_ms);
    const fetcher_spec_t spec = {.rows = kind->pace_ns > 0 ? PACED_ROWS : KERNEL_ROWS,
                                 .ns_per_elem = kind->pace_ns,
                                 .forward_ns = forward_ns,
                                 .backward_ns = 2 * forward_ns,
                                 .config = config,
                                 .does_not_fetch = kind->does_not_fetch};
    static fetcher_t host;
    uint64_t device, replay_ns, replay_elems;
    snprintf(config, sizeof config, "[zenflow]\nupdate_interval = %u\npublish_lag = %d\nfull_warm_up_rounds = %d\n%s",
             kind->interval, kind->lag, WARM_UP, kind->pace_ns > 0 ? "topk_ratio = 0\n" : "");
    fetcher_open(&host, hooks->loader, &spec);
    for (int t = 0; t < SETTLE; t++)
        fetcher_step(&host);
    replay_ns = rig_counter(&host.rig, "replay_ns");
    replay_elems = rig_counter(&host.rig, "replay_elems");
    device = samples_named_cpu_ns("zf-device");
    for (int w = 0; w < N_STEPS / PERIOD; w++) {
        const uint64_t stall = fetcher_stall_ns(&host), start = zc_now_ns();
        for (int t = 0; t < PERIOD; t++)
            fetcher_step(&host);
        samples_add(&out->step_ns, (double)(zc_now_ns() - start) / PERIOD);
        samples_add(&out->stall_ns, (double)(fetcher_stall_ns(&host) - stall) / PERIOD);
    }
    replay_ns = rig_counter(&host.rig, "replay_ns") - replay_ns;
    replay_elems = rig_counter(&host.rig, "replay_elems") - replay_elems;
    out->device_ns += samples_named_cpu_ns("zf-device") - device;
    rig_drain(&host.rig);
    for (int t = 0; t < PERIOD; t++) {
        const uint64_t start = zc_now_ns();
        fetcher_compute(&host);
        samples_add(&out->alone_ns, (double)(zc_now_ns() - start));
    }
    out->replay_ns += replay_ns;
    out->replay_elems += replay_elems;
    out->n_workers = (uint32_t)rig_counter(&host.rig, "n_workers");
    fetcher_close(&host);
}

static void print_row(table_t *table, const plan_case_t *kind, const plan_row_t *row) {
    const double speed = (double)row->replay_elems / ((double)row->replay_ns + 1) * 1e9 * row->n_workers;
    const quartiles_t step = samples_quartiles(&row->step_ns);
    table_row(table, (const char *[]){kind->pace_ns > 0 ? "paced" : "kernels"},
              (const double[]){kind->pace_ns, kind->interval, kind->lag, !kind->does_not_fetch,
                               FETCHER_LAYERS * FETCHER_PER_LAYER, kind->pace_ns > 0 ? PACED_ROWS : KERNEL_ROWS,
                               FETCHER_COLUMNS, kind->forward_ms, 1e-6 * samples_median(&row->alone_ns),
                               1e-6 * (double)row->device_ns / (N_STEPS * N_ROUNDS), 1e-6 * step.median, 1e-6 * step.q1,
                               1e-6 * step.q3, 1e-6 * samples_median(&row->stall_ns), speed},
              NULL);
}

void hooks_plan(hooks_t *hooks) {
    static const column_t columns[] = {
        {"workers", -1}, {"pace_ns", 0}, {"update_interval", 0}, {"publish_lag", 0}, {"fetches", 0},   {"tensors", 0},
        {"rows", 0},     {"columns", 0}, {"forward_ms", 3},      {"alone_ms", 3},    {"device_ms", 3}, {"step_ms", 3},
        {"q1_ms", 3},    {"q3_ms", 3},   {"stall_ms", 3},        {"elems_per_s", 0}, {NULL, 0}};
    static plan_row_t rows[N_CASES];
    table_t table;
    for (int i = 0; i < N_ROUNDS * N_CASES; i++)
        measure(hooks, &cases[i % N_CASES], &rows[i % N_CASES]);
    table = table_begin(hooks->json, "plan", "steps of a host that computes for the times given", columns);
    for (int i = 0; i < N_CASES; i++)
        print_row(&table, &cases[i], &rows[i]);
    table_end(&table, (const figure_t[]){{"steps", N_STEPS * N_ROUNDS}, {NULL, 0}});
}
