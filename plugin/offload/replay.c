/* plugin/offload/replay.c - one chunk of a closed window (contract in replay.h; rules in SCHEDULE.md, "Replay").
 *
 * Cost: one call of the kernel for all neighbours in the chunk that are updated alike, so that many small parameters
 * cost what one large one does: their ends meet no vector tails, and their records are asked for ahead of their turn.
 */
#include "offload/replay.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "callback.h"
#include "device/device.h"
#include "error.h"
#include "fault.h"
#include "offload/replay_columns.h"

enum { MOST_SLOTS = 64, SEGMENTS_AHEAD = 4 };

/* The slots of one segment that count: pointers to its gradients and the scalars of each update. Scalars are kept from
 * one segment to the next while nothing they depend on has changed, which is the common case with many small
 * parameters. */
typedef struct slots {
    uint32_t n;
    const void *grads[MOST_SLOTS];
    const zfi_step_row_t *rows[MOST_SLOTS];
    zfi_scalars_t scalars[MOST_SLOTS], mean_scalars;
    float s[MOST_SLOTS];
    uint64_t pattern; /* which slots of the window these are */
    uint32_t group;
    uint32_t n_before, n_before_mean; /* updates before the window that scalars were made for */
    int has_scalars, has_mean;
} slots_t;

static int counts(const zfi_step_row_t *row, uint32_t param) {
    return row->present[param] && (row->scalars.applied || ZFI_FAULT_SKIPPED_REPLAYED);
}

/* Updates that a window makes to a matrix of this parameter. */
static uint32_t n_updates(zf_instance_t *inst, const zfi_close_t *close, uint32_t param) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < close->n_slots; k++) {
        const zfi_step_row_t *row = zfi_row(inst, close->first_step + k);
        n += counts(row, param) || (ZFI_FAULT_HOLE_COUNTED_IN_N && !row->present[param]);
    }
    return n;
}

static int is_dropped(const zfi_close_t *close) { return ZFI_FAULT_DEFERRED_DROPPED && !close->is_warm_up; }

/* The window keeps sums in place of slots. */
static int is_by_moments(const zf_instance_t *inst, const zfi_close_t *close) {
    return zfi_is_moments(inst) && !close->is_warm_up;
}

/* Bit k: slot k of the window counts for this parameter. */
static uint64_t pattern_of(zf_instance_t *inst, const zfi_close_t *close, uint32_t param) {
    uint64_t pattern = 0;
    for (uint32_t k = 0; k < close->n_slots && !is_dropped(close); k++)
        if (counts(zfi_row(inst, close->first_step + k), param))
            pattern |= (uint64_t)1 << k;
    return pattern;
}

static void find_slots(zf_instance_t *inst, const zfi_close_t *close, const zfi_segment_t *segment, slots_t *slots) {
    const zfi_param_t *param = &inst->params[inst->plan.matrices[segment->matrix].param];
    const int32_t *table = zfi_slot_table(inst, segment->chunk, close->table);
    size_t elem = zfi_dtype_nbytes(param->grad_dtype);
    uint64_t pattern = pattern_of(inst, close, param->id);
    slots->n = 0;
    for (uint32_t k = 0; k < close->n_slots; k++) {
        if (!(pattern >> k & 1))
            continue;
        if (!is_by_moments(inst, close))
            slots->grads[slots->n] = zfi_piece(inst, table[k]) + segment->chunk_offset * elem;
        slots->rows[slots->n++] = zfi_row(inst, close->first_step + k);
    }
    if (ZFI_FAULT_SLOTS_SWAPPED && slots->n >= 2 && !is_by_moments(inst, close)) {
        const void *first = slots->grads[0];
        slots->grads[0] = slots->grads[1];
        slots->grads[1] = first;
    }
    if (pattern != slots->pattern || param->group != slots->group)
        slots->has_scalars = slots->has_mean = 0;
    slots->pattern = pattern;
    slots->group = param->group;
}

static const zfi_scalars_t *replay_scalars(const zf_instance_t *inst, slots_t *slots, uint32_t n_before) {
    if (slots->has_scalars && slots->n_before == n_before)
        return slots->scalars;
    for (uint32_t k = 0; k < slots->n; k++) {
        zfi_hyper_t hyper = slots->rows[k]->hyper[slots->group];
        if (ZFI_FAULT_LAST_LR_FOR_ALL)
            hyper.lr = slots->rows[slots->n - 1]->hyper[slots->group].lr;
        slots->scalars[k] =
            zfi_rule_scalars((zfi_rule_t)inst->rule, &hyper, slots->rows[k]->scalars.s, n_before + k + 1);
    }
    slots->n_before = n_before;
    slots->has_scalars = 1;
    return slots->scalars;
}

static const zfi_scalars_t *mean_scalars(const zf_instance_t *inst, slots_t *slots, uint32_t n_before) {
    zfi_hyper_t hyper;
    if (slots->has_mean && slots->n_before_mean == n_before)
        return &slots->mean_scalars;
    hyper = slots->rows[slots->n - 1]->hyper[slots->group];
    hyper.lr *= inst->config.deferred_lr_scale;
    slots->mean_scalars = zfi_rule_scalars((zfi_rule_t)inst->rule, &hyper, 1.0f, n_before + 1);
    for (uint32_t k = 0; k < slots->n; k++)
        slots->s[k] = slots->rows[k]->scalars.s;
    slots->n_before_mean = n_before;
    slots->has_mean = 1;
    return &slots->mean_scalars;
}

/* A run of elements, at the same offset in the segment's slots and in the chunk, that share n and a way of updating. */
typedef struct run {
    uint32_t offset; /* from the segment's start */
    uint32_t n_elems;
    uint32_t n_before;
    int by_mean;
    uint64_t key;     /* of the close's rounding of moments */
    uint32_t predict; /* steps that what is published looks ahead; 0 = none */
} run_t;

static uint64_t call_back(const zf_instance_t *inst, const slots_t *slots, const run_t *run, const zfi_replay_t *job) {
    zfi_hyper_t hyper[MOST_SLOTS];
    zfi_callback_window_t window = {.group = slots->group, .n_before = run->n_before, .hyper = hyper};
    for (uint32_t k = 0; k < slots->n; k++)
        hyper[k] = slots->rows[k]->hyper[slots->group];
    if (run->by_mean && slots->n) {
        hyper[0] = hyper[slots->n - 1];
        hyper[0].lr *= inst->config.deferred_lr_scale;
    }
    return zfi_callback_replay(inst, job, &window);
}

static uint64_t replay_run(zf_instance_t *inst, const zfi_segment_t *segment, const run_t *run, slots_t *slots,
                           const zfi_replay_target_t *target) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[segment->matrix];
    zfi_dtype_t grad_dtype = inst->params[matrix->param].grad_dtype;
    const void *grads[MOST_SLOTS], *mean = target->scratch;
    uint32_t at = segment->chunk_offset + run->offset;
    zfi_replay_t job = {
        .w = target->w + at,
        .m = zfi_moment_at(inst, target->m, at),
        .v = zfi_moment_at(inst, target->v, at),
        .grads = grads,
        .n_slots = slots->n,
        .grad_dtype = grad_dtype,
        .visible = target->visible ? target->visible + at * zfi_dtype_nbytes(matrix->place.dtype) : NULL,
        .visible_dtype = matrix->place.dtype,
        .n_elems = run->n_elems,
        .moments = (zfi_moments_t)inst->config.moments,
        .key = run->key,
        .first_index = zfi_rounding_base(matrix->param) + matrix->param_offset + segment->matrix_offset + run->offset,
    };
    for (uint32_t k = 0; k < slots->n; k++)
        grads[k] = (const unsigned char *)slots->grads[k] + run->offset * zfi_dtype_nbytes(grad_dtype);
    if (run->by_mean && slots->n) {
        job.scalars = mean_scalars(inst, slots, run->n_before);
        inst->kernels->mean_grad(target->scratch, grads, grad_dtype, slots->s, slots->n, run->n_elems);
        job.grads = &mean;
        job.n_slots = 1;
        job.grad_dtype = ZFI_F32;
    } else {
        job.scalars = replay_scalars(inst, slots, run->n_before);
        job.has_predict = run->predict > 0 && slots->n > 0;
        if (job.has_predict)
            job.predict = zfi_rule_predict(&slots->rows[slots->n - 1]->hyper[slots->group], run->n_before + slots->n,
                                           run->predict);
    }
    if (inst->rule == ZF_RULE_CALLBACK)
        return call_back(inst, slots, run, &job);
    return inst->kernels->replay[inst->rule](&job);
}

/* Adds this step's slot, the last of slots, to the sums. */
static void add_slot(zf_instance_t *inst, const zfi_close_t *close, const zfi_segment_t *segment, const run_t *run,
                     const slots_t *slots, const zfi_replay_target_t *target) {
    const zfi_param_t *param = &inst->params[inst->plan.matrices[segment->matrix].param];
    const zfi_step_row_t *row = zfi_row(inst, close->step);
    int32_t piece = zfi_slot_table(inst, segment->chunk, close->table)[0];
    uint32_t at = segment->chunk_offset;
    int is_first = slots->n == 1 && (!ZFI_FAULT_SUMS_NOT_RESTARTED || row->t == inst->config.full_warm_up_rounds + 1);
    if (counts(row, param->id))
        inst->kernels->accumulate_sums((float *)target->sum1 + at, (float *)target->sum2 + at,
                                       zfi_piece(inst, piece) + at * zfi_dtype_nbytes(param->grad_dtype),
                                       param->grad_dtype, row->scalars.s, run->n_elems, is_first);
}

static uint64_t replay_sums(zf_instance_t *inst, const zfi_close_t *close, const zfi_segment_t *segment,
                            const run_t *run, slots_t *slots, const zfi_replay_target_t *target) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[segment->matrix];
    uint32_t at = segment->chunk_offset;
    size_t elem = zfi_dtype_nbytes(target->sum_dtype);
    const void *sums[2] = {(unsigned char *)target->sum1 + at * elem, (unsigned char *)target->sum2 + at * elem};
    zfi_replay_t job = {
        .w = target->w + at,
        .m = zfi_moment_at(inst, target->m, at),
        .v = zfi_moment_at(inst, target->v, at),
        .moments = (zfi_moments_t)inst->config.moments,
        .key = run->key,
        .first_index = zfi_rounding_base(matrix->param) + matrix->param_offset + segment->matrix_offset,
        .grads = sums,
        .n_slots = slots->n,
        .grad_dtype = target->sum_dtype,
        .visible = target->visible ? target->visible + at * zfi_dtype_nbytes(matrix->place.dtype) : NULL,
        .visible_dtype = matrix->place.dtype,
        .n_elems = run->n_elems,
    };
    if (close->takes_slot)
        add_slot(inst, close, segment, run, slots, target);
    if (close->is_sums_only)
        return UINT64_MAX;
    job.scalars = replay_scalars(inst, slots, run->n_before);
    return inst->kernels->replay_moments(&job);
}

/* Mean mode: whether channel c of a matrix is updated by its slots' mean. */
static int is_by_mean(const zf_instance_t *inst, const zfi_close_t *close, const zfi_matrix_t *matrix, uint64_t c) {
    return !close->is_warm_up && !inst->sel.mask[matrix->channel_base + c];
}

static int channels_alike(const zf_instance_t *inst, const zfi_close_t *close, const zfi_matrix_t *matrix, uint64_t a,
                          uint64_t b) {
    const uint32_t *n = inst->hs.n + matrix->channel_base;
    return n[a] == n[b] && is_by_mean(inst, close, matrix, a) == is_by_mean(inst, close, matrix, b);
}

/* The run from `offset` on: all that is left, or the rest of one row that is a channel. */
static run_t next_run(const zf_instance_t *inst, const zfi_close_t *close, const zfi_segment_t *segment,
                      const zfi_matrix_t *matrix, int all_alike, uint32_t offset) {
    uint64_t linear = segment->matrix_offset + offset, row = linear / matrix->cols, col = linear % matrix->cols;
    uint64_t first = matrix->channels_are_rows ? row : col;
    run_t run = {.offset = offset,
                 .n_before = inst->hs.n[matrix->channel_base + first],
                 .by_mean = is_by_mean(inst, close, matrix, first),
                 .key = zfi_rounding_key(close->step)};
    uint64_t length = segment->n_elems - offset;
    if (!all_alike && matrix->cols - col < length)
        length = matrix->cols - col;
    run.n_elems = (uint32_t)length;
    return run;
}

static uint64_t replay_columns(zf_instance_t *inst, const zfi_close_t *close, const zfi_segment_t *segment,
                               const slots_t *slots, const zfi_replay_target_t *target) {
    zfi_hyper_t hyper[MOST_SLOTS];
    float s[MOST_SLOTS];
    zfi_replay_columns_t job = {inst, close, segment, slots->grads, hyper, s, slots->n, target};
    for (uint32_t k = 0; k < slots->n; k++) {
        hyper[k] = slots->rows[k]->hyper[slots->group];
        if (ZFI_FAULT_LAST_LR_FOR_ALL)
            hyper[k].lr = slots->rows[slots->n - 1]->hyper[slots->group].lr;
        s[k] = slots->rows[k]->scalars.s;
    }
    return zfi_replay_columns(&job);
}

static uint64_t replay_segment_mean(zf_instance_t *inst, const zfi_close_t *close, const zfi_segment_t *segment,
                                    slots_t *slots, const zfi_replay_target_t *target) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[segment->matrix];
    uint64_t bad = UINT64_MAX;
    int all_alike = 1;
    for (uint64_t c = 1; c < matrix->n_channels && all_alike; c++)
        all_alike = channels_alike(inst, close, matrix, 0, c);
    if (slots->n == 0)
        all_alike = 1; /* nothing is updated */
    if (!all_alike && !matrix->channels_are_rows)
        return replay_columns(inst, close, segment, slots, target);
    for (uint32_t offset = 0; offset < segment->n_elems && (bad == UINT64_MAX || ZFI_FAULT_SKIPPED_REPLAYED);) {
        run_t run = next_run(inst, close, segment, matrix, all_alike, offset);
        bad = replay_run(inst, segment, &run, slots, target);
        offset += run.n_elems;
    }
    return bad;
}

static zf_status_t report_nonfinite(zf_instance_t *inst, const zfi_close_t *close, uint32_t matrix) {
    zf_error_t error = {.struct_size = sizeof error};
    zfi_error_scoped(&error, ZF_ERR_NONFINITE, ZF_SCOPE_INSTANCE, 0, "replay",
                     "a weight of \"%s\" became Inf or NaN in the window that closed at step %" PRIu64
                     ": lower the learning rate or check the gradients",
                     inst->params[inst->plan.matrices[matrix].param].name, close->step);
    zfi_poison(inst, &error);
    return ZF_ERR_NONFINITE;
}

/* ---- neighbours -------------------------------------------------------------------------------------------------- */

/* Brings the records of a segment a few places ahead near: they lie apart, and memory has just been streamed through.
 */
static void prefetch_records(const zf_instance_t *inst, uint32_t i, uint32_t end) {
    const zfi_segment_t *segments = inst->plan.segments;
    if (i + 2 * SEGMENTS_AHEAD < end) {
        __builtin_prefetch(&inst->plan.matrices[segments[i + 2 * SEGMENTS_AHEAD].matrix].param);
        __builtin_prefetch(&inst->hs.n[segments[i + 2 * SEGMENTS_AHEAD].matrix]);
    }
    if (i + SEGMENTS_AHEAD < end) {
        const zfi_param_t *param = &inst->params[inst->plan.matrices[segments[i + SEGMENTS_AHEAD].matrix].param];
        __builtin_prefetch(&param->id);
        __builtin_prefetch(&param->group);
    }
}

/* The end of the segments from `first` on that take the same slots with the same scalars; slots are those of `first`.
 */
static uint32_t alike_end(zf_instance_t *inst, const zfi_close_t *close, const slots_t *slots, uint32_t first,
                          uint32_t end) {
    const zfi_segment_t *segments = inst->plan.segments;
    uint32_t n_before = inst->hs.n[segments[first].matrix], i = first + 1;
    if (inst->config.moments == ZFI_MOMENTS_BF16_STOCHASTIC || inst->rule == ZF_RULE_CALLBACK)
        return i; /* elements of two matrices are not numbered on; the host is to see no gaps */
    for (; i < end; i++) {
        const zfi_param_t *param = &inst->params[inst->plan.matrices[segments[i].matrix].param];
        prefetch_records(inst, i, end);
        if (inst->hs.n[segments[i].matrix] != n_before || param->group != slots->group ||
            pattern_of(inst, close, param->id) != slots->pattern)
            break;
    }
    return i;
}

/* The first segment in [first, end) with a non-finite weight, or end. */
static uint32_t first_nonfinite(const zf_instance_t *inst, uint32_t first, uint32_t end, const float *w) {
    for (; first < end; first++) {
        const zfi_segment_t *segment = &inst->plan.segments[first];
        for (uint32_t e = 0; e < segment->n_elems; e++)
            if (!isfinite(w[segment->chunk_offset + e]))
                return first;
    }
    return end;
}

static void clear_gaps(const zf_instance_t *inst, uint32_t first, uint32_t end, const zfi_replay_target_t *target) {
    for (; first + 1 < end; first++) {
        const zfi_segment_t *segment = &inst->plan.segments[first];
        uint32_t at = segment->chunk_offset + segment->n_elems;
        size_t n = segment[1].chunk_offset - at;
        memset(target->w + at, 0, n * sizeof(float));
        if (target->m)
            memset(zfi_moment_at(inst, target->m, at), 0, n * zfi_moment_nbytes(inst));
        if (target->v)
            memset(zfi_moment_at(inst, target->v, at), 0, n * zfi_moment_nbytes(inst));
    }
}

static int predicts(const zfi_close_t *close) {
    return !close->is_warm_up && (!close->publishes_all || ZFI_FAULT_FLUSH_PREDICTS);
}

/* Segments [first, end) in one call. The gaps between them, up to ZFI_STATE_ALIGN - 1 elements that belong to none, go
 * along with whatever their slots hold; nobody reads them. Should one become non-finite, it is cleared and no error.
 * Returns the first segment with a non-finite weight, or end. */
static uint32_t replay_alike(zf_instance_t *inst, const zfi_close_t *close, uint32_t first, uint32_t end,
                             slots_t *slots, const zfi_replay_target_t *target) {
    const zfi_segment_t *segment = &inst->plan.segments[first], *last = &inst->plan.segments[end - 1];
    run_t all = {.n_elems = last->chunk_offset + last->n_elems - segment->chunk_offset,
                 .n_before = inst->hs.n[segment->matrix],
                 .key = zfi_rounding_key(close->step),
                 .predict = predicts(close) ? zfi_config_predict(&inst->config) : 0};
    uint64_t first_bad = is_by_moments(inst, close) ? replay_sums(inst, close, segment, &all, slots, target)
                                                    : replay_run(inst, segment, &all, slots, target);
    uint32_t bad;
    if (first_bad == UINT64_MAX)
        return end;
    bad = first_nonfinite(inst, first, end, target->w);
    if (bad == end)
        clear_gaps(inst, first, end, target);
    return bad;
}

zf_status_t zfi_replay_chunk(zf_instance_t *inst, const zfi_close_t *close, uint32_t number,
                             const zfi_replay_target_t *target) {
    const zfi_chunk_t *chunk = &inst->plan.chunks[number];
    const zfi_segment_t *segments = inst->plan.segments;
    uint32_t end = chunk->first_segment + chunk->n_segments, next;
    slots_t slots = {.group = UINT32_MAX};
    uint64_t n_elems = 0;
    for (uint32_t i = chunk->first_segment; i < end; i = next) {
        uint32_t bad;
        find_slots(inst, close, &segments[i], &slots);
        if (zfi_is_mean(inst)) {
            next = i + 1;
            bad = replay_segment_mean(inst, close, &segments[i], &slots, target) == UINT64_MAX ? next : i;
        } else {
            next = alike_end(inst, close, &slots, i, end);
            bad = replay_alike(inst, close, i, next, &slots, target);
        }
        if (bad != next && !ZFI_FAULT_SKIPPED_REPLAYED) /* that fault is to be seen in the weights */
            return target->is_rehearsal ? ZF_ERR_NONFINITE : report_nonfinite(inst, close, segments[bad].matrix);
        for (; i < next && !close->is_sums_only; i++)
            n_elems += (uint64_t)segments[i].n_elems * slots.n;
    }
    if (!target->is_rehearsal)
        atomic_fetch_add(&inst->count.replay_elems, n_elems);
    return ZF_OK;
}

void zfi_replay_open_sums(const zf_instance_t *inst, uint32_t number, zfi_replay_target_t *target) {
    const zfi_chunk_t *chunk = &inst->plan.chunks[number];
    if (zfi_sums_on_host(inst)) {
        target->sum1 = inst->hs.sum1 + chunk->state_base;
        target->sum2 = inst->hs.sum2 + chunk->state_base;
    } else if (zfi_sums_on_device(inst)) {
        target->sum1 = target->scratch;
        target->sum2 = target->scratch + chunk->n_elems;
        target->sum_dtype = zfi_sum_dtype(chunk);
        inst->device->read_sums(inst, number, target->sum1, target->sum2);
    }
}

void zfi_replay_count(zf_instance_t *inst, const zfi_close_t *close) {
    const zfi_cohort_plan_t *cohort = &inst->plan.cohorts[close->cohort];
    for (uint32_t i = 0; i < cohort->n_matrices; i++) {
        uint32_t number = inst->plan.cohort_matrices[cohort->first_matrix + i];
        const zfi_matrix_t *matrix = &inst->plan.matrices[number];
        uint32_t n = n_updates(inst, close, matrix->param);
        if (!zfi_is_mean(inst)) {
            inst->hs.n[number] += n;
            continue;
        }
        for (uint32_t c = 0; c < matrix->n_channels; c++)
            inst->hs.n[matrix->channel_base + c] += is_by_mean(inst, close, matrix, c) ? n > 0 : n;
    }
}

uint32_t zfi_replay_count_of(zf_instance_t *inst, const zfi_close_t *close, uint32_t number, uint32_t channel) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[number];
    uint32_t n = n_updates(inst, close, matrix->param);
    if (!zfi_is_mean(inst))
        return inst->hs.n[number] + n;
    return inst->hs.n[matrix->channel_base + channel] + (is_by_mean(inst, close, matrix, channel) ? n > 0 : n);
}
