/* SPDX-License-Identifier: Apache-2.0 */
/* hooks_beside.c - what a setting costs, off and on beside each other: guard, that every publish checks what it
 * replaces ([zenflow] on_overwrite); trace, that what every thread does is recorded ([trace] file).
 *
 * Two instances without it and two with it make one window each in turn, opened in the order off, on, on, off,
 * since where memory comes to lie makes a difference too. The figure is the CPU time of the whole process per element
 * and step, from the delivery of gradients that are there to the end of everything that the step has started:
 * statistics, check, run-ahead, replay, merge. No forward or backward pass is in it. */
#include <time.h>
#include <unistd.h>

#include "hooks.h"
#include "rig.h"
#include "samples.h"

enum { N_TENSORS = 17000, N_RIGS = 4, N_ELEMS = N_TENSORS * HOOKS_SMALL_ELEMS };

typedef struct setting {
    const char *name, *what, *configs[2]; /* off, on */
} setting_t;

#define TRACE_FILE "/tmp/zf-bench-hooks-trace.json"
static const setting_t check = {"guard", "the check", {HOOKS_CONFIG "on_overwrite = off\n", HOOKS_CONFIG}};
static const setting_t trace = {
    "trace", "a trace", {HOOKS_CONFIG, HOOKS_CONFIG "[trace]\nfile = " TRACE_FILE "\nsteps = 0\n"}};

typedef struct beside {
    const setting_t *setting;
    rig_t rigs[N_RIGS];
    samples_t ns[2], ratio; /* off, on */
    samples_t open_ns[2];   /* CPU time of the process from create to the end of bind_params */
} beside_t;

static int is_on(int rig) { return rig == 1 || rig == 2; }

typedef struct kind {
    uint32_t n_tensors;
    int64_t rows, cols;
    int is_f32;
} kind_t;

static const kind_t kinds[] = {
    {1, 2000, N_ELEMS / 2000, 0}, {1, 2000, N_ELEMS / 2000, 1}, {N_TENSORS, 20, HOOKS_SMALL_ELEMS / 20, 0}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static uint64_t process_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void open_rigs(const hooks_t *hooks, beside_t *beside, const kind_t *kind) {
    for (int i = 0; i < N_RIGS; i++) {
        const rig_spec_t spec = {.n_tensors = kind->n_tensors,
                                 .ndim = 2,
                                 .shape = {kind->rows, kind->cols},
                                 .dtype = kind->is_f32 ? zf_dtype_float32() : zf_dtype_bfloat16(),
                                 .mode = RIG_ASYNC,
                                 .config = beside->setting->configs[is_on(i)]};
        const uint64_t ns = process_ns();

        rig_open(&beside->rigs[i], hooks->loader, &spec);
        samples_add(&beside->open_ns[is_on(i)], (double)(process_ns() - ns));
    }
}

/* One window; ns of CPU time per element and step. */
static double window_ns(rig_t *rig) {
    const uint64_t ns = process_ns();

    for (int s = 0; s < HOOKS_WINDOW; s++) {
        rig_deliver(rig, 0, rig->spec.n_tensors, 64, NULL);
        rig_step(rig, ZF_STEP_WAIT);
        rig_drain(rig);
    }
    return (double)(process_ns() - ns) / ((double)HOOKS_WINDOW * N_ELEMS);
}

static void repeat(beside_t *beside, int turn) {
    double ns[2] = {0, 0};

    for (int i = 0; i < N_RIGS; i++) {
        int rig = (i + turn) % N_RIGS;

        ns[is_on(rig)] += window_ns(&beside->rigs[rig]) / 2;
    }
    samples_add(&beside->ns[0], ns[0]);
    samples_add(&beside->ns[1], ns[1]);
    samples_add(&beside->ratio, ns[1] / ns[0]);
}

static void print_row(const hooks_t *hooks, const beside_t *beside, const kind_t *kind) {
    const quartiles_t ratio = samples_quartiles(&beside->ratio);
    const double off = samples_median(&beside->ns[0]), on = samples_median(&beside->ns[1]);
    const char *dtype = kind->is_f32 ? "f32" : "bf16";

    printf("%7u x %8ld %-4s | %7.4f %7.4f | %6.3f %6.3f..%-6.3f | %6.0f %6.0f\n", kind->n_tensors,
           (long)(kind->rows * kind->cols), dtype, off, on, ratio.median, ratio.q1, ratio.q3,
           1e-6 * samples_median(&beside->open_ns[0]), 1e-6 * samples_median(&beside->open_ns[1]));
    if (hooks->json)
        fprintf(
            hooks->json,
            "%s\n  {\"tensors\": %u, \"dtype\": \"%s\", \"off_ns\": %.5f, \"on_ns\": %.5f, \"ratio\": %.4f, \"q1\": "
            "%.4f, \"q3\": %.4f, \"open_off_ms\": %.1f, \"open_on_ms\": %.1f}",
            kind == kinds ? "" : ",", kind->n_tensors, dtype, off, on, ratio.median, ratio.q1, ratio.q3,
            1e-6 * samples_median(&beside->open_ns[0]), 1e-6 * samples_median(&beside->open_ns[1]));
}

static void run_kind(const hooks_t *hooks, const setting_t *setting, const kind_t *kind) {
    static beside_t beside;

    beside = (beside_t){.setting = setting};
    open_rigs(hooks, &beside, kind);
    for (int warm = 0; warm < 3 * N_RIGS; warm++) /* past the warm-up and the first touch of every slot */
        (void)window_ns(&beside.rigs[warm % N_RIGS]);
    for (int r = 0; r < hooks->n_repeats; r++)
        repeat(&beside, r);
    print_row(hooks, &beside, kind);
    for (int i = 0; i < N_RIGS; i++)
        rig_close(&beside.rigs[i]);
}

static void run(const hooks_t *hooks, const setting_t *setting) {
    printf("%s: CPU ns of the process per element and step, S = %d, without and with %s, medians of %d windows\n",
           setting->name, HOOKS_WINDOW, setting->what, hooks->n_repeats);
    printf("%23s | %7s %7s | %6s %15s | %s\n", "tensors x elements", "off", "on", "ratio", "quartiles",
           "ms to open, off and on");
    if (hooks->json)
        fprintf(hooks->json, "\"%s\": {\"slots\": %d, \"repeats\": %d, \"rows\": [", setting->name, HOOKS_WINDOW,
                hooks->n_repeats);
    for (int i = 0; i < N_KINDS; i++)
        run_kind(hooks, setting, &kinds[i]);
    if (hooks->json)
        fprintf(hooks->json, "\n]}");
}

void hooks_guard(hooks_t *hooks) { run(hooks, &check); }

void hooks_trace(hooks_t *hooks) {
    run(hooks, &trace);
    unlink(TRACE_FILE);
    unlink("/tmp/zf-bench-hooks-trace.2.json");
}
