/* SPDX-License-Identifier: Apache-2.0 */
/* launch_update.c - the update of resident matrices: state that lies whole on the device.
 *
 * It is a replay with one slot (kernels.h), in strips that stay in the L1 cache. */
#include <string.h>

#include "launch.h"
#include "tables.h"

enum { STRIP = 1024 };

/* Whether what the model reads of a matrix is one run. */
static int is_flat(const zfi_data_matrix_t *matrix) {
    return !matrix->place.col_offset && matrix->place.row_stride == (int64_t)matrix->cols;
}

static void *model_at(const zfi_data_matrix_t *matrix, uint64_t element) {
    return zfi_place_at(&matrix->place, element / matrix->cols, element % matrix->cols);
}

/* How many of n elements from `first` on lie in its row, or in all rows where they are one run. */
static uint64_t in_row(const zfi_data_matrix_t *matrix, uint64_t first, uint64_t n) {
    uint64_t left = matrix->cols - first % matrix->cols;
    return is_flat(matrix) || left > n ? n : left;
}

/* Visible elements [first, first + n) of a matrix, row-major; those that the host wrote stay. Returns what their digest
 * moves by. */
static uint64_t show(const zfi_data_t *data, const zfi_data_matrix_t *matrix, uint64_t first, uint64_t n,
                     const unsigned char *bits) {
    const zfi_submatrix_t all = {NULL, NULL, matrix->rows, matrix->cols};
    size_t elem = zfi_dtype_nbytes(matrix->place.dtype);
    uint64_t moved = 0, counted = data->digests && zfi_has_digest(matrix) ? matrix->cols : 0;
    for (uint64_t done = 0, count; done < n && !data->is_foreign[matrix->param]; done += count) {
        uint64_t row = (first + done) / matrix->cols, col = (first + done) % matrix->cols;
        count = in_row(matrix, first + done, n - done);
        moved += zfi_place_row(&matrix->place, &all, row, col, count, bits + done * elem, counted);
    }
    return moved;
}

/* The same elements as the model reads them. */
static void read_model(const zfi_data_matrix_t *matrix, uint64_t first, uint64_t n, unsigned char *bits) {
    size_t elem = zfi_dtype_nbytes(matrix->place.dtype);
    for (uint64_t done = 0, count; done < n; done += count) {
        count = matrix->place.col_offset ? 1 : in_row(matrix, first + done, n - done);
        memcpy(bits + done * elem, model_at(matrix, first + done), count * elem);
    }
}

/* Threads find them in any order: the lowest stays. */
static void note_nonfinite(const zfi_data_t *data, uint32_t param) {
    uint64_t *noted = &data->totals->nonfinite_param, was = __atomic_load_n(noted, __ATOMIC_RELAXED);
    while ((was == 0 || was > (uint64_t)param + 1) &&
           !__atomic_compare_exchange_n(noted, &was, (uint64_t)param + 1, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        ;
}

static int is_own_master(const zfi_data_matrix_t *matrix) {
    return matrix->sees_edits && matrix->place.dtype == ZFI_F32;
}

/* w = what the model reads, where that is not round(w): the host wrote it. */
static void take_edits(const zfi_kernels_t *kernels, float *w, const uint16_t *visible, zfi_dtype_t dtype, uint64_t n) {
    uint16_t due[STRIP];
    kernels->narrow(due, dtype, w, n);
    if (memcmp(due, visible, n * sizeof *due) == 0)
        return;
    for (uint64_t i = 0; i < n; i++)
        if (due[i] != visible[i])
            kernels->widen(&w[i], &visible[i], dtype, 1);
}

static void *moment_at(const zfi_data_t *data, zfi_moment_t which, uint64_t i) {
    void *all = which == ZFI_M ? data->all_m : data->all_v;
    return all ? (unsigned char *)all + zfi_resident_before(data, which, i) : NULL;
}

/* Whether nothing is updated: a step that is skipped gives values back to what carried its gradients. */
static int only_shows(const zfi_update_all_args_t *args) { return args->only_shows || !args->scalars->applied; }

/* Elements [at, at + n) of a segment; returns what the visible ones' digest moves by. Where edits are seen and what the
 * model reads is one run, it is read and written in place. */
static uint64_t update_strip(const zfi_kernels_t *kernels, const zfi_update_all_args_t *args,
                             const zfi_data_segment_t *segment, uint64_t at, uint64_t n) {
    const zfi_data_t *data = args->data;
    const zfi_data_matrix_t *matrix = &data->matrices[segment->matrix];
    const zfi_data_param_t *param = &data->params[matrix->param];
    const int shows = only_shows(args);
    const zfi_hyper_t *hyper = shows ? NULL : &args->step.hyper[param->group];
    uint64_t state = segment->state_base + at, first = segment->matrix_offset + at, bad;
    const void *grad = shows ? NULL
                             : (const unsigned char *)data->held[matrix->param] +
                                   (matrix->grad_offset + first) * zfi_dtype_nbytes(param->grad_dtype);
    float strip[STRIP]; /* STRIP elements of any dtype */
    int in_place = matrix->sees_edits && is_flat(matrix);
    void *visible = in_place ? model_at(matrix, first) : strip;
    if (matrix->sees_edits && !in_place)
        read_model(matrix, first, n, visible);
    zfi_replay_t job = {.w = is_own_master(matrix) ? visible : data->all_w + state,
                        .m = moment_at(data, ZFI_M, state),
                        .v = moment_at(data, ZFI_V, state),
                        .grads = &grad,
                        .scalars = &data->scalars[segment->matrix],
                        .n_slots = shows ? 0 : 1,
                        .grad_dtype = param->grad_dtype,
                        .visible = is_own_master(matrix) ? NULL : visible,
                        .visible_dtype = matrix->place.dtype,
                        .n_elems = n,
                        .moments = zfi_resident_moments(data, state),
                        .key = args->key,
                        .first_index = zfi_rounding_base(matrix->param) + matrix->param_offset + first};
    if (matrix->sees_edits && !is_own_master(matrix))
        take_edits(kernels, job.w, visible, matrix->place.dtype, n);
    bad = param->host_rule ? data->host_update(param->host_rule, &job, hyper, data->all_n[segment->matrix])
                           : kernels->replay[param->rule](&job);
    if (bad != UINT64_MAX)
        note_nonfinite(data, matrix->param);
    return in_place ? 0 : show(data, matrix, first, n, visible);
}

/* A matrix that sees edits shows what it should, or an edit; one that carries may have the coming step's gradient:
 * FLUSH shows nothing there. */
static int is_written(const zfi_update_all_args_t *args, uint32_t number) {
    const zfi_data_matrix_t *matrix = &args->data->matrices[number];
    if (args->only_shows)
        return matrix->is_resident && zfi_has_digest(matrix);
    return matrix->is_resident && args->step.present[matrix->param] && (args->scalars->applied || matrix->carries);
}

static void count(const zfi_update_all_args_t *args) {
    const zfi_data_t *data = args->data;
    for (uint32_t i = args->first; i < args->end; i++)
        if (is_written(args, i)) {
            const zfi_data_param_t *param = &data->params[data->matrices[i].param];
            data->all_n[i]++;
            data->scalars[i] =
                zfi_rule_scalars(param->rule, &args->step.hyper[param->group], args->scalars->s, data->all_n[i]);
        }
}

/* An update, cut into ranges of segments. */
typedef struct update {
    const zfi_kernels_t *kernels;
    const zfi_update_all_args_t *args;
    uint32_t n_parts;
} update_t;

/* A master that the model reads is updated in one stretch; else what becomes visible is made strip by strip. */
static void update_segment(const update_t *update, const zfi_data_segment_t *segment) {
    const zfi_update_all_args_t *args = update->args;
    const zfi_data_matrix_t *matrix = &args->data->matrices[segment->matrix];
    uint64_t most = is_own_master(matrix) && is_flat(matrix) ? segment->n_elems : STRIP, moved = 0, n;
    if (!is_written(args, segment->matrix))
        return;
    for (uint64_t at = 0; at < segment->n_elems; at += n) {
        n = segment->n_elems - at < most ? segment->n_elems - at : most;
        moved += update_strip(update->kernels, args, segment, at, n);
    }
    if (args->data->digests && moved)
        __atomic_fetch_add(&args->data->digests[segment->matrix], moved, __ATOMIC_RELAXED);
}

static void update_part(void *raw, uint32_t part) {
    const update_t *update = raw;
    const zfi_update_all_args_t *args = update->args;
    uint32_t n = args->end_segment - args->first_segment, end = zfi_part_begin(n, update->n_parts, part + 1);
    for (uint32_t i = zfi_part_begin(n, update->n_parts, part); i < end; i++)
        update_segment(update, &args->data->segments[args->first_segment + i]);
}

void zfi_cpu_update_all(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_update_all_args_t *args = raw;
    update_t update = {kernels, args, 0};
    uint64_t n_elems = 0;
    if (!only_shows(args))
        count(args);
    for (uint32_t i = args->first_segment; i < args->end_segment; i++)
        n_elems += args->data->segments[i].n_elems;
    update.n_parts = zfi_n_parts(args->end_segment - args->first_segment, n_elems);
    zfi_share(args->data, update.n_parts, n_elems, update_part, &update);
}
