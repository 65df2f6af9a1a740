/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/values.c - reading and writing the state of a run (contract in values.h). */
#include "state/values.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/slice.h"
#include "replay/state_arrays.h"
#include "schedule/window.h"
#include "state/rehearse.h"

/* ---- reading ----------------------------------------------------------------------------------------------------- */

zf_status_t zfi_reader_open(const zfi_run_t *run, int is_flushed, const char *origin, zfi_reader_t *out,
                            zf_error_t *err) {
    *out = (zfi_reader_t){.state = &run->state, .origin = origin};
    if (!is_flushed || !zfi_window_is_any_open(&run->windows))
        return ZF_OK;
    out->rehearsal = zfi_rehearsal_new(&run->state, &run->replays);
    return out->rehearsal ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, origin, "no memory for one chunk of each cohort");
}

void zfi_reader_close(zfi_reader_t *reader) { zfi_rehearsal_free(reader->rehearsal); }

static void get_counts(const zfi_reader_t *reader, uint32_t number, uint64_t first, uint64_t n, uint32_t *out) {
    const zfi_matrix_t *matrix = &reader->state->plan->matrices[number];
    for (uint64_t c = first; c < first + n; c++)
        *out++ = reader->rehearsal ? zfi_rehearsal_count(reader->rehearsal, number, (uint32_t)c)
                                   : reader->state->host->n[zfi_count_at(matrix, c)];
}

static zf_status_t failed(const zfi_reader_t *reader, zf_status_t st, uint32_t number, zf_error_t *err) {
    const char *name = reader->state->side->params[reader->state->plan->matrices[number].param].name;
    if (st == ZF_ERR_NONFINITE)
        return zfi_error(err, st, reader->origin,
                         "the open windows would make a weight of \"%s\" Inf or NaN; nothing was changed: lower the "
                         "learning rate, or load sound weights and call params_changed",
                         name);
    return st == ZF_ERR_POISONED
               ? zfi_poisoned(reader->state->engine, err)
               : zfi_error(err, st, reader->origin, "the device did not give the state of \"%s\"", name);
}

zf_status_t zfi_reader_get(const zfi_reader_t *reader, zfi_saved_array_t array, uint32_t number, uint64_t first,
                           uint64_t n, void *out, zf_error_t *err) {
    const zfi_state_t *state = reader->state;
    const zfi_matrix_t *matrix = &state->plan->matrices[number];
    zf_status_t st = ZF_OK;
    if (zfi_saved_is_by_element(array))
        st = reader->rehearsal ? zfi_rehearsal_read(reader->rehearsal, (zfi_array_t)array, number, first, n, out)
                               : zfi_state_get(state, (zfi_array_t)array, number, first, n, out);
    else if (array == ZFI_SAVED_N)
        get_counts(reader, number, first, n, out);
    else if (array == ZFI_SAVED_SELECTED && matrix->k)
        memcpy(out, state->sel->mask + matrix->channel_base + first, n);
    else if (array == ZFI_SAVED_IMPORTANCE && matrix->is_choosable)
        memcpy(out, state->sel->importance + matrix->sum_base + first, n * sizeof(double));
    else
        memset(out, 0, n * zfi_saved_elem_nbytes(array));
    return st ? failed(reader, st, number, err) : ZF_OK;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* The parameter's first matrix that does not end before this element: they follow one another. */
static uint32_t first_matrix_behind(const zfi_matrix_t *matrices, const zfi_param_t *to, uint64_t element) {
    uint32_t first = to->first_matrix, end = first + to->n_matrices;
    while (first < end) {
        uint32_t middle = first + (end - first) / 2;
        const zfi_matrix_t *matrix = &matrices[middle];
        if (matrix->param_offset + matrix->rows * matrix->cols <= element)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

zf_status_t zfi_values_put(const zfi_state_t *into, zfi_saved_array_t array, uint32_t param, uint64_t first, uint64_t n,
                           const float *values, zf_error_t *err) {
    const zfi_param_t *to = &into->side->params[param];
    const zfi_matrix_t *matrices = into->plan->matrices;
    zf_status_t st = ZF_OK;
    for (uint32_t i = first_matrix_behind(matrices, to, first);
         i < to->first_matrix + to->n_matrices && matrices[i].param_offset < first + n && !st; i++) {
        uint64_t own = matrices[i].param_offset + matrices[i].own.first, begin, end;
        zfi_overlap(first, n, own, own + matrices[i].own.n, &begin, &end);
        if (begin < end)
            st = zfi_state_put(into, (zfi_array_t)array, i, first + begin - matrices[i].param_offset, end - begin,
                               values + begin);
    }
    return st ? zfi_error(err, st, "state", "the device did not take %s of \"%s\"", zfi_saved_name(array), to->name)
              : ZF_OK;
}

static uint64_t channel_of(const zfi_matrix_t *matrix, uint64_t linear) {
    return matrix->channels_are_rows ? linear / matrix->cols : linear % matrix->cols;
}

/* Elements [*out_first, *out_end) of the parameter are in both. */
static void common(const zfi_matrix_t *to, const zfi_matrix_t *cut, uint64_t *out_first, uint64_t *out_end) {
    zfi_overlap(to->param_offset, to->rows * to->cols, cut->param_offset, cut->param_offset + cut->rows * cut->cols,
                out_first, out_end);
    *out_first += to->param_offset;
    *out_end += to->param_offset;
}

static void count_matrix(const zfi_state_t *into, uint32_t number, const zfi_matrix_t *cut, const uint32_t *n,
                         int has_one_count) {
    const zfi_matrix_t *to = &into->plan->matrices[number];
    uint64_t first, end;
    common(to, cut, &first, &end);
    for (uint64_t e = first; e < end; e += has_one_count && to->n_counts == 1 ? end - first : 1) {
        uint32_t count = n[has_one_count ? 0 : channel_of(cut, e - cut->param_offset)];
        uint32_t *at = &into->host->n[zfi_count_at(to, channel_of(to, e - to->param_offset))];
        if (count > *at)
            *at = count;
    }
}

void zfi_values_put_counts(const zfi_state_t *into, uint32_t param, const zfi_matrix_t *from, const uint32_t *n,
                           int has_one_count) {
    const zfi_param_t *to = &into->side->params[param];
    uint64_t end = from->param_offset + from->rows * from->cols;
    for (uint32_t i = first_matrix_behind(into->plan->matrices, to, from->param_offset);
         i < to->first_matrix + to->n_matrices && into->plan->matrices[i].param_offset < end; i++)
        count_matrix(into, i, from, n, has_one_count);
}

/* ---- from one run into another ----------------------------------------------------------------------------------- */

zf_status_t zfi_values_carry(const zfi_reader_t *from, uint32_t number, const zfi_state_t *into, uint32_t param,
                             zfi_join_fn join, void *arg, zf_error_t *err) {
    const zfi_matrix_t *matrix = &from->state->plan->matrices[number];
    const zfi_slice_t *own = &matrix->own;
    uint64_t n = matrix->rows * matrix->cols;
    uint32_t *counts = malloc(matrix->n_channels * sizeof *counts);
    float *values = calloc(ZFI_STATE_ARRAYS * n, sizeof *values);
    zf_status_t st = counts && values ? ZF_OK
                                      : zfi_error(err, ZF_ERR_MEMORY, from->origin,
                                                  "no memory for a matrix of %" PRIu64 " elements", n);
    for (uint64_t a = 0; a < ZFI_STATE_ARRAYS && own->n && !st; a++)
        st = zfi_reader_get(from, (zfi_saved_array_t)a, number, own->first, own->n, values + a * n + own->first, err);
    if (join)
        st = join(arg, number, st, values, err);
    for (uint64_t a = 0; a < ZFI_STATE_ARRAYS && !st; a++)
        st = zfi_values_put(into, (zfi_saved_array_t)a, param, matrix->param_offset, n, values + a * n, err);
    if (!st)
        st = zfi_reader_get(from, ZFI_SAVED_N, number, 0, matrix->n_channels, counts, err);
    if (!st)
        zfi_values_put_counts(into, param, matrix, counts, 0);
    free(values);
    free(counts);
    return st;
}
