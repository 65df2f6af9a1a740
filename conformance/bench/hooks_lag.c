/* SPDX-License-Identifier: Apache-2.0 */
/* hooks_lag.c - what publish_lag = 0 exposes, with fetches and without, beside publish_lag = 1, on a host whose forward
 * takes as long as the replay of a step.
 *
 * The host is a fetcher (fetcher.h), with a backward of twice its forward. Paced workers take a given time; of the
 * kernels it is measured first, as the workers' time per step. stall is what zf.stats/1 counts per step, fetches (step
 * where it does not fetch) what the host spent in these hooks by its own clock (with the device's own work, on the CPU
 * backend), medians. Each row has all three hosts, in turn, N_ROUNDS times. The last columns are what lag 0 makes the
 * device wait beyond lag 1. */
#include <string.h>

#include "fetcher.h"
#include "hooks.h"
#include "samples.h"

enum { WARM_UP = 1, SETTLE = 4, N_STEPS = 12, N_ROUNDS = 2, N_HOSTS = 3, PACED_ROWS = 64, KERNEL_ROWS = 256 };

static const uint32_t intervals[] = {1, 2, 4};
enum { N_INTERVALS = sizeof intervals / sizeof intervals[0] };

static const double paced_ns = 20;
static const uint64_t guess_ns = 20000000, least_ns = 2000000;

typedef struct host {
    const char *name;
    int lag, does_not_fetch;
} host_t;

static const host_t hosts[N_HOSTS] = {{"lag 0, fetched", 0, 0}, {"lag 1", 1, 0}, {"lag 0, not fetched", 0, 1}};

typedef struct lag_row {
    samples_t stall, fetches, step, replay; /* per step, ns */
} lag_row_t;

static void measure(const hooks_t *hooks, double ns_per_elem, uint64_t forward_ns, uint32_t interval,
                    const host_t *kind, lag_row_t *out) {
    char config[160];
    const fetcher_spec_t spec = {.rows = ns_per_elem > 0 ? PACED_ROWS : KERNEL_ROWS,
                                 .ns_per_elem = ns_per_elem,
                                 .forward_ns = forward_ns,
                                 .backward_ns = 2 * forward_ns,
                                 .config = config,
                                 .does_not_fetch = kind->does_not_fetch};
    static fetcher_t host;

    snprintf(config, sizeof config, "[zenflow]\nupdate_interval = %u\npublish_lag = %d\nfull_warm_up_rounds = %d\n%s",
             interval, kind->lag, WARM_UP, ns_per_elem > 0 ? "topk_ratio = 0\n" : "");
    fetcher_open(&host, hooks->loader, &spec);
    for (int t = -SETTLE - (int)interval; t < N_STEPS; t++) {
        const uint64_t stall = fetcher_stall_ns(&host), fetches = host.waited_ns, start = samples_now_ns();
        const uint64_t replay = rig_counter(&host.rig, "replay_ns");

        fetcher_step(&host);
        if (t < 0)
            continue;
        samples_add(&out->stall, (double)(fetcher_stall_ns(&host) - stall));
        samples_add(&out->fetches, (double)(host.waited_ns - fetches));
        samples_add(&out->step, (double)(samples_now_ns() - start));
        samples_add(&out->replay, (double)(rig_counter(&host.rig, "replay_ns") - replay));
    }
    fetcher_close(&host);
}

static uint64_t replay_of_step_ns(const hooks_t *hooks, double ns_per_elem, uint32_t interval) {
    lag_row_t row = {0};
    double ns;

    measure(hooks, ns_per_elem, guess_ns, interval, &hosts[1], &row);
    ns = samples_median(&row.replay);
    return ns > (double)least_ns ? (uint64_t)ns : least_ns;
}

static double ms(const samples_t *samples) { return 1e-6 * samples_median(samples); }

static void print_row(hooks_t *hooks, const char *workers, uint32_t interval, uint64_t forward_ns,
                      const lag_row_t rows[N_HOSTS], int is_first) {
    printf("%-7s %2u %8.2f %8.2f", workers, interval, 1e-6 * (double)forward_ns, ms(&rows[0].replay));
    for (int i = 0; i < N_HOSTS; i++)
        printf(" | %8.2f %8.2f %8.2f", ms(&rows[i].stall), ms(&rows[i].fetches), ms(&rows[i].step));
    printf(" | %6.1f %6.1f\n", 100 * (ms(&rows[0].stall) - ms(&rows[1].stall)) / ms(&rows[1].step),
           100 * (ms(&rows[2].stall) - ms(&rows[1].stall)) / ms(&rows[1].step));
    fflush(stdout);
    if (!hooks->json)
        return;
    fprintf(hooks->json, "%s\n  {\"workers\": \"%s\", \"update_interval\": %u, \"forward_ms\": %.3f, \"hosts\": [",
            is_first ? "" : ",", workers, interval, 1e-6 * (double)forward_ns);
    for (int i = 0; i < N_HOSTS; i++)
        fprintf(hooks->json, "%s{\"host\": \"%s\", \"stall_ms\": %.3f, \"hooks_ms\": %.3f, \"step_ms\": %.3f}",
                i ? ", " : "", hosts[i].name, ms(&rows[i].stall), ms(&rows[i].fetches), ms(&rows[i].step));
    fprintf(hooks->json, "]}");
}

void hooks_lag(hooks_t *hooks) {
    int is_first = 1;

    printf(
        "lag: a host whose forward takes as long as the replay of a step, backward twice that; bf16, 2.5 M parameters "
        "(paced workers: %.0f ns per element), 9.8 M (kernels); ms per step, medians of %d\n",
        paced_ns, N_STEPS * N_ROUNDS);
    printf("%28s", "");
    for (int i = 0; i < N_HOSTS; i++)
        printf(" | %26s", hosts[i].name);
    printf(" | %13s\n%-7s %2s %8s %8s", "beyond lag 1,", "workers", "S", "forward", "replay");
    for (int i = 0; i < N_HOSTS; i++)
        printf(" | %8s %8s %8s", "stall", hosts[i].does_not_fetch ? "in step" : "fetches", "step");
    printf(" | %13s\n", "% of a step");
    if (hooks->json)
        fprintf(hooks->json, "\"lag\": {\"steps\": %d, \"rows\": [", N_STEPS * N_ROUNDS);
    for (int is_paced = 1; is_paced >= 0; is_paced--)
        for (int k = 0; k < N_INTERVALS; k++) {
            const double pace = is_paced ? paced_ns : 0;
            const uint64_t forward_ns = replay_of_step_ns(hooks, pace, intervals[k]);
            lag_row_t rows[N_HOSTS];

            memset(rows, 0, sizeof rows);
            for (int i = 0; i < N_ROUNDS * N_HOSTS; i++)
                measure(hooks, pace, forward_ns, intervals[k], &hosts[i % N_HOSTS], &rows[i % N_HOSTS]);
            print_row(hooks, is_paced ? "paced" : "kernels", intervals[k], forward_ns, rows, is_first);
            is_first = 0;
        }
    if (hooks->json)
        fprintf(hooks->json, "\n]}");
}
