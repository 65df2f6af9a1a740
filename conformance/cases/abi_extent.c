/* SPDX-License-Identifier: Apache-2.0 */
/* abi_extent.c - proof 5, what small cases cannot show: hundreds of parameters, a tensor above 2^20 elements, a
 * thousand steps. Gradients do not depend on the weights, so after FLUSH every visible weight is plain AdamW's (law 6
 * of plugin/SCHEDULE.md), which the oracle computes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "abi_probes.h"
#include "abi_watch.h"
#include "oracle/oracle.h"

/* The meter of lateness looks at every weight. */
static const char config[] =
    "[zenflow]\ntopk_ratio = 0.3\nupdate_interval = 4\nfull_warm_up_rounds = 2\npredict = off\n"
    "[log]\nlateness = 1\n";
static const double max_unplanned_nbytes = 12e6; /* a thread and its stack */

typedef struct extent {
    const char *what;
    uint32_t n_params, n_steps;
    int64_t shape[2];
    size_t n_elems; /* of one parameter */
    float *weights, *grads;
    char (*names)[16];
    zf_tensor_t *tensors; /* [2 n_params]: weights, gradients */
    zf_param_decl_t *decls;
    zf_grad_item_t *items;
    uint32_t *ids;
    zo_decl_t *plain_decls;
    const float **plain_grads;
    zo_adamw_t *plain;
    double lateness; /* sum of g * (visible - plain weight) over all steps */
} extent_t;

static void *take(size_t n, size_t nbytes) {
    void *p = calloc(n, nbytes);
    if (!p)
        abort();
    return p;
}

static void fill(float *out, size_t n, uint32_t seed) {
    uint32_t x = seed * 2654435761u + 12345u;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        out[i] = (float)(int32_t)(x >> 8) * 0x1p-24f - 0.5f;
    }
}

static zf_tensor_t describe(extent_t *e, float *memory) {
    return (zf_tensor_t){.struct_size = sizeof(zf_tensor_t),
                         .dl = {.data = memory,
                                .device_type = ZF_DEVICE_CPU,
                                .ndim = 2,
                                .dtype = {ZF_DTYPE_CODE_FLOAT, 32, 1},
                                .shape = e->shape},
                         .nbytes = 4 * e->n_elems};
}

static void declare(extent_t *e, uint32_t i) {
    float *w = e->weights + i * e->n_elems;
    snprintf(e->names[i], sizeof e->names[i], "layer%u", i);
    e->tensors[i] = describe(e, w);
    e->tensors[e->n_params + i] = describe(e, e->grads + i * e->n_elems);
    e->decls[i] =
        (zf_param_decl_t){.struct_size = sizeof e->decls[i], .name = e->names[i], .tensor = &e->tensors[i], .group = 0};
    e->items[i] = (zf_grad_item_t){.struct_size = sizeof e->items[i],
                                   .flags = ZF_GRAD_TOTAL | ZF_GRAD_LAST,
                                   .tensor = &e->tensors[e->n_params + i]};
    e->plain_decls[i] = (zo_decl_t){.ndim = 2, .shape = {e->shape[0], e->shape[1]}, .visible = w};
    e->plain_grads[i] = e->grads + i * e->n_elems;
}

static void make(extent_t *e) {
    e->n_elems = (size_t)(e->shape[0] * e->shape[1]);
    e->weights = take(e->n_params * e->n_elems, sizeof(float));
    e->grads = take(e->n_params * e->n_elems, sizeof(float));
    e->names = take(e->n_params, sizeof *e->names);
    e->tensors = take(2 * (size_t)e->n_params, sizeof *e->tensors);
    e->decls = take(e->n_params, sizeof *e->decls);
    e->items = take(e->n_params, sizeof *e->items);
    e->ids = take(e->n_params, sizeof *e->ids);
    e->plain_decls = take(e->n_params, sizeof *e->plain_decls);
    e->plain_grads = take(e->n_params, sizeof *e->plain_grads);
    fill(e->weights, e->n_params * e->n_elems, 99);
    for (uint32_t i = 0; i < e->n_params; i++)
        declare(e, i);
    e->plain = zo_adamw_create(e->plain_decls, e->n_params);
}

/* What bind_params maps is what it plans. */
static zf_status_t bind(abi_rig_t *rig, extent_t *e, zf_error_t *err) {
    zf_layout_t layout = {.struct_size = sizeof layout};
    double before = abi_data_nbytes(), planned, grown;
    zf_bind_args_t args = {
        .struct_size = sizeof args, .decls = e->decls, .n_decls = e->n_params, .decl_size = sizeof e->decls[0]};
    zf_status_t st = rig->table->bind_params(rig->instance, &args, e->ids, &layout, err);
    grown = abi_data_nbytes() - before;
    planned = (double)layout.host_nbytes + (double)layout.device_nbytes;
    abi_check(rig->probe, ABI_RULE_BOOKS, st < 0 || grown <= planned + max_unplanned_nbytes,
              "%s: bind_params planned %.0f bytes and mapped %.0f", e->what, planned, grown);
    return st;
}

/* What this step's gradients cost where they meet late weights, to first order. */
static double cost_of_lateness(const extent_t *e) {
    double sum = 0;
    for (uint32_t i = 0; i < e->n_params; i++)
        for (size_t k = 0; k < e->n_elems; k++) {
            size_t at = i * e->n_elems + k;
            sum += (double)e->grads[at] * ((double)e->weights[at] - (double)zo_adamw_w(e->plain, i)[k]);
        }
    return sum;
}

static zf_status_t train(abi_rig_t *rig, extent_t *e, zf_error_t *err) {
    zo_hyper_t hyper = {0.01, 0.9, 0.99, 1e-8, 0.01}; /* the rig's */
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < e->n_params; i++)
        e->items[i].id = e->ids[i];
    for (uint32_t s = 0; s < e->n_steps && st >= 0; s++) {
        fill(e->grads, e->n_params * e->n_elems, s);
        e->lateness += cost_of_lateness(e);
        zo_adamw_step(e->plain, e->plain_grads, &hyper, 1.0f);
        st = rig->table->grads_ready(rig->instance, e->items, e->n_params, sizeof e->items[0], &rig->stream, NULL, err);
        if (st >= 0)
            st = rig->table->step(rig->instance, &rig->step, NULL, err);
    }
    return st < 0 ? st : abi_rig_flush(rig, err);
}

static void compare(abi_probe_t *p, extent_t *e) {
    for (uint32_t i = 0; i < e->n_params; i++) {
        const float *w = e->weights + i * e->n_elems, *want = zo_adamw_w(e->plain, i);
        size_t k = 0;
        while (k < e->n_elems && w[k] == want[k])
            k++;
        if (!abi_check(p, ABI_RULE_EXTENT, k == e->n_elems,
                       "%s: after %u steps and FLUSH element %zu of %s is %.9g, AdamW's %.9g", e->what, e->n_steps, k,
                       e->names[i], k < e->n_elems ? (double)w[k] : 0.0, k < e->n_elems ? (double)want[k] : 0.0))
            return;
    }
}

static void compare_lateness(abi_rig_t *rig, const extent_t *e) {
    const zf_stats_ext_t *ext = rig->table->get_extension(ZF_EXT_STATS);
    zf_error_t err = {.struct_size = sizeof err};
    zf_lateness_t l = {.struct_size = sizeof l};
    zf_status_t st = ext->lateness(rig->instance, 0, ZF_NO_ID, &l, &err);
    abi_check(rig->probe, ABI_RULE_BOOKS, st == ZF_OK && fabs(l.sum - e->lateness) <= 1e-3 * fabs(e->lateness),
              "%s: lateness is %g over %llu steps (status %d), the host found %g over %u", e->what, l.sum,
              (unsigned long long)l.n_steps, st, e->lateness, e->n_steps);
}

static void run(abi_rig_t *rig, extent_t *e) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_status_t st;
    rig->create.config_text = config;
    rig->create.config_text_nbytes = strlen(config);
    if (!abi_rig_start(rig, ABI_CREATED))
        return;
    make(e);
    abi_host_enter(&rig->host);
    st = bind(rig, e, &err);
    if (st >= 0)
        st = train(rig, e, &err);
    abi_host_leave(&rig->host);
    if (abi_check(rig->probe, ABI_RULE_VALID, st >= 0, "%s: returned %d: %s", e->what, st, err.message))
        compare(rig->probe, e), compare_lateness(rig, e);
}

static void probe_many(abi_rig_t *rig) {
    run(rig, &(extent_t){.what = "300 parameters", .n_params = 300, .n_steps = 9, .shape = {2, 3}});
}

static void probe_large(abi_rig_t *rig) {
    run(rig, &(extent_t){.what = "a parameter of 1024 x 1025", .n_params = 1, .n_steps = 5, .shape = {1024, 1025}});
}

static void probe_long(abi_rig_t *rig) {
    run(rig, &(extent_t){.what = "a long run", .n_params = 2, .n_steps = 1200, .shape = {3, 4}});
}

const abi_row_t abi_extent_rows[] = {{"many parameters", ABI_OPEN, 1, probe_many},
                                     {"a large parameter", ABI_OPEN, 1, probe_large},
                                     {"many steps", ABI_OPEN, 1, probe_long},
                                     {NULL, ABI_NOTHING, 0, NULL}};
