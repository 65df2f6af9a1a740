/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/released.c - reads without kernels (contract in released.h). */
#include "step/released.h"

#include <string.h>

#include "instance/device_memory.h"
#include "instance/residency.h"
#include "step/guard.h"

/* ---- visible values ---------------------------------------------------------------------------------------------- */

enum { RUNS_AT_ONCE = 256 };

/* Elements from `at` on that lie together, at most n. */
static uint64_t run_length(const zfi_matrix_t *matrix, uint64_t at, uint64_t n) {
    uint64_t left = matrix->cols - at % matrix->cols;
    if (matrix->place.col_offset)
        return 1;
    return matrix->place.row_stride == (int64_t)matrix->cols || left > n ? n : left;
}

/* As many runs as one list holds. *io_at moves on. */
static zf_status_t copy_runs(const zfi_state_t *state, const zfi_matrix_t *matrix, uint64_t *io_at, uint64_t end,
                             unsigned char *out) {
    zfi_range_t runs[RUNS_AT_ONCE];
    zfi_op_t op = zfi_op_down(runs, 0);
    while (*io_at < end && op.n_ranges < RUNS_AT_ONCE) {
        uint64_t n = run_length(matrix, *io_at, end - *io_at), nbytes = n * zfi_dtype_nbytes(matrix->place.dtype);
        const void *from = zfi_place_at(&matrix->place, *io_at / matrix->cols, *io_at % matrix->cols);
        const void *image = zfi_residency_image(state->engine, from, nbytes);
        if (image) /* a rank's part of a sharded parameter */
            memcpy(out, image, nbytes);
        else
            runs[op.n_ranges++] = (zfi_range_t){out, from, nbytes};
        out += nbytes;
        *io_at += n;
    }
    return op.n_ranges ? zfi_device_run(state->engine, &op, 1) : ZF_OK;
}

zf_status_t zfi_released_get_visible(const zfi_state_t *state, uint32_t number, uint64_t first, uint64_t n, void *out) {
    const zfi_matrix_t *matrix = &state->plan->matrices[number];
    size_t elem = zfi_dtype_nbytes(matrix->place.dtype);
    zf_status_t st = ZF_OK;
    for (uint64_t at = first; at < first + n && !st;)
        st = copy_runs(state, matrix, &at, first + n, (unsigned char *)out + (at - first) * elem);
    return st;
}

/* ---- the guard --------------------------------------------------------------------------------------------------- */

/* As CHECK notes it. */
static void note_overwritten(const zfi_state_t *state, const zfi_matrix_t *matrix, uint8_t *is_foreign) {
    zfi_totals_t *totals = state->engine->totals;
    totals->n_overwritten += matrix->rows * matrix->cols;
    *is_foreign = 1;
    if (!__atomic_exchange_n(&state->dev->overwritten[matrix->param], 1, __ATOMIC_RELAXED))
        __atomic_fetch_add(&totals->n_params_overwritten, 1, __ATOMIC_RELEASE);
}

zf_status_t zfi_released_differs(const zfi_state_t *state, uint32_t number, int *out) {
    const zfi_matrix_t *matrix = &state->plan->matrices[number];
    const uint64_t *digest = zfi_residency_image(state->engine, state->dev->head.digests + number, sizeof *digest);
    uint64_t n = matrix->sees_edits || matrix->carries ? 0 : matrix->held_rows * matrix->cols;
    zf_status_t st = zfi_released_get_visible(state, number, 0, n, state->dev->exchange);
    *out = !st && n && state->engine->kernels->digest(state->dev->exchange, matrix->place.dtype, n, 0) != *digest;
    return st;
}

void zfi_released_forget(const zfi_state_t *state, uint32_t param) {
    uint8_t *found = &state->dev->overwritten[param];
    *(uint8_t *)zfi_residency_image(state->engine, state->dev->head.is_foreign + param, 1) = 0;
    if (__atomic_exchange_n(found, 0, __ATOMIC_RELAXED))
        __atomic_fetch_sub(&state->engine->totals->n_params_overwritten, 1, __ATOMIC_RELAXED);
}

zf_status_t zfi_released_check(const zfi_state_t *state) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < state->plan->n_matrices && zfi_guard_checks(state->dev) && !st; i++) {
        const zfi_matrix_t *matrix = &state->plan->matrices[i];
        uint8_t *is_foreign = zfi_residency_image(state->engine, state->dev->head.is_foreign + matrix->param, 1);
        int differs = 0;
        if (!*is_foreign)
            st = zfi_released_differs(state, i, &differs);
        if (differs)
            note_overwritten(state, matrix, is_foreign);
    }
    return st;
}
