/* SPDX-License-Identifier: Apache-2.0 */
/* abi_drawn.c - proof 5, sizes of abi_extent.c with settings that are drawn, beside the oracle of the whole schedule.
 * Of a thousand parameters every call that takes a list names all of them, or dozens, in any order. */
#include <stdlib.h>
#include <string.h>

#include "abi_extent.h"
#include "abi_probes.h"
#include "harness/rig.h"

enum { MOST_GROUPS = 100, MOST_LISTED = 1000, N_WRITTEN = 60, N_TIED = 100 };

typedef struct drawn {
    const char *what;
    uint32_t n_params, n_steps;
    int64_t shape[2];
    abi_probe_t *probe;
    rig_t rig;
    size_t n_elems; /* of one parameter */
    uint32_t n_groups;
    zf_group_decl_t groups[MOST_GROUPS];
    zf_group_hyper_t hypers[MOST_GROUPS];
    zf_dtype_t dtype;
    zo_config_t config;
    zo_t *oracle;
    int does_not_clip;
    uint32_t seed;
} drawn_t;

static uint32_t draw(drawn_t *d, uint32_t n) {
    d->seed = d->seed * 1664525u + 1013904223u;
    return (d->seed >> 8) % n;
}

static int is_bf16(const drawn_t *d) { return d->dtype.code == ZF_DTYPE_CODE_BFLOAT; }

/* ---- settings ---------------------------------------------------------------------------------------------------- */

static const char *draw_config(drawn_t *d) {
    static const char *const moments[] = {"float32", "bfloat16", "bfloat16_stochastic"};
    static char text[400];
    uint32_t s = 1 + draw(d, 2) * draw(d, 39) + draw(d, 4), kind = draw(d, 3), warm_up = 1 + draw(d, 4);
    double topk = draw(d, 4) ? 0.001 + 0.0001 * draw(d, 5000) : 0.0;
    int predicts = (int)draw(d, 2);
    d->does_not_clip = (int)draw(d, 3) == 0;
    d->dtype = draw(d, 2) ? zf_dtype_float32() : (zf_dtype_t){ZF_DTYPE_CODE_BFLOAT, 16, 1};
    d->config = (zo_config_t){.topk_ratio = topk,
                              .select_interval = 3 + draw(d, 20),
                              .update_interval = s,
                              .warm_up = warm_up,
                              .can_fetch = 1,
                              .predicts = predicts,
                              .moments = (zo_moments_t)kind};
    snprintf(text, sizeof text,
             "[zenflow]\nmode = windows\ntopk_ratio = %.17g\nselect_interval = %u\nupdate_interval = %u\n"
             "full_warm_up_rounds = %u\npublish_lag = 0\npredict = %s\non_overwrite = ask\n[host]\nthreads = 1\n"
             "moments_dtype = %s\n",
             topk, d->config.select_interval, s, warm_up, predicts ? "auto" : "off", moments[kind]);
    return text;
}

/* One group, or some, each with a rule of its own; of many parameters as many as there may be. */
static void draw_groups(drawn_t *d) {
    d->n_groups = d->n_params > 100 ? MOST_GROUPS : 1 + draw(d, 2) * draw(d, 10);
    for (uint32_t i = 0; i < d->n_groups; i++) {
        d->groups[i] = (zf_group_decl_t){.struct_size = sizeof *d->groups, .rule = draw(d, ZF_RULE_CALLBACK)};
        d->config.groups[i].rule = (zo_rule_t)d->groups[i].rule;
    }
}

static void set_hypers(drawn_t *d, uint32_t step, zo_hyper_t out[MOST_GROUPS]) {
    for (uint32_t i = 0; i < d->n_groups; i++) {
        d->hypers[i].struct_size = sizeof *d->hypers;
        out[i] = abi_extent_hyper(&d->hypers[i], step * 97 + i * 211);
    }
}

static void open_drawn(drawn_t *d, const zf_loader_t *loader) {
    const char *config = draw_config(d);
    draw_groups(d);
    const rig_spec_t spec = {.n_tensors = d->n_params,
                             .ndim = 2,
                             .shape = {d->shape[0], d->shape[1]},
                             .config = config,
                             .groups = d->groups,
                             .n_groups = d->n_groups,
                             .n_tied = d->n_params == MOST_LISTED ? N_TIED : 0,
                             .dtype = d->dtype,
                             .does_not_clip = d->does_not_clip};
    zo_decl_t *decls = calloc(d->n_params, sizeof *decls);
    zo_dtype_t dtype = is_bf16(d) ? ZO_BF16 : ZO_F32;
    if (!decls)
        abort();
    rig_open(&d->rig, loader, &spec);
    d->rig.hypers = d->hypers;
    for (uint32_t i = 0; i < d->n_params; i++)
        decls[i] = (zo_decl_t){.ndim = 2,
                               .group = i % d->n_groups,
                               .shape = {d->shape[0], d->shape[1]},
                               .dtype = dtype,
                               .grad_dtype = dtype,
                               .visible = (char *)d->rig.params + i * d->rig.tensor_nbytes};
    d->oracle = zo_create(&d->config, decls, d->n_params);
    free(decls);
}

/* ---- looking ----------------------------------------------------------------------------------------------------- */

static int is_right(const drawn_t *d, const char *call, zf_status_t st, const zf_error_t *err) {
    return abi_check(d->probe, ABI_RULE_VALID, st == ZF_OK, "%s of a list: returned %d: %.200s", call, st,
                     err->message);
}

static void compare(const drawn_t *d, uint32_t step, const char *when) {
    for (uint32_t i = 0; i < d->n_params; i++) {
        const char *have = (const char *)d->rig.params + i * d->rig.tensor_nbytes, *want = zo_visible(d->oracle, i);
        size_t k = 0;
        if (memcmp(have, want, d->rig.tensor_nbytes) == 0)
            continue;
        while (have[k] == want[k])
            k++;
        abi_check(d->probe, ABI_RULE_EXTENT, 0,
                  "%s: after %u steps and %s byte %zu of number %u is not the schedule's: %s", d->what, step, when, k,
                  i, d->rig.spec.config);
        return;
    }
    abi_check(d->probe, ABI_RULE_EXTENT, 1, "values");
}

static void shuffle(drawn_t *d, uint32_t list[MOST_LISTED]) {
    for (uint32_t i = 0; i < MOST_LISTED; i++) {
        uint32_t at = draw(d, i + 1);
        list[i] = list[at];
        list[at] = i;
    }
}

/* By name, some by their second one, in any order; or all without one. */
static void fetch(drawn_t *d, uint32_t step) {
    zf_param_item_t items[MOST_LISTED];
    uint32_t list[MOST_LISTED];
    zf_fence_t ready = {.struct_size = sizeof ready};
    zf_error_t err = {.struct_size = sizeof err};
    for (uint32_t i = 0; i < d->n_params; i++)
        zo_fetch(d->oracle, &(zo_range_t){.id = i});
    if (d->n_params != MOST_LISTED || step % 3 == 2) {
        rig_fetch(&d->rig, 0, 0);
        return;
    }
    shuffle(d, list);
    for (uint32_t i = 0; i < MOST_LISTED; i++)
        items[i] =
            (zf_param_item_t){.struct_size = sizeof *items, .id = list[i] + (list[i] < N_TIED ? MOST_LISTED : 0)};
    zf_status_t st =
        d->rig.zf->param_fetch(d->rig.instance, items, MOST_LISTED, sizeof *items, &d->rig.stream, &ready, &err);
    if (is_right(d, "param_fetch", st, &err))
        rig_wait(&d->rig, &ready);
}

static void check_exports(drawn_t *d) {
    static float out[MOST_LISTED][8], want[8];
    zf_export_item_t items[MOST_LISTED];
    uint32_t list[MOST_LISTED];
    zf_error_t err = {.struct_size = sizeof err};
    const size_t nbytes = d->n_elems * sizeof(float);
    shuffle(d, list);
    for (uint32_t i = 0; i < MOST_LISTED; i++)
        items[i] =
            (zf_export_item_t){.struct_size = sizeof *items, .id = list[i], .dst = out[list[i]], .dst_nbytes = nbytes};
    zo_rest(d->oracle);
    if (!is_right(d, "export_params",
                  d->rig.zf->export_params(d->rig.instance, items, MOST_LISTED, sizeof *items, &err), &err))
        return;
    for (uint32_t i = 0; i < MOST_LISTED; i++) {
        zo_export(d->oracle, i, want);
        if (!abi_check(d->probe, ABI_RULE_EXTENT, memcmp(out[i], want, nbytes) == 0,
                       "%s: number %u of %d is exported with other weights than the schedule's", d->what, i,
                       MOST_LISTED))
            return;
    }
}

/* ---- what the host writes ---------------------------------------------------------------------------------------- */

static void digest_all(drawn_t *d, const zf_digest_ext_t *ext, uint64_t out[MOST_LISTED]) {
    static const zf_tensor_t *tensors[MOST_LISTED];
    zf_error_t err = {.struct_size = sizeof err};
    for (uint32_t i = 0; i < MOST_LISTED; i++)
        tensors[i] = &d->rig.param_tensors[i];
    is_right(d, "digest", ext->digest(d->rig.instance, tensors, MOST_LISTED, out, &err), &err);
}

/* Multiples of 1/64, which both types hold. */
static void write_one(drawn_t *d, uint32_t i) {
    char *at = (char *)d->rig.params + i * d->rig.tensor_nbytes;
    size_t size = d->rig.tensor_nbytes / d->n_elems;
    for (size_t k = 0; k < d->n_elems; k++) {
        float x = (float)(1 + draw(d, 100)) / 64.0f;
        memcpy(at + k * size, (const char *)&x + sizeof x - size, size);
    }
    zo_overwrite(d->oracle, i, at);
}

/* Of a thousand exactly those; list NULL: asked about all. */
static void find_written(drawn_t *d, const zf_digest_ext_t *ext, const uint32_t *list) {
    static uint8_t found[MOST_LISTED + N_TIED];
    zf_error_t err = {.struct_size = sizeof err};
    zf_status_t st = ext->written(d->rig.instance, ZF_WRITTEN_LOOK, list, list ? MOST_LISTED : 0, found, &err);
    if (!is_right(d, "written", st, &err))
        return;
    for (uint32_t i = 0; i < MOST_LISTED; i++) {
        uint32_t id = list ? list[i] : i;
        if (!abi_check(d->probe, ABI_RULE_EXTENT, found[i] == zo_is_written(d->oracle, id),
                       "%s: number %u is said to be written by the host: %u", d->what, id, found[i]))
            return;
    }
}

static void say_changed(drawn_t *d, const uint32_t *list, int is_reset) {
    zf_param_item_t items[N_WRITTEN];
    zf_error_t err = {.struct_size = sizeof err};
    for (uint32_t i = 0; i < N_WRITTEN; i++) {
        items[i] = (zf_param_item_t){.struct_size = sizeof *items, .id = list[i]};
        zo_params_changed(d->oracle, &(zo_range_t){.id = list[i]},
                          (char *)d->rig.params + list[i] * d->rig.tensor_nbytes, is_reset);
    }
    is_right(d, "params_changed",
             d->rig.zf->params_changed(d->rig.instance, items, N_WRITTEN, sizeof *items,
                                       is_reset ? ZF_CHANGED_RESET : 0, &err),
             &err);
}

typedef enum { CHANGED, ADOPTED, ALL_ADOPTED } taking_t;

/* A list of none is taken over before. */
static void adopt(drawn_t *d, const zf_digest_ext_t *ext, const uint32_t *list, uint32_t n) {
    zf_error_t err = {.struct_size = sizeof err};
    is_right(d, "adopt", ext->adopt(d->rig.instance, list, 0, &err), &err);
    find_written(d, ext, NULL);
    if (is_right(d, "adopt", ext->adopt(d->rig.instance, n ? list : NULL, n, &err), &err))
        zo_adopt(d->oracle, list, N_WRITTEN);
}

static void write_some(drawn_t *d, taking_t how) {
    static uint64_t before[MOST_LISTED], after[MOST_LISTED];
    const zf_digest_ext_t *ext = d->rig.zf->get_extension(ZF_EXT_DIGEST);
    uint32_t list[MOST_LISTED], *written = list + MOST_LISTED - N_WRITTEN;
    if (!ext)
        return;
    shuffle(d, list);
    digest_all(d, ext, before);
    for (uint32_t i = 0; i < N_WRITTEN; i++)
        write_one(d, written[i]);
    digest_all(d, ext, after);
    for (uint32_t i = 0; i < MOST_LISTED; i++)
        if (!abi_check(d->probe, ABI_RULE_DIGEST, (before[i] != after[i]) == zo_is_written(d->oracle, i),
                       "%s: the digest of number %u %s", d->what, i,
                       before[i] != after[i] ? "moves, and nobody wrote it" : "keeps, and it was written"))
            return;
    find_written(d, ext, list);
    if (how == CHANGED)
        say_changed(d, written, (int)draw(d, 2));
    else
        adopt(d, ext, written, how == ADOPTED ? N_WRITTEN : 0);
}

static void inspect_last(drawn_t *d) {
    const zf_inspect_ext_t *ext = d->rig.zf->get_extension(ZF_EXT_INSPECT);
    float have[8], want[8];
    zf_inspect_out_t out = {.struct_size = sizeof out, .n_elems = d->n_elems, .w = have};
    zf_error_t err = {.struct_size = sizeof err};
    zo_rest(d->oracle);
    zo_read(d->oracle, MOST_LISTED - 1, &(zo_state_t){.w = want});
    if (ext && is_right(d, "inspect", ext->read(d->rig.instance, MOST_LISTED - 1, &out, &err), &err))
        abi_check(d->probe, ABI_RULE_EXTENT, memcmp(have, want, d->n_elems * sizeof *want) == 0,
                  "%s: the state of number %d is another one", d->what, MOST_LISTED - 1);
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

/* Gradients of both types: the upper half of an fp32 one is bf16. */
static void fill_gradients(drawn_t *d, uint32_t step) {
    const size_t n = d->n_params * d->n_elems;
    float *values = is_bf16(d) ? malloc(n * sizeof *values) : d->rig.grads;
    abi_extent_fill(values, n, step);
    for (size_t i = 0; is_bf16(d) && i < n; i++)
        memcpy((uint16_t *)d->rig.grads + i, (const char *)&values[i] + 2, 2);
    if (is_bf16(d))
        free(values);
}

static void train(drawn_t *d) {
    for (uint32_t s = 0; s < d->n_steps; s++) {
        zo_hyper_t hypers[MOST_GROUPS];
        zo_report_t report;
        set_hypers(d, s, hypers);
        fill_gradients(d, s);
        for (uint32_t i = 0; i < d->n_params; i++)
            zo_deliver(d->oracle, i, (char *)d->rig.grads + i * d->rig.tensor_nbytes, 1, 0);
        zo_step(d->oracle, &(zo_step_t){hypers, 1.0, d->does_not_clip ? 0.0 : 1.0, NULL, 0}, &report);
        rig_deliver(&d->rig, 0, d->n_params, d->n_params, NULL);
        rig_step(&d->rig, ZF_STEP_WAIT);
        fetch(d, s);
        compare(d, s + 1, "a fetch");
        if (d->n_params == MOST_LISTED && s % 4 == 2)
            check_exports(d), inspect_last(d);
        if (d->n_params == MOST_LISTED && (s == 3 || s == 5 || s == 7))
            write_some(d, s == 3 ? CHANGED : s == 5 ? ADOPTED : ALL_ADOPTED);
    }
    rig_quiesce(&d->rig, ZF_QUIESCE_FLUSH);
    zo_flush(d->oracle);
    compare(d, d->n_steps, "FLUSH");
}

static void run(abi_rig_t *rig, drawn_t d, uint32_t seed) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_loader_t *loader;
    zf_status_t st = zf_loader_open(rig->probe->plugin, &loader, &err);
    if (!abi_check(rig->probe, ABI_RULE_VALID, st >= 0, "%s", err.message))
        return;
    d.seed = seed;
    d.probe = rig->probe;
    d.n_elems = (size_t)(d.shape[0] * d.shape[1]);
    open_drawn(&d, loader);
    train(&d);
    zo_destroy(d.oracle);
    rig_close(&d.rig);
}

static void probe_drawn(abi_rig_t *rig) {
    for (uint32_t i = 0; i < 4; i++) {
        run(rig, (drawn_t){.what = "1000 drawn parameters", .n_params = MOST_LISTED, .n_steps = 9, .shape = {2, 3}},
            3 + i);
        run(rig, (drawn_t){.what = "drawn, long windows", .n_params = 5, .n_steps = 120, .shape = {9, 17}}, 40 + i);
        run(rig, (drawn_t){.what = "drawn, wide matrices", .n_params = 2, .n_steps = 9, .shape = {5, 1025 + 1321 * i}},
            80 + i);
    }
    run(rig, (drawn_t){.what = "drawn, more than 2^20", .n_params = 1, .n_steps = 5, .shape = {1024, 1025}}, 121);
}

const abi_row_t abi_drawn_rows[] = {{"drawn settings", ABI_OPEN, 1, probe_drawn}, {NULL, ABI_NOTHING, 0, NULL}};
