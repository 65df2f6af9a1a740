/* SPDX-License-Identifier: Apache-2.0 */
/* oracle/step.c - plugin/SCHEDULE.md, "Step t" and "Between steps", point by point. Read them side by side.
 *
 * Where the page leaves a choice, the reading taken stands at the place, marked "Reading:". Compiled with
 * -ffp-contract=off: every product and sum rounds where it is written. */
#include "state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* visible = round(src) of one channel; src is an array of the whole parameter. */
static void show(zo_t *o, const zo_matrix_t *x, uint64_t c, const float *src) {
    zo_param_t *p = &o->params[x->param];
    for (uint64_t i = 0; i < zo_depth(x) && !p->is_held; i++) {
        uint64_t e = x->first + zo_at(x, c, i);
        zo_narrow(p->visible, p->decl.dtype, e, src[e]);
    }
}

static void show_deferred(zo_t *o, const zo_matrix_t *x, const uint8_t *is_selected, const float *src) {
    for (uint64_t c = 0; c < x->channels; c++)
        if (!is_selected[c])
            show(o, x, c, src);
}

/* The weight that an element is: what is visible, where that is not round(w). */
static float edited(const zo_param_t *p, uint64_t e) {
    uint64_t elem = zo_dtype_nbytes(p->decl.dtype);
    uint32_t due;
    zo_narrow(&due, p->decl.dtype, 0, p->w[e]);
    return memcmp((const char *)p->visible + e * elem, &due, elem) != 0 ? zo_widen(p->visible, p->decl.dtype, e)
                                                                        : p->w[e];
}

void zo_see_edits(const zo_param_t *p, float *dst) {
    for (uint64_t e = 0; e < p->n_elems; e++)
        dst[e] = p->sees_edits && !p->decl.is_carried ? edited(p, e) : p->w[e];
}

/* ---- "Step t": 1 to 3 -------------------------------------------------------------------------------------------- */

void zo_deliver(zo_t *o, uint32_t id, const void *grad, int is_part, int is_replace) {
    zo_param_t *p = &o->params[id];
    int is_first = is_replace || !is_part || !p->is_delivered;
    for (uint64_t i = 0; i < p->n_elems; i++) {
        float g = zo_widen(grad, p->decl.grad_dtype, i);
        p->grad[i] = is_first ? g : p->grad[i] + g;
    }
    p->is_delivered = 1;
}

static void end_gradients(zo_t *o) {
    for (uint32_t id = 0; id < o->n_params; id++) {
        zo_param_t *p = &o->params[id];
        float rounded;
        p->was_present = p->is_delivered;
        p->is_delivered = 0;
        for (uint64_t i = 0; p->was_present && i < p->n_elems; i++) {
            zo_narrow(&rounded, p->decl.grad_dtype, 0, p->grad[i]);
            p->grad[i] = zo_widen(&rounded, p->decl.grad_dtype, 0);
        }
    }
}

static int is_all_finite(const zo_param_t *p) {
    for (uint64_t i = 0; i < p->n_elems; i++)
        if (!isfinite(p->grad[i]))
            return 0;
    return 1;
}

static double sum_of_squares(const zo_t *o, uint32_t id) {
    double lanes[32] = {0};
    uint64_t n_units = 0;
    for (uint32_t k = 0; k < o->n_matrices; k++) {
        const zo_matrix_t *x = &o->matrices[k];
        if (x->param == id)
            zo_take_squares(lanes, &n_units, o->params[id].grad + x->first, x->rows, x->cols, x->channels_are_rows);
    }
    return zo_lanes_sum(lanes);
}

static void find_missing(zo_t *o, zo_report_t *r) {
    r->first_missing = ZO_NO_ID;
    for (uint32_t id = 0; id < o->n_params; id++) {
        zo_param_t *p = &o->params[id];
        if (o->has_stepped && p->always_came && !p->was_present && r->n_missing++ == 0)
            r->first_missing = id;
        p->always_came = p->was_present && (p->always_came || !o->has_stepped);
    }
    o->has_stepped = 1;
}

static void step_scalars(const zo_t *o, const zo_step_t *args, zo_report_t *r) {
    double sumsq = 0.0, clip;
    *r = (zo_report_t){.is_applied = 1, .nonfinite_param = ZO_NO_ID, .clip_factor = 1.0};
    for (uint32_t id = 0; id < o->n_params; id++) {
        const zo_param_t *p = &o->params[id];
        if (!p->was_present)
            continue;
        r->n_present++;
        if (!is_all_finite(p) && r->nonfinite_param == ZO_NO_ID)
            r->nonfinite_param = id;
        if (!p->decl.is_not_in_norm)
            sumsq += (p->decl.norm_factor > 0 ? p->decl.norm_factor : 1.0) * sum_of_squares(o, id);
    }
    r->norm = args->host_norm ? *args->host_norm : args->unscale * sqrt(sumsq);
    if (args->clip_norm > 0.0) {
        clip = args->clip_norm / (r->norm + 1e-6);
        r->clip_factor = clip < 1.0 ? clip : 1.0;
    }
    r->s = (float)(args->unscale * r->clip_factor);
    r->is_applied = r->nonfinite_param == ZO_NO_ID && isfinite(r->norm) && r->norm >= 0.0 && isfinite(r->s);
}

static void take_record(const zo_t *o, zo_matrix_t *x, double s_t) {
    const float *g = o->params[x->param].grad + x->first;
    if (!x->channels_are_rows)
        zo_column_sums(x->record, g, x->rows, x->cols);
    for (uint64_t c = 0; c < x->channels && x->channels_are_rows; c++)
        x->record[c] = x->cols == 1 ? fabs((double)g[c]) : zo_row_sum(g + c * x->cols, x->cols);
    for (uint64_t c = 0; c < x->channels; c++)
        x->record[c] = s_t * x->record[c];
}

static void add_slot(const zo_t *o, zo_matrix_t *x, const zo_hyper_t *groups, const zo_report_t *r) {
    const zo_param_t *p = &o->params[x->param];
    uint64_t n = x->rows * x->cols;
    zo_slot_t *slot = &x->slots[x->n_slots++];
    slot->grad = zo_zeros(n, sizeof(float));
    memcpy(slot->grad, p->grad + x->first, n * sizeof(float));
    slot->is_applied = r->is_applied;
    slot->s = r->s;
    slot->hyper = groups[p->decl.group];
}

/* ---- "Step t": 4 and 5, the device ------------------------------------------------------------------------------- */

static void copy_to_device(zo_t *o, zo_matrix_t *x, uint64_t c) {
    zo_param_t *p = &o->params[x->param];
    for (uint64_t i = 0; i < zo_depth(x); i++) {
        uint64_t e = x->first + zo_at(x, c, i);
        p->device_w[e] = p->w[e];
        p->device_m[e] = p->m[e];
        p->device_v[e] = p->v[e];
    }
    x->device_n[c] = x->n[c];
}

/* Reading: after params_changed or FLUSH between the choice and this step, the host's state as those left it. */
static void enter_channels(zo_t *o, zo_matrix_t *x) {
    for (uint64_t c = 0; c < x->channels; c++)
        if (x->is_entering[c]) {
            x->is_entering[c] = 0;
            copy_to_device(o, x, c);
            show(o, x, c, o->params[x->param].device_w);
        }
}

static void run_ahead(zo_t *o, zo_matrix_t *x, const zo_hyper_t *groups, const zo_report_t *r) {
    zo_param_t *p = &o->params[x->param];
    for (uint64_t c = 0; c < x->channels; c++) {
        if (!x->is_selected[c] || p->is_held)
            continue;
        zo_scalars_t k = zo_scalars_of(&o->config, p->decl.group, &groups[p->decl.group], r->s, ++x->device_n[c]);
        for (uint64_t i = 0; i < zo_depth(x); i++) {
            uint64_t e = x->first + zo_at(x, c, i);
            zo_update(zo_number(x->param, e), &p->device_w[e], &p->device_m[e], &p->device_v[e], p->grad[e], &k);
        }
        show(o, x, c, p->device_w);
    }
}

/* ---- "Step t": 6 to 9, "When windows close" ---------------------------------------------------------------------- */

static void publish_due(zo_t *o, zo_matrix_t *x) {
    if (x->is_publish_due)
        show_deferred(o, x, x->is_selected, o->params[x->param].published);
    x->is_publish_due = 0;
}

/* "Publishing at fetch" */
static void fetch(zo_t *o, zo_matrix_t *x) {
    if (x->is_unfetched && !x->is_resident)
        show_deferred(o, x, x->was_selected, o->params[x->param].published);
    x->is_unfetched = 0;
}

/* What closes at this step, and what other ranks have of residents. */
static int waits_for_fetch(const zo_t *o) {
    return o->config.can_fetch && o->config.publish_lag == 0 &&
           (o->t > o->config.warm_up || o->config.resident_nbytes == ZO_ALL_RESIDENT);
}

static void close_window(zo_t *o, zo_matrix_t *x) {
    int is_warm_up = o->t <= o->config.warm_up;
    zo_replay_matrix(o, x,
                     zo_steps_ahead(&o->config, &o->config.groups[o->params[x->param].decl.group]) > 0 && !is_warm_up);
    x->is_due = o->config.publish_lag != 0 && !is_warm_up;
    if (!x->is_due)
        x->is_sent = ZO_SENT_NOW;
    if (waits_for_fetch(o)) {
        x->is_sent = ZO_SENT_FOR_FETCH;
        x->is_unfetched = 1;
        memcpy(x->was_selected, x->is_selected, x->channels);
        return;
    }
    x->is_publish_due = 1;
    if (o->config.publish_lag == 0 || is_warm_up)
        publish_due(o, x);
}

static void count_records(zo_t *o, const zo_report_t *r) {
    for (uint32_t i = 0; i < o->n_matrices; i++) {
        zo_matrix_t *x = &o->matrices[i];
        for (uint64_t c = 0; r->is_applied && o->params[x->param].was_present && c < x->channels; c++)
            x->importance[c] += x->record[c];
    }
}

/* "Resident blocks": the only state is updated, and shown. */
static void update_resident(zo_t *o, zo_matrix_t *x, const zo_hyper_t *groups, const zo_report_t *r) {
    zo_param_t *p = &o->params[x->param];
    for (uint64_t c = 0; c < x->channels; c++) {
        zo_scalars_t k = zo_scalars_of(&o->config, p->decl.group, &groups[p->decl.group], r->s, ++x->n[c]);
        for (uint64_t i = 0; i < zo_depth(x); i++) {
            uint64_t e = x->first + zo_at(x, c, i);
            zo_update(zo_number(x->param, e), &p->w[e], &p->m[e], &p->v[e], p->grad[e], &k);
        }
        show(o, x, c, p->w);
    }
    zo_round_moments(o, x, 1);
}

/* "Update rules", whole matrices: one of them, which begins with block x, and all blocks behind it up to its end. */
static void update_whole(zo_t *o, zo_matrix_t *x, uint64_t rows, const zo_hyper_t *groups, const zo_report_t *r) {
    zo_param_t *p = &o->params[x->param];
    const zo_group_t *group = &o->config.groups[p->decl.group];
    const uint64_t first = x->first, end = first + rows * x->cols;
    const zo_whole_t update = {.param = x->param,
                               .batch = first / (rows * x->cols),
                               .rows = rows,
                               .cols = x->cols,
                               .n = x->n[0] + 1,
                               .w = p->w + first,
                               .m = group->n_moments > 0 ? p->m + first : NULL,
                               .v = group->n_moments > 1 ? p->v + first : NULL,
                               .g = p->grad + first,
                               .s = r->s,
                               .hyper = groups[p->decl.group]};
    group->whole(group->element_ctx, &update);
    for (; x < o->matrices + o->n_matrices && x->param == update.param && x->first < end; x++) {
        for (uint64_t c = 0; c < x->channels; c++)
            x->n[c]++;
        zo_round_moments(o, x, 1);
        for (uint64_t c = 0; c < x->channels; c++)
            show(o, x, c, p->w);
    }
}

/* By whole matrices or by blocks. */
static void update_of(zo_t *o, zo_matrix_t *x, const zo_hyper_t *groups, const zo_report_t *r) {
    const zo_param_t *p = &o->params[x->param];
    uint64_t rows = p->n_elems / zo_n_batch(&p->decl) / x->cols;
    if (!o->config.groups[p->decl.group].whole)
        update_resident(o, x, groups, r);
    else if (x->first % (rows * x->cols) == 0)
        update_whole(o, x, rows, groups, r);
}

void zo_step(zo_t *o, const zo_step_t *args, zo_report_t *out) {
    zo_report_t *r = out;
    o->t++;
    for (uint32_t id = 0; id < o->n_params; id++)
        o->params[id].is_behind |= o->params[id].is_held;
    for (uint32_t i = 0; i < o->n_matrices; i++) {
        zo_matrix_t *x = &o->matrices[i];
        x->is_sent = x->is_due ? ZO_SENT_LATER : ZO_NOT_SENT;
        x->is_due = 0;
        if (x->is_resident)
            x->is_sent = waits_for_fetch(o) ? ZO_SENT_FOR_FETCH : ZO_SENT_NOW;
    }
    if (args->is_epoch_end)
        o->epoch_end = o->t;
    end_gradients(o);         /* 1 */
    step_scalars(o, args, r); /* 2 */
    find_missing(o, r);
    zo_decide_closes(o);
    for (uint32_t id = 0; id < o->n_params; id++)
        if (o->params[id].was_present && r->is_applied)
            zo_see_edits(&o->params[id], o->params[id].w);
    for (uint32_t i = 0; i < o->n_matrices; i++) {
        zo_matrix_t *x = &o->matrices[i];
        int is_present = o->params[x->param].was_present;
        if (x->is_resident) {
            x->is_unfetched = x->is_sent == ZO_SENT_FOR_FETCH && is_present && r->is_applied && o->config.n_owners > 1;
            if (is_present && r->is_applied)
                update_of(o, x, args->groups, r);
            continue;
        }
        if (is_present && r->is_applied)
            take_record(o, x, args->unscale * r->clip_factor);
        zo_note_activity(o, x, is_present && r->is_applied);
        if (is_present)
            add_slot(o, x, args->groups, r); /* 3 */
        fetch(o, x);                         /* "Publishing at fetch" */
        enter_channels(o, x);                /* 4 */
        if (is_present && r->is_applied)
            run_ahead(o, x, args->groups, r); /* 5 */
        publish_due(o, x);                    /* 6 */
        if (o->closes[x->cohort])
            close_window(o, x); /* 7 */
    }
    o->is_close_due = 0;
    for (uint32_t j = 0; j < o->n_cohorts; j++)
        if (o->closes[j]) {
            o->opened[j] = o->t;
            o->is_close_due |= o->config.publish_lag != 0 && o->t > o->config.warm_up;
        }
    if (o->t == o->config.warm_up)
        count_records(o, r);
    zo_choose_due(o); /* 8 */
    if (o->t != o->config.warm_up)
        count_records(o, r); /* 9 */
}

void zo_discard(zo_t *o, int is_epoch_end) {
    if (is_epoch_end)
        o->epoch_end = o->t + 1;
    for (uint32_t id = 0; id < o->n_params; id++)
        o->params[id].is_delivered = 0;
}

/* ---- "Publishing at fetch" --------------------------------------------------------------------------------------- */

uint64_t zo_n_batch(const zo_decl_t *decl) {
    uint64_t n = 1;
    for (uint32_t i = 0; i < decl->n_batch_axes; i++)
        n *= (uint64_t)decl->shape[i];
    return n;
}

static int is_within(const zo_t *o, const zo_matrix_t *x, const zo_range_t *range) {
    const zo_param_t *p = &o->params[x->param];
    if (x->param != range->id || range->n_batches == 0)
        return x->param == range->id;
    uint64_t batch = x->first / (p->n_elems / zo_n_batch(&p->decl));
    return batch >= range->first_batch && batch - range->first_batch < range->n_batches;
}

int zo_has_slots(const zo_t *o, const zo_range_t *range) {
    for (uint32_t i = 0; i < o->n_matrices; i++)
        if (is_within(o, &o->matrices[i], range) && o->matrices[i].n_slots)
            return 1;
    return 0;
}

void zo_fetch(zo_t *o, const zo_range_t *range) {
    for (uint32_t i = 0; i < o->n_matrices; i++)
        if (is_within(o, &o->matrices[i], range))
            fetch(o, &o->matrices[i]);
}

int zo_is_unfetched(const zo_t *o, uint32_t id) {
    int found = 0;
    for (uint32_t i = 0; i < o->n_matrices; i++)
        if (o->matrices[i].param == id && o->matrices[i].is_unfetched)
            found |= o->matrices[i].is_resident ? 2 : 1;
    return found;
}

void zo_rest(zo_t *o) {
    for (uint32_t i = 0; i < o->n_matrices; i++)
        fetch(o, &o->matrices[i]);
}

/* ---- "Between steps" --------------------------------------------------------------------------------------------- */

/* The edits of a matrix become its masters; is_reset: its moments begin again. */
static void take_over(zo_t *o, zo_matrix_t *x, int is_reset) {
    zo_param_t *p = &o->params[x->param];
    uint64_t n = x->rows * x->cols;
    for (uint64_t i = x->first; i < x->first + n; i++)
        p->w[i] = edited(p, i);
    if (is_reset) {
        memset(p->m + x->first, 0, n * sizeof(float));
        memset(p->v + x->first, 0, n * sizeof(float));
        memset(x->n, 0, x->channels * sizeof *x->n);
    }
    zo_drop_slots(x);
    x->is_publish_due = x->is_unfetched = 0;
    for (uint64_t c = 0; c < x->channels; c++)
        if (x->is_selected[c])
            copy_to_device(o, x, c);
}

void zo_params_changed(zo_t *o, const zo_range_t *range, const void *visible, int is_reset) {
    zo_param_t *p = &o->params[range->id];
    for (uint32_t i = 0; i < o->n_matrices; i++)
        if (!is_within(o, &o->matrices[i], range))
            fetch(o, &o->matrices[i]);
    uint64_t size = zo_dtype_nbytes(p->decl.dtype), n = p->n_elems ? p->n_elems / zo_n_batch(&p->decl) : 0;
    uint64_t first = range->first_batch * n, end = range->n_batches ? first + range->n_batches * n : p->n_elems;
    if (end > first)
        memcpy((char *)p->visible + first * size, (const char *)visible + first * size, (end - first) * size);
    zo_accept(o, range->id);
    p->is_behind = 0;
    for (uint32_t i = 0; i < o->n_matrices; i++)
        if (is_within(o, &o->matrices[i], range))
            take_over(o, &o->matrices[i], is_reset);
}

void zo_write_back(zo_t *o, uint32_t id, const void *visible) {
    zo_overwrite(o, id, visible);
    o->params[id].is_written = 0;
}

void zo_overwrite(zo_t *o, uint32_t id, const void *visible) {
    zo_param_t *p = &o->params[id];
    if (p->n_elems)
        memcpy(p->visible, visible, p->n_elems * zo_dtype_nbytes(p->decl.dtype));
    p->is_written = !p->sees_edits;
}

void zo_hold(zo_t *o, uint32_t id, int is_held) { o->params[id].is_held = is_held; }

void zo_accept(zo_t *o, uint32_t id) { o->params[id].is_written = o->params[id].is_held = 0; }

void zo_flush(zo_t *o) {
    for (uint32_t i = 0; i < o->n_matrices; i++) {
        zo_matrix_t *x = &o->matrices[i];
        zo_replay_matrix(o, x, 0);
        x->is_publish_due = x->is_unfetched = x->is_due = 0;
        x->is_sent = ZO_SENT_NOW;
        for (uint64_t c = 0; c < x->channels && !o->params[x->param].sees_edits; c++)
            show(o, x, c, o->params[x->param].w);
    }
    if (o->t >= o->config.warm_up)
        o->base = o->t;
    o->is_close_due = 0;
    for (uint32_t j = 0; j < o->n_cohorts; j++)
        o->opened[j] = o->t;
}

void zo_adopt(zo_t *o, const uint32_t *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        zo_hold(o, ids[i], zo_is_written(o, ids[i]));
    zo_flush(o);
    for (uint32_t i = 0; i < n; i++) {
        if (!o->params[ids[i]].is_held)
            continue;
        for (uint32_t k = 0; k < o->n_matrices; k++)
            if (o->matrices[k].param == ids[i])
                take_over(o, &o->matrices[k], 0);
        zo_accept(o, ids[i]);
        o->params[ids[i]].is_behind = 0;
    }
}

void zo_load_device(zo_t *o, zo_matrix_t *x) {
    for (uint64_t c = 0; c < x->channels; c++)
        if (x->is_selected[c])
            copy_to_device(o, x, c);
}

void zo_save(zo_t *o) {
    int is_open = 0, has_windows = o->config.resident_nbytes != ZO_ALL_RESIDENT;
    for (uint32_t j = 0; has_windows && j < o->n_cohorts; j++)
        is_open |= o->opened[j] != o->t;
    if (is_open || (has_windows && o->is_close_due))
        zo_flush(o);
    o->saved = o->t;
}

void zo_loaded(zo_t *o) {
    o->has_stepped = 0;
    for (uint32_t id = 0; id < o->n_params; id++)
        if (o->params[id].is_trainable)
            zo_see_edits(&o->params[id], o->params[id].w);
    for (uint32_t i = 0; i < o->n_matrices; i++)
        for (uint64_t c = 0; c < o->matrices[i].channels; c++)
            show(o, &o->matrices[i], c, o->params[o->matrices[i].param].w);
}

void zo_export(const zo_t *o, uint32_t id, float *dst) {
    const zo_param_t *p = &o->params[id];
    float *m = zo_zeros(p->n_elems, sizeof *m), *v = zo_zeros(p->n_elems, sizeof *v);
    zo_see_edits(p, dst);
    memcpy(m, p->m, p->n_elems * sizeof *m);
    memcpy(v, p->v, p->n_elems * sizeof *v);
    for (uint32_t i = 0; i < o->n_matrices; i++) {
        const zo_matrix_t *x = &o->matrices[i];
        zo_target_t to = {.w = dst, .m = m, .v = v};
        if (x->param != id)
            continue;
        to.n = zo_zeros(x->channels, sizeof *x->n);
        memcpy(to.n, x->n, x->channels * sizeof *x->n);
        zo_replay(o, x, &to);
        free(to.n);
    }
    free(m);
    free(v);
}
