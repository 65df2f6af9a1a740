/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/replay.c - one chunk of a closed window (contract in replay.h; rules in SCHEDULE.md, "Replay").
 *
 * Cost: one call of the kernel for all neighbours in the chunk that are updated alike, so that many small parameters
 * cost what one large one does: their ends meet no vector tails, their records are asked for ahead of their turn. */
#include "replay/replay.h"

#include <math.h>
#include <string.h>

#include "instance/callback.h"
#include "instance/moments.h"
#include "replay/deferral.h"

enum { MOST_SLOTS = ZFI_MOST_SLOTS, SEGMENTS_AHEAD = 4 };

typedef zfi_segment_slots_t slots_t;

/* [ZFI_DEFERRED_...] Where nothing is deferred, no window has a slot. */
static const zfi_deferral_t *const deferrals[] = {
    [ZFI_DEFERRED_REPLAY] = &zfi_deferral_replay, [ZFI_DEFERRED_MEAN] = &zfi_deferral_mean};

void zfi_replay_settings(const zfi_config_t *config, zfi_replay_view_t *out) {
    out->deferral = deferrals[config->deferred];
    out->predict = zfi_config_predict(config);
}

void zfi_replay_view(const zfi_replays_t *replays, zfi_replay_view_t *out) {
    const zfi_plan_t *plan = replays->plan;
    *out = (zfi_replay_view_t){
        .kernels = replays->engine->kernels,
        .params = replays->params,
        .matrices = plan->matrices,
        .segments = plan->segments,
        .chunks = plan->chunks,
        .cohorts = plan->cohorts,
        .cohort_matrices = plan->cohort_matrices,
        .n = replays->host->n,
        .mask = replays->sel->mask,
        .rows = replays->windows->rows,
        .slots = replays->windows->slots,
    };
    zfi_replay_settings(&replays->engine->config, out);
}

static const zfi_step_row_t *row_of(const zfi_replay_view_t *view, uint64_t t) {
    return view->expected && view->expected->t == t ? view->expected : zfi_row(view->rows, t);
}

static int counts(const zfi_step_row_t *row, uint32_t param) { return row->present[param] && row->scalars.applied; }

/* Updates that a window makes to a matrix of this parameter. */
static uint32_t n_updates(const zfi_replay_view_t *view, const zfi_close_t *close, uint32_t param) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < close->n_slots; k++) {
        const zfi_step_row_t *row = row_of(view, close->first_step + k);
        n += (uint32_t)counts(row, param);
    }
    return n;
}

/* Bit k: slot k of the window counts for this parameter. */
static uint64_t pattern_of(const zfi_replay_view_t *view, const zfi_close_t *close, uint32_t param) {
    uint64_t pattern = 0;
    for (uint32_t k = 0; k < close->n_slots; k++)
        if (counts(row_of(view, close->first_step + k), param))
            pattern |= (uint64_t)1 << k;
    return pattern;
}

void zfi_replay_find_slots(const zfi_replay_view_t *view, const zfi_close_t *close, const zfi_segment_t *segment,
                           slots_t *slots) {
    const zfi_param_t *param = &view->params[view->matrices[segment->matrix].param];
    size_t elem = zfi_dtype_nbytes(param->grad_dtype);
    uint64_t pattern = pattern_of(view, close, param->id);
    slots->n = 0;
    for (uint32_t k = 0; k < close->n_slots; k++) {
        if (!(pattern >> k & 1))
            continue;
        const unsigned char *of_chunk =
            slots->carried ? slots->carried : zfi_slot(view->slots, &view->chunks[segment->chunk], close->table, k);
        slots->grads[slots->n] = of_chunk + segment->chunk_offset * elem;
        slots->rows[slots->n++] = row_of(view, close->first_step + k);
    }
    if (pattern != slots->pattern || param->group != slots->group)
        slots->has_scalars = slots->has_mean = 0;
    slots->pattern = pattern;
    slots->group = param->group;
    slots->rule = param->rule;
}

const zfi_scalars_t *zfi_replay_scalars(slots_t *slots, uint32_t n_before) {
    if (slots->has_scalars && slots->n_before == n_before)
        return slots->scalars;
    for (uint32_t k = 0; k < slots->n; k++) {
        zfi_hyper_t hyper = slots->rows[k]->hyper[slots->group];
        slots->scalars[k] =
            zfi_rule_scalars((zfi_rule_t)slots->rule->number, &hyper, slots->rows[k]->scalars.s, n_before + k + 1);
    }
    slots->n_before = n_before;
    slots->has_scalars = 1;
    return slots->scalars;
}

/* ---- a stretch --------------------------------------------------------------------------------------------------- */

zfi_replay_t zfi_replay_job(const zfi_replay_view_t *view, const zfi_segment_t *segment, const zfi_stretch_t *stretch,
                            const slots_t *slots, const zfi_replay_target_t *target, const void **grads) {
    const zfi_matrix_t *matrix = &view->matrices[segment->matrix];
    zfi_dtype_t grad_dtype = view->params[matrix->param].grad_dtype;
    uint32_t at = segment->chunk_offset + stretch->offset;
    for (uint32_t k = 0; k < slots->n; k++)
        grads[k] = (const unsigned char *)slots->grads[k] + stretch->offset * zfi_dtype_nbytes(grad_dtype);
    return (zfi_replay_t){
        .w = target->w + at,
        .m = zfi_moment_at(matrix->moments, ZFI_M, target->m, at),
        .v = zfi_moment_at(matrix->moments, ZFI_V, target->v, at),
        .grads = grads,
        .n_slots = slots->n,
        .grad_dtype = grad_dtype,
        .visible = target->visible ? target->visible + at * zfi_dtype_nbytes(matrix->place.dtype) : NULL,
        .visible_dtype = matrix->place.dtype,
        .n_elems = stretch->n_elems,
        .moments = matrix->moments,
        .key = stretch->key,
        .first_index = matrix->rounding_base + matrix->param_offset + segment->matrix_offset + stretch->offset,
    };
}

/* A rule of the host's updates in place. */
static void bring(const zfi_replay_t *job) {
    if (!job->from)
        return;
    memcpy(job->w, job->from->w, job->n_elems * sizeof(float));
    if (job->m)
        memcpy(job->m, job->from->m, zfi_moment_nbytes(job->moments, ZFI_M, job->n_elems));
    if (job->v)
        memcpy(job->v, job->from->v, zfi_moment_nbytes(job->moments, ZFI_V, job->n_elems));
}

uint64_t zfi_replay_make(const zfi_replay_view_t *view, const slots_t *slots, uint32_t first, uint32_t n_before,
                         const zfi_replay_t *job) {
    zfi_hyper_t hyper[MOST_SLOTS];
    zfi_callback_window_t window = {.n_before = n_before, .hyper = hyper};
    if (slots->rule->number != ZF_RULE_CALLBACK)
        return view->kernels->replay[slots->rule->number](job);
    bring(job);
    for (uint32_t k = 0; k < job->n_slots; k++)
        hyper[k] = slots->rows[first + k]->hyper[slots->group];
    return zfi_callback_replay(slots->rule, view->kernels, job, &window);
}

uint64_t zfi_replay_stretch(const zfi_replay_view_t *view, const zfi_segment_t *segment, const zfi_stretch_t *stretch,
                            slots_t *slots, const zfi_replay_target_t *target) {
    const void *grads[MOST_SLOTS];
    uint32_t at = segment->chunk_offset + stretch->offset;
    zfi_replay_from_t from;
    zfi_replay_t job = zfi_replay_job(view, segment, stretch, slots, target, grads);
    if (target->from) {
        from = (zfi_replay_from_t){target->from->w + at, zfi_moment_at(job.moments, ZFI_M, target->from->m, at),
                                   zfi_moment_at(job.moments, ZFI_V, target->from->v, at)};
        job.from = &from;
        if (job.v && !zfi_rule_has_v((zfi_rule_t)slots->rule->number)) /* another group's rule has one */
            memcpy(job.v, from.v, zfi_moment_nbytes(job.moments, ZFI_V, job.n_elems));
    }
    job.scalars = zfi_replay_scalars(slots, stretch->n_before);
    job.has_predict = stretch->predict > 0 && slots->n > 0 && zfi_rule_has_v((zfi_rule_t)slots->rule->number);
    if (job.has_predict) /* from the window's last applied step */
        job.predict = zfi_rule_predict(&slots->rows[slots->n - 1]->hyper[slots->group], stretch->n_before + slots->n,
                                       stretch->predict);
    return zfi_replay_make(view, slots, 0, stretch->n_before, &job);
}

/* ---- neighbours -------------------------------------------------------------------------------------------------- */

/* Brings the records of a segment a few places ahead near: they lie apart, and memory was just streamed through. */
static void prefetch_records(const zfi_replay_view_t *view, uint32_t i, uint32_t end) {
    const zfi_segment_t *segments = view->segments;
    if (i + 2 * SEGMENTS_AHEAD < end) {
        __builtin_prefetch(&view->matrices[segments[i + 2 * SEGMENTS_AHEAD].matrix].param);
        __builtin_prefetch(&view->n[segments[i + 2 * SEGMENTS_AHEAD].matrix]);
    }
    if (i + SEGMENTS_AHEAD < end) {
        const zfi_param_t *param = &view->params[view->matrices[segments[i + SEGMENTS_AHEAD].matrix].param];
        __builtin_prefetch(&param->id);
        __builtin_prefetch(&param->group);
    }
}

int zfi_replay_is_alike(const zfi_replay_view_t *view, const zfi_close_t *close, const slots_t *slots,
                        uint32_t n_before, const zfi_segment_t *segment) {
    const zfi_param_t *param = &view->params[view->matrices[segment->matrix].param];
    return view->n[segment->matrix] == n_before && param->group == slots->group &&
           pattern_of(view, close, param->id) == slots->pattern;
}

/* The end of the segments from `first` on that take the same slots with the same scalars; slots: those of `first`. */
static uint32_t alike_end(const zfi_replay_view_t *view, const zfi_close_t *close, const slots_t *slots, uint32_t first,
                          uint32_t end) {
    const zfi_segment_t *segments = view->segments;
    uint32_t n_before = view->n[segments[first].matrix], i = first + 1;
    if (zfi_is_stochastic(view->matrices[segments[first].matrix].moments) || slots->rule->number == ZF_RULE_CALLBACK)
        return i; /* elements of two matrices are not numbered on; the host is to see no gaps */
    for (; i < end; i++) {
        prefetch_records(view, i, end);
        if (!zfi_replay_is_alike(view, close, slots, n_before, &segments[i]))
            break;
    }
    return i;
}

/* The first segment in [first, end) with a non-finite weight, or end. */
static uint32_t first_nonfinite(const zfi_replay_view_t *view, uint32_t first, uint32_t end, const float *w) {
    for (; first < end; first++) {
        const zfi_segment_t *segment = &view->segments[first];
        for (uint32_t e = 0; e < segment->n_elems; e++)
            if (!isfinite(w[segment->chunk_offset + e]))
                return first;
    }
    return end;
}

static void clear_gaps(const zfi_replay_view_t *view, uint32_t first, uint32_t end, const zfi_replay_target_t *target) {
    for (; first + 1 < end; first++) {
        const zfi_segment_t *segment = &view->segments[first];
        uint32_t at = segment->chunk_offset + segment->n_elems;
        size_t n = segment[1].chunk_offset - at;
        memset(target->w + at, 0, n * sizeof(float));
        zfi_moments_t kind = view->matrices[segment->matrix].moments; /* not in runs, which are not updated alike */
        if (target->m)
            memset(zfi_moment_at(kind, ZFI_M, target->m, at), 0, zfi_moment_nbytes(kind, ZFI_M, n));
        if (target->v)
            memset(zfi_moment_at(kind, ZFI_V, target->v, at), 0, zfi_moment_nbytes(kind, ZFI_V, n));
    }
}

static int predicts(const zfi_close_t *close) { return !close->is_warm_up && !close->publishes_all; }

/* Segments [first, end) in one call. The gaps between them, up to ZFI_STATE_ALIGN - 1 elements that belong to none, go
 * along with whatever their slots hold; nobody reads them. Should one become non-finite, it is cleared and no error.
 * Returns the first segment with a non-finite weight, or end. */
static uint32_t replay_alike(const zfi_replay_view_t *view, const zfi_close_t *close, uint32_t first, uint32_t end,
                             slots_t *slots, const zfi_replay_target_t *target) {
    const zfi_segment_t *segment = &view->segments[first], *last = &view->segments[end - 1];
    zfi_stretch_t all = {.n_elems = last->chunk_offset + last->n_elems - segment->chunk_offset,
                         .n_before = view->n[segment->matrix],
                         .key = zfi_rounding_key(close->step),
                         .predict = predicts(close) ? view->predict : 0};
    uint64_t first_bad = zfi_replay_stretch(view, segment, &all, slots, target);
    if (first_bad == UINT64_MAX)
        return end;
    uint32_t bad = first_nonfinite(view, first, end, target->w);
    if (bad == end)
        clear_gaps(view, first, end, target);
    return bad;
}

static uint32_t replay_neighbours(const zfi_replay_view_t *view, const zfi_close_t *close, uint32_t first, uint32_t end,
                                  slots_t *slots, const zfi_replay_target_t *target, uint32_t *out_bad) {
    uint32_t next = alike_end(view, close, slots, first, end);
    *out_bad = replay_alike(view, close, first, next, slots, target);
    return next;
}

static uint32_t count_all(const zfi_replay_view_t *view, const zfi_close_t *close, const zfi_matrix_t *matrix,
                          uint32_t channel, uint32_t n) {
    (void)view, (void)close, (void)matrix, (void)channel;
    return n;
}

const zfi_deferral_t zfi_deferral_replay = {replay_neighbours, count_all, NULL};

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

uint64_t zfi_replay_scratch(const zfi_replay_view_t *view, uint64_t n_elems) {
    return view->deferral->scratch_elems ? view->deferral->scratch_elems(n_elems) : 0;
}

/* The host's own rule failed: what it left is not used. */
static int has_failed(const slots_t *slots) {
    return slots->rule->number == ZF_RULE_CALLBACK && zfi_is_poisoned(slots->rule->engine);
}

/* The gradients of a chunk whose matrices carry them, as its slot would have them: where they lie, or of several
 * matrices in room. */
static const unsigned char *gather(const zfi_replay_view_t *view, const zfi_chunk_t *chunk, unsigned char *room) {
    size_t elem = zfi_dtype_nbytes(chunk->dtype);
    for (uint32_t i = 0; i < chunk->n_segments; i++) {
        const zfi_segment_t *segment = &view->segments[chunk->first_segment + i];
        const unsigned char *at = view->matrices[segment->matrix].place.visible;
        at += segment->matrix_offset * elem;
        if (chunk->n_segments == 1)
            return at;
        memcpy(room + segment->chunk_offset * elem, at, segment->n_elems * elem);
    }
    return room;
}

zf_status_t zfi_replay_chunk(const zfi_replay_view_t *view, const zfi_close_t *close, uint32_t number,
                             const zfi_replay_target_t *target, zfi_replayed_t *out) {
    const zfi_chunk_t *chunk = &view->chunks[number];
    const zfi_segment_t *segments = view->segments;
    uint32_t end = chunk->first_segment + chunk->n_segments, next;
    slots_t slots = {.group = UINT32_MAX};
    *out = (zfi_replayed_t){0};
    if (target->gathered && close->n_slots)
        slots.carried = gather(view, chunk, target->gathered);
    for (uint32_t i = chunk->first_segment; i < end; i = next) {
        uint32_t bad;
        zfi_replay_find_slots(view, close, &segments[i], &slots);
        next = view->deferral->replay(view, close, i, end, &slots, target, &bad);
        if (has_failed(&slots))
            return ZF_ERR_POISONED;
        if (bad != next) {
            out->nonfinite_matrix = segments[bad].matrix;
            return ZF_ERR_NONFINITE;
        }
        for (; i < next; i++)
            out->n_elems += (uint64_t)segments[i].n_elems * slots.n;
    }
    return ZF_OK;
}

void zfi_replay_count(const zfi_replay_view_t *view, const zfi_close_t *close) {
    const zfi_cohort_plan_t *cohort = &view->cohorts[close->cohort];
    for (uint32_t i = 0; i < cohort->n_matrices; i++) {
        const zfi_matrix_t *matrix = &view->matrices[view->cohort_matrices[cohort->first_matrix + i]];
        uint32_t n = n_updates(view, close, matrix->param);
        for (uint32_t c = 0; c < matrix->n_counts; c++)
            view->n[matrix->count_base + c] += view->deferral->count(view, close, matrix, c, n);
    }
}

uint32_t zfi_replay_count_of(const zfi_replay_view_t *view, const zfi_close_t *close, uint32_t number,
                             uint32_t channel) {
    const zfi_matrix_t *matrix = &view->matrices[number];
    uint32_t n = n_updates(view, close, matrix->param);
    return view->n[zfi_count_at(matrix, channel)] + view->deferral->count(view, close, matrix, channel, n);
}
