/* SPDX-License-Identifier: Apache-2.0 */
/* hooks_replay.c - replay of many small tensors against one large one, and that against the kernel alone.
 *
 * Two instances with the same number of elements, and the kernel on arrays of its own with as many elements. A
 * repetition makes one window of each and one pass of the kernel, in turn. After every step the instance drains.
 * Time per element and update is that of the workers on a CPU, over replay_elems of zf.stats/1: what waits for a core
 * does not count. Everything shares one CPU: the thread that is the device of the CPU backend, and that no GPU has,
 * would else run beside the workers and not beside the kernel, and two CPUs are often halves of one core. The kernel
 * is the limit of the large instance, and the large one of the small ones; the kernel's own limit is zf-bench-host's.
 * The engine's time has all that comes with a replay: values ahead of time (predict). */
#define _GNU_SOURCE /* sched_setaffinity */
#include <sched.h>
#include <time.h>

#include "harness/clock.h"
#include "harness/rig.h"
#include "hooks.h"
#include "passes.h"
#include "table.h"

enum { N_SMALL = 10000, ROWS = 20, N_RIGS = 2 };

static const double small_bar = 1.3, engine_bar = 1.1;

typedef struct replay {
    rig_t rigs[N_RIGS]; /* many small tensors, one large */
    passes_t passes;
    uint64_t cpu_ns[TEAM_MAX_THREADS];                   /* of a pass */
    samples_t per_elem[N_RIGS], kernel;                  /* ns per element and update */
    samples_t small_over_large, large_over_kernel, lost; /* of each repetition */
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

static void timed_pass(void *arg, int thread) {
    replay_t *replay = arg;
    const uint64_t begin = zc_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    passes_replay(&replay->passes, thread);
    replay->cpu_ns[thread] = zc_clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin;
}

/* The same of the kernel alone. */
static double kernel_ns(replay_t *replay) {
    const passes_t *passes = &replay->passes;
    double ns = 0;
    (void)team_run(passes->n_threads, timed_pass, replay);
    for (int t = 0; t < passes->n_threads; t++)
        ns += (double)replay->cpu_ns[t];
    return ns / ((double)passes->n_threads * (double)passes->n_elems * passes->n_slots);
}

static void repeat(replay_t *replay) {
    double ns[N_RIGS];
    const double kernel = kernel_ns(replay);
    samples_add(&replay->kernel, kernel);
    for (int i = 0; i < N_RIGS; i++) {
        ns[i] = window_ns(&replay->rigs[i]);
        samples_add(&replay->per_elem[i], ns[i]);
    }
    samples_add(&replay->small_over_large, ns[0] / ns[1]);
    samples_add(&replay->large_over_kernel, ns[1] / kernel);
    samples_add(&replay->lost, samples_lost_share(5000000));
}

static void print_all(hooks_t *hooks, const replay_t *replay) {
    static const column_t columns[] = {{"tensors", 0}, {"elems", 0}, {"ns_per_elem_update", 4},
                                       {"q1_ns", 4},   {"q3_ns", 4}, {NULL, 0}};
    const quartiles_t small = samples_quartiles(&replay->small_over_large),
                      large = samples_quartiles(&replay->large_over_kernel),
                      kernel = samples_quartiles(&replay->kernel);
    table_t table =
        table_begin(hooks->json, "replay",
                    "CPU time of the workers per element and update, bf16, S = 4; limit: the kernel alone", columns);
    for (int i = 0; i < N_RIGS; i++) {
        const quartiles_t ns = samples_quartiles(&replay->per_elem[i]);
        const rig_spec_t *spec = &replay->rigs[i].spec;
        table_row(&table, NULL,
                  (const double[]){spec->n_tensors, (double)(spec->shape[0] * spec->shape[1]), ns.median, ns.q1, ns.q3},
                  hooks_verdict(hooks, i ? large.median <= engine_bar : small.median <= small_bar));
    }
    table_end(&table, (const figure_t[]){{"workers", replay->passes.n_threads},
                                         {"repeats", hooks->n_repeats},
                                         {"small_over_large", small.median},
                                         {"small_over_large_q1", small.q1},
                                         {"small_over_large_q3", small.q3},
                                         {"small_bar", small_bar},
                                         {"kernel_ns", kernel.median},
                                         {"kernel_q1_ns", kernel.q1},
                                         {"kernel_q3_ns", kernel.q3},
                                         {"large_over_kernel", large.median},
                                         {"large_over_kernel_q1", large.q1},
                                         {"large_over_kernel_q3", large.q3},
                                         {"engine_bar", engine_bar},
                                         {"cpu_lost_share", samples_median(&replay->lost)},
                                         {NULL, 0}});
}

/* Arrays of the kernel alone: as many elements and threads as the instances have, the plugin's own instruction set. */
static void open_passes(replay_t *replay) {
    const uint64_t n_threads = rig_counter(&replay->rigs[0], "n_workers");
    const uint64_t n_each = (uint64_t)N_SMALL * HOOKS_SMALL_ELEMS / n_threads;
    passes_t *passes = &replay->passes;
    *passes = (passes_t){.kernels = zfi_kernels_of(zfi_isa_best()),
                         .rule = ZFI_RULE_ADAMW,
                         .moments = ZFI_MOMENTS_F32,
                         .dtype = ZFI_BF16,
                         .n_slots = HOOKS_WINDOW,
                         .n_elems = (n_each / PASSES_CHUNK_ELEMS + 1) * PASSES_CHUNK_ELEMS};
    passes_open(passes, (int)n_threads, passes->n_elems);
}

/* The calling thread, and those that it makes from here on, run on the first of the CPUs that it may use; these. */
static cpu_set_t stay_on_one_cpu(void) {
    cpu_set_t all, one;
    CPU_ZERO(&all);
    CPU_ZERO(&one);
    (void)sched_getaffinity(0, sizeof all, &all);
    for (size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
    return all;
}

void hooks_replay(hooks_t *hooks) {
    static replay_t replay;
    const cpu_set_t cpus = stay_on_one_cpu();
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
    open_passes(&replay);
    for (int i = 0; i < N_RIGS; i++)
        for (int warm = 0; warm < 3; warm++) /* past the warm-up and the first touch of every slot */
            (void)window_ns(&replay.rigs[i]);
    for (int r = 0; r < hooks->n_repeats; r++)
        repeat(&replay);
    print_all(hooks, &replay);
    passes_close(&replay.passes);
    for (int i = 0; i < N_RIGS; i++)
        rig_close(&replay.rigs[i]);
    (void)sched_setaffinity(0, sizeof cpus, &cpus);
}
