/* SPDX-License-Identifier: Apache-2.0 */
/* hooks_fit.c - update_interval = fit: what it chooses on hosts with a slow and a fast forward and with fast and slow
 * workers, and what it promises against what is counted, for its choice and for others.
 *
 * The host is a fetcher (fetcher.h) whose forward takes a third of the compute time of a step, backward two thirds. Two
 * kinds of workers are paced: their rows say whether the model of the stall holds, on a busy machine too. The others
 * are real kernels, the best and the ones without vector instructions: their rows say what holds on this machine as
 * busy as it was.
 *
 * Choices are made once by ZF_TEST_FIT, so that the plugin still says what it expects of each. promised is
 * fit_stall_ns, counted the stall_ns of zf.stats/1 per step after warm-up, both as shares of the step that warm-up
 * measured (fit_step_ns), medians over the counted steps; whole is a step by the host's own clock. A promise is kept
 * where it is within a factor of 1.5 of what is counted, or where the two differ by no more than the 3 % of a step that
 * fit allows. A row is busy, and not judged, where other programs took what was promised: steps without their stall, or
 * the share of the replays' time in which kernels had a CPU (ran), differ by more than a factor of 1.25 between warm-up
 * and what was counted. A row that is busy is measured again, at most N_TRIES times. */
#include <stdlib.h>
#include <string.h>

#include "fetcher.h"
#include "hooks.h"
#include "rig.h"
#include "samples.h"

enum { WARM_UP = 12, SETTLE = 3, N_STEPS = 13, N_TRIES = 3 };

static const uint64_t look_ns = 200000000;

static const double allowed = 0.03, factor = 1.5, busy_factor = 1.25;
static const uint64_t computes_ns[] = {60000000, 180000000};
static const char *const choices[] = {"1,0", "2,0", "4,0", "1,1", "2,1", "4,1"};

typedef struct workers {
    const char *name, *isa;
    int64_t rows;       /* of each tensor: the fewer elements, the less of a paced replay is work */
    double ns_per_elem; /* 0: real kernels */
} workers_t;

static const workers_t all_workers[] = {
    {"20 ns", "", 64, 20}, {"60 ns", "", 64, 60}, {"best", "", 256, 0}, {"generic", "generic", 256, 0}};

enum {
    N_COMPUTES = sizeof computes_ns / sizeof computes_ns[0],
    N_CHOICES = sizeof choices / sizeof choices[0],
    N_WORKERS = sizeof all_workers / sizeof all_workers[0]
};

typedef struct share {
    uint64_t cpu_ns, replay_ns; /* of the workers */
} share_t;

typedef enum verdict { KEPT, BROKEN, BUSY, N_VERDICTS } verdict_t;

static const char *const verdicts[N_VERDICTS] = {"kept", "above", "busy"};

typedef struct fit_run {
    zf_stats_t stats;           /* at the end */
    double counted_ns, step_ns; /* medians per step */
    double ran[2];              /* of the replays' time with a CPU: in warm-up, while it was counted */
} fit_run_t;

static share_t share_now(const rig_t *rig) {
    return (share_t){samples_named_cpu_ns("zf-worker"), rig_stats(rig).replay_ns};
}

static double ran_since(const rig_t *rig, share_t before) {
    const share_t now = share_now(rig);
    const double replay = (double)(now.replay_ns - before.replay_ns);

    return replay > 0 ? (double)(now.cpu_ns - before.cpu_ns) / replay : 1;
}

static void count_steps(fetcher_t *host, fit_run_t *out) {
    samples_t counted = {0}, steps = {0};

    for (int t = 0; t < N_STEPS; t++) {
        const uint64_t before = fetcher_stall_ns(host), start = samples_now_ns();

        fetcher_step(host);
        samples_add(&counted, (double)(fetcher_stall_ns(host) - before));
        samples_add(&steps, (double)(samples_now_ns() - start));
    }
    out->stats = rig_stats(&host->rig);
    out->counted_ns = samples_median(&counted);
    out->step_ns = samples_median(&steps);
}

/* choice: "S,lag", or "" for its own. */
static fit_run_t measure(const hooks_t *hooks, const workers_t *workers, uint64_t compute_ns, const char *choice) {
    char config[128];
    const fetcher_spec_t spec = {.rows = workers->rows,
                                 .ns_per_elem = workers->ns_per_elem,
                                 .forward_ns = compute_ns / 3,
                                 .backward_ns = compute_ns - compute_ns / 3,
                                 .config = config};
    static fetcher_t host;
    fit_run_t run;
    share_t share;

    snprintf(config, sizeof config, "[zenflow]\nupdate_interval = fit\nfull_warm_up_rounds = %d\n%s", WARM_UP,
             workers->ns_per_elem > 0 ? "topk_ratio = 0\n" : "");
    setenv("ZF_FORCE_ISA", workers->isa, 1);
    setenv("ZF_TEST_FIT", choice, 1);
    fetcher_open(&host, hooks->loader, &spec);
    share = share_now(&host.rig);
    for (int t = 0; t < WARM_UP; t++)
        fetcher_step(&host);
    run.ran[0] = ran_since(&host.rig, share);
    for (int t = 0; t < SETTLE; t++)
        fetcher_step(&host);
    share = share_now(&host.rig);
    count_steps(&host, &run);
    run.ran[1] = ran_since(&host.rig, share);
    fetcher_close(&host);
    return run;
}

static int are_near(double a, double b, double times) { return a <= times * b && b <= times * a; }

static double promised_of(const fit_run_t *run) {
    return (double)run->stats.fit_stall_ns / (double)run->stats.fit_step_ns;
}

static verdict_t judge(const workers_t *workers, const fit_run_t *run) {
    const double step_ns = (double)run->stats.fit_step_ns, promised = promised_of(run);
    const double counted = run->counted_ns / step_ns, difference = promised - counted;

    if ((difference <= allowed && difference >= -allowed) || are_near(promised, counted, factor))
        return KEPT;
    if (!are_near(run->step_ns - run->counted_ns, step_ns, busy_factor))
        return BUSY;
    return workers->ns_per_elem > 0 || are_near(run->ran[0], run->ran[1], busy_factor) ? BROKEN : BUSY;
}

static fit_run_t measure_quietly(const hooks_t *hooks, const workers_t *workers, uint64_t compute_ns,
                                 const char *choice) {
    fit_run_t run;
    int n_tries = 0;

    do
        run = measure(hooks, workers, compute_ns, choice);
    while (judge(workers, &run) == BUSY && ++n_tries < N_TRIES);
    return run;
}

static void print_run(hooks_t *hooks, const workers_t *workers, uint64_t compute_ns, const fit_run_t *run,
                      int is_chosen, uint32_t n[N_VERDICTS]) {
    const double step = (double)run->stats.fit_step_ns, promised = promised_of(run);
    const double counted = run->counted_ns / step;
    const verdict_t verdict = judge(workers, run);
    const int is_first = n[KEPT] + n[BROKEN] + n[BUSY] == 0;

    n[verdict]++;
    (void)hooks_verdict(hooks, verdict != BROKEN);
    printf("%-8s %8.0f %8.2f | %3u %3u %-6s | %8.1f %8.1f %6.2f %-5s | %4.0f %4.0f | %8.2f\n", workers->name,
           1e-6 * (double)compute_ns, 1e-6 * step, run->stats.update_interval, run->stats.publish_lag,
           is_chosen ? "chosen" : "", 100 * promised, 100 * counted, counted > 0 ? promised / counted : 0.0,
           verdicts[verdict], 100 * run->ran[0], 100 * run->ran[1], 1e-6 * run->step_ns);
    fflush(stdout);
    if (hooks->json)
        fprintf(hooks->json,
                "%s\n  {\"workers\": \"%s\", \"compute_ms\": %.0f, \"step_ms\": %.3f, \"update_interval\": %u, "
                "\"publish_lag\": %u, \"is_chosen\": %s, \"promised\": %.4f, \"counted\": %.4f, \"verdict\": \"%s\", "
                "\"ran_in_warm_up\": %.3f, \"ran_counted\": %.3f, \"whole_step_ms\": %.3f}",
                is_first ? "" : ",", workers->name, 1e-6 * (double)compute_ns, 1e-6 * step, run->stats.update_interval,
                run->stats.publish_lag, is_chosen ? "true" : "false", promised, counted, verdicts[verdict], run->ran[0],
                run->ran[1], 1e-6 * run->step_ns);
}

static void measure_host(hooks_t *hooks, const workers_t *workers, uint64_t compute_ns, uint32_t n[N_VERDICTS]) {
    fit_run_t run = measure_quietly(hooks, workers, compute_ns, "");

    print_run(hooks, workers, compute_ns, &run, 1, n);
    for (int i = 0; i < N_CHOICES; i++) {
        run = measure_quietly(hooks, workers, compute_ns, choices[i]);
        print_run(hooks, workers, compute_ns, &run, 0, n);
    }
}

void hooks_fit(hooks_t *hooks) {
    uint32_t n[N_VERDICTS] = {0};

    printf(
        "fit: bf16, 2.5 M parameters (paced workers, named by ns per element), 9.8 M (kernels); warm-up of %d steps, "
        "%d steps counted; shares of a step in %%\n",
        WARM_UP, N_STEPS);
    printf(
        "kept: promised and counted within a factor of %.1f, or they differ by no more than the %.0f %% of a step that "
        "fit allows\n"
        "busy: without the stall a step took, or while they ran kernels had a CPU, %.2f x as much in warm-up as while "
        "it "
        "was counted, or the reverse, in each of %d tries: not judged\n",
        factor, 100 * allowed, busy_factor, N_TRIES);
    printf("others took %.1f %% of this CPU while nothing of this ran\n", 100 * samples_lost_share(look_ns));
    printf("%-8s %8s %8s | %3s %3s %-6s | %8s %8s %6s %-5s | %9s | %8s\n", "workers", "compute", "step ms", "S", "lag",
           "", "promised", "counted", "ratio", "", "ran %", "whole ms");
    if (hooks->json)
        fprintf(hooks->json, "\"fit\": {\"warm_up\": %d, \"steps\": %d, \"rows\": [", WARM_UP, N_STEPS);
    for (int k = 0; k < N_WORKERS; k++)
        for (int c = 0; c < N_COMPUTES; c++)
            measure_host(hooks, &all_workers[k], computes_ns[c], n);
    printf("fit: %u kept, %u not, %u not judged\n", n[KEPT], n[BROKEN], n[BUSY]);
    unsetenv("ZF_FORCE_ISA");
    unsetenv("ZF_TEST_FIT");
    if (hooks->json)
        fprintf(hooks->json, "\n], \"kept\": %u, \"not_kept\": %u, \"busy\": %u}", n[KEPT], n[BROKEN], n[BUSY]);
}
