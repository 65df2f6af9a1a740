/* SPDX-License-Identifier: Apache-2.0 */
/* hooks_fit.c - update_interval = fit: what it chooses on hosts with a slow and a fast forward and with fast and slow
 * workers, and what it promises against what is counted, for each of its choices.
 *
 * The host is synthetic: N_LAYERS layers of four matrices; forward takes a third of the compute time of a step,
 * backward two thirds, both spent looking at the clock. It fetches a layer before its forward, and waits for it. Slow
 * workers are those without vector instructions. Each choice is made once by ZF_TEST_FIT, so that the plugin still
 * says what it expects of it. promised is fit_stall_ns, counted the stall_ns of zf.stats/1 per step after warm-up, both
 * as shares of the step that warm-up measured (fit_step_ns), medians over the counted steps; whole is a step by the
 * host's own clock, which has the device's own work on the CPU in it (merging, and what other programs take). A promise
 * is kept where it is within a factor of 1.5 of what is counted, or both are below the 3 % that fit allows. */
#include <stdlib.h>
#include <string.h>

#include "hooks.h"
#include "rig.h"
#include "samples.h"

enum { N_LAYERS = 24, PER_LAYER = 4, WARM_UP = 12, SETTLE = 4, N_STEPS = 16, N_CHOICES = 8, FENCE_TIMEOUT_S = 60 };

static const uint64_t look_ns = 200000000;

static const double allowed = 0.03, factor = 1.5;
static const uint64_t computes_ns[] = {6000000, 60000000};
static const char *const isas[] = {"", "generic"};
enum { N_COMPUTES = sizeof computes_ns / sizeof computes_ns[0], N_ISAS = sizeof isas / sizeof isas[0] };

typedef struct fit_run {
    zf_stats_t stats;           /* at the end */
    double counted_ns, step_ns; /* medians per step */
} fit_run_t;

static void spin(uint64_t n_ns) {
    const uint64_t end = samples_now_ns() + n_ns;

    while (samples_now_ns() < end) {
    }
}

static void wait_for(const rig_t *rig, const zf_fence_t *fence) {
    zf_error_t err = {.struct_size = sizeof err};

    rig_check(zf_loader_fence_wait(rig->loader, fence, FENCE_TIMEOUT_S * UINT64_C(1000000000), &err), &err);
}

static void fetch(const rig_t *rig, uint32_t layer) {
    zf_fence_t ready = {.struct_size = sizeof ready};
    zf_error_t err = {.struct_size = sizeof err};
    uint32_t ids[PER_LAYER];

    for (uint32_t i = 0; i < PER_LAYER; i++)
        ids[i] = layer * PER_LAYER + i;
    rig_check(rig->zf->param_fetch(rig->instance, ids, PER_LAYER, &rig->stream, &ready, &err), &err);
    wait_for(rig, &ready);
}

static void make_step(rig_t *rig, uint64_t compute_ns, zf_fence_t done[N_LAYERS]) {
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        fetch(rig, layer);
        spin(compute_ns / 3 / N_LAYERS);
    }
    for (uint32_t layer = N_LAYERS; layer-- > 0;) {
        wait_for(rig, &done[layer]); /* its gradients of the step before are about to be overwritten */
        spin(compute_ns * 2 / 3 / N_LAYERS);
        rig_deliver(rig, layer * PER_LAYER, PER_LAYER, PER_LAYER, &done[layer]);
    }
    rig_step(rig, 0);
}

static uint64_t stall_ns(const zf_stats_t *stats) {
    return stats->stall_replay_ns + stats->stall_select_ns + stats->stall_pool_ns;
}

/* choice: "S,lag", or "" for its own. */
static fit_run_t measure(const hooks_t *hooks, const char *isa, uint64_t compute_ns, const char *choice) {
    char config[96];
    const rig_spec_t spec = {.n_tensors = N_LAYERS * PER_LAYER,
                             .ndim = 2,
                             .shape = {256, 400},
                             .dtype = zf_dtype_bfloat16(),
                             .mode = RIG_ASYNC,
                             .config = config};
    zf_fence_t done[N_LAYERS];
    fit_run_t run;
    uint64_t before;
    samples_t counted = {0}, steps = {0};
    rig_t rig;

    snprintf(config, sizeof config, "[zenflow]\nupdate_interval = fit\nfull_warm_up_rounds = %d\n", WARM_UP);
    setenv("ZF_FORCE_ISA", isa, 1);
    setenv("ZF_TEST_FIT", choice, 1);
    for (int i = 0; i < N_LAYERS; i++)
        done[i] = (zf_fence_t){.struct_size = sizeof done[i], .kind = ZF_FENCE_NONE};
    rig_open(&rig, hooks->loader, &spec);
    for (int t = 0; t < WARM_UP + SETTLE; t++)
        make_step(&rig, compute_ns, done);
    for (int t = 0; t < N_STEPS; t++) {
        const uint64_t start = samples_now_ns();

        run.stats = rig_stats(&rig);
        before = stall_ns(&run.stats);
        make_step(&rig, compute_ns, done);
        run.stats = rig_stats(&rig);
        samples_add(&counted, (double)(stall_ns(&run.stats) - before));
        samples_add(&steps, (double)(samples_now_ns() - start));
    }
    run.counted_ns = samples_median(&counted);
    run.step_ns = samples_median(&steps);
    rig_close(&rig);
    return run;
}

static int is_kept(double promised, double counted) {
    return (promised <= allowed && counted <= allowed) ||
           (promised <= factor * counted && counted <= factor * promised);
}

static void print_choice(hooks_t *hooks, const char *isa, uint64_t compute_ns, const fit_run_t *run, int is_chosen,
                         int is_first) {
    const double step = (double)run->stats.fit_step_ns, promised = (double)run->stats.fit_stall_ns / step;
    const double counted = run->counted_ns / step;
    const char *verdict = is_kept(promised, counted) ? "kept" : hooks_verdict(hooks, 0);

    printf("%-8s %8.0f %8.2f | %3u %3u %-6s | %8.1f %8.1f %6.2f %-5s | %8.2f\n", *isa ? isa : "best",
           1e-6 * (double)compute_ns, 1e-6 * step, run->stats.update_interval, run->stats.publish_lag,
           is_chosen ? "chosen" : "", 100 * promised, 100 * counted, counted > 0 ? promised / counted : 0.0, verdict,
           1e-6 * run->step_ns);
    fflush(stdout);
    if (hooks->json)
        fprintf(hooks->json,
                "%s\n  {\"isa\": \"%s\", \"compute_ms\": %.0f, \"step_ms\": %.3f, \"update_interval\": %u, "
                "\"publish_lag\": %u, \"is_chosen\": %s, \"promised\": %.4f, \"counted\": %.4f, \"is_kept\": %s, "
                "\"whole_step_ms\": %.3f}",
                is_first ? "" : ",", isa, 1e-6 * (double)compute_ns, 1e-6 * step, run->stats.update_interval,
                run->stats.publish_lag, is_chosen ? "true" : "false", promised, counted,
                is_kept(promised, counted) ? "true" : "false", 1e-6 * run->step_ns);
}

static void measure_host(hooks_t *hooks, const char *isa, uint64_t compute_ns, int is_first) {
    const fit_run_t own = measure(hooks, isa, compute_ns, "");

    print_choice(hooks, isa, compute_ns, &own, 1, is_first);
    for (int i = 0; i < N_CHOICES; i++) {
        char choice[8];
        fit_run_t run;

        snprintf(choice, sizeof choice, "%d,%d", 1 + i % 4, i / 4);
        run = measure(hooks, isa, compute_ns, choice);
        print_choice(hooks, isa, compute_ns, &run, 0, 0);
    }
}

void hooks_fit(hooks_t *hooks) {
    int is_first = 1;

    printf("fit: %.1f M parameters, bf16; warm-up of %d steps, %d steps counted; shares of a step in %%\n",
           1e-6 * N_LAYERS * PER_LAYER * 256 * 400, WARM_UP, N_STEPS);
    printf("others took %.1f %% of this CPU while nothing of this ran\n", 100 * samples_lost_share(look_ns));
    printf("%-8s %8s %8s | %3s %3s %-6s | %8s %8s %6s %-5s | %8s\n", "workers", "compute", "step ms", "S", "lag", "",
           "promised", "counted", "ratio", "", "whole ms");
    if (hooks->json)
        fprintf(hooks->json, "\"fit\": {\"params\": %d, \"warm_up\": %d, \"steps\": %d, \"rows\": [",
                N_LAYERS * PER_LAYER * 256 * 400, WARM_UP, N_STEPS);
    for (int k = 0; k < N_ISAS; k++)
        for (int c = 0; c < N_COMPUTES; c++) {
            measure_host(hooks, isas[k], computes_ns[c], is_first);
            is_first = 0;
        }
    unsetenv("ZF_FORCE_ISA");
    unsetenv("ZF_TEST_FIT");
    if (hooks->json)
        fprintf(hooks->json, "\n]}");
}
