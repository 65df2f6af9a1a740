/* plugin/plan.c - matrices, cohorts, chunks and the peak of the slot pool (contract in plan.h; rules in SCHEDULE.md).
 */
#include "plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

enum {
    LARGEST_PIECE = 1 << 18,
    USUAL_PIECE = 1 << 16,
    SMALLEST_PIECE = 1 << 12,
    CHUNKS_WANTED = 16,
    MANY_CHUNKS = 16384
};

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

static uint64_t matrix_nbytes(const zfi_param_t *param) {
    return param->rows * param->cols * zfi_dtype_nbytes(param->dtype);
}

static uint64_t total_nbytes(const zfi_param_t *params, uint32_t n) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++)
        if (params[i].has_state)
            total += params[i].n_batch * matrix_nbytes(&params[i]);
    return total;
}

static uint64_t n_blocks(const zfi_param_t *param, uint64_t total, uint64_t n_cohorts) {
    uint64_t nbytes = matrix_nbytes(param);
    uint64_t n = nbytes * n_cohorts > total ? (nbytes * n_cohorts + total - 1) / total : 1;
    return n < param->rows ? n : param->rows;
}

static uint32_t n_selected(const zfi_param_t *param, uint32_t n_channels, double topk_ratio) {
    double k = floor(topk_ratio * (double)n_channels + 0.5);
    if (param->flags & ZF_PARAM_NEVER_SELECTED)
        return 0;
    if (param->flags & ZF_PARAM_ALWAYS_SELECTED)
        return n_channels;
    if (topk_ratio == 0)
        return 0;
    if (param->ndim - param->n_batch_axes <= 1)
        return n_channels;
    if (k < 1)
        return 1;
    return k < (double)n_channels ? (uint32_t)k : n_channels;
}

int zfi_plan_is_open(const zfi_config_t *config, const zfi_param_t *param, uint32_t n_channels) {
    return zfi_config_is_topk_auto(config) && n_channels > 1 && param->ndim - param->n_batch_axes > 1 &&
           !(param->flags & (ZF_PARAM_NEVER_SELECTED | ZF_PARAM_ALWAYS_SELECTED));
}

static void place(const zfi_param_t *param, zfi_matrix_t *out) {
    uint64_t row = out->param_offset / param->cols;
    int64_t first = zfi_param_batch_offset(param, row / param->rows) + (int64_t)(row % param->rows) * param->row_stride;
    out->place.visible = param->visible + first * (int64_t)zfi_dtype_nbytes(param->dtype);
    out->place.dtype = param->dtype;
    out->place.row_stride = param->row_stride;
    out->place.col_offset = param->col_offset;
}

void zfi_plan_place(zfi_plan_t *plan, const zfi_param_t *params) {
    for (uint32_t i = 0; i < plan->n_matrices; i++)
        place(&params[plan->matrices[i].param], &plan->matrices[i]);
}

static void fill_matrix(const zfi_config_t *config, const zfi_param_t *param, uint64_t b, uint64_t r0, uint64_t r1,
                        zfi_plan_t *plan, zfi_matrix_t *out) {
    out->param = param->id;
    out->rows = r1 - r0;
    out->cols = param->cols;
    out->param_offset = (b * param->rows + r0) * param->cols;
    out->nbytes = out->rows * out->cols * zfi_dtype_nbytes(param->dtype);
    out->channels_are_rows = param->channels_are_rows;
    out->n_channels = (uint32_t)(param->channels_are_rows ? out->rows : out->cols);
    if (zfi_plan_is_open(config, param, out->n_channels)) {
        out->k = 0;
        out->k_most = out->n_channels;
        out->is_choosable = 1;
        plan->n_open_elems += out->rows * out->cols;
    } else {
        out->k = out->k_most = n_selected(param, out->n_channels, config->topk_ratio);
        out->is_choosable = out->k > 0 && out->k < out->n_channels;
    }
    place(param, out);
    out->channel_base = plan->n_channels;
    out->index_base = plan->n_index;
    out->sum_base = plan->n_sums;
    out->sel_base = plan->n_sel_elems;
    plan->n_channels += out->n_channels;
    plan->n_index += out->k_most;
    if (out->is_choosable)
        plan->n_sums += out->n_channels;
    plan->n_sel_elems += out->k * (out->rows * out->cols / out->n_channels);
    plan->n_sel_grad_nbytes += out->k * (out->rows * out->cols / out->n_channels) * zfi_dtype_nbytes(param->grad_dtype);
    plan->n_elems += out->rows * out->cols;
}

/* What topk_ratio = auto may select at most: its budget, or one channel of each matrix. */
static void plan_budget(const zfi_config_t *config, const zfi_param_t *params, zfi_plan_t *plan) {
    uint64_t most = (uint64_t)(config->max_topk_ratio * (double)plan->n_open_elems), least = 0, nbytes = 0;
    for (uint32_t i = 0; i < plan->n_matrices && zfi_config_is_topk_auto(config); i++) {
        const zfi_matrix_t *matrix = &plan->matrices[i];
        if (!matrix->is_choosable)
            continue;
        least += matrix->rows * matrix->cols / matrix->n_channels;
        if (zfi_dtype_nbytes(params[matrix->param].grad_dtype) > nbytes)
            nbytes = zfi_dtype_nbytes(params[matrix->param].grad_dtype);
    }
    most = most > least ? most : least;
    plan->n_sel_elems += most;
    plan->n_sel_grad_nbytes += most * nbytes;
}

/* 0: more than fit in the plan's numbers. */
static uint32_t count_matrices(const zfi_param_t *params, uint32_t n, uint64_t total, uint64_t n_cohorts) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        if (params[i].has_state)
            count += params[i].n_batch * n_blocks(&params[i], total, n_cohorts);
    return count > UINT32_MAX / 2 ? 0 : (uint32_t)count;
}

static void cut_matrices(const zfi_config_t *config, zfi_param_t *params, uint32_t n, uint64_t total,
                         zfi_plan_t *plan) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        zfi_param_t *param = &params[i];
        uint64_t blocks;
        param->first_matrix = at;
        param->n_matrices = 0;
        if (!param->has_state)
            continue;
        blocks = n_blocks(param, total, plan->n_cohorts);
        for (uint64_t b = 0; b < param->n_batch; b++)
            for (uint64_t j = 0; j < blocks; j++)
                fill_matrix(config, param, b, j * param->rows / blocks, (j + 1) * param->rows / blocks, plan,
                            &plan->matrices[at++]);
        param->n_matrices = at - param->first_matrix;
    }
}

/* ---- cohorts ----------------------------------------------------------------------------------------------------- */

static int larger_first(const void *a, const void *b) {
    const zfi_matrix_t *x = *(zfi_matrix_t *const *)a, *y = *(zfi_matrix_t *const *)b;
    if (x->nbytes != y->nbytes)
        return x->nbytes > y->nbytes ? -1 : 1;
    return x < y ? -1 : x > y;
}

static void deal_cohorts(zfi_plan_t *plan, zfi_matrix_t **sorted) {
    for (uint32_t i = 0; i < plan->n_matrices; i++)
        sorted[i] = &plan->matrices[i];
    qsort(sorted, plan->n_matrices, sizeof *sorted, larger_first);
    for (uint32_t i = 0; i < plan->n_matrices; i++) {
        uint32_t best = 0;
        for (uint32_t j = 1; j < plan->n_cohorts; j++)
            if (plan->cohorts[j].nbytes < plan->cohorts[best].nbytes)
                best = j;
        sorted[i]->cohort = best;
        plan->cohorts[best].nbytes += sorted[i]->nbytes;
        plan->cohorts[best].n_matrices++;
    }
}

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

/* Small models get small pieces, so that a cohort has chunks for all workers and little is lost at its end; huge models
 * get larger ones, so that bookkeeping stays small. */
static uint32_t choose_piece(const zfi_plan_t *plan, uint64_t grad_nbytes) {
    uint64_t wanted = grad_nbytes / plan->n_cohorts / CHUNKS_WANTED;
    uint32_t piece = SMALLEST_PIECE;
    while (piece < USUAL_PIECE && piece < wanted)
        piece *= 2;
    while (piece < LARGEST_PIECE && grad_nbytes / piece > MANY_CHUNKS)
        piece *= 2;
    return piece;
}

/* Walks the state order; with chunks and segments NULL it only counts. */
typedef struct layout {
    const zfi_param_t *params;
    zfi_plan_t *plan;
    int is_counting;
    uint64_t state_at;
    uint32_t chunk_elems; /* of the class being laid out */
    uint32_t n_chunks, n_segments;
    uint32_t fill_elems; /* in the open chunk */
} layout_t;

static void open_chunk(layout_t *layout, const zfi_param_t *param) {
    zfi_chunk_t *chunk;
    layout->fill_elems = 0;
    if (!layout->is_counting) {
        chunk = &layout->plan->chunks[layout->n_chunks];
        chunk->state_base = layout->state_at;
        chunk->first_segment = layout->n_segments;
        chunk->dtype = param->dtype;
        chunk->grad_dtype = param->grad_dtype;
    }
    layout->n_chunks++;
}

static void place_segment(layout_t *layout, uint32_t matrix, uint64_t matrix_offset, uint32_t n_elems) {
    if (!layout->is_counting) {
        zfi_chunk_t *chunk = &layout->plan->chunks[layout->n_chunks - 1];
        layout->plan->segments[layout->n_segments] =
            (zfi_segment_t){matrix, layout->n_chunks - 1, layout->fill_elems, n_elems, matrix_offset};
        chunk->n_segments++;
        chunk->n_elems = layout->fill_elems + n_elems;
    }
    layout->n_segments++;
    layout->fill_elems += n_elems;
    layout->state_at += n_elems;
}

static void place_matrix(layout_t *layout, uint32_t number) {
    zfi_matrix_t *matrix = &layout->plan->matrices[number];
    uint64_t n = matrix->rows * matrix->cols, done = 0;
    uint32_t pad = (uint32_t)(-layout->state_at % ZFI_STATE_ALIGN);
    layout->state_at += pad;
    layout->fill_elems += pad;
    matrix->state_base = layout->state_at;
    while (done < n) {
        uint32_t room, take;
        if (layout->fill_elems >= layout->chunk_elems)
            open_chunk(layout, &layout->params[matrix->param]);
        room = layout->chunk_elems - layout->fill_elems;
        take = n - done < room ? (uint32_t)(n - done) : room;
        place_segment(layout, number, done, take);
        done += take;
    }
}

/* Matrices of one cohort and one class of data types, in number order. */
static void place_class(layout_t *layout, uint32_t cohort, zfi_dtype_t dtype, zfi_dtype_t grad_dtype,
                        uint32_t *listed) {
    zfi_plan_t *plan = layout->plan;
    layout->chunk_elems = (uint32_t)(plan->piece_nbytes / zfi_dtype_nbytes(grad_dtype));
    layout->fill_elems = layout->chunk_elems; /* the first matrix opens a chunk */
    layout->state_at += -layout->state_at % ZFI_STATE_ALIGN;
    for (uint32_t i = 0; i < plan->n_matrices; i++) {
        const zfi_param_t *param = &layout->params[plan->matrices[i].param];
        if (plan->matrices[i].cohort != cohort || param->dtype != dtype || param->grad_dtype != grad_dtype)
            continue;
        place_matrix(layout, i);
        if (!layout->is_counting)
            plan->cohort_matrices[*listed] = i;
        (*listed)++;
    }
}

static void lay_out(zfi_plan_t *plan, const zfi_param_t *params, int is_counting) {
    layout_t layout = {.params = params, .plan = plan, .is_counting = is_counting};
    uint32_t listed = 0;
    for (uint32_t c = 0; c < plan->n_cohorts; c++) {
        uint32_t first_chunk = layout.n_chunks, first_matrix = listed;
        for (int dtype = 0; dtype < ZFI_N_DTYPES; dtype++)
            for (int grad = 0; grad < ZFI_N_DTYPES; grad++)
                place_class(&layout, c, (zfi_dtype_t)dtype, (zfi_dtype_t)grad, &listed);
        plan->cohorts[c].first_chunk = first_chunk;
        plan->cohorts[c].n_chunks = layout.n_chunks - first_chunk;
        plan->cohorts[c].first_matrix = first_matrix;
        if (plan->cohorts[c].n_chunks > plan->max_close_chunks)
            plan->max_close_chunks = plan->cohorts[c].n_chunks;
    }
    plan->n_chunks = layout.n_chunks;
    plan->n_segments = layout.n_segments;
    plan->n_state_elems = layout.state_at + ZFI_STATE_ALIGN;
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

/* ---- the slot pool ----------------------------------------------------------------------------------------------- */

/* Pieces in use while the gradients of a step arrive, in the steady state, when the cohort that closed at the step
 * before is still being replayed: cohort c, which closed last `age` steps ago, holds age slots; the youngest also its
 * old window. */
static uint64_t pieces_at(const zfi_plan_t *plan, uint32_t interval, uint32_t phase) {
    uint64_t pieces = 0;
    for (uint32_t c = 0; c < plan->n_cohorts; c++) {
        uint32_t age = (phase + interval - c % interval) % interval + 1; /* 1..S slots, this step's included */
        pieces += (uint64_t)plan->cohorts[c].n_chunks * (age + (age == 1 ? interval : 0));
    }
    return pieces;
}

/* Sums instead of slots: a step's gradient on its way to the host's sums and the one before it, or at the closes the
 * two sums of the device on their way down; warm-up needs as many. */
static void size_pool_of_moments(zfi_plan_t *plan) {
    plan->n_slot_pieces = 2u * plan->n_chunks;
    plan->slots_peak = plan->slots_mean = 2;
}

static void size_pool(zfi_plan_t *plan, uint32_t interval) {
    uint64_t peak = 2u * (uint64_t)plan->n_chunks; /* warm-up: this step's and the one being replayed */
    double sum = 0;
    for (uint32_t phase = 0; phase < interval; phase++) {
        uint64_t pieces = pieces_at(plan, interval, phase);
        sum += (double)pieces;
        if (pieces > peak)
            peak = pieces;
    }
    plan->n_slot_pieces = (uint32_t)peak;
    plan->slots_peak = (double)peak / plan->n_chunks;
    plan->slots_mean = sum / interval / plan->n_chunks;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static zf_status_t allocate_first(zfi_plan_t *plan, uint32_t n_matrices) {
    plan->n_matrices = n_matrices;
    plan->matrices = calloc(n_matrices, sizeof *plan->matrices);
    plan->cohort_matrices = calloc(n_matrices, sizeof *plan->cohort_matrices);
    plan->cohorts = calloc(plan->n_cohorts, sizeof *plan->cohorts);
    return plan->matrices && plan->cohort_matrices && plan->cohorts ? ZF_OK : ZF_ERR_MEMORY;
}

static zf_status_t allocate_second(zfi_plan_t *plan) {
    plan->segments = calloc(plan->n_segments, sizeof *plan->segments);
    plan->param_segments = calloc(plan->n_segments, sizeof *plan->param_segments);
    plan->chunks = calloc(plan->n_chunks, sizeof *plan->chunks);
    return plan->segments && plan->param_segments && plan->chunks ? ZF_OK : ZF_ERR_MEMORY;
}

static uint64_t all_grad_nbytes(const zfi_param_t *params, uint32_t n) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++)
        if (params[i].has_state)
            total += params[i].n_elems * zfi_dtype_nbytes(params[i].grad_dtype);
    return total;
}

static zf_status_t build(const zfi_config_t *config, zfi_param_t *params, uint32_t n_params, uint64_t total,
                         zfi_plan_t *plan) {
    zfi_matrix_t **sorted;
    uint32_t n_matrices = count_matrices(params, n_params, total, plan->n_cohorts);
    zf_status_t st = n_matrices ? allocate_first(plan, n_matrices) : ZF_ERR_MEMORY;
    if (st)
        return st;
    cut_matrices(config, params, n_params, total, plan);
    plan_budget(config, params, plan);
    sorted = malloc(plan->n_matrices * sizeof *sorted);
    if (!sorted)
        return ZF_ERR_MEMORY;
    deal_cohorts(plan, sorted);
    free(sorted);
    plan->piece_nbytes = choose_piece(plan, all_grad_nbytes(params, n_params));
    plan->piece_stride = plan->piece_nbytes + (plan->piece_nbytes >= USUAL_PIECE ? 5 * 64 : 64);
    lay_out(plan, params, 1);
    st = allocate_second(plan);
    if (st)
        return st;
    lay_out(plan, params, 0);
    refer_segments(plan, params, n_params);
    for (uint32_t i = 0; i < plan->n_chunks; i++) {
        uint32_t nbytes = plan->chunks[i].n_elems * (uint32_t)zfi_dtype_nbytes(plan->chunks[i].dtype);
        if (nbytes > plan->publish_piece_nbytes)
            plan->publish_piece_nbytes = nbytes;
    }
    if (config->is_interval_auto)
        plan->max_close_chunks = plan->n_chunks; /* all cohorts may be ready at one step */
    if (config->is_interval_auto && config->deferred != ZFI_DEFERRED_MOMENTS) {
        plan->n_slot_pieces =
            (config->update_interval + 1u) * plan->n_chunks; /* all windows full, one being replayed */
        plan->slots_peak = plan->slots_mean = config->update_interval + 1.0;
    } else if (config->deferred == ZFI_DEFERRED_MOMENTS)
        size_pool_of_moments(plan);
    else
        size_pool(plan, config->update_interval);
    return ZF_OK;
}

zf_status_t zfi_plan_build(const zfi_config_t *config, zfi_param_t *params, uint32_t n_params, zfi_plan_t *out,
                           zf_error_t *err) {
    zfi_plan_t plan = {.n_cohorts = config->stagger ? config->update_interval : 1};
    uint64_t total = total_nbytes(params, n_params);
    zf_status_t st;
    if (total == 0)
        return zfi_error(err, ZF_ERR_PARAM, "bind_params",
                         "none of the %u parameters is trainable (frozen, tied or "
                         "empty): there is nothing to optimise",
                         n_params);
    st = build(config, params, n_params, total, &plan);
    if (st) {
        zfi_plan_free(&plan);
        return zfi_error(err, st, "bind_params", "no memory to plan %u parameters", n_params);
    }
    *out = plan;
    return ZF_OK;
}

void zfi_plan_free(zfi_plan_t *plan) {
    free(plan->matrices);
    free(plan->cohort_matrices);
    free(plan->cohorts);
    free(plan->segments);
    free(plan->param_segments);
    free(plan->chunks);
    memset(plan, 0, sizeof *plan);
}
