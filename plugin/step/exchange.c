/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/exchange.c - reads and writes of the device while everything rests (contract in exchange.h). */
#include "step/exchange.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "instance/device_memory.h"
#include "instance/tables.h"
#include "ranks/gathering.h"
#include "ranks/selected_sums.h"
#include "ranks/shards.h"
#include "replay/state_arrays.h"
#include "step/released.h"
#include "step/scalars.h"
#include "step/selected.h"

/* ---- visible values ---------------------------------------------------------------------------------------------- */

zf_status_t zfi_exchange_get_visible(const zfi_state_t *state, uint32_t number, uint64_t first, uint64_t n, void *out) {
    zfi_place_args_t args = {
        .data = state->dev->data,
        .one = {.matrix = number, .first = first - state->plan->matrices[number].held_first, .n = n},
        .bits = state->dev->scratch};
    zfi_range_t range = {out, state->dev->scratch, n * zfi_dtype_nbytes(state->plan->matrices[number].place.dtype)};
    zfi_op_t ops[] = {zfi_op_launch(ZFI_KERNEL_READ_PLACE, &args, sizeof args), zfi_op_down(&range, 1)};
    return state->engine->residency.released ? zfi_released_get_visible(state, number, args.one.first, n, out)
                                             : zfi_device_run(state->engine, ops, 2);
}

static zf_status_t write_visible(const zfi_state_t *state, uint32_t number, uint64_t first, uint64_t n,
                                 const void *bits) {
    zfi_place_args_t args = {
        .data = state->dev->data,
        .one = {.matrix = number, .first = first - state->plan->matrices[number].held_first, .n = n},
        .bits = state->dev->scratch};
    zfi_range_t range = {state->dev->scratch, bits, n * zfi_dtype_nbytes(state->plan->matrices[number].place.dtype)};
    zfi_op_t ops[] = {zfi_op_up(&range, 1), zfi_op_launch(ZFI_KERNEL_WRITE_PLACE, &args, sizeof args)};
    return zfi_device_run(state->engine, ops, 2);
}

/* ---- masters ----------------------------------------------------------------------------------------------------- */

/* Elements [first, first + n) of a matrix, which this rank owns. */
typedef struct part {
    const zfi_state_t *state;
    uint32_t number;
    uint64_t first, n;
} part_t;

/* The call that refuses a value. */
typedef struct refusal {
    const char *origin;
    zf_error_t *err;
} refusal_t;

static zf_status_t refuse(const part_t *part, uint64_t element, float value, const refusal_t *by) {
    uint32_t id = part->state->plan->matrices[part->number].param;
    const zfi_param_t *param = &part->state->side->params[id];
    zfi_error_scoped(by->err, ZF_ERR_NONFINITE, ZF_SCOPE_PARAM, 0, by->origin,
                     "parameter \"%s\": element %" PRIu64 " of matrix %u is %g; write sound weights first", param->name,
                     part->first + element, part->number - param->first_matrix, (double)value);
    return zfi_error_about(by->err, ZF_ERR_NONFINITE, id);
}

static zf_status_t check_finite(const part_t *part, const float *w, const refusal_t *by) {
    for (uint64_t i = 0; i < part->n; i++)
        if (!isfinite(w[i]))
            return refuse(part, i, w[i], by);
    return ZF_OK;
}

static zfi_dtype_t dtype_of(const part_t *part) { return part->state->plan->matrices[part->number].place.dtype; }

/* raw: the refusal of what is not finite, or NULL. */
static zf_status_t take_all(const part_t *part, const void *raw) {
    void *bits = part->state->dev->exchange;
    float *w = part->state->dev->exchange + part->state->dev->exchange_elems;
    zf_status_t st = zfi_exchange_get_visible(part->state, part->number, part->first, part->n, bits);
    if (st)
        return st;
    part->state->engine->kernels->widen(w, bits, dtype_of(part), part->n);
    if (raw)
        st = check_finite(part, w, raw);
    return st ? st : zfi_state_put(part->state, ZFI_STATE_W, part->number, part->first, part->n, w);
}

/* Reads what a sharded parameter shows from where the host has fetched it: there the host writes. */
static zf_status_t read_written(const part_t *part, void *out) {
    const zfi_matrix_t *matrix = &part->state->plan->matrices[part->number];
    const zfi_param_t *param = &part->state->side->params[matrix->param];
    size_t elem = zfi_dtype_nbytes(param->dtype);
    const unsigned char *fetched = param->is_kept ? zfi_shards_address(part->state->ranks, param->id) : NULL;
    if (!fetched)
        return zfi_exchange_get_visible(part->state, part->number, part->first, part->n, out);
    return zfi_device_read(part->state->engine, out, fetched + (matrix->param_offset + part->first) * elem,
                           part->n * elem);
}

/* *out: the masters with the host's edits, in the exchange buffer. */
static zf_status_t edit(const part_t *part, float **out) {
    void *bits = part->state->dev->exchange;
    float *w = part->state->dev->exchange + part->state->dev->exchange_elems;
    zf_status_t st = read_written(part, bits);
    if (!st)
        st = zfi_state_get(part->state, ZFI_STATE_W, part->number, part->first, part->n, w);
    if (!st)
        zfi_state_edit(part->state->engine->kernels, dtype_of(part), bits, part->n, w);
    *out = w;
    return st;
}

static zf_status_t take_edits(const part_t *part, const void *unused) {
    float *w;
    zf_status_t st = edit(part, &w);
    (void)unused;
    return st ? st : zfi_state_put(part->state, ZFI_STATE_W, part->number, part->first, part->n, w);
}

static zf_status_t check_edits(const part_t *part, const void *by) {
    float *w;
    zf_status_t st = edit(part, &w);
    return st ? st : check_finite(part, w, by);
}

/* Acts on this rank's slices of matrices, one at a time. */
static zf_status_t each_slice(const zfi_state_t *state, uint32_t first, uint32_t end,
                              zf_status_t (*act)(const part_t *, const void *), const void *arg) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = first; i < end && !st; i++) {
        const zfi_slice_t *own = &state->plan->matrices[i].own;
        part_t part = {state, i, own->first, own->n};
        if (own->n)
            st = act(&part, arg);
    }
    return st;
}

zf_status_t zfi_exchange_read_masters(const zfi_state_t *state) {
    return each_slice(state, 0, state->plan->n_matrices, take_all, NULL);
}

zf_status_t zfi_exchange_first_masters(const zfi_state_t *state, const char *origin, zf_error_t *err) {
    const refusal_t by = {origin, err};
    return each_slice(state, 0, state->plan->n_matrices, take_all, &by);
}

zf_status_t zfi_exchange_take_edits(const zfi_state_t *state, uint32_t first, uint32_t end) {
    return each_slice(state, first, end, take_edits, NULL);
}

zf_status_t zfi_exchange_check_edits(const zfi_state_t *state, uint32_t first, uint32_t end, const char *origin,
                                     zf_error_t *err) {
    const refusal_t by = {origin, err};
    return each_slice(state, first, end, check_edits, &by);
}

/* ---- selected channels ------------------------------------------------------------------------------------------- */

static int has_selection(const zfi_selection_t *sel, const zfi_matrix_t *matrix) {
    return sel->last_choice != 0 && matrix->k != 0;
}

/* The index of element i of selected position `pos`, of those here, lies: in the compact arrays, and in the matrix. */
static uint64_t compact_of(const zfi_matrix_t *matrix, uint32_t pos, uint64_t i) {
    return matrix->channels_are_rows ? pos * matrix->cols + i : i * matrix->k + pos;
}
static uint64_t element_of(const zfi_matrix_t *matrix, uint32_t channel, uint64_t i) {
    return matrix->channels_are_rows ? channel * matrix->cols + i : matrix->held_first + i * matrix->cols + channel;
}

static float *compact_array(const zfi_device_state_t *dev, const zfi_matrix_t *matrix, int array) {
    const zfi_data_t *head = &dev->head;
    float *base = array == 0 ? head->w : array == 1 ? head->m : head->v;
    return base ? base + matrix->sel_base : NULL;
}

/* Compact memory of a matrix, where each rank has what it owns. */
typedef struct compact {
    zfi_gathering_t *gathering;
    const zfi_matrix_t *matrix;
    unsigned char *bytes;
    size_t elem;
} compact_t;

static void pass_compact(uint64_t at, uint64_t n, void *arg) {
    const compact_t *compact = arg;
    zfi_gathering_pass(compact->gathering, compact->bytes + at * compact->elem, n * compact->elem);
}

static void walk_compact(zfi_gathering_t *gathering, uint32_t rank) {
    const compact_t *compact = gathering->arg;
    const zfi_matrix_t *matrix = compact->matrix;
    zfi_slice_t slice = zfi_gathering_slice(gathering, matrix, rank);
    (void)zfi_selected_stretches(matrix, gathering->ranks->sel->index + matrix->index_base, &slice, pass_compact,
                                 gathering->arg);
}

/* It becomes that of all ranks; what is sharded stays this rank's. */
static zf_status_t join_compact(const zfi_state_t *state, const zfi_matrix_t *matrix, void *bytes, size_t elem) {
    compact_t compact = {.matrix = matrix, .bytes = bytes, .elem = elem};
    zfi_gathering_t gathering = {.ranks = state->ranks, .walk = walk_compact, .arg = &compact};
    compact.gathering = &gathering;
    return matrix->is_sharded ? ZF_OK : zfi_gathering_at_rest(&gathering);
}

/* The device's copies of one array := the selected elements of values. Where each rank has its own elements only: of
 * those of all. */
static zf_status_t put_array(const zfi_state_t *state, const zfi_matrix_t *matrix, int array, const float *values) {
    const uint32_t *index = state->sel->index + matrix->index_base;
    uint64_t per_channel = zfi_channel_elems(matrix), nbytes = matrix->k * per_channel * sizeof *values;
    float *compact = state->dev->exchange + state->dev->exchange_elems;
    for (uint32_t pos = 0; pos < matrix->k; pos++)
        for (uint64_t i = 0; i < per_channel; i++)
            compact[compact_of(matrix, pos, i)] = values[element_of(matrix, index[pos], i)];
    zf_status_t st = join_compact(state, matrix, compact, sizeof *compact);
    return st || !nbytes ? st
                         : zfi_device_write(state->engine, compact_array(state->dev, matrix, array), compact, nbytes);
}

/* A matrix's elements of an array that this rank owns. */
static zf_status_t get_owned(const zfi_state_t *state, zfi_array_t array, uint32_t number, float *values) {
    const zfi_slice_t *own = &state->plan->matrices[number].own;
    return zfi_state_get(state, array, number, own->first, own->n, values + own->first);
}

/* ---- compact state from the host's ------------------------------------------------------------------------------- */

static zf_status_t reload_counts(const zfi_state_t *state, uint32_t number) {
    const zfi_matrix_t *matrix = &state->plan->matrices[number];
    uint32_t *counts = (uint32_t *)(void *)state->dev->exchange;
    if (matrix->is_resident) {
        *counts = 0; /* where channels counted apart, their largest */
        for (uint32_t c = 0; c < matrix->n_counts; c++)
            if (state->host->n[matrix->count_base + c] > *counts)
                *counts = state->host->n[matrix->count_base + c];
        return zfi_device_write(state->engine, state->dev->head.all_n + number, counts, sizeof *counts);
    }
    if (!state->dev->head.counts_per_channel)
        return zfi_device_write(state->engine, state->dev->head.n + number, &state->host->n[matrix->count_base],
                                sizeof *counts);
    if (!has_selection(state->sel, matrix))
        return ZF_OK;
    for (uint32_t pos = 0; pos < matrix->k; pos++)
        counts[pos] = state->host->n[zfi_count_at(matrix, state->sel->index[matrix->index_base + pos])];
    return zfi_device_write(state->engine, state->dev->head.n + matrix->index_base, counts, matrix->k * sizeof *counts);
}

static zf_status_t reload_matrix(const zfi_state_t *state, uint32_t number) {
    const zfi_matrix_t *matrix = &state->plan->matrices[number];
    zf_status_t st = reload_counts(state, number);
    if (st || !has_selection(state->sel, matrix))
        return st;
    for (uint32_t array = 0; array < zfi_enter_arrays(state->n_moments) && !st; array++) {
        st = get_owned(state, (zfi_array_t)array, number, state->dev->exchange);
        if (!st)
            st = put_array(state, matrix, (int)array, state->dev->exchange);
    }
    atomic_fetch_add(&state->engine->count.up_enter_nbytes,
                     matrix->k * zfi_channel_elems(matrix) * zfi_enter_arrays(state->n_moments) * sizeof(float));
    return st;
}

zf_status_t zfi_exchange_reload_selected(const zfi_state_t *state, uint32_t first, uint32_t end) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = first; i < end && !st; i++)
        st = reload_matrix(state, i);
    return st;
}

/* ---- what the state says ----------------------------------------------------------------------------------------- */

zf_status_t zfi_exchange_put_visible(const zfi_state_t *state, uint32_t number) {
    const zfi_matrix_t *matrix = &state->plan->matrices[number];
    float *w = state->dev->exchange;
    void *bits = state->dev->exchange + state->dev->exchange_elems;
    if (!matrix->own.n)
        return ZF_OK;
    zf_status_t st = zfi_state_get(state, ZFI_STATE_W, number, matrix->own.first, matrix->own.n, w);
    if (st)
        return st;
    state->engine->kernels->narrow(bits, matrix->place.dtype, w, matrix->own.n);
    return write_visible(state, number, matrix->own.first, matrix->own.n, bits);
}

/* ---- a load's last part ------------------------------------------------------------------------------------------ */

zf_status_t zfi_exchange_put_maps(const zfi_state_t *state) {
    const zfi_plan_t *plan = state->plan;
    const zfi_selection_t *sel = state->sel;
    zf_status_t st =
        zfi_device_write(state->engine, state->dev->head.index, sel->index, plan->n_index * sizeof *sel->index);
    for (int turn = 0; turn < 2 && !st; turn++)
        st = zfi_device_write(state->engine, state->dev->head.masks[turn], sel->mask, sel->n_masked);
    if (!st)
        st = zfi_device_write(state->engine, zfi_device_table(state->dev->head.merge_from),
                              state->windows->clock->skip_publish_below,
                              plan->n_matrices * sizeof *state->windows->clock->skip_publish_below);
    if (!st)
        st =
            zfi_device_write(state->engine, state->dev->enter_n, sel->n_enter, plan->n_matrices * sizeof *sel->n_enter);
    if (!st)
        st = zfi_device_write(state->engine, state->dev->enter_position, sel->enter_pos,
                              plan->n_index * sizeof *sel->enter_pos);
    return st ? st
              : zfi_device_write(state->engine, state->dev->enter_channel, sel->enter_channel,
                                 plan->n_index * sizeof *sel->enter_channel);
}
