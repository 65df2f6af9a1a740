/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/tables.c - the device's tables (contract in tables.h). The table of matrices has a copy in host
 * memory, since it changes; the others are made in passing. */
#include "instance/tables.h"

#include <stdlib.h>

#include "instance/callback.h"
#include "instance/device_memory.h"
#include "instance/residency.h"

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static uint64_t units_of(const zfi_data_matrix_t *matrix) {
    return zfi_sum_units(matrix->rows, matrix->cols, matrix->channels_are_rows);
}

static zfi_data_param_t param_row(const zfi_param_t *param, const zfi_data_matrix_t *matrices) {
    uint64_t n_units = 0;
    for (uint32_t i = param->first_matrix; i < param->first_matrix + param->n_matrices; i++)
        n_units += units_of(&matrices[i]);
    return (zfi_data_param_t){.n_elems = param->n_elems,
                              .grad_dtype = param->grad_dtype,
                              .group = param->group,
                              .first_matrix = param->first_matrix,
                              .n_matrices = param->n_matrices,
                              .n_units = n_units,
                              .channels_are_rows = param->channels_are_rows,
                              .counts_in_norm = param->counts_in_norm,
                              .rule = (zfi_rule_t)param->rule->number,
                              .host_rule = param->rule->number == ZF_RULE_CALLBACK ? param->rule : NULL};
}

/* The row of what is here of a matrix, all but the place. */
static zfi_data_matrix_t matrix_row(const zfi_matrix_t *matrix) {
    return (zfi_data_matrix_t){.param = matrix->param,
                               .n_channels = matrix->n_channels,
                               .k = matrix->held_rows ? matrix->k : 0,
                               .sel_base = matrix->sel_base,
                               .grad_base = matrix->grad_base,
                               .channels_are_rows = matrix->channels_are_rows && matrix->held_rows,
                               .has_sums = matrix->is_choosable,
                               .is_resident = matrix->is_resident && !matrix->takes_whole, /* no kernel updates it */
                               .sees_edits = matrix->sees_edits,
                               .carries = matrix->carries,
                               .rows = matrix->held_rows,
                               .cols = matrix->cols,
                               .param_offset = matrix->param_offset + matrix->held_first,
                               .grad_offset = matrix->grad_offset + matrix->held_first,
                               .index_base = matrix->index_base,
                               .channel_base = matrix->channel_base,
                               .sum_base = matrix->sum_base};
}

zfi_data_matrix_t zfi_tables_own_row(const zfi_param_t *param, const zfi_matrix_t *matrix) {
    zfi_data_matrix_t row = matrix_row(matrix);
    uint64_t first = (matrix->own.first - matrix->held_first) / matrix->cols;
    uint64_t row_elems = matrix->channels_are_rows ? matrix->cols : matrix->k; /* of the compact gradient */
    row.rows = matrix->own.n / matrix->cols;
    row.grad_offset = matrix->grad_offset + matrix->own.first;
    if (row.rows == 0)
        row.k = 0;
    if (matrix->channels_are_rows) {
        row.sum_base += first;
        row.first_row = first;
    }
    if (!matrix->is_choosable && row.k &&
        matrix->channels_are_rows) /* all are selected, of these rows all that is here */
        row.k = (uint32_t)row.rows;
    if (!matrix->is_choosable || !matrix->channels_are_rows)
        row.grad_base += first * row_elems * zfi_dtype_nbytes(param->grad_dtype);
    return row;
}

static zfi_data_segment_t segment_row(const zfi_plan_t *plan, const zfi_segment_t *segment) {
    return (zfi_data_segment_t){.matrix = segment->matrix,
                                .n_elems = segment->n_elems,
                                .matrix_offset = segment->matrix_offset - plan->matrices[segment->matrix].held_first,
                                .piece_offset = segment->chunk_offset,
                                .state_base = plan->chunks[segment->chunk].state_base + segment->chunk_offset};
}

/* The row of a resident matrix. */
static zfi_data_segment_t resident_row(const zfi_plan_t *plan, const zfi_segment_t *segment) {
    const zfi_matrix_t *matrix = &plan->matrices[segment->matrix];
    return (zfi_data_segment_t){.matrix = segment->matrix,
                                .n_elems = segment->n_elems,
                                .matrix_offset = segment->matrix_offset - matrix->held_first,
                                .state_base = zfi_state_find(matrix, segment->matrix_offset)};
}

static zfi_data_piece_t piece_row(const zfi_chunk_t *chunk) {
    return (zfi_data_piece_t){
        .first_segment = chunk->first_segment, .n_segments = chunk->n_segments, .n_elems = chunk->n_elems};
}

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

uint64_t zfi_tables_columns_nbytes(const zfi_param_t *params, uint32_t n_params, int is_kept) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < n_params; i++)
        if (params[i].has_state && params[i].col_offset && !(is_kept && params[i].is_sharded))
            n += params[i].cols;
    return n * sizeof(int64_t);
}

/* They are made again whenever parameters move. */
static zf_status_t upload_columns(const zfi_device_side_t *side, zf_error_t *err) {
    zfi_engine_t *engine = side->engine;
    uint64_t nbytes = zfi_tables_columns_nbytes(side->params, side->n_params, 0), at = 0;
    void *memory = NULL;
    zf_status_t st = nbytes ? zfi_device_take(engine, nbytes, "column maps", &memory, err) : ZF_OK;
    if (st)
        return st;
    zfi_device_give(engine, side->dev->columns, side->dev->columns_nbytes);
    side->dev->columns = memory;
    side->dev->columns_nbytes = nbytes;
    for (uint32_t i = 0; i < side->n_params && !st; i++) {
        const zfi_param_t *param = &side->params[i];
        int64_t *to = param->has_state && param->col_offset ? side->dev->columns + at : NULL;
        for (uint32_t k = param->first_matrix; k < param->first_matrix + param->n_matrices; k++)
            side->dev->matrices[k].place.col_offset = to;
        if (!to)
            continue;
        st = zfi_device_write(side->engine, to, param->col_offset, param->cols * sizeof *to);
        at += param->cols;
    }
    return st;
}

static zf_status_t upload_matrices(const zfi_device_side_t *side) {
    return zfi_device_write(side->engine, zfi_device_table(side->dev->head.matrices), side->dev->matrices,
                            side->plan->n_matrices * sizeof *side->dev->matrices);
}

zf_status_t zfi_tables_place(const zfi_device_side_t *side, zf_error_t *err) {
    for (uint32_t i = 0; i < side->plan->n_matrices; i++)
        side->dev->matrices[i].place = side->plan->matrices[i].place;
    zf_status_t st = upload_columns(side, err);
    return st ? st : upload_matrices(side);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static zf_status_t upload_params(const zfi_device_side_t *side, const zfi_data_param_t *to,
                                 const zfi_data_matrix_t *matrices) {
    zfi_data_param_t *rows = calloc(side->n_params, sizeof *rows);
    zf_status_t st = rows ? ZF_OK : ZF_ERR_MEMORY;
    for (uint32_t i = 0; i < side->n_params && rows; i++)
        rows[i] = param_row(&side->params[i], matrices);
    if (!st)
        st = zfi_device_write(side->engine, zfi_device_table(to), rows, side->n_params * sizeof *rows);
    free(rows);
    return st;
}

static void number_units(zfi_data_matrix_t *rows, uint32_t n) {
    uint64_t n_units = 0;
    for (uint32_t i = 0; i < n; i++) {
        rows[i].unit_base = n_units;
        n_units += units_of(&rows[i]);
    }
}

/* The second head, where this rank has sums of its slices alone. */
static zf_status_t upload_own(const zfi_device_side_t *side) {
    uint32_t n = side->plan->n_matrices;
    zfi_data_t head = side->dev->head;
    if (side->dev->own == side->dev->data)
        return ZF_OK;
    head.matrices = side->dev->own_matrices;
    head.params = side->dev->own_params;
    zfi_data_matrix_t *rows = calloc(n, sizeof *rows);
    for (uint32_t i = 0; i < n && rows; i++)
        rows[i] = zfi_tables_own_row(&side->params[side->plan->matrices[i].param], &side->plan->matrices[i]);
    if (rows)
        number_units(rows, n);
    zf_status_t st = rows ? zfi_device_write(side->engine, side->dev->own, &head, sizeof head) : ZF_ERR_MEMORY;
    if (!st)
        st = zfi_device_write(side->engine, side->dev->own_matrices, rows, n * sizeof *rows);
    if (!st)
        st = upload_params(side, side->dev->own_params, rows);
    free(rows);
    return st;
}

static zf_status_t upload_segments(const zfi_device_side_t *side) {
    const zfi_plan_t *plan = side->plan;
    uint64_t n = (uint64_t)plan->n_segments + plan->n_resident_segments;
    zfi_data_segment_t *rows = calloc(n + 1, sizeof *rows);
    zf_status_t st = rows ? ZF_OK : ZF_ERR_MEMORY;
    for (uint32_t i = 0; i < plan->n_segments && rows; i++)
        rows[i] = segment_row(plan, &plan->segments[i]);
    for (uint32_t i = 0; i < plan->n_resident_segments && rows; i++)
        rows[plan->n_segments + i] = resident_row(plan, &plan->resident_segments[i]);
    if (!st)
        st = zfi_device_write(side->engine, zfi_device_table(side->dev->head.segments), rows, n * sizeof *rows);
    free(rows);
    return st;
}

static zf_status_t upload_pieces(const zfi_device_side_t *side) {
    zfi_data_piece_t *rows = calloc(side->plan->n_chunks + 1u, sizeof *rows);
    zf_status_t st = rows ? ZF_OK : ZF_ERR_MEMORY;
    for (uint32_t i = 0; i < side->plan->n_chunks && rows; i++)
        rows[i] = piece_row(&side->plan->chunks[i]);
    if (!st)
        st = zfi_device_write(side->engine, zfi_device_table(side->dev->head.pieces), rows,
                              side->plan->n_chunks * sizeof *rows);
    free(rows);
    return st;
}

static zf_status_t upload_lists(const zfi_device_side_t *side) {
    zf_status_t st = zfi_device_write(side->engine, zfi_device_table(side->dev->head.listed_pieces),
                                      side->plan->cohort_chunks, side->plan->n_chunks * sizeof(uint32_t));
    return st ? st
              : zfi_device_write(side->engine, zfi_device_table(side->dev->head.listed_matrices),
                                 side->plan->cohort_matrices, side->plan->n_matrices * sizeof(uint32_t));
}

static void fill_head(const zfi_device_side_t *side) {
    zfi_data_t *head = &side->dev->head;
    head->n_params = side->n_params;
    head->n_matrices = side->plan->n_matrices;
    head->host_run_ahead = zfi_callback_on_device;
    head->host_update = zfi_callback_update;
}

zf_status_t zfi_tables_upload(const zfi_device_side_t *side) {
    fill_head(side);
    for (uint32_t i = 0; i < side->plan->n_matrices; i++)
        side->dev->matrices[i] = matrix_row(&side->plan->matrices[i]);
    number_units(side->dev->matrices, side->plan->n_matrices);
    zf_status_t st = zfi_device_write(side->engine, side->dev->data, &side->dev->head, sizeof side->dev->head);
    if (!st)
        st = upload_params(side, side->dev->head.params, side->dev->matrices);
    if (!st)
        st = upload_own(side);
    if (!st)
        st = upload_segments(side);
    if (!st)
        st = upload_pieces(side);
    if (!st)
        st = upload_lists(side);
    return st ? st : zfi_tables_place(side, NULL);
}
