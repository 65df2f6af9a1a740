/* oracle.c - plugin/SCHEDULE.md from "Step t" on, section by section. Read them side by side.
 *
 * Where the page leaves a choice, the reading taken stands at the place, marked "Reading:". Compiled with
 * -ffp-contract=off: every product and sum rounds where it is written. */
#include "oracle_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* visible = round(src) of one channel; src is an array of the whole parameter. */
static void show(zo_t *o, const zo_matrix_t *x, uint64_t c, const float *src) {
    zo_param_t *p = &o->params[x->param];

    for (uint64_t i = 0; i < zo_depth(x); i++) {
        uint64_t e = x->first + zo_at(x, c, i);

        zo_narrow(p->visible, p->decl.dtype, e, src[e]);
    }
}

static void show_deferred(zo_t *o, const zo_matrix_t *x, const float *src) {
    for (uint64_t c = 0; c < x->channels; c++)
        if (!x->is_selected[c])
            show(o, x, c, src);
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
            sumsq += zo_linear_sum(p->grad, p->n_elems, 1);
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

    for (uint64_t c = 0; c < x->channels; c++)
        x->record[c] = s_t * (x->channels_are_rows ? zo_linear_sum(g + c * x->cols, x->cols, 0)
                                                   : zo_column_sum(g, x->rows, x->cols, c));
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
        zo_scalars_t k;

        if (!x->is_selected[c])
            continue;
        k = zo_scalars_of(&o->config, &groups[p->decl.group], r->s, ++x->device_n[c]);
        for (uint64_t i = 0; i < zo_depth(x); i++) {
            uint64_t e = x->first + zo_at(x, c, i);

            zo_update(&p->device_w[e], &p->device_m[e], &p->device_v[e], p->grad[e], &k);
        }
        show(o, x, c, p->device_w);
    }
}

/* ---- Replay ------------------------------------------------------------------------------------------------------ */

typedef struct zo_target { /* what a replay updates: the state itself, or a copy of it for export */
    float *w, *m, *v;      /* of the whole parameter */
    uint32_t *n;           /* [channels] of the matrix */
} zo_target_t;

static void replay_channel(const zo_t *o, const zo_matrix_t *x, uint64_t c, const zo_target_t *to) {
    for (uint32_t j = 0; j < x->n_slots; j++) {
        const zo_slot_t *slot = &x->slots[j];
        zo_scalars_t k;

        if (!slot->is_applied)
            continue;
        k = zo_scalars_of(&o->config, &slot->hyper, slot->s, ++to->n[c]);
        for (uint64_t i = 0; i < zo_depth(x); i++) {
            uint64_t e = zo_at(x, c, i);

            zo_update(&to->w[x->first + e], &to->m[x->first + e], &to->v[x->first + e], slot->grad[e], &k);
        }
    }
}

static float mean_grad(const zo_matrix_t *x, uint64_t e) {
    float sum = 0.0f, count = 0.0f;

    for (uint32_t j = 0; j < x->n_slots; j++) {
        float term = x->slots[j].grad[e] * x->slots[j].s;

        if (!x->slots[j].is_applied)
            continue;
        sum = count == 0.0f ? term : sum + term;
        count += 1.0f;
    }
    return sum / count;
}

static const zo_slot_t *last_applied(const zo_matrix_t *x) {
    const zo_slot_t *last = NULL;

    for (uint32_t j = 0; j < x->n_slots; j++)
        if (x->slots[j].is_applied)
            last = &x->slots[j];
    return last;
}

static void mean_channel(const zo_t *o, const zo_matrix_t *x, uint64_t c, const zo_target_t *to) {
    const zo_slot_t *last = last_applied(x);
    zo_hyper_t hyper;
    zo_scalars_t k;

    if (!last)
        return;
    hyper = last->hyper;
    hyper.lr *= o->config.deferred_lr_scale;
    k = zo_scalars_of(&o->config, &hyper, 1.0f, ++to->n[c]);
    for (uint64_t i = 0; i < zo_depth(x); i++) {
        uint64_t e = zo_at(x, c, i);

        zo_update(&to->w[x->first + e], &to->m[x->first + e], &to->v[x->first + e], mean_grad(x, e), &k);
    }
}

/* What is left of a sum after its way down. */
static float sent(const zo_t *o, const zo_matrix_t *x, float sum) {
    uint16_t rounded;

    if (!o->config.is_summed_on_device || zo_dtype_nbytes(o->params[x->param].decl.grad_dtype) == 4)
        return sum;
    zo_narrow(&rounded, ZO_BF16, 0, sum);
    return zo_widen(&rounded, ZO_BF16, 0);
}

/* The means of s*g and (s*g)^2 of an element over the applied slots. */
static void means(const zo_t *o, const zo_matrix_t *x, uint64_t e, float *g1, float *g2) {
    float sum1 = 0.0f, sum2 = 0.0f, count = 0.0f;

    for (uint32_t j = 0; j < x->n_slots; j++) {
        float p = x->slots[j].grad[e] * x->slots[j].s;

        if (!x->slots[j].is_applied)
            continue;
        sum1 = count == 0.0f ? p : sum1 + p;
        sum2 = count == 0.0f ? p * p : fmaf(p, p, sum2);
        count += 1.0f;
    }
    *g1 = sent(o, x, sum1) / count;
    *g2 = sent(o, x, sum2) / count;
}

static void moments_channel(const zo_t *o, const zo_matrix_t *x, uint64_t c, const zo_target_t *to) {
    uint32_t n_before = to->n[c];

    for (uint32_t j = 0; j < x->n_slots; j++)
        to->n[c] += (uint32_t)x->slots[j].is_applied;
    for (uint64_t i = 0; to->n[c] > n_before && i < zo_depth(x); i++) {
        uint64_t e = zo_at(x, c, i), at = x->first + e;
        uint32_t n = n_before;
        float g1, g2;

        means(o, x, e, &g1, &g2);
        for (uint32_t j = 0; j < x->n_slots; j++)
            if (x->slots[j].is_applied) {
                zo_scalars_t k = zo_scalars_of(&o->config, &x->slots[j].hyper, 1.0f, ++n);

                zo_update_by_means(&to->w[at], &to->m[at], &to->v[at], g1, g2, &k);
            }
    }
}

static int is_by_moments(const zo_t *o) { return o->config.is_moments && o->config.update_interval > 1; }

static void replay(const zo_t *o, const zo_matrix_t *x, const zo_target_t *to) {
    int is_warm_up = o->t <= o->config.warm_up;

    for (uint64_t c = 0; c < x->channels; c++)
        if (is_by_moments(o) && !is_warm_up)
            moments_channel(o, x, c, to);
        else if (o->config.is_mean && !is_warm_up && !x->is_selected[c])
            mean_channel(o, x, c, to);
        else
            replay_channel(o, x, c, to);
}

/* P of the window: w, or where prediction sees it; before the moments are rounded. */
static void prepare_publish(zo_t *o, zo_matrix_t *x, int is_predicted) {
    zo_param_t *p = &o->params[x->param];
    const zo_slot_t *last = is_predicted ? last_applied(x) : NULL;

    for (uint64_t c = 0; c < x->channels; c++) {
        zo_scalars_t k = {0};

        if (last)
            k = zo_scalars_of(&o->config, &last->hyper, last->s, x->n[c]);
        for (uint64_t i = 0; i < zo_depth(x); i++) {
            uint64_t e = x->first + zo_at(x, c, i);

            p->published[e] = last ? zo_predicted(p->w[e], p->m[e], p->v[e], &k) : p->w[e];
        }
    }
}

static void round_element(const zo_t *o, const zo_matrix_t *x, uint64_t e, float *m, float *v) {
    uint32_t r = zo_random32(o->t, ((uint64_t)x->param << 40) + e);

    m[e] = zo_round_moment(m[e], o->config.moments, r & 0xFFFFu);
    v[e] = zo_round_moment(v[e], o->config.moments, r >> 16);
}

static void round_moments(zo_t *o, zo_matrix_t *x) {
    zo_param_t *p = &o->params[x->param];

    for (uint64_t c = 0; o->config.moments != ZO_MOMENTS_F32 && c < x->channels; c++)
        for (uint64_t i = 0; i < zo_depth(x); i++) {
            uint64_t e = x->first + zo_at(x, c, i);

            round_element(o, x, e, p->m, p->v);
            if (x->is_selected[c])
                round_element(o, x, e, p->device_m, p->device_v);
        }
}

static void replay_matrix(zo_t *o, zo_matrix_t *x, int is_predicted) {
    zo_param_t *p = &o->params[x->param];
    zo_target_t to = {.w = p->w, .m = p->m, .v = p->v, .n = x->n};

    replay(o, x, &to);
    prepare_publish(o, x, is_predicted);
    zo_drop_slots(x);
    round_moments(o, x);
}

/* ---- "Step t": 6 to 9, "When windows close" ---------------------------------------------------------------------- */

static void publish_due(zo_t *o, zo_matrix_t *x) {
    if (x->is_publish_due)
        show_deferred(o, x, o->params[x->param].published);
    x->is_publish_due = 0;
}

static void close_window(zo_t *o, zo_matrix_t *x) {
    int is_warm_up = o->t <= o->config.warm_up;

    replay_matrix(o, x, o->config.predict > 0 && !is_warm_up);
    x->is_publish_due = 1;
    if (o->config.publish_lag == 0 || is_warm_up)
        publish_due(o, x);
}

static int is_choice_due(const zo_t *o, uint32_t cohort) {
    uint64_t interval = o->config.select_interval;

    if (o->t <= o->config.warm_up)
        return o->t == o->config.warm_up;
    if (o->config.strategy == ZO_SELECT_EPOCH)
        return o->closes[cohort] && o->epoch_end > o->last_choice[cohort];
    if (interval == 0)
        interval = 4 * o->config.update_interval;
    return o->closes[cohort] && o->t - o->last_choice[cohort] >= interval;
}

/* The k channels with the largest importance, ties by lower index. The caller frees it. */
static uint8_t *best_of(const zo_matrix_t *x) {
    uint8_t *is_best = zo_zeros(x->channels, 1);

    for (uint64_t i = 0; i < x->k; i++) {
        uint64_t best = x->channels;

        for (uint64_t c = 0; c < x->channels; c++)
            if (!is_best[c] && (best == x->channels || x->importance[c] > x->importance[best]))
                best = c;
        is_best[best] = 1;
    }
    return is_best;
}

/* One exchange: the most important of the best that is out comes in for the least important that is in and not among
 * the best. 0: there is none left. */
static int exchange(zo_matrix_t *x, const uint8_t *is_best) {
    uint64_t in = x->channels, out = x->channels;

    for (uint64_t c = 0; c < x->channels; c++) {
        if (is_best[c] && !x->is_selected[c] && (in == x->channels || x->importance[c] > x->importance[in]))
            in = c;
        if (!is_best[c] && x->is_selected[c] && (out == x->channels || x->importance[c] <= x->importance[out]))
            out = c;
    }
    if (in == x->channels || out == x->channels)
        return 0;
    x->is_selected[in] = x->is_entering[in] = 1;
    x->is_selected[out] = 0;
    return 1;
}

static void choose(const zo_t *o, zo_matrix_t *x) {
    uint8_t *is_best = best_of(x);
    double swaps = floor(o->config.max_swap_ratio * (double)x->k + 0.5);

    if (o->t == o->config.warm_up)
        for (uint64_t c = 0; c < x->channels; c++)
            x->is_selected[c] = x->is_entering[c] = is_best[c];
    for (double i = 0; i < (swaps < 1 ? 1 : swaps); i++)
        exchange(x, is_best);
    free(is_best);
}

/* Strategy auto: whether the cohort's channels still hold enough of what the best ones would. */
static int is_kept(const zo_t *o, uint32_t cohort) {
    double held = 0.0, best = 0.0;

    if (o->config.strategy != ZO_SELECT_AUTO || o->t == o->config.warm_up)
        return 0;
    for (uint32_t i = 0; i < o->n_matrices; i++) {
        const zo_matrix_t *x = &o->matrices[i];
        double of_selected = 0.0, of_best = 0.0;
        uint8_t *is_best;

        if (x->cohort != cohort || x->k == 0 || x->k == x->channels)
            continue;
        is_best = best_of(x);
        for (uint64_t c = 0; c < x->channels; c++) {
            of_selected += x->is_selected[c] ? x->importance[c] * x->importance[c] : 0.0;
            of_best += is_best[c] ? x->importance[c] * x->importance[c] : 0.0;
        }
        free(is_best);
        held += of_selected;
        best += of_best;
    }
    return held >= o->config.reselect_below * best;
}

static void choose_cohort(zo_t *o, uint32_t cohort) {
    int keeps = is_kept(o, cohort);

    for (uint32_t i = 0; i < o->n_matrices; i++) {
        zo_matrix_t *x = &o->matrices[i];

        if (x->cohort != cohort)
            continue;
        if (!keeps)
            choose(o, x);
        memset(x->importance, 0, x->channels * sizeof *x->importance);
    }
    o->last_choice[cohort] = o->t;
}

/* The smallest k that holds the share j / 64 of the energy. energies: largest first. */
static uint64_t k_of_share(const zo_t *o, const zo_matrix_t *x, const double *energies, int j) {
    double norm = o->config.energy * ((double)j / 64.0), total = 0.0, held = 0.0;
    uint64_t k = 0;

    for (uint64_t c = 0; c < x->channels; c++)
        total += energies[c];
    do
        held += energies[k++];
    while (held < norm * norm * total);
    return k;
}

static int larger_first(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x < y) - (x > y);
}

/* topk_ratio = auto: k of every open matrix. */
static void decide_k(zo_t *o) {
    double **energies = zo_zeros(o->n_matrices, sizeof *energies);
    uint64_t n_elems = 0, n_open = 0;

    for (uint32_t i = 0; i < o->n_matrices; i++) {
        zo_matrix_t *x = &o->matrices[i];

        energies[i] = zo_zeros(x->channels, sizeof(double));
        for (uint64_t c = 0; c < x->channels; c++)
            energies[i][c] = x->importance[c] * x->importance[c];
        qsort(energies[i], x->channels, sizeof(double), larger_first);
        n_open += x->is_open ? x->rows * x->cols : 0;
    }
    for (int j = 64; j >= 0; j--) {
        n_elems = 0;
        for (uint32_t i = 0; i < o->n_matrices; i++) {
            zo_matrix_t *x = &o->matrices[i];

            if (!x->is_open)
                continue;
            x->k = k_of_share(o, x, energies[i], j);
            n_elems += x->k * zo_depth(x);
        }
        if ((double)n_elems <= o->config.max_topk_ratio * (double)n_open)
            break;
    }
    for (uint32_t i = 0; i < o->n_matrices; i++)
        free(energies[i]);
    free(energies);
}

static void choose_due(zo_t *o) {
    if (o->t == o->config.warm_up && o->config.is_topk_auto)
        decide_k(o);
    for (uint32_t j = 0; j < o->n_cohorts; j++)
        if (is_choice_due(o, j))
            choose_cohort(o, j);
}

static void count_records(zo_t *o, const zo_report_t *r) {
    for (uint32_t i = 0; i < o->n_matrices; i++) {
        zo_matrix_t *x = &o->matrices[i];

        for (uint64_t c = 0; r->is_applied && o->params[x->param].was_present && c < x->channels; c++)
            x->importance[c] += x->record[c];
    }
}

void zo_step(zo_t *o, const zo_step_t *args, zo_report_t *out) {
    zo_report_t *r = out;

    o->t++;
    if (args->is_epoch_end)
        o->epoch_end = o->t;
    end_gradients(o);         /* 1 */
    step_scalars(o, args, r); /* 2 */
    zo_decide_closes(o);
    for (uint32_t i = 0; i < o->n_matrices; i++) {
        zo_matrix_t *x = &o->matrices[i];
        int is_present = o->params[x->param].was_present;

        if (is_present && r->is_applied)
            take_record(o, x, args->unscale * r->clip_factor);
        zo_note_activity(o, x, is_present && r->is_applied);
        if (is_present)
            add_slot(o, x, args->groups, r); /* 3 */
        enter_channels(o, x);                /* 4 */
        if (is_present && r->is_applied)
            run_ahead(o, x, args->groups, r); /* 5 */
        publish_due(o, x);                    /* 6 */
        if (o->closes[x->cohort])
            close_window(o, x); /* 7 */
    }
    for (uint32_t j = 0; j < o->n_cohorts; j++)
        if (o->closes[j])
            o->opened[j] = o->t;
    if (o->t == o->config.warm_up)
        count_records(o, r);
    choose_due(o); /* 8 */
    if (o->t != o->config.warm_up)
        count_records(o, r); /* 9 */
}

void zo_discard(zo_t *o, int is_epoch_end) {
    if (is_epoch_end)
        o->epoch_end = o->t + 1;
    for (uint32_t id = 0; id < o->n_params; id++)
        o->params[id].is_delivered = 0;
}

/* ---- "Between steps" --------------------------------------------------------------------------------------------- */

void zo_params_changed(zo_t *o, uint32_t id, const void *visible, int is_reset) {
    zo_param_t *p = &o->params[id];

    if (p->n_elems)
        memcpy(p->visible, visible, p->n_elems * zo_dtype_nbytes(p->decl.dtype));
    if (!p->is_trainable)
        return;
    for (uint64_t i = 0; i < p->n_elems; i++)
        p->w[i] = zo_widen(visible, p->decl.dtype, i);
    if (is_reset) {
        memset(p->m, 0, p->n_elems * sizeof(float));
        memset(p->v, 0, p->n_elems * sizeof(float));
    }
    for (uint32_t i = 0; i < o->n_matrices; i++) {
        zo_matrix_t *x = &o->matrices[i];

        if (x->param != id)
            continue;
        zo_drop_slots(x);
        x->is_publish_due = 0;
        if (is_reset)
            memset(x->n, 0, x->channels * sizeof *x->n);
        for (uint64_t c = 0; c < x->channels; c++)
            if (x->is_selected[c])
                copy_to_device(o, x, c);
    }
}

void zo_flush(zo_t *o) {
    for (uint32_t i = 0; i < o->n_matrices; i++) {
        zo_matrix_t *x = &o->matrices[i];

        replay_matrix(o, x, 0);
        x->is_publish_due = 0;
        for (uint64_t c = 0; c < x->channels; c++) {
            show(o, x, c, o->params[x->param].w);
            if (is_by_moments(o) && x->is_selected[c])
                copy_to_device(o, x, c);
        }
    }
    if (o->t >= o->config.warm_up)
        o->base = o->t;
    for (uint32_t j = 0; j < o->n_cohorts; j++)
        o->opened[j] = o->t;
}

void zo_restart(zo_t *o) {
    zo_flush(o);
    o->steps_before += o->t;
    o->t = o->epoch_end = 0;
    o->base = o->config.warm_up;
    memset(o->last_choice, 0, sizeof o->last_choice);
    for (uint32_t i = 0; i < o->n_matrices; i++) {
        zo_matrix_t *x = &o->matrices[i];

        memset(x->is_selected, 0, x->channels);
        memset(x->is_entering, 0, x->channels);
        memset(x->importance, 0, x->channels * sizeof *x->importance);
    }
}

void zo_export(const zo_t *o, uint32_t id, float *dst) {
    const zo_param_t *p = &o->params[id];
    float *m = zo_zeros(p->n_elems, sizeof *m), *v = zo_zeros(p->n_elems, sizeof *v);

    memcpy(dst, p->w, p->n_elems * sizeof *dst);
    memcpy(m, p->m, p->n_elems * sizeof *m);
    memcpy(v, p->v, p->n_elems * sizeof *v);
    for (uint32_t i = 0; i < o->n_matrices; i++) {
        const zo_matrix_t *x = &o->matrices[i];
        zo_target_t to = {.w = dst, .m = m, .v = v};

        if (x->param != id)
            continue;
        to.n = zo_zeros(x->channels, sizeof *x->n);
        memcpy(to.n, x->n, x->channels * sizeof *x->n);
        replay(o, x, &to);
        free(to.n);
    }
    free(m);
    free(v);
}
