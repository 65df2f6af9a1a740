/* SPDX-License-Identifier: Apache-2.0 */
/* hooks_lateness.c - what the meter of lateness costs a replay.
 *
 * For one large tensor and for many small ones, four instances make one window each in turn: two without the meter, two
 * with it, opened in the order off, on, on, off, since where memory comes to lie makes more of a difference than the
 * meter. They are drained after every step so that nothing else runs. The figure is the workers' time on a CPU per
 * element and update, with the meter over without it, window by window. */
#include "hooks.h"
#include "rig.h"
#include "samples.h"

enum { N_TENSORS = 17000, N_RIGS = 4, N_ELEMS = N_TENSORS * HOOKS_SMALL_ELEMS };

static const double bar = 1.03;

typedef struct lateness {
    rig_t rigs[N_RIGS];
    samples_t ns[2], ratio; /* without, with the meter */
} lateness_t;

static int has_meter(int rig) { return rig == 1 || rig == 2; }

static const char *const configs[] = {HOOKS_CONFIG "[log]\nlateness = 0\n", HOOKS_CONFIG};

static void open_rigs(const hooks_t *hooks, lateness_t *lateness, int is_small) {
    for (int i = 0; i < N_RIGS; i++) {
        const rig_spec_t spec = {.n_tensors = is_small ? N_TENSORS : 1,
                                 .ndim = 2,
                                 .shape = {is_small ? 20 : 2000, is_small ? HOOKS_SMALL_ELEMS / 20 : N_ELEMS / 2000},
                                 .dtype = zf_dtype_bfloat16(),
                                 .mode = RIG_ASYNC,
                                 .config = configs[has_meter(i)]};
        rig_open(&lateness->rigs[i], hooks->loader, &spec);
    }
}

/* One window; ns of worker time per element and update. */
static double window_ns(rig_t *rig) {
    const uint64_t elems = rig_counter(rig, "replay_elems"), ns = samples_named_cpu_ns("zf-worker");

    for (int s = 0; s < HOOKS_WINDOW; s++) {
        rig_deliver(rig, 0, rig->spec.n_tensors, 64, NULL);
        rig_step(rig, ZF_STEP_WAIT);
        rig_drain(rig);
    }
    return (double)(samples_named_cpu_ns("zf-worker") - ns) / (double)(rig_counter(rig, "replay_elems") - elems);
}

static void repeat(lateness_t *lateness, int turn) {
    double ns[2] = {0, 0};

    for (int i = 0; i < N_RIGS; i++) {
        int rig = (i + turn) % N_RIGS;

        ns[has_meter(rig)] += window_ns(&lateness->rigs[rig]) / 2;
    }
    samples_add(&lateness->ns[0], ns[0]);
    samples_add(&lateness->ns[1], ns[1]);
    samples_add(&lateness->ratio, ns[1] / ns[0]);
}

static void print_row(hooks_t *hooks, const lateness_t *lateness, int is_small) {
    const quartiles_t ratio = samples_quartiles(&lateness->ratio);
    const double off = samples_median(&lateness->ns[0]), on = samples_median(&lateness->ns[1]);
    const rig_spec_t *spec = &lateness->rigs[0].spec;

    printf("%7u x %8ld | %7.4f %7.4f | %6.3f %6.3f..%-6.3f %s\n", spec->n_tensors,
           (long)(spec->shape[0] * spec->shape[1]), off, on, ratio.median, ratio.q1, ratio.q3,
           hooks_verdict(hooks, ratio.median <= bar));
    if (hooks->json)
        fprintf(hooks->json,
                "%s\n  {\"tensors\": %u, \"off_ns\": %.5f, \"on_ns\": %.5f, \"ratio\": %.4f, \"q1\": %.4f, \"q3\": "
                "%.4f}",
                is_small ? "," : "", spec->n_tensors, off, on, ratio.median, ratio.q1, ratio.q3);
}

static void run_shape(hooks_t *hooks, int is_small) {
    static lateness_t lateness;

    lateness = (lateness_t){0};
    open_rigs(hooks, &lateness, is_small);
    for (int warm = 0; warm < 3 * N_RIGS; warm++) /* past the warm-up and the first touch of every slot */
        (void)window_ns(&lateness.rigs[warm % N_RIGS]);
    for (int r = 0; r < hooks->n_repeats; r++)
        repeat(&lateness, r);
    print_row(hooks, &lateness, is_small);
    for (int i = 0; i < N_RIGS; i++)
        rig_close(&lateness.rigs[i]);
}

void hooks_lateness(hooks_t *hooks) {
    printf(
        "lateness: CPU ns of the workers per element and update, bf16, S = %d, without and with the meter, medians of "
        "%d windows; bar %.2f\n",
        HOOKS_WINDOW, hooks->n_repeats, bar);
    printf("%18s | %7s %7s | %6s %15s\n", "tensors x elements", "off", "on", "ratio", "quartiles");
    if (hooks->json)
        fprintf(hooks->json, "\"lateness\": {\"slots\": %d, \"repeats\": %d, \"bar\": %.2f, \"rows\": [", HOOKS_WINDOW,
                hooks->n_repeats, bar);
    run_shape(hooks, 0);
    run_shape(hooks, 1);
    if (hooks->json)
        fprintf(hooks->json, "\n]}");
}
