/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/plan/plan.c - matrices, lots and chunks (contract in plan.h; rules in SCHEDULE.md). plan/deal.c deals them
 * into cohorts. */
#include "plan/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/bucket.h"

enum {
    BUCKETS = 256,          /* of a whole model, about: as many launches publish all of it */
    LEAST_BUCKET = 1 << 18, /* bytes of one: less is not worth a launch */
    LEAST_RING = 8,
    MOST_LAUNCHES = 64,            /* launches of run-ahead */
    LAUNCH_ELEMS = 1 << 18,        /* selected elements of one launch, at least */
    SHARED_LAUNCH_ELEMS = 1 << 24, /* the same where a launch wakes all workers and waits for them */
    RECORD_SHARE = 16,             /* the part of all elements that a part of an importance record may have sums */
    SHARE = 1024,                  /* the part of all elements that a block may have, and neighbours together */
    SMALL_SHARE = 256,             /* the part of a small model's elements that neighbours may have together */
    SMALL_LOT = 1 << 15,           /* elements up to which SMALL_SHARE holds: a piece of work worth starting */
    LARGEST_CHUNK = 1 << 18,
    USUAL_CHUNK = 1 << 16,
    SMALLEST_CHUNK = 1 << 12,
    CHUNKS_WANTED = 64,
    MANY_CHUNKS = 16384,
    LEAST_OF_RUNS = 4096 /* elements of a parameter whose moments lie in runs */
};

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

static uint64_t total_elems(const zfi_param_t *params, uint32_t n) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++)
        if (params[i].has_state)
            total += params[i].n_elems;
    return total;
}

/* Row blocks of each of a parameter's matrices. What other instances hold too is cut by itself, as they cut it. */
static uint64_t n_blocks(const zfi_param_t *param, const zfi_config_t *config, uint64_t total) {
    uint64_t share = (param->group_index[1] ? param->n_elems : total) / SHARE;
    uint64_t most = share > config->block_elems ? share : config->block_elems;
    uint64_t rows = most / param->cols > 1 ? most / param->cols : 1;
    return param->rows * param->cols > most ? (param->rows + rows - 1) / rows : 1;
}

static uint32_t n_selected(const zfi_config_t *config, const zfi_param_t *param, uint32_t n_channels) {
    double k = floor(config->topk_ratio * (double)n_channels + 0.5);
    if (param->home == ZF_HOME_HOST || config->topk_ratio == 0 || !zfi_config_selects(config))
        return 0;
    if (param->ndim - param->n_batch_axes <= 1)
        return n_channels;
    return k < 1 ? 1 : k < (double)n_channels ? (uint32_t)k : n_channels;
}

/* The place of what is here of a matrix. */
static void place(const zfi_param_t *param, zfi_matrix_t *out) {
    uint64_t row = (out->param_offset + out->held_first) / param->cols;
    int64_t first = zfi_param_batch_offset(param, row / param->rows) + (int64_t)(row % param->rows) * param->row_stride;
    out->place.visible = param->visible + first * (int64_t)zfi_dtype_nbytes(param->dtype);
    out->place.dtype = param->dtype;
    out->place.row_stride = param->row_stride;
    out->place.col_offset = param->col_offset;
    if (!param->is_kept)
        return;
    out->place.visible = param->visible + (out->grad_offset + out->held_first) * zfi_dtype_nbytes(param->dtype);
    out->place.row_stride = (int64_t)param->cols;
}

void zfi_plan_place(zfi_plan_t *plan, const zfi_param_t *params) {
    for (uint32_t i = 0; i < plan->n_matrices; i++)
        place(&params[plan->matrices[i].param], &plan->matrices[i]);
}

static void shape_matrix(const zfi_param_t *param, uint64_t b, uint64_t r0, uint64_t r1, zfi_matrix_t *out) {
    out->param = param->id;
    out->rounding_base = zfi_rounding_base(param->id);
    out->rows = r1 - r0;
    out->cols = param->cols;
    out->param_offset = (b * param->rows + r0) * param->cols;
    out->own.n = out->rows * out->cols;
    out->grad_offset = out->param_offset;
    out->held_rows = out->rows;
    out->nbytes = out->rows * out->cols * zfi_dtype_nbytes(param->dtype);
    out->carries = param->carries;
    out->takes_whole = param->rule->matrices.update != NULL;
    out->lacks_v = out->takes_whole && param->rule->n_moments < 2;
    out->channels_are_rows = param->channels_are_rows;
    out->n_channels = (uint32_t)(param->channels_are_rows ? out->rows : out->cols);
}

/* What is selected of it, and where what is kept of it lies. */
static void number_matrix(const zfi_config_t *config, const zfi_param_t *param, zfi_plan_t *plan, zfi_matrix_t *out) {
    if (!out->is_resident)
        out->k = n_selected(config, param, out->n_channels);
    out->is_choosable = out->k > 0 && out->k < out->n_channels;
    out->channel_base = plan->n_channels;
    out->index_base = plan->n_index;
    out->sum_base = plan->n_sums;
    out->sel_base = plan->n_sel_elems;
    out->grad_base = plan->n_sel_grad_nbytes;
    out->count_base = plan->n_counts;
    out->n_counts = config->deferred == ZFI_DEFERRED_MEAN ? out->n_channels : 1;
    plan->n_channels += out->is_resident ? 0 : out->n_channels;
    plan->n_counts += out->n_counts;
    plan->n_index += out->k;
    if (out->is_choosable)
        plan->n_sums += out->n_channels;
    uint64_t n_selected_elems = out->k * zfi_channel_elems(out);
    plan->n_sel_elems += (n_selected_elems + 3) / 4 * 4; /* each matrix begins where 16 bytes are one access */
    plan->n_sel_grad_nbytes += (n_selected_elems * zfi_dtype_nbytes(param->grad_dtype) + 15) / 16 * 16;
    plan->n_elems += out->rows * out->cols;
    plan->n_resident += (uint32_t)out->is_resident;
}

/* Launches of run-ahead and of the update of resident matrices: of about equal work, so that param_fetch need not wait
 * for all of it. */
static uint64_t launch_elems(const zfi_matrix_t *matrix) {
    return (uint64_t)(matrix->is_resident ? matrix->n_channels : matrix->k) *
           (matrix->rows * matrix->cols / matrix->n_channels);
}

static void cut_launches(const zfi_config_t *config, zfi_plan_t *plan) {
    uint64_t elems = 0, most = 0, least = config->sees_edits ? SHARED_LAUNCH_ELEMS : LAUNCH_ELEMS;
    for (uint32_t i = 0; i < plan->n_matrices; i++)
        most += launch_elems(&plan->matrices[i]);
    most = most / MOST_LAUNCHES > least ? most / MOST_LAUNCHES : least;
    for (uint32_t i = 0; i < plan->n_matrices; i++) {
        plan->matrices[i].launch = plan->n_launches;
        elems += launch_elems(&plan->matrices[i]);
        if (elems < most && i + 1 < plan->n_matrices)
            continue;
        plan->launch_ends[plan->n_launches++] = i + 1;
        elems = 0;
    }
}

/* 0: more than fit in the plan's numbers. */
static uint32_t count_matrices(const zfi_config_t *config, const zfi_param_t *params, uint32_t n, uint64_t total) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        if (params[i].has_state)
            count += params[i].n_batch * n_blocks(&params[i], config, total);
    return count > UINT32_MAX / 2 ? 0 : (uint32_t)count;
}

static void cut_matrices(const zfi_config_t *config, zfi_param_t *params, uint32_t n, uint64_t total,
                         zfi_plan_t *plan) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        zfi_param_t *param = &params[i];
        param->first_matrix = at;
        param->n_matrices = 0;
        param->has_resident = 0;
        param->n_refs = 0;
        if (!param->has_state)
            continue;
        uint64_t blocks = n_blocks(param, config, total);
        for (uint64_t b = 0; b < param->n_batch; b++)
            for (uint64_t j = 0; j < blocks; j++)
                shape_matrix(param, b, j * param->rows / blocks, (j + 1) * param->rows / blocks, &plan->matrices[at++]);
        param->n_matrices = at - param->first_matrix;
        plan->n_whole += param->rule->matrices.update ? (uint32_t)param->n_batch : 0;
    }
}

/* ---- homes ------------------------------------------------------------------------------------------------------- */

static uint64_t aligned(uint64_t n_elems) {
    return (n_elems + ZFI_STATE_ALIGN - 1) / ZFI_STATE_ALIGN * ZFI_STATE_ALIGN;
}

/* The next place at which a matrix may begin. */
static uint64_t aligned_for(const zfi_matrix_t *matrix, uint64_t at) {
    uint64_t align = zfi_has_runs(matrix->moments) ? ZFI_RUN : ZFI_STATE_ALIGN;
    return (at + align - 1) / align * align;
}

/* The order in which parameters may be resident: those that the host declared, vectors, the rest; -1: not. */
static int claim_of(const zfi_param_t *param) {
    if (param->home != ZF_HOME_PLUGIN)
        return param->home == ZF_HOME_RESIDENT ? 0 : -1;
    return param->ndim - param->n_batch_axes <= 1 ? 1 : 2;
}

/* Ranks that keep the state of a parameter together. */
static uint32_t n_owners(const zfi_param_t *param, const zfi_buckets_t *buckets) {
    return buckets && buckets->is_owner
               ? buckets->holders[buckets->all[buckets->of_param[param->id]].holders].place.n_ranks
               : 1;
}

/* Weights that lie in the host's memory as the state does, on one rank. What the host gave to the workers stays theirs;
 * what a rule takes whole has one owner, of several ranks too. */
static int is_in_place(const zfi_config_t *config, const zfi_param_t *param, const zfi_buckets_t *buckets) {
    return config->sees_edits && param->home != ZF_HOME_HOST &&
           (param->rule->matrices.update || !(buckets && buckets->n));
}

/* Matrices that are updated in place are resident. Others become so by their claims, and by number, until one does not
 * fit. What was declared always does. Each counts as on the rank that may own most of it, so that all ranks choose the
 * same. */
static void choose_homes(const zfi_config_t *config, zfi_param_t *params, uint32_t n_params,
                         const zfi_buckets_t *buckets, zfi_plan_t *plan) {
    uint64_t element = sizeof(float) + (uint64_t)zfi_params_n_moments(params, n_params) *
                                           zfi_moment_nbytes(zfi_config_element_moments(config), ZFI_M, 1);
    uint64_t left = config->resident_nbytes, nbytes;
    int is_all = config->resident_nbytes == ZFI_RESIDENT_ALL, is_full = 0;
    for (int claim = 0; claim <= 2; claim++)
        for (uint32_t i = 0; i < plan->n_matrices; i++) {
            zfi_matrix_t *matrix = &plan->matrices[i];
            const zfi_param_t *param = &params[matrix->param];
            const int in_place = is_in_place(config, param, buckets);
            matrix->sees_edits = in_place && !param->carries;
            if (in_place)
                matrix->is_resident = params[matrix->param].has_resident = 1;
            if (in_place || (!is_all && claim_of(param) != claim))
                continue;
            nbytes = aligned(zfi_slice_most(matrix, param->is_sharded, n_owners(param, buckets))) * element;
            is_full |= claim > 0 && nbytes > left;
            matrix->is_resident = is_all || !is_full;
            left -= is_all || is_full ? 0 : nbytes < left ? nbytes : left;
            params[matrix->param].has_resident |= matrix->is_resident;
        }
}

/* Moments lie in runs where most of a model's elements are: in rows of whole runs, of a parameter that is not small. A
 * rule of the host's sees moments as it left them. Of what is resident on a device kernels know no runs. */
static int has_runs(const zfi_param_t *param, const zfi_matrix_t *matrix) {
    return param->n_elems >= LEAST_OF_RUNS && param->cols % ZFI_RUN == 0 && param->rule->number != ZF_RULE_CALLBACK &&
           !matrix->takes_whole && (!matrix->is_resident || matrix->sees_edits || matrix->carries);
}

static void choose_moments(const zfi_config_t *config, const zfi_param_t *params, zfi_plan_t *plan) {
    for (uint32_t i = 0; i < plan->n_matrices; i++) {
        zfi_matrix_t *matrix = &plan->matrices[i];
        matrix->moments = has_runs(&params[matrix->param], matrix) ? (zfi_moments_t)config->moments
                                                                   : zfi_config_element_moments(config);
    }
}

/* ---- lots -------------------------------------------------------------------------------------------------------- */

static int is_of_class(const zfi_param_t *a, const zfi_param_t *b) {
    return a->dtype == b->dtype && a->grad_dtype == b->grad_dtype;
}

/* Whether a matrix goes on with the lot that has n_elems so far; most: elements of a lot of more than one. */
static int goes_on(const zfi_plan_t *plan, const zfi_param_t *params, const zfi_lot_t *lot, uint64_t n_elems,
                   uint32_t matrix, uint64_t most) {
    const zfi_matrix_t *next = &plan->matrices[matrix], *first = &plan->matrices[lot->first_matrix];
    return n_elems + next->rows * next->cols <= most && next->moments == first->moments &&
           is_of_class(&params[next->param], &params[first->param]);
}

/* The most elements of a lot of more than one matrix. */
static uint64_t most_of_lot(uint64_t total) {
    uint64_t small = total / SMALL_SHARE < SMALL_LOT ? total / SMALL_SHARE : SMALL_LOT;
    return total / SHARE > small ? total / SHARE : small;
}

static void tie_lots(zfi_plan_t *plan, const zfi_param_t *params, uint64_t most) {
    zfi_lot_t *lot = NULL;
    uint64_t n_elems = 0;
    for (uint32_t i = 0; i < plan->n_matrices; i++) {
        const zfi_matrix_t *matrix = &plan->matrices[i];
        if (matrix->is_resident) { /* it ends the lot before it */
            lot = NULL;
            continue;
        }
        if (!lot || !goes_on(plan, params, lot, n_elems, i, most)) {
            lot = &plan->lots[plan->n_lots++];
            lot->first_matrix = i;
            n_elems = 0;
        }
        lot->n_matrices++;
        lot->nbytes += matrix->nbytes;
        n_elems += matrix->rows * matrix->cols;
    }
}

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

/* Small models get small chunks, so that a cohort has chunks for all workers and little is lost at its end; huge models
 * get larger ones, so that bookkeeping stays small. */
static uint32_t choose_chunk(uint64_t grad_nbytes) {
    uint64_t wanted = grad_nbytes / CHUNKS_WANTED;
    uint32_t nbytes = SMALLEST_CHUNK;
    while (nbytes < USUAL_CHUNK && nbytes < wanted)
        nbytes *= 2;
    while (nbytes < LARGEST_CHUNK && grad_nbytes / nbytes > MANY_CHUNKS)
        nbytes *= 2;
    return nbytes;
}

/* Walks the state order; with is_counting it only counts. */
typedef struct layout {
    const zfi_param_t *params;
    zfi_plan_t *plan;
    int is_counting;
    uint64_t state_at;
    uint32_t chunk_elems; /* of the lot being laid out */
    uint32_t n_chunks, n_segments;
    uint32_t fill_elems; /* in the open chunk */
} layout_t;

static void open_chunk(layout_t *layout, const zfi_param_t *param, zfi_moments_t moments) {
    zfi_chunk_t *chunk;
    layout->fill_elems = 0;
    if (!layout->is_counting) {
        chunk = &layout->plan->chunks[layout->n_chunks];
        chunk->state_base = layout->state_at;
        chunk->first_segment = layout->n_segments;
        chunk->dtype = param->dtype;
        chunk->grad_dtype = param->grad_dtype;
        chunk->moments = moments;
    }
    layout->n_chunks++;
}

static void place_segment(layout_t *layout, uint32_t number, uint64_t offset, uint32_t n_elems) {
    if (!layout->is_counting) {
        zfi_chunk_t *chunk = &layout->plan->chunks[layout->n_chunks - 1];
        layout->plan->segments[layout->n_segments] = (zfi_segment_t){.matrix = number,
                                                                     .chunk = layout->n_chunks - 1,
                                                                     .chunk_offset = layout->fill_elems,
                                                                     .n_elems = n_elems,
                                                                     .matrix_offset = offset};
        chunk->n_segments++;
        chunk->n_elems = layout->fill_elems + n_elems;
    }
    layout->n_segments++;
    layout->fill_elems += n_elems;
    layout->state_at += n_elems;
}

/* Places what this rank owns of a matrix. */
static void place_matrix(layout_t *layout, uint32_t number) {
    zfi_matrix_t *matrix = &layout->plan->matrices[number];
    const zfi_param_t *param = &layout->params[matrix->param];
    uint32_t pad = (uint32_t)(aligned_for(matrix, layout->state_at) - layout->state_at);
    layout->state_at += pad;
    layout->fill_elems += pad;
    matrix->state_base = layout->state_at;
    for (uint64_t done = 0; done < matrix->own.n;) {
        if (layout->fill_elems >= layout->chunk_elems)
            open_chunk(layout, param, matrix->moments);
        uint32_t room = layout->chunk_elems - layout->fill_elems;
        uint32_t take = matrix->own.n - done < room ? (uint32_t)(matrix->own.n - done) : room;
        place_segment(layout, number, matrix->own.first + done, take);
        done += take;
    }
}

/* Elements of a lot's chunks: the fewest that are not too large, as equal as can be. */
static uint32_t chunk_elems_of(const layout_t *layout, const zfi_lot_t *lot) {
    const zfi_plan_t *plan = layout->plan;
    const zfi_param_t *param = &layout->params[plan->matrices[lot->first_matrix].param];
    uint64_t n_elems = 0, most = plan->chunk_nbytes / zfi_dtype_nbytes(param->grad_dtype), n_chunks;
    for (uint32_t i = lot->first_matrix; i < lot->first_matrix + lot->n_matrices; i++)
        n_elems += aligned(plan->matrices[i].own.n);
    n_chunks = (n_elems + most - 1) / most;
    if (n_chunks == 0) /* another rank's */
        return ZFI_RUN;
    return (uint32_t)aligned_for(&plan->matrices[lot->first_matrix], (n_elems + n_chunks - 1) / n_chunks);
}

static void place_lot(layout_t *layout, zfi_lot_t *lot) {
    uint32_t first_chunk = layout->n_chunks;
    layout->chunk_elems = chunk_elems_of(layout, lot);
    layout->state_at = aligned_for(&layout->plan->matrices[lot->first_matrix], layout->state_at);
    layout->fill_elems = layout->chunk_elems; /* the first matrix opens a chunk */
    for (uint32_t i = lot->first_matrix; i < lot->first_matrix + lot->n_matrices; i++)
        place_matrix(layout, i);
    lot->first_chunk = first_chunk;
    lot->n_chunks = layout->n_chunks - first_chunk;
}

/* Kinds of resident matrices: those of a kind lie together. */
enum { WITHOUT_V, BY_ELEMENT, IN_RUNS };

static int kind_of(const zfi_matrix_t *matrix) {
    return matrix->lacks_v ? WITHOUT_V : zfi_has_runs(matrix->moments) ? IN_RUNS : BY_ELEMENT;
}

/* The state of resident matrices of a kind that have masters of their own, or not. Returns its end. A parameter whose
 * rule takes whole matrices is in one piece. */
static uint64_t place_residents(zfi_plan_t *plan, uint64_t at, int are_own_masters, int kind) {
    for (uint32_t i = 0; i < plan->n_matrices; i++) {
        zfi_matrix_t *matrix = &plan->matrices[i];
        if (!matrix->is_resident || zfi_is_own_master(matrix) != are_own_masters || kind_of(matrix) != kind)
            continue;
        matrix->state_base = matrix->takes_whole && matrix->param_offset ? at : aligned_for(matrix, at);
        at = matrix->state_base + matrix->own.n;
        if (kind == IN_RUNS && plan->first_run == plan->end_run)
            plan->first_run = matrix->state_base;
        if (kind == IN_RUNS)
            plan->end_run = at;
    }
    return aligned(at);
}

/* Segments of resident matrices are no longer than a chunk. Counts them where there is no memory for them yet. */
static void lay_out_resident(zfi_plan_t *plan, const zfi_param_t *params) {
    plan->first_run = plan->end_run = 0;
    uint64_t first_v = place_residents(plan, 0, 0, WITHOUT_V), elements = place_residents(plan, first_v, 0, BY_ELEMENT);
    uint64_t masters = place_residents(plan, elements, 0, IN_RUNS), runs = place_residents(plan, masters, 1, IN_RUNS);
    uint64_t end_v = place_residents(plan, runs, 1, BY_ELEMENT), at = place_residents(plan, end_v, 1, WITHOUT_V);
    plan->n_resident_segments = 0;
    for (uint32_t i = 0; i < plan->n_matrices; i++) {
        const zfi_matrix_t *matrix = &plan->matrices[i];
        uint64_t most = plan->chunk_nbytes / zfi_dtype_nbytes(params[matrix->param].grad_dtype), n;
        if (!matrix->is_resident)
            continue;
        for (uint64_t done = 0; done < matrix->own.n; done += n) {
            n = matrix->own.n - done < most ? matrix->own.n - done : most;
            if (plan->resident_segments)
                plan->resident_segments[plan->n_resident_segments] =
                    (zfi_segment_t){.matrix = i, .n_elems = (uint32_t)n, .matrix_offset = matrix->own.first + done};
            plan->n_resident_segments++;
        }
    }
    plan->n_resident_masters = masters;
    plan->first_resident_v = first_v;
    plan->n_resident_v = end_v > first_v ? end_v - first_v + ZFI_STATE_ALIGN : 0;
    plan->n_resident_elems = at ? at + ZFI_STATE_ALIGN : 0;
}

static void lay_out(zfi_plan_t *plan, const zfi_param_t *params, int is_counting) {
    layout_t layout = {.params = params, .plan = plan, .is_counting = is_counting};
    for (uint32_t i = 0; i < plan->n_lots; i++)
        place_lot(&layout, &plan->lots[i]);
    plan->n_chunks = layout.n_chunks;
    plan->n_segments = layout.n_segments;
    plan->n_state_elems = layout.n_chunks ? layout.state_at + ZFI_STATE_ALIGN : 0;
    lay_out_resident(plan, params);
}

static void refer_segments(zfi_plan_t *plan, zfi_param_t *params, uint32_t n_params) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < plan->n_segments; i++)
        params[plan->matrices[plan->segments[i].matrix].param].n_refs++;
    for (uint32_t i = 0; i < n_params; i++) {
        params[i].first_ref = at;
        at += params[i].n_refs;
        params[i].n_refs = 0;
    }
    for (uint32_t i = 0; i < plan->n_segments; i++) {
        zfi_param_t *param = &params[plan->matrices[plan->segments[i].matrix].param];
        plan->param_segments[param->first_ref + param->n_refs++] = i;
    }
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static zf_status_t allocate_first(zfi_plan_t *plan, uint32_t n_matrices) {
    plan->n_matrices = n_matrices;
    plan->matrices = calloc(n_matrices, sizeof *plan->matrices);
    plan->lots = calloc(n_matrices, sizeof *plan->lots);
    plan->cohort_matrices = calloc(n_matrices, sizeof *plan->cohort_matrices);
    plan->launch_ends = calloc(n_matrices, sizeof *plan->launch_ends);
    return plan->matrices && plan->lots && plan->cohort_matrices && plan->launch_ends ? ZF_OK : ZF_ERR_MEMORY;
}

static zf_status_t allocate_second(zfi_plan_t *plan) {
    /* one more: there may be none, where others own everything */
    plan->segments = calloc(plan->n_segments + 1u, sizeof *plan->segments);
    plan->param_segments = calloc(plan->n_segments + 1u, sizeof *plan->param_segments);
    plan->chunks = calloc(plan->n_chunks + 1u, sizeof *plan->chunks);
    plan->cohort_chunks = calloc(plan->n_chunks + 1u, sizeof *plan->cohort_chunks);
    plan->resident_segments = calloc(plan->n_resident_segments + 1u, sizeof *plan->resident_segments);
    return plan->segments && plan->param_segments && plan->chunks && plan->cohort_chunks && plan->resident_segments
               ? ZF_OK
               : ZF_ERR_MEMORY;
}

static uint64_t all_grad_nbytes(const zfi_param_t *params, uint32_t n) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++)
        if (params[i].has_state)
            total += params[i].n_elems * zfi_dtype_nbytes(params[i].grad_dtype);
    return total;
}

static void size_publications(zfi_plan_t *plan) {
    uint64_t total = 0, least;
    if (plan->n_resident == plan->n_matrices) /* nothing is deferred */
        return;
    for (uint32_t i = 0; i < plan->n_chunks; i++) {
        uint32_t nbytes = plan->chunks[i].n_elems * (uint32_t)zfi_dtype_nbytes(plan->chunks[i].dtype);
        if (nbytes > plan->publish_piece_nbytes)
            plan->publish_piece_nbytes = nbytes;
        total += nbytes;
    }
    /* every place in the ring has the alignment of any element */
    plan->publish_piece_nbytes = (plan->publish_piece_nbytes + 3) / 4 * 4;
    least = total ? (uint64_t)LEAST_BUCKET * plan->n_chunks / total : 0; /* chunks of average size */
    plan->bucket_chunks = plan->n_chunks ? (plan->n_chunks + BUCKETS - 1) / BUCKETS : 1;
    if (plan->bucket_chunks < least)
        plan->bucket_chunks = least < plan->n_chunks ? (uint32_t)least : plan->n_chunks;
    plan->ring_chunks = 2 * plan->bucket_chunks > LEAST_RING ? 2 * plan->bucket_chunks : LEAST_RING;
}

/* In how many parts an importance record travels: the ring of four takes two bytes per parameter at most, where whole
 * records of a matrix that is cut into single rows take 32. An automatic interval reads whole records. */
static void cut_records(const zfi_config_t *config, zfi_plan_t *plan) {
    uint64_t most = plan->n_elems / RECORD_SHARE;
    if (most < config->block_elems)
        most = config->block_elems;
    if (plan->n_sums == 0)
        return;
    plan->n_record_parts = config->is_interval_auto ? 1 : (uint32_t)((plan->n_sums + most - 1) / most);
    plan->record_sums = (plan->n_sums + plan->n_record_parts - 1) / plan->n_record_parts;
}

static zf_status_t build(const zfi_config_t *config, zfi_param_t *params, uint32_t n_params, zfi_buckets_t *buckets,
                         uint64_t total, zfi_plan_t *plan) {
    uint32_t n_matrices = count_matrices(config, params, n_params, total);
    plan->carries = zfi_params_carry(params, n_params);
    zf_status_t st = n_matrices ? allocate_first(plan, n_matrices) : ZF_ERR_MEMORY;
    if (st)
        return st;
    cut_matrices(config, params, n_params, total, plan);
    choose_homes(config, params, n_params, buckets, plan);
    choose_moments(config, params, plan);
    tie_lots(plan, params, most_of_lot(total));
    st = zfi_plan_deal(plan, config);
    if (!st && buckets && buckets->n)
        st = zfi_plan_deal_slices(plan, params, buckets);
    if (st)
        return st;
    zfi_plan_place(plan, params);
    for (uint32_t i = 0; i < n_matrices; i++)
        number_matrix(config, &params[plan->matrices[i].param], plan, &plan->matrices[i]);
    cut_launches(config, plan);
    cut_records(config, plan);
    plan->chunk_nbytes = choose_chunk(all_grad_nbytes(params, n_params));
    lay_out(plan, params, 1);
    st = allocate_second(plan);
    if (st)
        return st;
    lay_out(plan, params, 0);
    refer_segments(plan, params, n_params);
    size_publications(plan);
    return zfi_plan_deal_chunks(plan, config);
}

zf_status_t zfi_plan_build(const zfi_config_t *config, zfi_param_t *params, uint32_t n_params, zfi_buckets_t *buckets,
                           zfi_plan_t *out, zf_error_t *err) {
    zfi_plan_t plan = {0};
    uint64_t total = total_elems(params, n_params);
    if (total == 0)
        return zfi_error(err, ZF_ERR_PARAM, "bind_params",
                         "none of the %u parameters is trainable (frozen, tied or empty): there is nothing to optimise",
                         n_params);
    zf_status_t st = build(config, params, n_params, buckets, total, &plan);
    if (st) {
        zfi_plan_free(&plan);
        return zfi_error(err, st, "bind_params", "no memory to plan %u parameters", n_params);
    }
    *out = plan;
    return ZF_OK;
}

uint32_t zfi_first_of(const uint32_t *rising, size_t step, uint32_t n, uint32_t least) {
    uint32_t first = 0;
    while (n) {
        uint32_t half = n / 2;
        if (rising[step * (first + half)] < least) {
            first += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return first;
}

uint32_t zfi_first_segment(const zfi_segment_t *segments, uint32_t n, uint32_t matrix) {
    return zfi_first_of(&segments->matrix, sizeof *segments / sizeof segments->matrix, n, matrix);
}

void zfi_plan_free(zfi_plan_t *plan) {
    free(plan->matrices);
    free(plan->lots);
    free(plan->launch_ends);
    free(plan->slices);
    free(plan->segments);
    free(plan->resident_segments);
    free(plan->param_segments);
    free(plan->chunks);
    free(plan->cohorts);
    free(plan->cohort_matrices);
    free(plan->cohort_chunks);
    free(plan->layers);
    memset(plan, 0, sizeof *plan);
}
