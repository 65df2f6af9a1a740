/* SPDX-License-Identifier: Apache-2.0 */
/* near.c - zf-conform near: any vendor's plugin, by right calls in float32 alone, against AdamW in double.
 *
 * Each case is a function of (seed, number): tensors, groups, hyper-parameters as wide as real runs have them, parts or
 * totals, holes, DISCARD, loss scales, clipping, gradients that are not finite, exports, weights that the host writes.
 * After each fetch every weight may be off by what fp32 arithmetic can explain: some units in the last place of the
 * weight per step, and a ten-thousandth of what the steps moved. A bind that is refused by a negative status is counted
 * as refused, and not judged. */
#define _GNU_SOURCE
#include "near.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exact_case.h"
#include "harness/option_table.h"
#include "zf_loader.h"

enum { MOST_PARAMS = 6, MOST_ELEMS = 40, MOST_NEAR_GROUPS = 3 };

static const double per_step = 0x1p-21, of_moves = 2e-4;

typedef struct near_param {
    float w[MOST_ELEMS], g[MOST_ELEMS], part[MOST_ELEMS];
    double master[MOST_ELEMS], m[MOST_ELEMS], v[MOST_ELEMS], size[MOST_ELEMS]; /* size: as m, of |g| */
    double allowed[MOST_ELEMS];
    uint32_t n, group, n_updates;
    int has_grad;
    int64_t shape[2];
    zf_tensor_t tensor;
    char name[20];
} near_param_t;

typedef struct near {
    const zf_plugin_t *zf;
    zf_instance_t *instance;
    zf_host_t host;
    zf_stream_t stream;
    zf_error_t err;
    zx_rng_t rng;
    near_param_t params[MOST_PARAMS];
    uint32_t ids[MOST_PARAMS], n_params, n_groups, n_steps, seed, index;
    zf_group_hyper_t groups[MOST_NEAR_GROUPS];
    uint64_t n_compared;
    int has_failed;
} near_t;

typedef struct near_options {
    const char *plugin;
    uint32_t n_cases, seed, only;
    int is_help;
} near_options_t;

/* ---- the plugin -------------------------------------------------------------------------------------------------- */

static void fail(near_t *x, const char *what) {
    if (!x->has_failed)
        printf("case %u, step %u: %s\n  repeat: zf-conform near --seed %u --only %u\n", x->index, x->n_steps, what,
               x->seed, x->index);
    x->has_failed = 1;
}

static int is_right(near_t *x, const char *call, zf_status_t st) {
    char what[600];
    if (st >= 0)
        return 1;
    snprintf(what, sizeof what, "%s returned %d: %.400s", call, st, x->err.message);
    fail(x, what);
    return 0;
}

/* 0: refused. */
static int open_instance(near_t *x) {
    zf_param_decl_t decls[MOST_PARAMS];
    const zf_create_args_t create = {
        .struct_size = sizeof create, .flags = ZF_CREATE_CAP_FETCH, .host = &x->host, .device_type = ZF_DEVICE_CPU};
    const zf_bind_args_t bind = {
        .struct_size = sizeof bind, .decls = decls, .n_decls = x->n_params, .decl_size = sizeof *decls};
    zf_host_stderr("zf-conform", "1", ZF_LOG_ERROR, &x->host);
    zf_stream_host_thread(&x->stream);
    for (uint32_t i = 0; i < x->n_params; i++)
        decls[i] = (zf_param_decl_t){.struct_size = sizeof *decls,
                                     .name = x->params[i].name,
                                     .tensor = &x->params[i].tensor,
                                     .group = x->params[i].group};
    if (!is_right(x, "create", x->zf->create(&create, &x->instance, &x->err)))
        return 0;
    return x->zf->bind_params(x->instance, &bind, x->ids, NULL, &x->err) >= 0;
}

static void deliver(near_t *x, near_param_t *p, uint32_t id, const float *values, uint32_t flags) {
    zf_tensor_t tensor = p->tensor;
    const zf_grad_item_t item = {.struct_size = sizeof item, .id = id, .flags = flags, .tensor = &tensor};
    tensor.dl.data = (void *)(uintptr_t)values;
    is_right(x, "grads_ready", x->zf->grads_ready(x->instance, &item, 1, sizeof item, &x->stream, NULL, &x->err));
}

static void fetch(near_t *x) {
    zf_fence_t ready = {.struct_size = sizeof ready};
    if (is_right(x, "param_fetch",
                 x->zf->param_fetch(x->instance, NULL, 0, sizeof(zf_param_item_t), &x->stream, &ready, &x->err)))
        is_right(x, "fence_wait", x->zf->fence_wait(x->instance, &ready, 60000000000u, &x->err));
}

/* ---- AdamW ------------------------------------------------------------------------------------------------------- */

static void update(near_param_t *p, const zf_group_hyper_t *h, double scale) {
    double n = ++p->n_updates, c1 = 1 - pow(h->beta1, n), c2 = 1 - pow(h->beta2, n);
    for (uint32_t i = 0; i < p->n; i++) {
        double g = scale * p->g[i];
        p->m[i] = h->beta1 * p->m[i] + (1 - h->beta1) * g;
        p->size[i] = h->beta1 * p->size[i] + (1 - h->beta1) * fabs(g);
        p->v[i] = h->beta2 * p->v[i] + (1 - h->beta2) * g * g;
        double root = sqrt(p->v[i] / c2) + h->eps;
        p->allowed[i] = p->allowed[i] * (1 - h->lr * h->weight_decay) + per_step * (fabs(p->master[i]) + 1e-30) +
                        of_moves * h->lr * p->size[i] / c1 / root;
        p->master[i] -= h->lr * (h->weight_decay * p->master[i] + p->m[i] / c1 / root);
    }
}

static double norm_of(const near_t *x) {
    double sum = 0;
    for (uint32_t i = 0; i < x->n_params; i++)
        for (uint32_t k = 0; x->params[i].has_grad && k < x->params[i].n; k++)
            sum += (double)x->params[i].g[k] * x->params[i].g[k];
    return sqrt(sum);
}

static void compare(near_t *x, const near_param_t *p, const float *have, const char *where) {
    char what[300];
    for (uint32_t k = 0; k < p->n && !x->has_failed; k++) {
        x->n_compared++;
        if (fabs(have[k] - p->master[k]) <= p->allowed[k] + 1e-37)
            continue;
        snprintf(what, sizeof what, "%s, element %u of %s is %.9g, AdamW's %.9g; allowed are %.1e", where, k, p->name,
                 (double)have[k], p->master[k], p->allowed[k]);
        fail(x, what);
    }
}

/* ---- a case ------------------------------------------------------------------------------------------------------ */

static float draw(zx_rng_t *r, double size) { return (float)(size * zx_uniform(r, -1.0, 1.0)); }

static void draw_params(near_t *x) {
    zx_rng_t *r = &x->rng;
    x->n_params = zx_between(r, 1, MOST_PARAMS);
    for (uint32_t i = 0; i < x->n_params; i++) {
        near_param_t *p = &x->params[i];
        int ndim = (int)zx_between(r, 1, 2);
        p->shape[0] = zx_between(r, 1, 8);
        p->shape[1] = ndim > 1 ? zx_between(r, 1, 5) : 1;
        p->n = (uint32_t)(p->shape[0] * p->shape[1]);
        p->group = zx_below(r, x->n_groups);
        snprintf(p->name, sizeof p->name, "p%u.weight", i);
        zf_tensor_contiguous(p->w, zf_dtype_float32(), ndim, p->shape, &p->tensor);
        for (uint32_t k = 0; k < p->n; k++)
            p->master[k] = p->w[k] = draw(r, 1.0);
    }
}

static void draw_groups(near_t *x) {
    for (uint32_t i = 0; i < x->n_groups; i++) {
        zo_hyper_t h = zx_wide_hyper(&x->rng);
        if (h.beta2 < h.beta1 * h.beta1) /* else moves grow beyond what a tolerance can speak of */
            h.beta2 = 0.999;
        x->groups[i] = (zf_group_hyper_t){.struct_size = sizeof *x->groups,
                                          .lr = fmin(h.lr, 0.1),
                                          .beta1 = h.beta1,
                                          .beta2 = h.beta2,
                                          .eps = fmax(h.eps, 1e-10),
                                          .weight_decay = h.weight_decay};
    }
}

static void deliver_one(near_t *x, uint32_t i, double size) {
    near_param_t *p = &x->params[i];
    int is_parted = zx_chance(&x->rng, 30), is_twice = !is_parted && zx_chance(&x->rng, 15);
    for (uint32_t k = 0; k < p->n; k++) {
        p->g[k] = draw(&x->rng, size);
        p->part[k] = draw(&x->rng, size);
    }
    p->has_grad = 1;
    if (is_parted)
        deliver(x, p, x->ids[i], p->part, ZF_GRAD_PART | ZF_GRAD_MORE);
    if (is_twice)
        deliver(x, p, x->ids[i], p->part, ZF_GRAD_TOTAL | ZF_GRAD_MORE);
    deliver(x, p, x->ids[i], p->g, (is_twice ? ZF_GRAD_TOTAL : ZF_GRAD_PART) | ZF_GRAD_LAST);
    for (uint32_t k = 0; k < p->n; k++) {
        p->g[k] += is_parted ? p->part[k] : 0;
        p->part[k] = NAN; /* the host's again when the call has returned */
    }
}

static void step(near_t *x, double size) {
    int is_discarded = zx_chance(&x->rng, 6), is_broken = !is_discarded && zx_chance(&x->rng, 5);
    double unscale = zx_chance(&x->rng, 40) ? zx_log_uniform(&x->rng, 0x1p-24, 16) : 0, norm, clip = 0;
    zf_step_report_t report = {.struct_size = sizeof report};
    for (uint32_t i = 0; i < x->n_params; i++)
        x->params[i].has_grad = 0;
    for (uint32_t i = 0; i < x->n_params; i++)
        if (!zx_chance(&x->rng, 10))
            deliver_one(x, i, size / (unscale > 0 ? unscale : 1));
    norm = (unscale > 0 ? unscale : 1) * norm_of(x);
    if (zx_chance(&x->rng, 40))
        clip = norm * zx_log_uniform(&x->rng, 0.1, 10.0);
    if (is_broken && x->params[0].has_grad) {
        x->params[0].part[0] = INFINITY;
        for (uint32_t k = 1; k < x->params[0].n; k++)
            x->params[0].part[k] = 0;
        deliver(x, &x->params[0], x->ids[0], x->params[0].part, ZF_GRAD_TOTAL | ZF_GRAD_REPLACE | ZF_GRAD_LAST);
        norm = INFINITY;
    }
    const zf_step_args_t args = {.struct_size = sizeof args,
                                 .flags = is_discarded ? ZF_STEP_DISCARD : ZF_STEP_WAIT,
                                 .groups = x->groups,
                                 .n_groups = x->n_groups,
                                 .elem_size = sizeof *x->groups,
                                 .unscale = unscale,
                                 .clip_norm = clip,
                                 .stream = &x->stream};
    zf_status_t st = x->zf->step(x->instance, &args, &report, &x->err);
    if (!is_right(x, "step", st) || is_discarded)
        return;
    if (report.applied != isfinite(norm))
        fail(x, isfinite(norm) ? "a right step was skipped" : "a step with an infinite gradient was applied");
    for (uint32_t i = 0; i < x->n_params && isfinite(norm); i++)
        if (x->params[i].has_grad)
            update(&x->params[i], &x->groups[x->params[i].group],
                   (unscale > 0 ? unscale : 1) * (clip > 0 ? fmin(1, clip / (norm + 1e-6)) : 1));
}

static void export_one(near_t *x, uint32_t i) {
    float out[MOST_ELEMS];
    const zf_export_item_t item = {
        .struct_size = sizeof item, .id = x->ids[i], .dst = out, .dst_nbytes = 4u * x->params[i].n};
    if (is_right(x, "export_params", x->zf->export_params(x->instance, &item, 1, sizeof item, &x->err)))
        compare(x, &x->params[i], out, "exported");
}

/* The host writes a parameter, and says so. */
static void write_one(near_t *x, uint32_t i) {
    near_param_t *p = &x->params[i];
    const zf_param_item_t item = {.struct_size = sizeof item, .id = x->ids[i]};
    for (uint32_t k = 0; k < p->n; k++) {
        p->master[k] = p->w[k] = draw(&x->rng, 1.0);
        p->allowed[k] = 0;
    }
    is_right(x, "params_changed", x->zf->params_changed(x->instance, &item, 1, sizeof item, 0, &x->err));
}

static void between(near_t *x) {
    const zf_quiesce_args_t rest = {.struct_size = sizeof rest,
                                    .mode = zx_chance(&x->rng, 50) ? ZF_QUIESCE_DRAIN : ZF_QUIESCE_FLUSH};
    if (zx_chance(&x->rng, 10))
        is_right(x, "quiesce", x->zf->quiesce(x->instance, &rest, &x->err));
    if (zx_chance(&x->rng, 15))
        export_one(x, zx_below(&x->rng, x->n_params));
    if (zx_chance(&x->rng, 5))
        write_one(x, zx_below(&x->rng, x->n_params));
    if (zx_chance(&x->rng, 10))
        draw_groups(x);
}

/* 1: judged. */
static int run_case(near_t *x, const zf_loader_t *loader, uint32_t seed, uint32_t index) {
    memset(x, 0, sizeof *x);
    x->zf = zf_loader_plugin(loader);
    x->err.struct_size = sizeof x->err;
    x->seed = seed;
    x->index = index;
    x->rng = zx_rng(seed, 0x6e656172, index);
    x->n_groups = zx_chance(&x->rng, 60) ? 1 : zx_between(&x->rng, 2, MOST_NEAR_GROUPS);
    draw_groups(x);
    draw_params(x);
    uint32_t n_steps = zx_between(&x->rng, 1, 40);
    double size = zx_log_uniform(&x->rng, 1e-4, 10.0);
    int is_judged = open_instance(x);
    while (is_judged && x->n_steps < n_steps && !x->has_failed) {
        x->n_steps++;
        step(x, size);
        fetch(x);
        for (uint32_t i = 0; i < x->n_params; i++)
            compare(x, &x->params[i], x->params[i].w, "after a step and its fetch");
        between(x);
    }
    if (x->instance)
        x->zf->destroy(x->instance, NULL);
    return is_judged;
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

#define AT(member) offsetof(near_options_t, member)

static const zc_option_t table[] = {
    ZC_OPTION("plugin", ZC_TEXT, AT(plugin), "FILE", "the library (default: ZFPLUGIN_PATH)"),
    ZC_OPTION("cases", ZC_U32, AT(n_cases), "N", "random cases, default 300", .least = 1, .most = 9999999),
    ZC_OPTION("seed", ZC_U32, AT(seed), "N", "default 1", .least = 0, .most = 0xFFFFFFFF),
    ZC_OPTION("only", ZC_U32, AT(only), "CASE", "this case alone", .least = 0, .most = 9999999),
    ZC_OPTION("help", ZC_SWITCH, AT(is_help), NULL, "this text"),
};

enum { N_OPTIONS = sizeof table / sizeof table[0], ALL = 0xFFFFFFFF };

static int run(const near_options_t *o, const zf_loader_t *loader) {
    static near_t x;
    uint32_t n_judged = 0, n_failed = 0, n_refused = 0;
    uint64_t n_compared = 0;
    for (uint32_t i = o->only == ALL ? 0 : o->only; i < (o->only == ALL ? o->n_cases : o->only + 1) && n_failed < 3;
         i++) {
        int is_judged = run_case(&x, loader, o->seed, i);
        n_judged += (uint32_t)is_judged;
        n_refused += !is_judged && !x.has_failed;
        n_failed += (uint32_t)x.has_failed;
        n_compared += x.n_compared;
    }
    printf("seed %u, %u cases, %llu weights compared with AdamW in double, %u cases refused at bind: %s\n", o->seed,
           n_judged, (unsigned long long)n_compared, n_refused,
           n_failed || n_compared == 0 ? "DOES NOT CONFORM" : "conforms to a tolerance");
    return n_failed || n_compared == 0;
}

int zn_near_main(int argc, char **argv) {
    near_options_t o = {.plugin = getenv("ZFPLUGIN_PATH"), .n_cases = 300, .seed = 1, .only = ALL};
    zf_error_t why = {.struct_size = sizeof why};
    zf_loader_t *loader;
    glue_error_t err;
    if (zc_options_parse(table, N_OPTIONS, argc, argv, &o, &err) != 0)
        return fprintf(stderr, "zf-conform near: %s\n", err.text), 2;
    if (o.is_help)
        return zc_options_help("zf-conform near - any vendor's plugin against AdamW in double, to a tolerance", table,
                               N_OPTIONS, "0 conforms, 1 does not, 2 could not run");
    if (zf_loader_open(o.plugin, &loader, &why) < 0)
        return fprintf(stderr, "zf-conform near: %s\n", why.message), 2;
    return run(&o, loader);
}
