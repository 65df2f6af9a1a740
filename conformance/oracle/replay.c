/* SPDX-License-Identifier: Apache-2.0 */
/* oracle/replay.c - SCHEDULE.md, "Replay of a matrix", "Prediction" and "Moments": the open slots taken into the state,
 * or into a copy of it, and what is then published. */
#include "state.h"

static uint32_t group_of(const zo_t *o, const zo_matrix_t *x) { return o->params[x->param].decl.group; }

static void replay_channel(const zo_t *o, const zo_matrix_t *x, uint64_t c, const zo_target_t *to) {
    for (uint32_t j = 0; j < x->n_slots; j++) {
        const zo_slot_t *slot = &x->slots[j];
        if (!slot->is_applied)
            continue;
        zo_scalars_t k = zo_scalars_of(&o->config, group_of(o, x), &slot->hyper, slot->s, ++to->n[c]);
        for (uint64_t i = 0; i < zo_depth(x); i++) {
            uint64_t at = zo_at(x, c, i), e = x->first + at;
            zo_update(zo_number(x->param, e), &to->w[e], &to->m[e], &to->v[e], slot->grad[at], &k);
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
    if (!last)
        return;
    zo_scalars_t k = zo_scalars_of(&o->config, group_of(o, x), &last->hyper, 1.0f, ++to->n[c]);
    for (uint64_t i = 0; i < zo_depth(x); i++) {
        uint64_t at = zo_at(x, c, i), e = x->first + at;
        zo_update(zo_number(x->param, e), &to->w[e], &to->m[e], &to->v[e], mean_grad(x, at), &k);
    }
}

void zo_replay(const zo_t *o, const zo_matrix_t *x, const zo_target_t *to) {
    int is_warm_up = o->t <= o->config.warm_up;
    for (uint64_t c = 0; c < x->channels; c++)
        if (o->config.is_mean && !is_warm_up && !x->is_selected[c])
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
            k = zo_scalars_of(&o->config, group_of(o, x), &last->hyper, last->s, x->n[c]);
        for (uint64_t i = 0; i < zo_depth(x); i++) {
            uint64_t e = x->first + zo_at(x, c, i);
            p->published[e] = last ? zo_predicted(p->w[e], p->m[e], p->v[e], &k) : p->w[e];
        }
    }
}

static void round_element(const zo_t *o, const zo_matrix_t *x, uint64_t e, float *m, float *v) {
    uint32_t r = zo_random32(o->t + o->late, zo_number(x->param, e));
    m[e] = zo_round_moment(m[e], o->config.moments, r & 0xFFFFu);
    v[e] = zo_round_moment(v[e], o->config.moments, r >> 16);
}

/* The run that begins at element e of a parameter. */
static void round_run(const zo_t *o, zo_param_t *p, uint64_t e, const uint32_t of_m[128], const uint32_t of_v[128]) {
    zo_round_run_m(p->m + e, of_m);
    if (o->config.moments == ZO_MOMENTS_INT8)
        zo_round_run_v(p->v + e, of_v);
    for (int i = 0; o->config.moments != ZO_MOMENTS_INT8 && i < 128; i++)
        p->v[e + (uint64_t)i] = zo_round_moment(p->v[e + (uint64_t)i], ZO_MOMENTS_STOCHASTIC, of_v[i] >> 16);
}

static void round_runs(zo_t *o, const zo_matrix_t *x) {
    zo_param_t *p = &o->params[x->param];
    uint32_t of_m[128], of_v[128];
    for (uint64_t e = x->first; e < x->first + x->rows * x->cols; e += 128) {
        uint64_t index = zo_number(x->param, e);
        zo_run_randoms(o->t + o->late, index, of_m);
        zo_run_randoms(o->t + o->late, index + 1, of_v);
        round_run(o, p, e, of_m, of_v);
    }
}

void zo_round_runs_to_nearest(zo_t *o, const zo_matrix_t *x) {
    zo_param_t *p = &o->params[x->param];
    uint32_t half[128];
    for (int i = 0; i < 128; i++)
        half[i] = 0x80000000u;
    for (uint64_t e = x->first; e < x->first + x->rows * x->cols; e += 128) {
        zo_round_run_m(p->m + e, half);
        if (o->config.moments == ZO_MOMENTS_INT8)
            zo_round_run_v(p->v + e, half);
        for (uint64_t i = e; o->config.moments != ZO_MOMENTS_INT8 && i < e + 128; i++)
            p->v[i] = zo_round_moment(p->v[i], ZO_MOMENTS_BF16, 0);
    }
}

void zo_round_moments(zo_t *o, zo_matrix_t *x, int has_update) {
    zo_param_t *p = &o->params[x->param];
    if (o->config.moments >= ZO_MOMENTS_INT8) {
        if (x->is_in_runs && has_update)
            round_runs(o, x);
        return;
    }
    for (uint64_t c = 0; o->config.moments != ZO_MOMENTS_F32 && c < x->channels; c++)
        for (uint64_t i = 0; i < zo_depth(x); i++) {
            uint64_t e = x->first + zo_at(x, c, i);
            round_element(o, x, e, p->m, p->v);
            if (x->is_selected[c])
                round_element(o, x, e, p->device_m, p->device_v);
        }
}

void zo_replay_matrix(zo_t *o, zo_matrix_t *x, int is_predicted) {
    zo_param_t *p = &o->params[x->param];
    zo_target_t to = {.w = p->w, .m = p->m, .v = p->v, .n = x->n};
    int has_update = last_applied(x) != NULL;
    zo_replay(o, x, &to);
    prepare_publish(o, x, is_predicted);
    zo_drop_slots(x);
    zo_round_moments(o, x, has_update);
}
