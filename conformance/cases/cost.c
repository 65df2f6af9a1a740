/* SPDX-License-Identifier: Apache-2.0 */
/* cost.c - zf-conform cost: processor time of a step, of all threads together, and bytes per parameter, as the plugin
 * is by default; beside a loop over AdamW's formula on the same arrays. Both take turns, and the least of many counts,
 * so that what else the machine does shows little. */
#include "cost.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "abi_watch.h"
#include "harness/clock.h"
#include "harness/option_table.h"
#include "harness/rig.h"
#include "host/real.h"

enum { N_TENSORS = 16, SIDE = 512, N_ROUNDS = 15, N_WARM = 4 };
static const size_t n_elems = (size_t)N_TENSORS * SIDE * SIDE;
static const double most_times = 8.0, most_nbytes = 45.0, stack_nbytes = 8.5e6;

typedef struct cost_options {
    const char *plugin;
    int is_help;
} cost_options_t;

/* ---- AdamW ------------------------------------------------------------------------------------------------------- */

typedef struct arrays {
    float *w, *m, *v;
} arrays_t;

HOST_CLONES static void update(const arrays_t *a, const float *g, float rate, float root) {
    float *restrict w = a->w, *restrict m = a->m, *restrict v = a->v;
    for (size_t i = 0; i < n_elems; i++) {
        m[i] = 0.9f * m[i] + 0.1f * g[i];
        v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
        w[i] = w[i] * 0.9999999f - rate * m[i] / (sqrtf(v[i]) * root + 1e-8f);
    }
}

static double cpu_ns(void) { return (double)zc_clock_ns(CLOCK_PROCESS_CPUTIME_ID); }

static double time_adamw(const arrays_t *a, const float *g) {
    double before = cpu_ns();
    update(a, g, 1e-5f, 1.5f);
    return cpu_ns() - before;
}

/* ---- the plugin -------------------------------------------------------------------------------------------------- */

/* What a trainer does of a step: gradients layer by layer, the step, all values. */
static double time_step(rig_t *rig) {
    double before = cpu_ns();
    rig_deliver(rig, 0, N_TENSORS, 1, NULL);
    rig_step(rig, 0);
    rig_fetch(rig, 0, 0);
    rig_quiesce(rig, ZF_QUIESCE_DRAIN);
    return cpu_ns() - before;
}

static double mapped_nbytes(const rig_t *rig, double before, int n_threads) {
    double grown = abi_data_nbytes() - before - 2.0 * (double)rig->nbytes;
    return grown - stack_nbytes * (abi_watch_threads(INT_MAX) - n_threads);
}

static int tell(double step, double adamw, double nbytes) {
    double times = step / adamw, each = nbytes / (double)n_elems;
    int is_fast = times <= most_times, is_small = each <= most_nbytes;
    printf("speed     %s: a step of %.1f M parameters takes %.2f ns of processor time each, a loop of AdamW %.2f: %.1f "
           "times, "
           "allowed %.0f\n",
           is_fast ? "pass" : "FAIL", 1e-6 * (double)n_elems, step / (double)n_elems, adamw / (double)n_elems, times,
           most_times);
    printf("memory    %s: %.1f bytes per parameter beside weights and gradients, allowed %.0f\n",
           is_small ? "pass" : "FAIL", each, most_nbytes);
    return !(is_fast && is_small);
}

static int measure(const zf_loader_t *loader) {
    const rig_spec_t spec = {.n_tensors = N_TENSORS, .ndim = 2, .shape = {SIDE, SIDE}, .dtype = zf_dtype_float32()};
    arrays_t a = {rig_allocate(n_elems * sizeof(float)), rig_allocate(n_elems * sizeof(float)),
                  rig_allocate(n_elems * sizeof(float))};
    double step = INFINITY, adamw = INFINITY, nbytes, before = abi_data_nbytes();
    int n_threads = abi_watch_threads(INT_MAX);
    rig_t rig;
    rig_open(&rig, loader, &spec);
    memcpy(a.w, rig.params, rig.nbytes);
    for (int i = 0; i < N_WARM; i++)
        (void)time_step(&rig);
    nbytes = mapped_nbytes(&rig, before, n_threads);
    for (int i = 0; i < N_ROUNDS; i++) {
        step = fmin(step, time_step(&rig));
        adamw = fmin(adamw, time_adamw(&a, rig.grads));
    }
    rig_close(&rig);
    return tell(step, adamw, nbytes);
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

static const zc_option_t table[] = {
    ZC_OPTION("plugin", ZC_TEXT, offsetof(cost_options_t, plugin), "FILE", "the library (default: ZFPLUGIN_PATH)"),
    ZC_OPTION("help", ZC_SWITCH, offsetof(cost_options_t, is_help), NULL, "this text"),
};

enum { N_OPTIONS = sizeof table / sizeof table[0] };

int zk_cost_main(int argc, char **argv) {
    cost_options_t o = {.plugin = getenv("ZFPLUGIN_PATH")};
    zf_error_t why = {.struct_size = sizeof why};
    zf_loader_t *loader;
    glue_error_t err;
    if (zc_options_parse(table, N_OPTIONS, argc, argv, &o, &err) != 0)
        return fprintf(stderr, "zf-conform cost: %s\n", err.text), 2;
    if (o.is_help)
        return zc_options_help("zf-conform cost - processor time of a step and bytes per parameter, beside AdamW's",
                               table, N_OPTIONS, "0 within the bars, 1 not, 2 could not run");
    if (zf_loader_open(o.plugin, &loader, &why) < 0)
        return fprintf(stderr, "zf-conform cost: %s\n", why.message), 2;
    return measure(loader);
}
