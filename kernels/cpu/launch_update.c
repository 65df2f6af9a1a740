/* SPDX-License-Identifier: Apache-2.0 */
/* launch_update.c - the update of resident matrices: state that lies whole on the device.
 *
 * It is a replay with one slot (kernels.h), in strips that stay in the L1 cache. */
#include <string.h>

#include "launch.h"
#include "tables.h"

enum { STRIP = 1024 };

/* Visible elements [first, first + n) of a matrix, row-major; those that the host wrote stay. Returns what their digest
 * moves by. */
static uint64_t show(const zfi_data_t *data, const zfi_data_matrix_t *matrix, uint64_t first, uint64_t n,
                     const unsigned char *bits) {
    const zfi_submatrix_t all = {NULL, NULL, matrix->rows, matrix->cols};
    size_t elem = zfi_dtype_nbytes(matrix->place.dtype);
    uint64_t moved = 0;
    for (uint64_t done = 0, count; done < n && !data->is_foreign[matrix->param]; done += count) {
        uint64_t row = (first + done) / matrix->cols, col = (first + done) % matrix->cols;
        count = matrix->cols - col < n - done ? matrix->cols - col : n - done;
        if (!matrix->place.col_offset && matrix->place.row_stride == (int64_t)matrix->cols) /* the rows are one */
            count = n - done;
        moved +=
            zfi_place_row(&matrix->place, &all, row, col, count, bits + done * elem, data->digests ? matrix->cols : 0);
        if (matrix->shown)
            memcpy((char *)matrix->shown + (first + done) * elem, bits + done * elem, count * elem);
    }
    return moved;
}

static void note_nonfinite(const zfi_data_t *data, uint32_t param) {
    if (data->totals->nonfinite_param == 0)
        __atomic_store_n(&data->totals->nonfinite_param, (uint64_t)param + 1, __ATOMIC_RELEASE);
}

/* Elements [at, at + n) of a segment, n <= STRIP; returns what the visible ones' digest moves by. */
static uint64_t update_strip(const zfi_kernels_t *kernels, const zfi_update_all_args_t *args,
                             const zfi_data_segment_t *segment, uint64_t at, uint64_t n) {
    const zfi_data_t *data = args->data;
    const zfi_data_matrix_t *matrix = &data->matrices[segment->matrix];
    const zfi_data_param_t *param = &data->params[matrix->param];
    const zfi_hyper_t *hyper = args->only_shows ? NULL : &args->step.hyper[param->group];
    size_t moment = zfi_moments_nbytes(data->moments);
    uint64_t state = segment->state_base + at, first = segment->matrix_offset + at, bad;
    const void *grad = args->only_shows ? NULL
                                        : (const unsigned char *)data->held[matrix->param] +
                                              (matrix->grad_offset + first) * zfi_dtype_nbytes(param->grad_dtype);
    float after[STRIP]; /* STRIP elements of any dtype */
    zfi_replay_t job = {.w = data->all_w + state,
                        .m = data->all_m ? (unsigned char *)data->all_m + state * moment : NULL,
                        .v = data->all_v ? (unsigned char *)data->all_v + state * moment : NULL,
                        .grads = &grad,
                        .scalars = &data->scalars[segment->matrix],
                        .n_slots = args->only_shows ? 0 : 1,
                        .grad_dtype = param->grad_dtype,
                        .visible = after,
                        .visible_dtype = matrix->place.dtype,
                        .n_elems = n,
                        .moments = data->moments,
                        .key = args->key,
                        .first_index = zfi_rounding_base(matrix->param) + matrix->param_offset + first};
    bad = param->host_rule ? data->host_update(param->host_rule, &job, hyper, data->all_n[segment->matrix])
                           : kernels->replay[param->rule](&job);
    if (bad != UINT64_MAX)
        note_nonfinite(data, matrix->param);
    return show(data, matrix, first, n, (const unsigned char *)after);
}

static int is_updated(const zfi_update_all_args_t *args, uint32_t number) {
    const zfi_data_matrix_t *matrix = &args->data->matrices[number];
    return matrix->is_resident && (args->only_shows || args->step.present[matrix->param] != 0);
}

static void count(const zfi_update_all_args_t *args) {
    const zfi_data_t *data = args->data;
    for (uint32_t i = args->first; i < args->end; i++)
        if (is_updated(args, i)) {
            const zfi_data_param_t *param = &data->params[data->matrices[i].param];
            data->all_n[i]++;
            data->scalars[i] =
                zfi_rule_scalars(param->rule, &args->step.hyper[param->group], args->scalars->s, data->all_n[i]);
        }
}

void zfi_cpu_update_all(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_update_all_args_t *args = raw;
    const zfi_data_t *data = args->data;
    if (!args->only_shows) {
        if (!args->scalars->applied)
            return;
        count(args);
    }
    for (uint32_t i = args->first_segment; i < args->end_segment; i++) {
        const zfi_data_segment_t *segment = &data->segments[i];
        uint64_t moved = 0, n;
        for (uint64_t at = 0; at < segment->n_elems && is_updated(args, segment->matrix); at += n) {
            n = segment->n_elems - at < STRIP ? segment->n_elems - at : STRIP;
            moved += update_strip(kernels, args, segment, at, n);
        }
        if (data->digests)
            data->digests[segment->matrix] += moved;
    }
}
