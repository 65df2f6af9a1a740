/* SPDX-License-Identifier: Apache-2.0 */
/* cost.c - zf-conform cost: processor time of a step, of all threads together, and bytes per parameter, as the plugin
 * is by default; beside a loop over AdamW's formula on the same arrays, compiled for the same instruction sets. Both
 * take turns: what else the machine does meets both alike, and the median of the pairs' ratios counts. */
#include "cost.h"

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

enum { N_TENSORS = 16, SIDE = 512, N_PAIRS = 15, N_WARM = 4 };
static const size_t n_elems = (size_t)N_TENSORS * SIDE * SIDE;
/* m, v, a copy of the weights and one of the gradients are 16 bytes. */
static const double most_nbytes = 18.0;

typedef struct cost_options {
    const char *plugin;
    uint32_t most_times;
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

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double values[N_PAIRS]) {
    qsort(values, N_PAIRS, sizeof *values, by_size);
    return values[N_PAIRS / 2];
}

static int tell(double times, double most_times, double adamw, double nbytes) {
    double each = nbytes / (double)n_elems;
    int is_fast = times <= most_times, is_small = each <= most_nbytes;
    printf(
        "speed     %s: a step of %.1f M parameters takes %.1f times the processor time of a loop of AdamW, of %.2f ns "
        "each; median of %d pairs, allowed %.0f\n",
        is_fast ? "pass" : "FAIL", 1e-6 * (double)n_elems, times, adamw / (double)n_elems, N_PAIRS, most_times);
    printf("memory    %s: %.1f bytes per parameter beside weights and gradients, allowed %.0f\n",
           is_small ? "pass" : "FAIL", each, most_nbytes);
    return !(is_fast && is_small);
}

static int measure(const zf_loader_t *loader, double most_times) {
    const rig_spec_t spec = {.n_tensors = N_TENSORS, .ndim = 2, .shape = {SIDE, SIDE}, .dtype = zf_dtype_float32()};
    arrays_t a = {rig_allocate(n_elems * sizeof(float)), rig_allocate(n_elems * sizeof(float)),
                  rig_allocate(n_elems * sizeof(float))};
    double times[N_PAIRS], adamw[N_PAIRS], before, nbytes;
    rig_t rig;
    memset(a.w, 0, n_elems * sizeof(float));
    memset(a.m, 0, n_elems * sizeof(float));
    memset(a.v, 0, n_elems * sizeof(float));
    before = abi_held_nbytes();
    rig_open(&rig, loader, &spec);
    for (int i = 0; i < N_WARM; i++)
        (void)time_step(&rig);
    nbytes = abi_held_nbytes() - before - 2.0 * (double)rig.nbytes;
    for (int i = 0; i < N_PAIRS; i++) {
        adamw[i] = time_adamw(&a, rig.grads);
        times[i] = time_step(&rig) / adamw[i];
    }
    rig_close(&rig);
    return tell(median(times), most_times, median(adamw), nbytes);
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

static const zc_option_t table[] = {
    ZC_OPTION("plugin", ZC_TEXT, offsetof(cost_options_t, plugin), "FILE", "the library (default: ZFPLUGIN_PATH)"),
    ZC_OPTION("times", ZC_U32, offsetof(cost_options_t, most_times), "N",
              "processor time of a step that is allowed, as times that of the loop; default 4", .least = 1,
              .most = 1000),
    ZC_OPTION("help", ZC_SWITCH, offsetof(cost_options_t, is_help), NULL, "this text"),
};

enum { N_OPTIONS = sizeof table / sizeof table[0] };

int zk_cost_main(int argc, char **argv) {
    cost_options_t o = {.plugin = getenv("ZFPLUGIN_PATH"), .most_times = 4};
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
    return measure(loader, (double)o.most_times);
}
