/* SPDX-License-Identifier: Apache-2.0 */
/* exact_edit.c - weights that the host writes without a word, between its gradients and its step. Where updates see
 * edits they count; else they are reported, and nothing of them is overwritten.
 *
 * Reported in two ways: the next call waits and looks, so it is refused before it does anything. Or the step does not
 * wait: the device finds out in it, and what comes to rest says so. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exact_run.h"

/* A weight that fp16 could not hold is changed too: it would be no weight to go on from. */
void *zx_run_draw_edit(zx_run_t *run, uint32_t i) {
    zx_case_t *c = run->c;
    const zx_param_t *p = &c->params[i];
    uint64_t n = zo_n_elems(run->oracle, i), nbytes = zo_dtype_nbytes(p->decl.dtype);
    unsigned char *values = zx_alloc(n * nbytes), *drawn = zx_case_values(c, p);
    uint64_t first = zx_below(&c->rng, (uint32_t)n),
             n_edited = zx_chance(&c->rng, 70) ? 1 : zx_below(&c->rng, (uint32_t)n) + 1;
    memcpy(values, zo_visible(run->oracle, i), n * nbytes);
    for (uint64_t e = 0; e < n_edited; e++)
        memcpy(values + (first + e) % n * nbytes, drawn + (first + e) % n * nbytes, nbytes);
    if (zx_chance(&run->more, 25)) { /* nothing but the sign */
        memcpy(values, zo_visible(run->oracle, i), n * nbytes);
        for (uint64_t e = 0; e < n_edited; e++)
            values[((first + e) % n + 1) * nbytes - 1] ^= 0x80;
    }
    for (uint64_t e = 0; e < n; e++)
        if (!isfinite(zo_widen(values, p->decl.dtype, e)))
            memcpy(values + e * nbytes, drawn + e * nbytes, nbytes);
    if (memcmp(values, zo_visible(run->oracle, i), n * nbytes) == 0)
        values[first * nbytes] ^= 1;
    free(drawn);
    return values;
}

/* What fp16 shows of a master that it cannot hold would be no weight to go on from: it is edited once more. */
void *zx_run_draw_sound(zx_run_t *run, uint32_t i) {
    zo_dtype_t dtype = run->c->params[i].decl.dtype;
    uint64_t n = zo_n_elems(run->oracle, i), nbytes = n * zo_dtype_nbytes(dtype);
    if (!zx_are_finite(zo_visible(run->oracle, i), dtype, n))
        return zx_run_draw_edit(run, i);
    void *values = zx_alloc(nbytes);
    memcpy(values, zo_visible(run->oracle, i), nbytes);
    return values;
}

static void expect_refusal(zx_run_t *run, const char *call, uint32_t i, zf_status_t st, const zf_error_t *err) {
    zx_where_t where = {
        .law = 2, .what = call, .param = run->c->params[i].name, .step = run->host.step, .element = UINT64_MAX};
    if (st != ZF_ERR_OVERWRITTEN)
        zx_fails(run->result, &where, "status %d after its weights were written unannounced", st);
    else if (!strstr(err->message, run->c->params[i].name))
        zx_fails(run->result, &where, "the error does not name it: %.200s", err->message);
}

/* The parameter shows what the host wrote, and nothing else. */
static void look(zx_run_t *run, uint32_t i, const void *values) {
    const void *expected[ZX_MAX_PARAMS] = {0};
    expected[i] = values;
    zx_host_look(&run->host, expected, 2);
    zx_host_sync(&run->host);
}

static void announce(zx_run_t *run, uint32_t i, const void *values) {
    zf_param_item_t item = zx_host_item(&run->host, i);
    zx_host_changed(&run->host, &item, 1, 0);
    zo_params_changed(run->oracle, &(zo_range_t){.id = i}, values, 0);
}

/* Outputs are written on success only. */
static void expect_untouched(zx_run_t *run, const char *call, const zf_step_report_t *report) {
    zx_where_t where = {.law = 2, .what = call, .step = run->host.step, .element = UINT64_MAX};
    for (size_t i = sizeof report->struct_size; i < sizeof *report; i++)
        if (((const unsigned char *)report)[i] != ZX_GUARD_BYTE) {
            zx_fails(run->result, &where, "byte %zu of the report was written by a call that failed", i);
            return;
        }
}

static zf_step_report_t guarded_report(void) {
    zf_step_report_t report;
    memset(&report, ZX_GUARD_BYTE, sizeof report);
    report.struct_size = sizeof report;
    return report;
}

static zf_status_t refused_step(zx_run_t *run, const zo_hyper_t *groups, zf_error_t *err) {
    zf_step_report_t report = guarded_report();
    zx_host_t *h = &run->host;
    zf_group_hyper_t hyper[ZX_MAX_GROUPS];
    zf_step_args_t args = {.struct_size = sizeof args,
                           .flags = ZF_STEP_WAIT | ZF_STEP_EPOCH_END,
                           .groups = hyper,
                           .n_groups = h->c->n_groups,
                           .elem_size = sizeof *hyper,
                           .stream = &h->stream};
    for (uint32_t g = 0; g < h->c->n_groups; g++)
        hyper[g] = (zf_group_hyper_t){.struct_size = sizeof *hyper, .lr = groups[g].lr, .eps = groups[g].eps};
    zf_status_t st = h->zf->step(h->instance, &args, &report, err);
    expect_untouched(run, "step", &report);
    return st;
}

int zx_run_edit(zx_run_t *run, uint32_t i, const zo_hyper_t *groups) {
    zx_case_t *c = run->c;
    zx_host_t *h = &run->host;
    zf_quiesce_args_t flush = {.struct_size = sizeof flush, .mode = ZF_QUIESCE_FLUSH};
    zf_error_t err = {.struct_size = sizeof err};
    uint32_t way = zx_below(&c->rng, 3);
    zx_run_fetch_to_write(run, i);
    void *values = zx_run_draw_edit(run, i);
    zx_host_sync(h);
    zx_host_write(h, c->params[i].array, values);
    if (zo_sees_edits(run->oracle, i)) {
        zo_overwrite(run->oracle, i, values);
        free(values);
        return 0;
    }
    run->edited = way == 2 && (c->mode != ZX_THREAD) ? values : NULL;
    run->edited_param = i;
    if (run->edited)
        return 0;
    zo_rest(run->oracle);
    if (!run->is_dry)
        expect_refusal(run, way ? "quiesce(FLUSH)" : "step", i,
                       way ? h->zf->quiesce(h->instance, &flush, &err) : refused_step(run, groups, &err), &err);
    look(run, i, values);
    announce(run, i, values);
    free(values);
    return 1;
}

void zx_run_edited(zx_run_t *run) {
    zx_host_t *h = &run->host;
    zf_step_report_t report = guarded_report();
    zf_error_t err = {.struct_size = sizeof err};
    uint32_t i = run->edited_param;
    if (!run->edited)
        return;
    zo_rest(run->oracle);
    zx_host_quiesce(h, ZF_QUIESCE_DRAIN);
    look(run, i, run->edited);
    if (!run->is_dry)
        expect_refusal(run, "poll", i, h->zf->poll(h->instance, &report, &err), &err);
    if (!run->is_dry)
        expect_untouched(run, "poll", &report);
    announce(run, i, run->edited);
    free(run->edited);
    run->edited = NULL;
}
