/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/table.c - the rows of arrays (contract in state/table.h); clocks and steps are in state/clocks.c. */
#include "state/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "replay/state_arrays.h"
#include "schedule/interval.h"
#include "schedule/window.h"
#include "step/exchange.h"

/* ---- data types -------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t nbytes;
} dtypes[] = {[ZFI_STATE_U8] = {"U8", 1},   [ZFI_STATE_U32] = {"U32", 4}, [ZFI_STATE_BF16] = {"BF16", 2},
              [ZFI_STATE_F16] = {"F16", 2}, [ZFI_STATE_F32] = {"F32", 4}, [ZFI_STATE_F64] = {"F64", 8}};

const char *zfi_state_dtype_name(zfi_state_dtype_t dtype) { return dtypes[dtype].name; }
size_t zfi_state_dtype_nbytes(zfi_state_dtype_t dtype) { return dtypes[dtype].nbytes; }

static zfi_state_dtype_t of_kernel(zfi_dtype_t dtype) {
    if (dtype == ZFI_F32)
        return ZFI_STATE_F32;
    return dtype == ZFI_BF16 ? ZFI_STATE_BF16 : ZFI_STATE_F16;
}

zfi_state_dtype_t zfi_state_array_dtype(const zfi_state_array_t *array, const zfi_param_t *param) {
    if (array->dtype_kind == ZFI_DTYPE_FIXED)
        return array->dtype;
    return of_kernel(array->dtype_kind == ZFI_DTYPE_VISIBLE ? param->dtype : param->grad_dtype);
}

/* ---- values that no training leaves ------------------------------------------------------------------------------ */

/* The first value of which `is_bad` is true; x: that value. */
#define BAD(name, type, is_bad)                                                                                        \
    static uint64_t name(const void *values, uint64_t n, zfi_state_dtype_t dtype, int is_applied) {                    \
        (void)dtype, (void)is_applied;                                                                                 \
        for (uint64_t i = 0; i < n; i++) {                                                                             \
            type x = ((const type *)values)[i];                                                                        \
            if (is_bad)                                                                                                \
                return i;                                                                                              \
        }                                                                                                              \
        return n;                                                                                                      \
    }
BAD(bad_f32, float, !isfinite(x))
BAD(bad_second, float, !(x >= 0)) /* a second moment may overflow; it then holds its weight still */
BAD(bad_nan, float, isnan(x))
BAD(bad_selected, uint8_t, x > ZFI_CHANNEL_ENTERING)
BAD(bad_importance, double, !(x >= 0))
#undef BAD

/* Gradients of a step that was applied are finite. */
static uint64_t bad_slot(const void *values, uint64_t n, zfi_state_dtype_t dtype, int is_applied) {
    const uint16_t *half = values;
    uint16_t exponent = dtype == ZFI_STATE_BF16 ? 0x7F80 : 0x7C00;
    if (!is_applied)
        return n;
    if (dtype == ZFI_STATE_F32)
        return bad_f32(values, n, dtype, 1);
    for (uint64_t i = 0; i < n; i++)
        if ((half[i] & exponent) == exponent)
            return i;
    return n;
}

/* Visible values are never NaN; an Inf is a finite w beyond the range of 16 bits. */
static uint64_t bad_visible(const void *values, uint64_t n, zfi_state_dtype_t dtype, int is_applied) {
    const uint16_t *half = values;
    const float *single = values;
    uint16_t infinity = dtype == ZFI_STATE_BF16 ? 0x7F80 : 0x7C00;
    (void)is_applied;
    for (uint64_t i = 0; i < n; i++)
        if (dtype == ZFI_STATE_F32 ? isnan(single[i]) : (half[i] & 0x7FFF) > infinity)
            return i;
    return n;
}

static const zfi_matrix_t *matrix_of(const zfi_state_io_t *io, const zfi_state_at_t *at) {
    return &io->state->plan->matrices[at->matrix];
}

static const zfi_param_t *param_of(const zfi_state_io_t *io, const zfi_state_at_t *at) {
    return &io->state->side->params[matrix_of(io, at)->param];
}

/* ---- w, m, v, n -------------------------------------------------------------------------------------------------- */

static uint64_t per_element(const zfi_state_shape_t *shape, const zfi_matrix_t *matrix) {
    (void)shape;
    return matrix->rows * matrix->cols;
}

static void get_array(zfi_state_io_t *io, const zfi_state_at_t *at, zfi_array_t array, void *out) {
    if (!io->status && !io->rehearsal)
        io->status = zfi_state_get(io->state, array, at->matrix, at->first, at->n, out);
    else if (!io->status)
        io->status = zfi_rehearsal_read(io->rehearsal, array, at->matrix, at->first, at->n, out);
}

#define ARRAY(name, array)                                                                                             \
    static void get_##name(zfi_state_io_t *io, const zfi_state_at_t *at, void *out) { get_array(io, at, array, out); } \
    static void put_##name(zfi_state_io_t *io, const zfi_state_at_t *at, const void *values) {                         \
        if (!io->status)                                                                                               \
            io->status = zfi_state_put(io->state, array, at->matrix, at->first, at->n, values);                        \
    }
ARRAY(w, ZFI_STATE_W)
ARRAY(m, ZFI_STATE_M)
ARRAY(v, ZFI_STATE_V)
#undef ARRAY

static uint64_t n_counts(const zfi_state_shape_t *shape, const zfi_matrix_t *matrix) {
    return shape->is_mean ? matrix->n_channels : 1;
}

static void get_n(zfi_state_io_t *io, const zfi_state_at_t *at, void *out) {
    uint32_t *to = out;
    const uint32_t *live = io->state->host->n + matrix_of(io, at)->count_base + at->first;
    for (uint64_t i = 0; i < at->n; i++)
        to[i] = io->rehearsal ? zfi_rehearsal_count(io->rehearsal, at->matrix, (uint32_t)(at->first + i)) : live[i];
}

static void put_n(zfi_state_io_t *io, const zfi_state_at_t *at, const void *x) {
    memcpy(io->state->host->n + matrix_of(io, at)->count_base + at->first, x, at->n * sizeof(uint32_t));
}

/* ---- selection --------------------------------------------------------------------------------------------------- */

static uint64_t per_channel(const zfi_state_shape_t *shape, const zfi_matrix_t *matrix) {
    (void)shape;
    return matrix->n_channels;
}

static uint64_t per_choosable(const zfi_state_shape_t *shape, const zfi_matrix_t *matrix) {
    (void)shape;
    return matrix->is_choosable ? matrix->n_channels : 0;
}

static int has_selected(zfi_state_io_t *io, const zfi_state_at_t *at) {
    return matrix_of(io, at)->k > 0 && !zfi_is_warm_up(io->state->windows->clock, io->state->windows->clock->t + 1);
}

static void get_selected(zfi_state_io_t *io, const zfi_state_at_t *at, void *out) {
    const zfi_state_t *state = io->state;
    const zfi_matrix_t *matrix = matrix_of(io, at);
    uint8_t *to = out;
    for (uint64_t i = 0; i < at->n; i++)
        to[i] = state->sel->mask[matrix->channel_base + at->first + i] ? ZFI_CHANNEL_SELECTED : ZFI_CHANNEL_DEFERRED;
    if (!state->windows->clock->waiting_choice ||
        !zfi_row(io->state->windows->rows, state->windows->clock->waiting_choice)->chooses[matrix->cohort])
        return;
    for (uint32_t e = 0; e < state->sel->n_enter[at->matrix]; e++) {
        uint32_t channel = state->sel->enter_channel[matrix->index_base + e];
        if (channel >= at->first && channel < at->first + at->n)
            to[channel - at->first] = ZFI_CHANNEL_ENTERING;
    }
}

/* The lists of a matrix whose mask is filled: what is selected in rising order, and where what enters will lie. */
static void list_selected(const zfi_plan_t *plan, zfi_selection_t *sel, uint32_t number, const uint8_t *kinds) {
    const zfi_matrix_t *matrix = &plan->matrices[number];
    uint32_t pos = 0, n = 0;
    for (uint32_t c = 0; c < matrix->n_channels; c++) {
        if (!kinds[c])
            continue;
        sel->index[matrix->index_base + pos] = c;
        if (kinds[c] == ZFI_CHANNEL_ENTERING) {
            sel->enter_pos[matrix->index_base + n] = pos;
            sel->enter_channel[matrix->index_base + n++] = c;
        }
        pos++;
    }
    sel->n_enter[number] = n;
}

static void put_selected(zfi_state_io_t *io, const zfi_state_at_t *at, const void *values) {
    const zfi_matrix_t *matrix = matrix_of(io, at);
    uint8_t *mask = io->state->sel->mask + matrix->channel_base;
    memcpy(mask + at->first, values, at->n);
    if (at->first + at->n < matrix->n_channels)
        return; /* the lists are made when the mask is whole */
    list_selected(io->state->plan, io->state->sel, at->matrix, mask);
    for (uint32_t c = 0; c < matrix->n_channels; c++)
        mask[c] = mask[c] != ZFI_CHANNEL_DEFERRED;
}

static void get_importance(zfi_state_io_t *io, const zfi_state_at_t *at, void *out) {
    memcpy(out, io->state->sel->importance + matrix_of(io, at)->sum_base + at->first, at->n * sizeof(double));
}

static void put_importance(zfi_state_io_t *io, const zfi_state_at_t *at, const void *values) {
    memcpy(io->state->sel->importance + matrix_of(io, at)->sum_base + at->first, values, at->n * sizeof(double));
}

/* ---- automatic interval: what deferred and selected channels have gathered --------------------------------------- */

static uint64_t two_sums(const zfi_state_shape_t *shape, const zfi_matrix_t *matrix) {
    (void)shape;
    return zfi_interval_measures(matrix) ? 2 : 0;
}

static int has_interval(zfi_state_io_t *io, const zfi_state_at_t *at) {
    return io->state->windows->clock->pace.is_auto && has_selected(io, at);
}

static void get_interval(zfi_state_io_t *io, const zfi_state_at_t *at, void *out) {
    const double sums[2] = {io->state->sel->deferred[at->matrix], io->state->sel->selected[at->matrix]};
    memcpy(out, sums + at->first, at->n * sizeof *sums);
}

static void put_interval(zfi_state_io_t *io, const zfi_state_at_t *at, const void *values) {
    double sums[2] = {io->state->sel->deferred[at->matrix], io->state->sel->selected[at->matrix]};
    memcpy(sums + at->first, values, at->n * sizeof *sums);
    io->state->sel->deferred[at->matrix] = sums[0];
    io->state->sel->selected[at->matrix] = sums[1];
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

static int has_slot(zfi_state_io_t *io, const zfi_state_at_t *at) {
    return zfi_window_has_slot(io->state->windows, at->matrix, at->step);
}

/* Where a chunk's part of an array lies in memory. */
typedef unsigned char *(*memory_fn)(const zfi_state_io_t *io, const zfi_state_at_t *at, uint32_t chunk);

/* Elements that lie in the memory of chunks: to out, or where that is NULL from values. */
static void copy_pieces(const zfi_state_io_t *io, const zfi_state_at_t *at, memory_fn memory_of, zfi_dtype_t dtype,
                        unsigned char *out, const unsigned char *values) {
    size_t elem = zfi_dtype_nbytes(dtype);
    zfi_piece_walk_t walk;
    zfi_piece_place_t place;
    zfi_piece_walk_start(&walk, io->state->side, at->matrix, at->first, at->n);
    while (zfi_piece_walk_next(&walk, &place)) {
        unsigned char *memory = memory_of(io, at, place.chunk) + place.chunk_offset * elem;
        if (out)
            memcpy(out + place.at * elem, memory, place.n * elem);
        else
            memcpy(memory, values + place.at * elem, place.n * elem);
    }
}

static unsigned char *slot_memory(const zfi_state_io_t *io, const zfi_state_at_t *at, uint32_t chunk) {
    return zfi_window_slot_of(io->state->windows, chunk, at->step);
}

static void get_slot(zfi_state_io_t *io, const zfi_state_at_t *at, void *out) {
    copy_pieces(io, at, slot_memory, param_of(io, at)->grad_dtype, out, NULL);
}

static void put_slot(zfi_state_io_t *io, const zfi_state_at_t *at, const void *values) {
    copy_pieces(io, at, slot_memory, param_of(io, at)->grad_dtype, NULL, values);
}

/* ---- what the model reads ---------------------------------------------------------------------------------------- */

static int has_visible(zfi_state_io_t *io, const zfi_state_at_t *at) {
    int is_equal;
    if (io->differs)
        return io->differs[at->matrix];
    return zfi_exchange_shows_state(io->state, at->matrix, &is_equal) || !is_equal;
}

static void get_visible(zfi_state_io_t *io, const zfi_state_at_t *at, void *out) {
    (void)zfi_exchange_get_visible(io->state, at->matrix, at->first, at->n, out);
}

static void put_visible(zfi_state_io_t *io, const zfi_state_at_t *at, const void *values) {
    size_t elem = zfi_dtype_nbytes(param_of(io, at)->dtype);
    memcpy(io->overlay[at->matrix] + at->first * elem, values, at->n * elem);
}

/* A close that waits for its publication, and the matrix is not left out of it (params_changed). */
static const zfi_close_t *due_of(const zfi_plan_t *plan, const zfi_clock_t *clock, uint32_t number) {
    for (uint32_t i = 0; i < clock->n_due && !plan->matrices[number].is_resident; i++)
        if (clock->due[i].cohort == plan->matrices[number].cohort &&
            clock->due[i].first_job >= clock->skip_publish_below[number])
            return &clock->due[i];
    return NULL;
}

static int has_publish(zfi_state_io_t *io, const zfi_state_at_t *at) {
    return due_of(io->state->plan, io->state->windows->clock, at->matrix) != NULL;
}

static unsigned char *publish_memory(const zfi_state_io_t *io, const zfi_state_at_t *at, uint32_t chunk) {
    const zfi_state_t *state = io->state;
    const zfi_close_t *close = due_of(state->plan, state->windows->clock, at->matrix);
    uint64_t p = close->first_job + state->plan->chunks[chunk].place;
    return state->host->published + p % state->plan->max_close_chunks * state->plan->publish_piece_nbytes;
}

static void get_publish(zfi_state_io_t *io, const zfi_state_at_t *at, void *out) {
    if (has_publish(io, at))
        copy_pieces(io, at, publish_memory, param_of(io, at)->dtype, out, NULL);
}

/* The closes themselves are made anew by the load (state/load.c) before their values come. */
static void put_publish(zfi_state_io_t *io, const zfi_state_at_t *at, const void *values) {
    if (has_publish(io, at))
        copy_pieces(io, at, publish_memory, param_of(io, at)->dtype, NULL, values);
}

const zfi_state_array_t zfi_state_arrays[] = {
    {"w", ZFI_ARRAY_COMPACT | ZFI_ARRAY_PER_ELEMENT, ZFI_DTYPE_FIXED, ZFI_STATE_F32, per_element, NULL, get_w, put_w,
     bad_f32},
    {"m", ZFI_ARRAY_COMPACT | ZFI_ARRAY_PER_ELEMENT, ZFI_DTYPE_FIXED, ZFI_STATE_F32, per_element, NULL, get_m, put_m,
     bad_f32},
    {"v", ZFI_ARRAY_COMPACT | ZFI_ARRAY_PER_ELEMENT, ZFI_DTYPE_FIXED, ZFI_STATE_F32, per_element, NULL, get_v, put_v,
     bad_second},
    {"n", ZFI_ARRAY_COMPACT, ZFI_DTYPE_FIXED, ZFI_STATE_U32, n_counts, NULL, get_n, put_n, NULL},
    {"selected", 0, ZFI_DTYPE_FIXED, ZFI_STATE_U8, per_channel, has_selected, get_selected, put_selected, bad_selected},
    {"importance", 0, ZFI_DTYPE_FIXED, ZFI_STATE_F64, per_choosable, NULL, get_importance, put_importance,
     bad_importance},
    {"interval", 0, ZFI_DTYPE_FIXED, ZFI_STATE_F64, two_sums, has_interval, get_interval, put_interval, bad_importance},
    {"slot", ZFI_ARRAY_PER_STEP | ZFI_ARRAY_PER_ELEMENT, ZFI_DTYPE_GRAD, 0, per_element, has_slot, get_slot, put_slot,
     bad_slot},
    {"visible", ZFI_ARRAY_PER_ELEMENT, ZFI_DTYPE_VISIBLE, 0, per_element, has_visible, get_visible, put_visible,
     bad_visible},
    {"publish", ZFI_ARRAY_PER_ELEMENT, ZFI_DTYPE_VISIBLE, 0, per_element, has_publish, get_publish, put_publish,
     bad_visible},
};
const uint32_t zfi_n_state_arrays = sizeof zfi_state_arrays / sizeof *zfi_state_arrays;

const zfi_state_array_t *zfi_state_array_find(const char *name, size_t length) {
    for (uint32_t i = 0; i < zfi_n_state_arrays; i++)
        if (strlen(zfi_state_arrays[i].name) == length && strncmp(zfi_state_arrays[i].name, name, length) == 0)
            return &zfi_state_arrays[i];
    return NULL;
}

/* The second moment of the host's own rule need be no square. */
uint64_t zfi_state_find_bad(const zfi_state_array_t *array, const zfi_param_t *param, const void *values, uint64_t n,
                            int is_applied) {
    zfi_state_dtype_t dtype = zfi_state_array_dtype(array, param);
    if (!array->find_bad)
        return n;
    if (array->find_bad == bad_second && param->rule->number == ZF_RULE_CALLBACK)
        return bad_nan(values, n, dtype, is_applied);
    return array->find_bad(values, n, dtype, is_applied);
}
