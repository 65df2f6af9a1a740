/* SPDX-License-Identifier: Apache-2.0 */
/* exact_compare.c - the plugin's values against the oracle's, and against the plain optimizer's. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exact_carried.h"
#include "exact_state.h"
#include "shard.h"
#include "zf/ext/stats.h"

static zx_where_t where_of(const zx_run_t *run, int law, const char *what, uint32_t param) {
    return (zx_where_t){.law = law,
                        .what = what,
                        .param = param == ZO_NO_ID ? NULL : run->c->params[param].name,
                        .step = zo_n_steps(run->oracle),
                        .element = UINT64_MAX};
}

/* What equality with the oracle proves: law 2, or 3 where the run was saved and loaded. */
static int general_law(const zx_run_t *run) { return zx_law_saves(run->c->law) ? run->c->law : 2; }

static uint64_t bits_of(const void *array, size_t size, uint64_t i) {
    uint64_t bits = 0;
    memcpy(&bits, (const unsigned char *)array + i * size, size); /* little-endian, as the formats are */
    return bits;
}

static void compare(zx_run_t *run, int law, const char *what, uint32_t param, const void *expected, const void *found,
                    uint64_t first, uint64_t n, size_t size) {
    zx_where_t where = where_of(run, law, what, param);
    zx_count(run->result, law, n);
    if (n == 0 || memcmp((const unsigned char *)expected + first * size, (const unsigned char *)found + first * size,
                         n * size) == 0)
        return;
    for (uint64_t i = first; i < first + n; i++)
        if (bits_of(expected, size, i) != bits_of(found, size, i)) {
            where.element = i;
            zx_differs(run->result, &where, bits_of(expected, size, i), bits_of(found, size, i), (unsigned)size * 2);
            return;
        }
}

/* ---- visible ----------------------------------------------------------------------------------------------------- */

static void *adamw_visible(const zx_run_t *run, uint32_t i) {
    const zo_decl_t *d = &run->c->params[i].decl;
    uint64_t n = zo_n_elems(run->oracle, i);
    void *visible = zx_alloc(n * zo_dtype_nbytes(d->dtype));
    for (uint64_t e = 0; e < n; e++)
        zo_narrow(visible, d->dtype, e, zo_adamw_w(run->adamw, i)[e]);
    return visible;
}

/* Replays go on meanwhile: a fetch comes before their end, or after it. */
static void pause_now(zx_run_t *run) {
    if (!zx_chance(&run->pauses, 25) || run->result->is_muted)
        return;
    usleep(zx_below(&run->pauses, 300));
    zx_count_drawn(run->result, ZX_PAUSED, 1);
}

/* keeps: percent of the matrices of a stacked parameter that are fetched, where it is fetched by ranges of them. */
static void fetch(zx_run_t *run, const uint32_t *params, uint32_t n, uint32_t keeps) {
    zf_param_item_t items[ZX_MOST_ITEMS];
    uint32_t n_items = 0;
    pause_now(run);
    for (uint32_t i = 0; i < (n ? n : run->c->n_params); i++) {
        uint32_t param = n ? zx_case_name_for(run->c, &run->layers, params[i]) : i, first = n_items;
        const zx_param_t *p = &run->c->params[param];
        uint32_t id = p->flags & ZF_PARAM_TIED ? p->tied_to : param;
        zx_count_drawn(run->result, ZX_FETCHED, (uint64_t)zo_is_unfetched(run->oracle, id) & 1);
        n_items += zx_run_draw_layers(run, param, n ? keeps : 0, items + n_items);
        if (!n || keeps == 100)
            zx_carried_fetched(run->c, id);
        for (uint32_t k = first; k < n_items; k++)
            zo_fetch(run->oracle, &(zo_range_t){id, items[k].first_batch, items[k].n_batches});
    }
    if (n_items)
        zx_host_fetch(&run->host, items, n ? n_items : 0);
}

void zx_run_fetch(zx_run_t *run, const uint32_t *params, uint32_t n) { fetch(run, params, n, 100); }

/* Where parameters live as shards every host fetches: what a step publishes comes after it, to whole ones, too. */
void zx_run_fetch_to_write(zx_run_t *run, uint32_t i) {
    zx_case_t *c = run->c;
    if ((c->mode % 2 && (!zx_host_can_look_unfetched(&run->host) || zx_chance(&c->rng, 50))) ||
        c->params[i].away == ZX_UNFETCHED || c->params[i].away == ZX_SPOILT_UNFETCHED ||
        (c->ranks && zs_shards_params(c->ranks)))
        zx_run_fetch(run, &i, 1);
}

/* Each of several ranks fetches what it likes, in an order of its own; where parameters are shards, in the same. */
static zx_rng_t *fetch_rng(zx_run_t *run) {
    if (run->host.shards)
        return &run->host.fetches;
    return run->c->ranks ? &run->c->ranks->rng : &run->c->rng;
}

void zx_run_fetch_some(zx_run_t *run) {
    zx_rng_t *r = fetch_rng(run);
    uint32_t params[ZX_MAX_PARAMS], n = 0, p = zx_between(r, 10, 100);
    for (uint32_t i = 0; i < run->c->n_params; i++)
        if (zx_chance(r, p))
            params[n++] = i;
    if (p % 2)
        zx_shuffle(r, params, n);
    if (run->c->mode % 2 && n > 0)
        fetch(run, params, zx_chance(r, 10) ? 0 : n, zx_host_can_look_unfetched(&run->host) ? 50 : 100);
}

/* With FETCH: of what is looked at, all is fetched before, or only some of it where that may be read. */
static void fetch_for_look(zx_run_t *run, const uint8_t *is_looked_at) {
    zx_rng_t *r = fetch_rng(run);
    uint32_t params[ZX_MAX_PARAMS], n = 0, p = zx_chance(r, 40) ? zx_below(r, 100) : 100;
    if (run->c->law == 1 || run->c->is_carrying || !zx_host_can_look_unfetched(&run->host))
        p = 100; /* law 1 speaks of what was fetched */
    for (uint32_t i = 0; i < run->c->n_params; i++)
        if (is_looked_at[i] && (zx_chance(r, p) || zo_is_unfetched(run->oracle, i) > 1))
            params[n++] = i;
    if (run->c->mode % 2 && n > 0)
        zx_run_fetch(run, params, zx_chance(r, 20) ? 0 : n);
}

static void look(zx_run_t *run, int is_everything, int may_fetch) {
    const void *expected[ZX_MAX_PARAMS] = {0};
    void *plain[ZX_MAX_PARAMS] = {0};
    uint8_t is_looked_at[ZX_MAX_PARAMS] = {0};
    int law = run->c->law == 1 || run->c->law == 5 ? run->c->law : general_law(run);
    for (uint32_t i = 0; i < run->c->n_params; i++)
        is_looked_at[i] =
            !(run->c->params[i].flags & ZF_PARAM_TIED) && (is_everything || !zx_chance(&run->c->rng, 40)) &&
            (may_fetch || zo_is_unfetched(run->oracle, i) < 2) &&
            (run->c->params[i].away == ZX_IN_PLACE || (may_fetch && run->c->params[i].away == ZX_UNFETCHED));
    if (may_fetch)
        fetch_for_look(run, is_looked_at);
    for (uint32_t i = 0; i < run->c->n_params; i++) {
        if (!is_looked_at[i])
            continue;
        if (law == 1 && zx_is_trainable(&run->c->params[i])) {
            plain[i] = adamw_visible(run, i);
            compare(run, 1, "the oracle's own visible", i, plain[i], zo_visible(run->oracle, i), 0,
                    zo_n_elems(run->oracle, i), zo_dtype_nbytes(run->c->params[i].decl.dtype));
        }
        expected[i] = plain[i] ? plain[i] : zo_visible(run->oracle, i);
    }
    zx_host_look(&run->host, expected, law);
    for (uint32_t i = 0; i < run->c->n_params; i++)
        free(plain[i]);
}

void zx_run_look(zx_run_t *run, int is_everything) { look(run, is_everything, 1); }

/* ---- export ------------------------------------------------------------------------------------------------------ */

static void export_items(zx_run_t *run, float **dst) {
    zf_export_item_t items[ZX_MAX_PARAMS];
    uint32_t list[ZX_MAX_PARAMS], n = 0;
    for (uint32_t i = 0; i < run->c->n_params; i++)
        if (dst[i])
            list[n++] = i;
    zx_shuffle(&run->exports, list, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t name = zx_case_name_for(run->c, &run->more, list[i]);
        items[i] = (zf_export_item_t){.struct_size = sizeof *items,
                                      .id = run->c->params[name].id,
                                      .dst = dst[list[i]],
                                      .dst_nbytes = 4 * zo_n_elems(run->oracle, list[i])};
    }
    if (n == 0)
        return;
    zo_rest(run->oracle);
    if (!run->is_dry)
        zx_is_call_bad(&run->host, "export_params",
                       run->host.zf->export_params(run->host.instance, items, n, sizeof *items, &run->host.err));
}

static void compare_exports(zx_run_t *run, int law, int is_adamw) {
    float *dst[ZX_MAX_PARAMS] = {0};
    int is_none = zx_chance(&run->exports, 15);
    for (uint32_t i = 0; i < run->c->n_params; i++)
        if (zo_is_trainable(run->oracle, i) && (is_adamw || (zx_chance(&run->c->rng, 70) && !is_none)))
            dst[i] = zx_alloc(4 * zo_n_elems(run->oracle, i));
    export_items(run, dst);
    for (uint32_t i = 0; i < run->c->n_params; i++) {
        float *expected = dst[i] ? zx_alloc(4 * zo_n_elems(run->oracle, i)) : NULL;
        if (!dst[i])
            continue;
        if (is_adamw)
            memcpy(expected, zo_adamw_w(run->adamw, i), 4 * zo_n_elems(run->oracle, i));
        else
            zo_export(run->oracle, i, expected);
        compare(run, law, is_adamw ? "w" : "export", i, expected, dst[i], 0, zo_n_elems(run->oracle, i), 4);
        free(expected);
        free(dst[i]);
    }
}

/* Then, now and then, what is shown without a fetch: an export brings all to rest, one of nothing is no call. */
void zx_run_export(zx_run_t *run) {
    compare_exports(run, run->c->law == 5 ? 5 : general_law(run), 0);
    if (run->c->law != 1 && !run->is_released && zx_host_can_look_unfetched(&run->host) && zx_chance(&run->exports, 50))
        look(run, 1, 0);
}

/* ---- state ------------------------------------------------------------------------------------------------------- */

typedef struct zx_state {
    zo_state_t at;
    void *memory;
} zx_state_t;

static zx_state_t new_state(uint64_t n) {
    unsigned char *p = zx_alloc(n * 25);
    return (zx_state_t){.memory = p,
                        .at = {.importance = (double *)(void *)p,
                               .w = (float *)(void *)(p + 8 * n),
                               .m = (float *)(void *)(p + 12 * n),
                               .v = (float *)(void *)(p + 16 * n),
                               .n = (uint32_t *)(void *)(p + 20 * n),
                               .selected = p + 24 * n}};
}

static int inspect(zx_run_t *run, uint32_t i, zo_state_t *out) {
    zf_inspect_out_t args = {.struct_size = sizeof args,
                             .n_elems = zo_n_elems(run->oracle, i),
                             .w = out->w,
                             .m = out->m,
                             .v = out->v,
                             .n = out->n,
                             .selected = out->selected,
                             .importance = out->importance};
    zo_rest(run->oracle);
    return run->is_dry ||
           zx_is_call_bad(&run->host, "inspect",
                          run->host.inspect->read(run->host.instance, run->c->params[i].id, &args, &run->host.err));
}

/* Importance decides nothing where a choice takes all channels or none: compared where it does. */
static void compare_importance(zx_run_t *run, uint32_t param, const zo_state_t *expected, const zo_state_t *found) {
    for (uint32_t j = 0; j < zo_n_matrices(run->oracle); j++) {
        zo_matrix_info_t x;
        zo_matrix_info(run->oracle, j, &x);
        if (x.param == param && x.n_selected > 0 && x.n_selected < x.channels)
            compare(run, 2, "importance", param, expected->importance, found->importance, x.first, x.rows * x.cols, 8);
    }
}

static void inspect_param(zx_run_t *run, uint32_t i) {
    uint64_t n = zo_n_elems(run->oracle, i);
    zx_state_t expected = new_state(n), found = new_state(n);
    zo_read(run->oracle, i, &expected.at);
    if (run->c->ranks && run->c->ranks->stage > 0) /* what other ranks keep stays as it is */
        memcpy(found.memory, expected.memory, n * 25);
    if (!inspect(run, i, &found.at)) {
        compare(run, 2, "selected", i, expected.at.selected, found.at.selected, 0, n, 1);
        compare(run, 2, "n", i, expected.at.n, found.at.n, 0, n, 4);
        compare(run, 2, "m", i, expected.at.m, found.at.m, 0, n, 4);
        compare(run, 2, "v", i, expected.at.v, found.at.v, 0, n, 4);
        compare(run, 2, "w", i, expected.at.w, found.at.w, 0, n, 4);
        compare_importance(run, i, &expected.at, &found.at);
    }
    free(expected.memory);
    free(found.memory);
}

void zx_run_inspect(zx_run_t *run) {
    for (uint32_t i = 0; run->host.inspect && i < run->c->n_params; i++)
        if (zo_is_trainable(run->oracle, i))
            inspect_param(run, i);
}

void zx_run_compare_adamw(zx_run_t *run) {
    compare_exports(run, 6, 1);
    for (uint32_t i = 0; run->host.inspect && i < run->c->n_params; i++) {
        uint64_t n = zo_n_elems(run->oracle, i);
        if (!zo_is_trainable(run->oracle, i))
            continue;
        zx_state_t found = new_state(n);
        if (!inspect(run, i, &found.at)) {
            compare(run, 6, "w", i, zo_adamw_w(run->adamw, i), found.at.w, 0, n, 4);
            compare(run, 6, "m", i, zo_adamw_m(run->adamw, i), found.at.m, 0, n, 4);
            compare(run, 6, "v", i, zo_adamw_v(run->adamw, i), found.at.v, 0, n, 4);
        }
        free(found.memory);
    }
}

/* ---- report ------------------------------------------------------------------------------------------------------ */

static void check_number(zx_run_t *run, const char *what, uint64_t expected, uint64_t found) {
    zx_where_t where = where_of(run, general_law(run), what, ZO_NO_ID);
    if (expected != found)
        zx_differs(run->result, &where, expected, found, 1);
}

/* To the bit; any NaN is as good as another. */
static void check_double(zx_run_t *run, const char *what, double expected, double found) {
    if (!isnan(expected) || !isnan(found))
        check_number(run, what, bits_of(&expected, 8, 0), bits_of(&found, 8, 0));
}

static uint32_t id_of(const zx_run_t *run, uint32_t param) {
    return param == ZO_NO_ID ? ZF_NO_ID : run->c->params[param].id;
}

/* The newest finished step, whichever it is. */
static void check_finished(zx_run_t *run, const zf_step_report_t *report) {
    if (!report->has_report)
        return;
    if (report->step <= run->late || report->step > zo_n_steps(run->oracle) + run->late) {
        check_number(run, "report.step", zo_n_steps(run->oracle) + run->late, report->step);
        return;
    }
    const zo_report_t *r = &run->reports[report->step - run->late];
    check_number(run, "report.applied", (uint64_t)r->is_applied, (uint64_t)report->applied);
    check_number(run, "report.skip_reason", r->is_applied ? ZF_SKIP_NONE : ZF_SKIP_NONFINITE,
                 (uint64_t)report->skip_reason);
    check_number(run, "report.n_present", r->n_present, report->n_present);
    check_number(run, "report.nonfinite_param", id_of(run, r->nonfinite_param), report->nonfinite_param);
    check_number(run, "report.n_missing", r->n_missing, report->n_missing);
    check_number(run, "report.first_missing", id_of(run, r->first_missing), report->first_missing);
    check_double(run, "report.grad_norm", r->norm, report->grad_norm);
    check_double(run, "report.clip_factor", r->clip_factor, report->clip_factor);
    zx_count(run->result, general_law(run), 7);
}

static void check_counter(zx_run_t *run, const char *name, uint64_t expected) {
    uint64_t found = expected; /* where nobody counts */
    (void)zf_counter_value(run->host.zf, run->host.instance, name, &found, NULL);
    check_number(run, name, expected, found);
}

void zx_run_check_counters(zx_run_t *run) {
    uint64_t n_skipped = 0, n = zo_n_steps(run->oracle);
    for (uint64_t t = 1; t <= n; t++)
        n_skipped += !run->reports[t].is_applied;
    if (run->is_dry)
        return;
    check_counter(run, "steps_skipped", n_skipped);
    check_counter(run, "steps_applied", n - n_skipped + run->late);
}

void zx_run_check_report(zx_run_t *run, zf_status_t st, int is_wait, const zf_step_report_t *report) {
    uint64_t t = zo_n_steps(run->oracle);
    check_number(run, "report.submitted_step", t + run->late, report->submitted_step);
    if (is_wait) {
        check_number(run, "status of step(WAIT)", run->reports[t].is_applied ? ZF_OK : ZF_SKIPPED, (uint64_t)st);
        check_number(run, "report.step", t + run->late, report->step);
    } else {
        check_number(run, "status of step", ZF_SUBMITTED, (uint64_t)st);
    }
    check_finished(run, report);
}

/* Of a former step, where it is kept. */
static void check_record(zx_run_t *run) {
    const zf_stats_ext_t *stats = run->host.zf->get_extension(ZF_EXT_STATS);
    uint64_t n = zo_n_steps(run->oracle), t = 0;
    zx_rng_t r_of_step = zx_rng(run->c->seed, 95, run->c->index * 1000 + n); /* a dry run has no record */
    if (n > 0)
        t = n - zx_below(&r_of_step, n < 128 ? (uint32_t)n : 128);
    zf_step_record_t record = {.struct_size = sizeof record};
    if (t == 0 || !stats || stats->step_record(run->host.instance, t + run->late, &record, NULL) != ZF_OK)
        return;
    const zo_report_t *r = &run->reports[t];
    check_number(run, "record.step", t + run->late, record.step);
    if (!record.is_finished)
        return;
    check_number(run, "record.applied", (uint64_t)r->is_applied, (uint64_t)record.applied);
    check_number(run, "record.skip_reason", r->is_applied ? ZF_SKIP_NONE : ZF_SKIP_NONFINITE,
                 (uint64_t)record.skip_reason);
    check_number(run, "record.n_present", r->n_present, record.n_present);
    check_double(run, "record.grad_norm", r->norm, record.grad_norm);
    check_double(run, "record.clip_factor", r->clip_factor, record.clip_factor);
}

void zx_run_poll(zx_run_t *run) {
    zf_step_report_t report = {.struct_size = sizeof report};
    if (run->is_dry ||
        zx_is_call_bad(&run->host, "poll", run->host.zf->poll(run->host.instance, &report, &run->host.err)))
        return;
    check_finished(run, &report);
    check_record(run);
}
