/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/values.c - w, m, v and n out of one run or cut into another (contract in state.h). */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/slice.h"
#include "replay/state_arrays.h"
#include "state/state.h"

void zfi_flushed_free(zfi_flushed_t *flushed) {
    for (int i = 0; i < ZFI_STATE_ARRAYS; i++)
        free(flushed->arrays[i]);
    free(flushed->n);
    memset(flushed, 0, sizeof *flushed);
}

static zf_status_t allocate(const zfi_matrix_t *matrix, zfi_flushed_t *out, zf_error_t *err) {
    uint64_t n = matrix->rows * matrix->cols;
    int is_whole = (out->n = calloc(matrix->n_channels, sizeof *out->n)) != NULL;
    for (int i = 0; i < ZFI_STATE_ARRAYS; i++)
        is_whole &= (out->arrays[i] = calloc(n, sizeof(float))) != NULL;
    if (is_whole)
        return ZF_OK;
    zfi_flushed_free(out);
    return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for a matrix of %llu elements", (unsigned long long)n);
}

/* ---- into another cut -------------------------------------------------------------------------------------------- */

static uint64_t channel_of(const zfi_matrix_t *matrix, uint64_t linear) {
    return matrix->channels_are_rows ? linear / matrix->cols : linear % matrix->cols;
}

/* Elements [first, end) of the parameter that this rank owns. */
static zf_status_t carry_elements(const zfi_state_t *into, uint32_t number, uint64_t first, uint64_t end,
                                  const zfi_matrix_t *cut, const zfi_flushed_t *from) {
    uint64_t offset = first - into->plan->matrices[number].param_offset, source = first - cut->param_offset;
    zf_status_t st = ZF_OK;
    for (int i = 0; i < ZFI_STATE_ARRAYS && !st; i++)
        st = zfi_state_put(into, (zfi_array_t)i, number, offset, end - first, from->arrays[i] + source);
    return st;
}

/* Elements [*out_first, *out_end) of the parameter are in both. */
static void common(const zfi_matrix_t *to, const zfi_matrix_t *cut, uint64_t *out_first, uint64_t *out_end) {
    zfi_overlap(to->param_offset, to->rows * to->cols, cut->param_offset, cut->param_offset + cut->rows * cut->cols,
                out_first, out_end);
    *out_first += to->param_offset;
    *out_end += to->param_offset;
}

static zf_status_t carry_matrix(const zfi_state_t *into, uint32_t number, const zfi_matrix_t *cut,
                                const zfi_flushed_t *from) {
    const zfi_matrix_t *to = &into->plan->matrices[number];
    uint64_t own_first = to->param_offset + to->own.first, own_end = own_first + to->own.n, first, end;
    common(to, cut, &first, &end);
    first = first > own_first ? first : own_first;
    end = end < own_end ? end : own_end;
    return first < end ? carry_elements(into, number, first, end, cut, from) : ZF_OK;
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

/* Whether matrix i of the run, of this parameter, begins before the end of `from`. */
static int reaches(const zfi_state_t *into, const zfi_param_t *to, uint32_t i, const zfi_matrix_t *from) {
    return i < to->first_matrix + to->n_matrices &&
           into->plan->matrices[i].param_offset < from->param_offset + from->rows * from->cols;
}

void zfi_carry_counts(const zfi_state_t *into, uint32_t param, const zfi_matrix_t *from, const uint32_t *n,
                      int has_one_count) {
    const zfi_param_t *to = &into->side->params[param];
    for (uint32_t i = first_matrix_behind(into->plan->matrices, to, from->param_offset); reaches(into, to, i, from);
         i++)
        count_matrix(into, i, from, n, has_one_count);
}

zf_status_t zfi_carry(const zfi_state_t *into, uint32_t param, const zfi_matrix_t *from, const zfi_flushed_t *flushed,
                      zf_error_t *err) {
    const zfi_param_t *to = &into->side->params[param];
    uint32_t i = first_matrix_behind(into->plan->matrices, to, from->param_offset);
    zf_status_t st = ZF_OK;
    for (; reaches(into, to, i, from) && !st; i++)
        st = carry_matrix(into, i, from, flushed);
    zfi_carry_counts(into, param, from, flushed->n, 0);
    return st ? zfi_error(err, st, "state", "the device did not take the state of \"%s\"", to->name) : ZF_OK;
}

/* ---- of a drained run -------------------------------------------------------------------------------------------- */

zf_status_t zfi_run_flushed(const zfi_plan_t *plan, const zfi_param_t *params, zfi_rehearsal_t *rehearsal,
                            uint32_t number, zfi_flushed_t *out, zf_error_t *err) {
    const zfi_matrix_t *matrix = &plan->matrices[number];
    uint64_t n = matrix->rows * matrix->cols;
    zf_status_t st = allocate(matrix, out, err);
    if (st)
        return st;
    for (int i = 0; i < ZFI_STATE_ARRAYS && !st; i++)
        st = zfi_rehearsal_read(rehearsal, (zfi_array_t)i, number, 0, n, out->arrays[i]);
    for (uint32_t c = 0; c < matrix->n_channels; c++)
        out->n[c] = zfi_rehearsal_count(rehearsal, number, c);
    if (!st)
        return ZF_OK;
    zfi_flushed_free(out);
    if (st == ZF_ERR_POISONED)
        return zfi_rehearsal_poisoned(rehearsal, err);
    return zfi_error(err, st, "state", "the open windows would make a weight of \"%s\" Inf or NaN",
                     params[matrix->param].name);
}
