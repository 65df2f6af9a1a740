/* SPDX-License-Identifier: Apache-2.0 */
/* shard_overlap.c - the recorded timeline of steps on several ranks (model in shard_overlap.h). */
#include "shard_overlap.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "harness/clock.h"
#include "harness/progress.h"
#include "harness/rig.h"
#include "shard_mirror.h"

enum { LAYERS = 8, ROWS = 128, COLUMNS = 256, WARM_UP = 2, MOST_STEPS = 64 };

static const uint64_t forward_ns = 16000000, backward_ns = 32000000; /* of a layer; other passes are short */
static const uint64_t link_ns = 12000000;                            /* a layer's reduce-scatter, or its all-gather */
enum { SHORT = 16 };

typedef enum call { IN_FETCH, IN_GRADS_READY, IN_STEP, N_CALLS } call_t;

typedef enum schedule { OVERLAPPED, SERIAL, INSTANT, N_SCHEDULES } schedule_t;
static const char *const schedule_names[] = {"overlapped", "serial", "instant link"};

typedef struct host {
    zs_mirror_t mirror;
    rig_t rig;                /* a layer is a tensor */
    zf_fence_t given[LAYERS]; /* its gradients may be written again */
    uint64_t in_ns[N_CALLS];  /* in a hook and waiting for what it returns, in this step */
} host_t;

/* Of a step, in ms. */
enum { REDUCE = N_CALLS, GATHER, N_MEASURED };
typedef struct measured {
    double ms[N_MEASURED]; /* in each call; the last reduce-scatter, the first all-gather */
} measured_t;

static void compute(uint64_t ns) { nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL); }

/* ---- the host ---------------------------------------------------------------------------------------------------- */

static void open_host(host_t *host, const zf_loader_t *loader, uint32_t n_ranks, uint32_t stage, int is_instant) {
    char config[320];
    const rig_spec_t spec = {.n_tensors = LAYERS,
                             .ndim = 2,
                             .shape = {ROWS, COLUMNS},
                             .dtype = zf_dtype_float32(),
                             .mode = RIG_ASYNC,
                             .config = config,
                             .ranks = &host->mirror.table};
    memset(host, 0, sizeof *host);
    zs_mirror_init(&host->mirror, 0, n_ranks,
                   is_instant ? 0 : (double)link_ns * n_ranks / ((n_ranks - 1.0) * ROWS * COLUMNS * sizeof(float)));
    for (uint32_t i = 0; i < LAYERS; i++)
        host->given[i] = (zf_fence_t){.struct_size = sizeof host->given[i]};
    (void)snprintf(config, sizeof config,
                   "[zenflow]\ntopk_ratio = 0\nupdate_interval = 1\npublish_lag = 0\nfull_warm_up_rounds = 1\n"
                   "[host]\nthreads = 1\naffinity = none\n[log]\nlevel = error\n[shard]\nstage = %u\n"
                   "bucket_bytes = 1\n",
                   stage);
    rig_open(&host->rig, loader, &spec);
}

/* n = 0: all. */
static void fetch(host_t *host, uint32_t layer, uint32_t n) {
    const uint64_t began = zc_now_ns();
    rig_fetch(&host->rig, layer, n);
    host->in_ns[IN_FETCH] += zc_now_ns() - began;
}

static void deliver(host_t *host, uint32_t layer, int is_last) {
    const uint64_t began = zc_now_ns();
    host->rig.items[layer].flags = ZF_GRAD_PART | ZF_GRAD_ASYNC_READ | (is_last ? ZF_GRAD_LAST : ZF_GRAD_MORE);
    rig_deliver(&host->rig, layer, 1, 1, &host->given[layer]);
    host->in_ns[IN_GRADS_READY] += zc_now_ns() - began;
}

static void step(host_t *host) {
    const uint64_t began = zc_now_ns();
    rig_step(&host->rig, 0);
    host->in_ns[IN_STEP] += zc_now_ns() - began;
}

static void forward(host_t *host, int is_first, int fetches) {
    for (uint32_t i = 0; i < LAYERS; i++) {
        if (is_first && fetches)
            fetch(host, i, 1);
        compute(is_first ? forward_ns : forward_ns / SHORT);
    }
}

static void backward(host_t *host, schedule_t schedule, int is_last) {
    for (uint32_t i = LAYERS; i-- > 0;) {
        compute(is_last ? backward_ns : backward_ns / SHORT);
        rig_wait(&host->rig, &host->given[i]); /* another would write there */
        if (schedule != SERIAL || !is_last)
            deliver(host, i, is_last);
    }
    for (uint32_t i = LAYERS; i-- > 0 && schedule == SERIAL && is_last;)
        deliver(host, i, 1);
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static double ms(uint64_t ns) { return 1e-6 * (double)ns; }

/* A step, from its forward pass to the call of step. What is recorded: the gradients of this step, the values of the
 * one before. */
static measured_t train(host_t *host, schedule_t schedule, uint32_t n_accumulated) {
    const zs_span_t *reduce = &host->mirror.reduced[LAYERS - 1], *gather = &host->mirror.gathered[LAYERS - 1];
    measured_t out;
    memset(host->in_ns, 0, sizeof host->in_ns);
    if (schedule == SERIAL)
        fetch(host, 0, 0);
    for (uint32_t i = 0; i < n_accumulated; i++) {
        forward(host, i == 0, schedule != SERIAL);
        backward(host, schedule, i + 1 == n_accumulated);
    }
    step(host);
    for (int k = 0; k < N_CALLS; k++)
        out.ms[k] = ms(host->in_ns[k]);
    out.ms[REDUCE] = ms(reduce->end_ns - reduce->begin_ns);
    out.ms[GATHER] = ms(gather->end_ns - gather->begin_ns);
    return out;
}

static double in_calls(const measured_t *measured) {
    return measured->ms[IN_FETCH] + measured->ms[IN_GRADS_READY] + measured->ms[IN_STEP];
}

/* The step that spent least in calls: what else runs on the machine only adds. */
static measured_t least_of(const measured_t *all, uint32_t n) {
    const measured_t *least = all;
    for (uint32_t i = 1; i < n; i++)
        if (in_calls(&all[i]) < in_calls(least))
            least = &all[i];
    return *least;
}

/* When the newest exchanges of each layer were under way. */
static void print_timeline(const zs_mirror_t *mirror) {
    const uint64_t first = mirror->reduced[0].begin_ns;
    printf("  | bucket | its reduce-scatter, ms from the first on | its all-gather, of the step before, ms before that "
           "|\n  |---|---|---|\n");
    for (uint32_t b = 0; b < LAYERS; b++)
        printf("  | %" PRIu32 " | %.1f .. %.1f | %.1f .. %.1f |\n", b, ms(mirror->reduced[b].begin_ns - first),
               ms(mirror->reduced[b].end_ns - first), ms(first - mirror->gathered[b].begin_ns),
               ms(first - mirror->gathered[b].end_ns));
}

/* What is asked for. */
typedef struct plan {
    const zf_loader_t *loader;
    uint32_t n_ranks, stage, n_accumulated, n_steps;
} plan_t;

static measured_t run(const plan_t *plan, schedule_t schedule) {
    zc_progress_t progress = {.area = "shard", .n_all = WARM_UP + plan->n_steps};
    measured_t all[MOST_STEPS];
    char what[64];
    host_t host;
    (void)snprintf(what, sizeof what, "steps of schedule \"%s\"", schedule_names[schedule]);
    open_host(&host, plan->loader, plan->n_ranks, plan->stage, schedule == INSTANT);
    for (uint32_t i = 0; i < WARM_UP + plan->n_steps; i++) {
        measured_t one;
        progress.n_done = i;
        zc_progress_show(&progress, what);
        one = train(&host, schedule, plan->n_accumulated);
        if (i >= WARM_UP)
            all[i - WARM_UP] = one;
    }
    zc_progress_end(&progress);
    if (schedule == OVERLAPPED)
        print_timeline(&host.mirror);
    rig_close(&host.rig);
    return least_of(all, plan->n_steps);
}

static int measure(const plan_t *plan) {
    measured_t least[N_SCHEDULES];
    double may_be, exposed, resolution;
    int is_missed;
    printf("%u ranks, stage %u, gradients of %u pass(es):\n\n", plan->n_ranks, plan->stage, plan->n_accumulated);
    for (int i = 0; i < N_SCHEDULES; i++)
        least[i] = run(plan, (schedule_t)i);
    printf("\n  | schedule | in param_fetch, ms per step | in grads_ready | in step | exposed | last reduce-scatter | "
           "first all-gather |\n  |---|---|---|---|---|---|---|\n");
    for (int i = 0; i < N_SCHEDULES; i++) {
        const double *in = least[i].ms;
        printf("  | %s | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f |\n", schedule_names[i], in[IN_FETCH],
               in[IN_GRADS_READY], in[IN_STEP], in_calls(&least[i]) - in_calls(&least[INSTANT]), in[REDUCE],
               in[GATHER]);
    }
    may_be = least[OVERLAPPED].ms[REDUCE] + least[OVERLAPPED].ms[GATHER];
    resolution = in_calls(&least[INSTANT]);
    exposed = in_calls(&least[OVERLAPPED]) - resolution;
    is_missed = exposed > may_be + resolution;
    printf("\n  exposed: %.1f ms, may be %.1f ms, to within %.1f ms: %s; serial: %.1f ms\n\n", exposed, may_be,
           resolution, is_missed ? "missed" : "held", in_calls(&least[SERIAL]) - resolution);
    fflush(stdout);
    return is_missed;
}

int zs_overlap(const zf_loader_t *loader, uint32_t n_ranks, uint32_t stage, uint32_t n_steps) {
    plan_t plan = {loader, n_ranks, stage, 1, n_steps};
    int is_missed = measure(&plan);
    plan.n_accumulated = 8;
    return measure(&plan) || is_missed;
}
