/* SPDX-License-Identifier: Apache-2.0 */
/* abi_extent.c - proof 5, what small cases cannot show: hundreds of parameters, a tensor above 2^20 elements, a
 * thousand steps. Gradients do not depend on the weights, so after FLUSH every visible weight is plain AdamW's (law 6
 * of plugin/SCHEDULE.md), which the oracle computes. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "abi_extent.h"
#include "abi_probes.h"
#include "abi_watch.h"
#include "harness/rig.h"

static const char plain_config[] =
    "[zenflow]\ntopk_ratio = 0.3\nupdate_interval = 4\nfull_warm_up_rounds = 2\npredict = off\n"
    "[host]\nthreads = 1\n";
static const double max_unplanned_nbytes = 12e6, descriptor_nbytes = 2e3, stack_nbytes = 8.5e6; /* of each thread */

typedef struct extent {
    const char *what, *config;
    uint32_t n_params, n_steps, flags;
    int32_t home;
    int64_t shape[2];
    abi_probe_t *probe;
    rig_t rig;
    size_t n_elems; /* of one parameter */
    zo_adamw_t *plain;
} extent_t;

static float *weights(const extent_t *e, uint32_t i) { return (float *)e->rig.params + i * e->n_elems; }

static float *grads(const extent_t *e, uint32_t i) { return (float *)e->rig.grads + i * e->n_elems; }

void abi_extent_fill(float *out, size_t n, uint32_t seed) {
    uint32_t x = seed * 2654435761u + 12345u;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        out[i] = (float)(int32_t)(x >> 8) * 0x1p-24f - 0.5f;
    }
}

/* zf.plan/0 of them all is what bind_params says. */
static void check_plan(const extent_t *e) {
    const zf_plan_t *plan = &e->rig.plan;
    const zf_bind_report_t *bound = &e->rig.bound;
    const uint64_t n_elems = e->n_params * e->n_elems;
    abi_check(e->probe, ABI_RULE_BOOKS,
              plan->n_elems == 0 ||
                  (plan->n_elems == n_elems && plan->n_owned_elems == n_elems && plan->n_matrices >= e->n_params &&
                   plan->host_nbytes == bound->host_nbytes && plan->device_nbytes == bound->device_nbytes),
              "%s: the plan is of %llu elements, %llu matrices, %llu + %llu bytes; bound are %llu, %llu + %llu",
              e->what, (unsigned long long)plan->n_elems, (unsigned long long)plan->n_matrices,
              (unsigned long long)plan->host_nbytes, (unsigned long long)plan->device_nbytes,
              (unsigned long long)n_elems, (unsigned long long)bound->host_nbytes,
              (unsigned long long)bound->device_nbytes);
}

/* What is mapped is what is planned. */
static void open_plugin(extent_t *e, const zf_loader_t *loader) {
    const rig_spec_t spec = {.n_tensors = e->n_params,
                             .ndim = 2,
                             .shape = {e->shape[0], e->shape[1]},
                             .dtype = zf_dtype_float32(),
                             .config = e->config ? e->config : plain_config,
                             .flags = e->flags,
                             .home = e->home,
                             .does_not_clip = 1,
                             .is_planned = 1};
    double before = abi_data_nbytes(), planned, grown;
    int n_threads = abi_watch_threads(1);
    rig_open(&e->rig, loader, &spec);
    e->rig.hyper.lr = 0.01;
    grown = abi_data_nbytes() - before - 2.0 * (double)e->rig.nbytes;
    grown -= stack_nbytes * (abi_watch_threads(INT_MAX) - n_threads);
    planned =
        (double)rig_counter(&e->rig, "host_planned_nbytes") + (double)rig_counter(&e->rig, "device_planned_nbytes");
    abi_check(e->probe, ABI_RULE_BOOKS, grown <= planned + max_unplanned_nbytes + descriptor_nbytes * e->n_params,
              "%s: bind_params planned %.0f bytes and mapped %.0f", e->what, planned, grown);
    check_plan(e);
}

static void open_oracle(extent_t *e) {
    zo_decl_t *decls = calloc(e->n_params, sizeof *decls);
    if (!decls)
        abort();
    for (uint32_t i = 0; i < e->n_params; i++)
        decls[i] = (zo_decl_t){.ndim = 2, .shape = {e->shape[0], e->shape[1]}, .visible = weights(e, i)};
    e->plain = zo_adamw_create(&(zo_config_t){0}, decls, e->n_params);
    free(decls);
}

zo_hyper_t abi_extent_hyper(zf_group_hyper_t *h, uint32_t step) {
    h->lr = 0.01 * (1.0 + step % 7 * 0.1);
    h->beta1 = step / 500 % 2 ? 0.95 : 0.9;
    h->beta2 = step / 700 % 2 ? 0.9999 : 0.999;
    h->eps = step / 900 % 2 ? 1e-4 : 1e-8;
    h->weight_decay = step / 1100 % 2 ? 0.1 : 0.0;
    return (zo_hyper_t){h->lr, h->beta1, h->beta2, h->eps, h->weight_decay};
}

static void train(extent_t *e) {
    const float **list = calloc(e->n_params, sizeof *list);
    if (!list)
        abort();
    for (uint32_t s = 0; s < e->n_steps; s++) {
        const zo_hyper_t hyper = abi_extent_hyper(&e->rig.hyper, s);
        for (uint32_t i = 0; i < e->n_params; i++) { /* in every third step all have one gradient, in one memory */
            list[i] = grads(e, s % 3 ? i : 0);
            e->rig.items[i].tensor = &e->rig.grad_tensors[s % 3 ? i : 0];
        }
        abi_extent_fill(e->rig.grads, e->n_params * e->n_elems, s);
        rig_fetch(&e->rig, 0, 0);
        zo_adamw_step(e->plain, list, &hyper, 1.0f);
        rig_deliver(&e->rig, 0, e->n_params, e->n_params, NULL);
        rig_step(&e->rig, ZF_STEP_WAIT);
    }
    rig_quiesce(&e->rig, ZF_QUIESCE_FLUSH);
    free(list);
}

static int compare(const extent_t *e, uint32_t n_steps) {
    for (uint32_t i = 0; i < e->n_params; i++) {
        const float *w = weights(e, i), *want = zo_adamw_w(e->plain, i);
        size_t k = 0;
        while (k < e->n_elems && w[k] == want[k])
            k++;
        if (!abi_check(e->probe, ABI_RULE_EXTENT, k == e->n_elems,
                       "%s: after %u steps element %zu of number %u is %.9g, AdamW's %.9g", e->what, n_steps, k, i,
                       k < e->n_elems ? (double)w[k] : 0.0, k < e->n_elems ? (double)want[k] : 0.0))
            return 0;
    }
    return 1;
}

/* Gradients come in the memory of the values, which are there again behind each step, also behind one that is skipped.
 */
static void train_carried(extent_t *e) {
    const float **list = calloc(e->n_params, sizeof *list);
    if (!list)
        abort();
    for (uint32_t i = 0; i < e->n_params; i++) {
        list[i] = grads(e, i);
        e->rig.items[i].tensor = &e->rig.param_tensors[i];
        e->rig.items[i].flags = ZF_GRAD_TOTAL | ZF_GRAD_LAST;
    }
    for (uint32_t s = 0; s < e->n_steps && compare(e, s); s++) {
        const zo_hyper_t hyper = abi_extent_hyper(&e->rig.hyper, s);
        abi_extent_fill(e->rig.grads, e->n_params * e->n_elems, s);
        if (s % 5 == 3)
            *grads(e, s % e->n_params) = INFINITY;
        else
            zo_adamw_step(e->plain, list, &hyper, 1.0f);
        memcpy(e->rig.params, e->rig.grads, e->n_params * e->n_elems * sizeof(float));
        rig_deliver(&e->rig, 0, e->n_params, 3, NULL);
        rig_step(&e->rig, ZF_STEP_WAIT);
        rig_fetch(&e->rig, 0, 0);
    }
    free(list);
}

static void run(abi_rig_t *rig, extent_t e) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_loader_t *loader;
    zf_status_t st = zf_loader_open(rig->probe->plugin, &loader, &err);
    if (!abi_check(rig->probe, ABI_RULE_VALID, st >= 0, "%s", err.message))
        return;
    e.probe = rig->probe;
    e.n_elems = (size_t)(e.shape[0] * e.shape[1]);
    open_plugin(&e, loader);
    open_oracle(&e);
    (e.flags & ZF_PARAM_CARRIES ? train_carried : train)(&e);
    compare(&e, e.n_steps);
    rig_close(&e.rig);
}

static void probe_many(abi_rig_t *rig) {
    run(rig, (extent_t){.what = "5000 parameters", .n_params = 5000, .n_steps = 7, .shape = {2, 3}});
}

static void probe_large(abi_rig_t *rig) {
    run(rig, (extent_t){.what = "a parameter of 1024 x 1025", .n_params = 1, .n_steps = 5, .shape = {1024, 1025}});
}

/* Numbers of elements beyond what fp32 counts. */
static void probe_huge(abi_rig_t *rig) {
    static const char exact[] = "[zenflow]\nmode = exact\n";
    run(rig,
        (extent_t){
            .what = "a parameter of 4099 x 4099", .config = exact, .n_params = 1, .n_steps = 2, .shape = {4099, 4099}});
}

static void probe_carried(abi_rig_t *rig) {
    static const char exact[] = "[zenflow]\nmode = exact\n";
    static const char *const whats[] = {"memory that carries", "memory that carries, updates beside the host"};
    for (int i = 0; i < 2; i++)
        run(rig, (extent_t){.what = whats[i],
                            .config = exact,
                            .n_params = 40,
                            .n_steps = 40,
                            .flags = ZF_PARAM_CARRIES,
                            .home = i ? ZF_HOME_HOST : ZF_HOME_PLUGIN,
                            .shape = {37, 129}});
}

static void probe_long(abi_rig_t *rig) {
    run(rig, (extent_t){.what = "a long run", .n_params = 2, .n_steps = 4000, .shape = {3, 4}});
}

const abi_row_t abi_extent_rows[] = {
    {"many parameters", ABI_OPEN, 1, probe_many},  {"a large parameter", ABI_OPEN, 1, probe_large},
    {"a huge parameter", ABI_OPEN, 1, probe_huge}, {"memory that carries", ABI_OPEN, 1, probe_carried},
    {"many steps", ABI_OPEN, 1, probe_long},       {NULL, ABI_NOTHING, 0, NULL}};
