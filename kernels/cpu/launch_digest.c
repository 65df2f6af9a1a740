/* SPDX-License-Identifier: Apache-2.0 */
/* launch_digest.c - what the host wrote unannounced: digests of visible values (../digest.h), compared and taken again.
 *
 * Cost: one read of the visible values of the matrices that are looked at, each shared by all threads. */
#include "digest.h"
#include "launch.h"

/* Columns [c, c + n) of a row. */
static uint64_t row_digest(const zfi_kernels_t *kernels, const zfi_data_matrix_t *matrix, uint64_t row, uint64_t c,
                           uint64_t n) {
    const zfi_place_t *place = &matrix->place;
    uint64_t sum = 0, index = row * matrix->cols + c;
    if (!place->col_offset)
        return kernels->digest(zfi_place_at(place, row, c), place->dtype, n, index);
    for (uint64_t j = 0; j < n; j++)
        sum += digest_run(zfi_place_at(place, row, c + j), place->dtype, 1, index + j);
    return sum;
}

uint64_t zfi_visible_digest(const zfi_kernels_t *kernels, const zfi_data_matrix_t *matrix, uint64_t first, uint64_t n) {
    uint64_t sum = 0, part;
    if (!matrix->place.col_offset && matrix->place.row_stride == (int64_t)matrix->cols) /* one run */
        return kernels->digest(zfi_place_at(&matrix->place, first / matrix->cols, first % matrix->cols),
                               matrix->place.dtype, n, first);
    for (uint64_t e = first; e < first + n; e += part) {
        uint64_t row = e / matrix->cols, col = e % matrix->cols;
        part = matrix->cols - col < first + n - e ? matrix->cols - col : first + n - e;
        sum += row_digest(kernels, matrix, row, col, part);
    }
    return sum;
}

/* The host reads the totals while steps go on; a reader that sees the second sees `overwritten` as well. */
static void note_overwritten(const zfi_data_t *data, const zfi_data_matrix_t *matrix) {
    zfi_totals_t *totals = data->totals;
    __atomic_store_n(&totals->n_overwritten, totals->n_overwritten + matrix->rows * matrix->cols, __ATOMIC_RELAXED);
    data->is_foreign[matrix->param] = 1;
    if (!__atomic_exchange_n(&data->overwritten[matrix->param], 1, __ATOMIC_RELAXED))
        __atomic_fetch_add(&totals->n_params_overwritten, 1, __ATOMIC_RELEASE);
}

typedef struct look {
    const zfi_kernels_t *kernels;
    const zfi_data_matrix_t *matrix;
    uint32_t n_parts;
    uint64_t sum; /* of the parts that are over; atomic */
} look_t;

static void look_at_part(void *arg, uint32_t part) {
    look_t *look = arg;
    uint64_t n = look->matrix->rows * look->matrix->cols, size = n / look->n_parts, first = size * part;
    uint64_t sum = zfi_visible_digest(look->kernels, look->matrix, first, part + 1 < look->n_parts ? size : n - first);
    __atomic_fetch_add(&look->sum, sum, __ATOMIC_RELAXED); /* share() returns behind the last */
}

static uint64_t look_at(const zfi_kernels_t *kernels, const zfi_data_t *data, const zfi_data_matrix_t *matrix) {
    uint64_t n = matrix->rows * matrix->cols;
    look_t look = {kernels, matrix, zfi_n_parts(UINT32_MAX, n), 0};
    zfi_share(data, look.n_parts, n, look_at_part, &look);
    return look.sum;
}

void zfi_cpu_check(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_check_args_t *args = raw;
    const zfi_data_t *data = args->data;
    for (uint32_t i = args->first; i < args->first + args->n; i++) {
        uint32_t number = data->listed_matrices[i];
        const zfi_data_matrix_t *matrix = &data->matrices[number];
        if (!zfi_has_digest(matrix) || (!args->seals && data->is_foreign[matrix->param]))
            continue; /* its update sees it, it is announced, or it is known */
        uint64_t found = look_at(kernels, data, matrix);
        if (args->seals)
            data->digests[number] = found;
        else if (found != data->digests[number])
            note_overwritten(data, matrix);
    }
}
