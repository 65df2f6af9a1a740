/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/replay_mean.c - mode = mean: channels that are not selected take one update from the mean of the
 * window's gradients (contract in deferral.h; rules in SCHEDULE.md, "Replay").
 *
 * Model: a segment is cut into stretches of channels that share their count of updates and their way of updating. Where
 * columns are channels and differ, neighbours in memory share nothing: see replay_columns.c. */
#include "replay/deferral.h"
#include "replay/replay_columns.h"

/* Whether channel c of a matrix is updated by its slots' mean. */
static int is_by_mean(const zfi_replay_view_t *view, const zfi_close_t *close, const zfi_matrix_t *matrix, uint64_t c) {
    return !close->is_warm_up && !view->mask[matrix->channel_base + c];
}

/* ---- stretches --------------------------------------------------------------------------------------------------- */

static const zfi_scalars_t *mean_scalars(zfi_segment_slots_t *slots, uint32_t n_before) {
    if (slots->has_mean && slots->n_before_mean == n_before)
        return &slots->mean_scalars;
    zfi_hyper_t hyper = slots->rows[slots->n - 1]->hyper[slots->group];
    slots->mean_scalars = zfi_rule_scalars((zfi_rule_t)slots->rule->number, &hyper, 1.0f, n_before + 1);
    for (uint32_t k = 0; k < slots->n; k++)
        slots->s[k] = slots->rows[k]->scalars.s;
    slots->n_before_mean = n_before;
    slots->has_mean = 1;
    return &slots->mean_scalars;
}

/* One update from the mean of the slots. */
static uint64_t replay_by_mean(const zfi_replay_view_t *view, const zfi_segment_t *segment,
                               const zfi_stretch_t *stretch, zfi_segment_slots_t *slots,
                               const zfi_replay_target_t *target) {
    const void *grads[ZFI_MOST_SLOTS], *mean = target->scratch;
    zfi_replay_t job = zfi_replay_job(view, segment, stretch, slots, target, grads);
    job.scalars = mean_scalars(slots, stretch->n_before);
    view->kernels->mean_grad(target->scratch, grads, job.grad_dtype, slots->s, slots->n, stretch->n_elems);
    job.grads = &mean;
    job.n_slots = 1;
    job.grad_dtype = ZFI_F32;
    return zfi_replay_make(view, slots, slots->n - 1, stretch->n_before, &job);
}

static int channels_alike(const zfi_replay_view_t *view, const zfi_close_t *close, const zfi_matrix_t *matrix,
                          uint64_t a, uint64_t b) {
    const uint32_t *n = view->n + matrix->count_base;
    return n[a] == n[b] && is_by_mean(view, close, matrix, a) == is_by_mean(view, close, matrix, b);
}

/* The run from `offset` on: all that is left, or the rest of one row that is a channel. */
static zfi_stretch_t next_stretch(const zfi_replay_view_t *view, const zfi_close_t *close, const zfi_segment_t *segment,
                                  const zfi_matrix_t *matrix, int all_alike, uint32_t offset, int *out_by_mean) {
    uint64_t linear = segment->matrix_offset + offset, row = linear / matrix->cols, col = linear % matrix->cols;
    uint64_t first = matrix->channels_are_rows ? row : col;
    zfi_stretch_t stretch = {
        .offset = offset, .n_before = view->n[matrix->count_base + first], .key = zfi_rounding_key(close->step)};
    uint64_t length = segment->n_elems - offset;
    if (!all_alike && matrix->cols - col < length)
        length = matrix->cols - col;
    stretch.n_elems = (uint32_t)length;
    *out_by_mean = is_by_mean(view, close, matrix, first);
    return stretch;
}

static uint64_t replay_columns(const zfi_replay_view_t *view, const zfi_close_t *close, const zfi_segment_t *segment,
                               const zfi_segment_slots_t *slots, const zfi_replay_target_t *target) {
    zfi_hyper_t hyper[ZFI_MOST_SLOTS];
    float s[ZFI_MOST_SLOTS];
    zfi_replay_columns_t job = {view, close, segment, slots->rule, slots->grads, hyper, s, slots->n, target};
    for (uint32_t k = 0; k < slots->n; k++) {
        hyper[k] = slots->rows[k]->hyper[slots->group];
        s[k] = slots->rows[k]->scalars.s;
    }
    return zfi_replay_columns(&job);
}

static uint64_t replay_segment(const zfi_replay_view_t *view, const zfi_close_t *close, const zfi_segment_t *segment,
                               zfi_segment_slots_t *slots, const zfi_replay_target_t *target) {
    const zfi_matrix_t *matrix = &view->matrices[segment->matrix];
    uint64_t bad = UINT64_MAX;
    int all_alike = 1;
    for (uint64_t c = 1; c < matrix->n_channels && all_alike; c++)
        all_alike = channels_alike(view, close, matrix, 0, c);
    if (slots->n == 0)
        all_alike = 1; /* nothing is updated */
    if (!all_alike && !matrix->channels_are_rows)
        return replay_columns(view, close, segment, slots, target);
    for (uint32_t offset = 0; offset < segment->n_elems && bad == UINT64_MAX;) {
        int by_mean;
        zfi_stretch_t stretch = next_stretch(view, close, segment, matrix, all_alike, offset, &by_mean);
        bad = (by_mean && slots->n ? replay_by_mean : zfi_replay_stretch)(view, segment, &stretch, slots, target);
        offset += stretch.n_elems;
    }
    return bad;
}

static uint32_t replay_one(const zfi_replay_view_t *view, const zfi_close_t *close, uint32_t first, uint32_t end,
                           zfi_segment_slots_t *slots, const zfi_replay_target_t *target, uint32_t *out_bad) {
    (void)end;
    *out_bad = replay_segment(view, close, &view->segments[first], slots, target) == UINT64_MAX ? first + 1 : first;
    return first + 1;
}

static uint32_t count(const zfi_replay_view_t *view, const zfi_close_t *close, const zfi_matrix_t *matrix,
                      uint32_t channel, uint32_t n) {
    return is_by_mean(view, close, matrix, channel) ? n > 0 : n;
}

const zfi_deferral_t zfi_deferral_mean = {replay_one, count, zfi_replay_columns_scratch};
