/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/lateness.c - measures lateness (contract in lateness.h).
 *
 * Which visible value a slot saw follows from SCHEDULE.md, "Step t". With publish_lag = 0 all slots of a window saw
 * what the close before it published: P. With publish_lag = 1 that becomes visible only at the end of the window's
 * first step, so the first slot saw what the slots before it saw. What warm-up and FLUSH publish is visible at once. A
 * channel that was selected until that close shows round(w), which its run-ahead wrote, until it is published for the
 * first time; one that enters becomes exact only with the window's first step, so that its first slot is late, too.
 *
 *   sampled.before  what a window's first slot saw, in all channels
 *   sampled.now     what its other slots saw, in the deferred ones
 *   sampled.coming  P of the last close, for the samples of the window after the next
 *
 * Sampled elements are gathered into a batch, with fp32 moments as in a replay, and updated slot by slot there. */
#include "replay/lateness.h"

#include <string.h>

#include "replay/replay_slots.h"

enum { BLOCK = ZFI_SAMPLED_BLOCK, BATCH = 256 };

void zfi_lateness_start(const zfi_replays_t *replays, uint32_t n_params, uint32_t n_groups) {
    zfi_engine_t *engine = replays->engine;
    const zfi_plan_t *plan = replays->plan;
    const zfi_clock_t *clock = replays->windows->clock;
    if (replays->sampled->every)
        memset(replays->sampled->n_known, 0, plan->n_chunks * sizeof *replays->sampled->n_known);
    zfi_meter_start(&engine->meter, zfi_counts_lateness(engine, zfi_params_have_callback(replays->params, n_params)),
                    zfi_lateness_size(engine, n_groups, plan->n_cohorts), clock->t + clock->steps_before);
    for (uint32_t c = 0; c < plan->n_cohorts; c++)
        if (plan->cohorts[c].n_chunks == 0)
            zfi_meter_close(&engine->meter, c, UINT64_MAX);
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

/* The sampled elements of a chunk, block by block: [begin, end) of the chunk, kept from `at` on. */
typedef struct sample {
    uint32_t begin, end;
    uint64_t at;
} sample_t;

/* splitmix64's mix. */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Sample i of a chunk's window; 0 where there are no more. An empty one has begin = end. */
static int find_sample(const zfi_plan_t *plan, const zfi_sampled_t *sampled, uint32_t number, uint32_t window,
                       uint32_t i, sample_t *out) {
    uint64_t every = sampled->every, n_elems = plan->chunks[number].n_elems;
    uint64_t first = i * every * BLOCK;
    if (first >= n_elems)
        return 0;
    first += mix(((uint64_t)number << 32 | window) * 0x9E3779B97F4A7C15u + i) % every * BLOCK;
    first = first < n_elems ? first : n_elems;
    *out = (sample_t){(uint32_t)first, (uint32_t)(n_elems - first < BLOCK ? n_elems : first + BLOCK),
                      sampled->base[number] + (uint64_t)i * BLOCK};
    return 1;
}

static int is_all_selected(const zfi_matrix_t *matrix) {
    return !matrix->is_choosable && matrix->k == matrix->n_channels;
}

/* weight[e] = 1 where element first + e of the segment lies in a deferred channel, else 0. */
static void find_deferred(const zfi_replay_view_t *view, const zfi_segment_t *segment, uint32_t first, uint32_t n,
                          float *weight) {
    const zfi_matrix_t *matrix = &view->matrices[segment->matrix];
    const uint8_t *mask = view->mask + matrix->channel_base;
    uint64_t row = (segment->matrix_offset + first) / matrix->cols;
    uint64_t col = (segment->matrix_offset + first) % matrix->cols;
    uint32_t length;
    for (uint32_t e = 0; e < n; e += length, col = 0, row++) {
        length = matrix->cols - col < n - e ? (uint32_t)(matrix->cols - col) : n - e;
        for (uint32_t i = 0; i < length; i++)
            weight[e + i] = (float)(1 - mask[matrix->channels_are_rows ? row : col + i]);
    }
}

/* The segment of a chunk that holds element e, or the next one; from `from` on. */
static uint32_t segment_of(const zfi_replay_view_t *view, uint32_t from, uint32_t end, uint32_t e) {
    while (from < end && view->segments[from].chunk_offset + view->segments[from].n_elems <= e)
        from++;
    return from;
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

/* Sampled elements that take the same slots with the same scalars. */
typedef struct batch {
    uint32_t n;
    uint32_t n_parts, from[BATCH], of[BATCH]; /* where its parts begin in the chunk, and how long they are */
    float w[BATCH], m[BATCH], v[BATCH], now[BATCH], before[BATCH], weight[BATCH];
    uint32_t grads[BATCH]; /* one slot's gradient of them */
} batch_t;

typedef struct measuring {
    const zfi_replays_t *replays;
    const zfi_replay_view_t *view;
    const zfi_close_t *close;
    const zfi_chunk_t *chunk;
    zfi_segment_slots_t slots; /* of the batch's elements: those of ... */
    uint32_t segment;          /* ... this one, pointers to ... */
    uint32_t slots_offset;     /* ... this element of the chunk */
    uint32_t n_before;
    int knows_before;
    batch_t batch;
} measuring_t;

static void gather_grads(measuring_t *job, uint32_t k) {
    size_t elem = zfi_dtype_nbytes(job->chunk->grad_dtype);
    const unsigned char *from = (const unsigned char *)job->slots.grads[k] - job->slots_offset * elem;
    unsigned char *to = (unsigned char *)job->batch.grads;
    for (uint32_t i = 0; i < job->batch.n_parts; i++, to += job->batch.of[i - 1] * elem)
        memcpy(to, from + job->batch.from[i] * elem, job->batch.of[i] * elem);
}

/* Slot number `slot` of the window was the k-th that counts. */
static void measure_slot(measuring_t *job, uint32_t slot, uint32_t k) {
    batch_t *batch = &job->batch;
    int is_first = slot == 0;
    const zfi_step_row_t *row = job->slots.rows[k];
    const void *grads = batch->grads;
    zfi_lateness_t lateness = {.w = batch->w,
                               .visible = is_first ? batch->before : batch->now,
                               .weight = is_first ? NULL : batch->weight,
                               .grad = grads,
                               .grad_dtype = job->chunk->grad_dtype,
                               .visible_dtype = job->chunk->dtype,
                               .n_elems = batch->n};
    zfi_replay_t update = {.w = batch->w,
                           .m = batch->m,
                           .v = job->replays->n_moments > 1 ? batch->v : NULL,
                           .grads = &grads,
                           .scalars = zfi_replay_scalars(&job->slots, job->n_before) + k,
                           .n_slots = 1,
                           .grad_dtype = job->chunk->grad_dtype,
                           .n_elems = batch->n};
    gather_grads(job, k);
    if (!is_first || job->knows_before)
        zfi_meter_add(&job->replays->engine->meter, row->t + job->replays->windows->clock->steps_before,
                      job->slots.group,
                      row->unscale * job->replays->sampled->every * job->view->kernels->lateness(&lateness));
    if (k + 1 < job->slots.n)
        job->view->kernels->replay[job->slots.rule->number](&update);
}

static void measure_batch(measuring_t *job) {
    uint32_t k = 0;
    for (uint32_t slot = 0; slot < job->close->n_slots && job->batch.n; slot++)
        if (job->slots.pattern >> slot & 1)
            measure_slot(job, slot, k++);
    job->batch.n = job->batch.n_parts = 0;
}

/* The batch's elements are updated as this segment's are, or it is measured and begins anew. */
static void turn_to(measuring_t *job, uint32_t number) {
    const zfi_segment_t *segment = &job->view->segments[number];
    if (number == job->segment ||
        (job->batch.n && zfi_replay_is_alike(job->view, job->close, &job->slots, job->n_before, segment)))
        return;
    measure_batch(job);
    zfi_replay_find_slots(job->view, job->close, segment, &job->slots);
    job->segment = number;
    job->slots_offset = segment->chunk_offset;
    job->n_before = job->view->n[segment->matrix];
}

static void widen_moments(const zfi_replay_view_t *view, void *moments, uint64_t first, uint32_t n, float *out) {
    zfi_dtype_t dtype = view->moments == ZFI_MOMENTS_F32 ? ZFI_F32 : ZFI_BF16;
    if (moments)
        view->kernels->widen(out, zfi_moment_at(view->moments, moments, first), dtype, n);
}

/* Elements [begin, end) of the chunk, of one segment, kept from `at` on. */
static void add_part(measuring_t *job, const zfi_segment_t *segment, uint32_t begin, uint32_t end, uint64_t at) {
    const zfi_sampled_t *sampled = job->replays->sampled;
    batch_t *batch = &job->batch;
    uint32_t n = end - begin, to = batch->n;
    const zfi_chunk_state_t *state = &job->replays->host->chunks[segment->chunk];
    find_deferred(job->view, segment, begin - segment->chunk_offset, n, batch->weight + to);
    memcpy(batch->w + to, state->w + begin, n * sizeof(float));
    widen_moments(job->view, state->m, begin, n, batch->m + to);
    widen_moments(job->view, state->v, begin, n, batch->v + to);
    memcpy(batch->now + to, sampled->now + at, n * sizeof(float));
    memcpy(batch->before + to, sampled->before + at, n * sizeof(float));
    batch->from[batch->n_parts] = begin;
    batch->of[batch->n_parts++] = n;
    batch->n += n;
}

/* The segments that a sample meets, as much of each at a time as the batch has room for. */
static void add_sample(measuring_t *job, const sample_t *sample, uint32_t *at_segment) {
    uint32_t end = job->chunk->first_segment + job->chunk->n_segments;
    *at_segment = segment_of(job->view, *at_segment, end, sample->begin);
    for (uint32_t i = *at_segment; i < end && job->view->segments[i].chunk_offset < sample->end; i++) {
        const zfi_segment_t *segment = &job->view->segments[i];
        uint32_t begin = segment->chunk_offset, stop = begin + segment->n_elems, n;
        begin = begin > sample->begin ? begin : sample->begin;
        stop = stop < sample->end ? stop : sample->end;
        if (is_all_selected(&job->view->matrices[segment->matrix]))
            continue;
        turn_to(job, i);
        for (; begin < stop; begin += n) {
            n = stop - begin < BATCH - job->batch.n ? stop - begin : BATCH - job->batch.n;
            add_part(job, segment, begin, begin + n, sample->at + (begin - sample->begin));
            if (job->batch.n == BATCH)
                measure_batch(job);
        }
    }
}

/* Brings the lines of a sample that is measured soon near. */
static void prefetch_sample(const zfi_chunk_state_t *state, zfi_moments_t kind, const sample_t *sample) {
    size_t moment = zfi_moments_nbytes(kind);
    for (uint32_t e = sample->begin; e < sample->end; e += 16) {
        __builtin_prefetch(state->w + e);
        if (state->m)
            __builtin_prefetch(state->m + e * moment);
        if (state->v)
            __builtin_prefetch(state->v + e * moment);
    }
}

void zfi_lateness_measure(const zfi_replays_t *replays, const zfi_replay_view_t *view, const zfi_close_t *close,
                          uint32_t number) {
    const zfi_chunk_t *chunk = &view->chunks[number];
    const zfi_sampled_t *sampled = replays->sampled;
    measuring_t job;
    uint32_t window, segment = chunk->first_segment;
    sample_t sample;
    if (!sampled->every || close->is_warm_up || close->n_slots == 0 || !sampled->n_known[number])
        return;
    job.replays = replays;
    job.view = view;
    job.close = close;
    job.chunk = chunk;
    job.slots.group = UINT32_MAX; /* nothing else is read before it is found */
    job.slots.has_scalars = job.slots.has_mean = 0;
    job.slots.pattern = 0;
    job.segment = UINT32_MAX;
    job.n_before = 0;
    job.knows_before = sampled->n_known[number] > 1 || sampled->lag == 0;
    job.batch.n = job.batch.n_parts = 0;
    window = sampled->window[number];
    for (uint32_t i = 0; find_sample(replays->plan, sampled, number, window, i, &sample); i++)
        prefetch_sample(&replays->host->chunks[number], view->moments, &sample);
    for (uint32_t i = 0; find_sample(replays->plan, sampled, number, window, i, &sample); i++)
        add_sample(&job, &sample, &segment);
    measure_batch(&job);
}

/* ---- keeping what becomes visible -------------------------------------------------------------------------------- */

/* out[e] = round(w) in the chunk's type, widened. */
static void round_weights(const zfi_replay_view_t *view, zfi_dtype_t dtype, const float *w, uint32_t n, float *out) {
    uint32_t bits[BLOCK];
    view->kernels->narrow(bits, dtype, w, n);
    view->kernels->widen(out, bits, dtype, n);
}

/* Elements of a sample that were selected in this window show round(w), in `out`, until they are published. */
static void show_selected(const zfi_replay_view_t *view, const zfi_chunk_t *chunk, const sample_t *sample,
                          const float *rounded, uint32_t *at_segment, float *out) {
    uint32_t end = chunk->first_segment + chunk->n_segments;
    *at_segment = segment_of(view, *at_segment, end, sample->begin);
    for (uint32_t i = *at_segment; i < end && view->segments[i].chunk_offset < sample->end; i++) {
        const zfi_segment_t *segment = &view->segments[i];
        uint32_t begin = segment->chunk_offset, stop = begin + segment->n_elems;
        float weight[BLOCK];
        begin = begin > sample->begin ? begin : sample->begin;
        stop = stop < sample->end ? stop : sample->end;
        find_deferred(view, segment, begin - segment->chunk_offset, stop - begin, weight);
        for (uint32_t e = begin; e < stop; e++)
            if (weight[e - begin] == 0)
                out[e - sample->begin] = rounded[e - sample->begin];
    }
}

/* The next window's samples. */
static void keep_next(const zfi_plan_t *plan, zfi_sampled_t *sampled, const zfi_replay_view_t *view,
                      const zfi_close_t *close, uint32_t number, const zfi_replay_target_t *target) {
    const zfi_chunk_t *chunk = &view->chunks[number];
    uint32_t segment = chunk->first_segment, window = sampled->window[number];
    int is_at_once = close->is_warm_up || close->publishes_all;
    sample_t sample;
    for (uint32_t i = 0; find_sample(plan, sampled, number, window, i, &sample); i++) {
        uint32_t n = sample.end - sample.begin;
        float *now = sampled->now + sample.at, *before = sampled->before + sample.at, rounded[BLOCK];
        view->kernels->widen(now, target->visible + sample.begin * zfi_dtype_nbytes(chunk->dtype), chunk->dtype, n);
        round_weights(view, chunk->dtype, target->w + sample.begin, n, rounded);
        if (is_at_once) {
            memcpy(before, now, n * sizeof *before);
        } else if (sampled->lag == 1) {
            memcpy(before, sampled->coming + sample.at, n * sizeof *before);
            show_selected(view, chunk, &sample, rounded, &segment, before);
        } else {
            show_selected(view, chunk, &sample, rounded, &segment, now);
            memcpy(before, now, n * sizeof *before);
        }
    }
}

void zfi_lateness_keep(const zfi_plan_t *plan, zfi_sampled_t *sampled, const zfi_replay_view_t *view,
                       const zfi_close_t *close, uint32_t number, const zfi_replay_target_t *target) {
    const zfi_chunk_t *chunk = &view->chunks[number];
    sample_t sample;
    if (!sampled->every)
        return;
    sampled->window[number]++;
    keep_next(plan, sampled, view, close, number, target);
    for (uint32_t i = 0; find_sample(plan, sampled, number, sampled->window[number] + 1, i, &sample); i++)
        view->kernels->widen(sampled->coming + sample.at,
                             target->visible + sample.begin * zfi_dtype_nbytes(chunk->dtype), chunk->dtype,
                             sample.end - sample.begin);
    if (close->is_warm_up || close->publishes_all)
        sampled->n_known[number] = 2;
    else if (sampled->n_known[number] < 2)
        sampled->n_known[number]++;
}

void zfi_lateness_forget(const zfi_plan_t *plan, zfi_sampled_t *sampled, uint32_t first_matrix, uint32_t n_matrices) {
    for (uint32_t i = 0; i < plan->n_segments && sampled->every; i++)
        if (plan->segments[i].matrix - first_matrix < n_matrices)
            sampled->n_known[plan->segments[i].chunk] = 0;
}
