/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/carry.c - w, m, v and n out of one cut and schedule into another (contract in state.h).
 *
 * A matrix of a checkpoint is laid out for a replay by itself: its slots in one table, one chunk per block of elements,
 * and the code that closes windows does the rest. */
#include <fenv.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/slice.h"
#include "replay/replay.h"
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
    out->has_one_count = 0;
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

static zf_status_t carry_matrix(const zfi_state_t *into, uint32_t number, const zfi_matrix_t *cut,
                                const zfi_flushed_t *from) {
    const zfi_matrix_t *to = &into->plan->matrices[number];
    uint64_t n = to->rows * to->cols, first, end, own_first, own_end;
    zf_status_t st = ZF_OK;
    zfi_overlap(to->param_offset, n, cut->param_offset, cut->param_offset + cut->rows * cut->cols, &first, &end);
    zfi_overlap(0, end, to->own.first, to->own.first + to->own.n, &own_first, &own_end);
    own_first = own_first > first ? own_first : first;
    if (own_first < own_end && from->arrays[ZFI_STATE_W])
        st = carry_elements(into, number, to->param_offset + own_first, to->param_offset + own_end, cut, from);
    for (uint64_t e = first; e < end; e += from->has_one_count && to->n_counts == 1 ? end - first : 1) {
        uint32_t count = from->n[from->has_one_count ? 0 : channel_of(cut, to->param_offset + e - cut->param_offset)];
        uint32_t *at = &into->host->n[zfi_count_at(to, channel_of(to, e))];
        if (count > *at)
            *at = count;
    }
    return st;
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

zf_status_t zfi_carry(const zfi_state_t *into, uint32_t param, const zfi_matrix_t *from, const zfi_flushed_t *flushed,
                      zf_error_t *err) {
    const zfi_param_t *to = &into->side->params[param];
    uint64_t end = from->param_offset + from->rows * from->cols;
    zf_status_t st = ZF_OK;
    for (uint32_t i = first_matrix_behind(into->plan->matrices, to, from->param_offset);
         i < to->first_matrix + to->n_matrices && into->plan->matrices[i].param_offset < end && !st; i++)
        st = carry_matrix(into, i, from, flushed);
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

/* ---- of a checkpoint --------------------------------------------------------------------------------------------- */

enum { CHUNK_ELEMS = 1 << 18 };

/* One matrix of a checkpoint, as a replay sees it. */
typedef struct loose {
    zfi_replay_view_t view;
    zfi_param_t param;
    zfi_matrix_t matrix;
    zfi_layer_t layer; /* the only one: a piece is one slot of the whole matrix */
    zfi_close_t window;
    zfi_segment_t *segments; /* [n_chunks] */
    zfi_chunk_t *chunks;     /* [n_chunks] */
    uint32_t n_chunks;
    zfi_slots_t slots; /* of one table, in which slot k is piece k: pool [n_slots][matrix elements] */
    uint8_t *mask;     /* [n_channels] */
    zfi_rows_t rows;
    uint32_t n_slots;
} loose_t;

static void loose_free(loose_t *loose) {
    for (uint32_t i = 0; loose->rows.all && i < loose->rows.n; i++) {
        free(loose->rows.all[i].present);
        free(loose->rows.all[i].hyper);
    }
    free(loose->segments);
    free(loose->chunks);
    free(loose->slots.tables);
    free(loose->mask);
    free(loose->rows.all);
    free(loose->slots.pool);
}

/* One chunk per block of elements; a piece of the pool is one slot of the whole matrix. */
static int lay_out(loose_t *loose) {
    uint64_t n = loose->matrix.rows * loose->matrix.cols;
    uint32_t n_chunks = (uint32_t)((n + CHUNK_ELEMS - 1) / CHUNK_ELEMS);
    size_t elem = zfi_dtype_nbytes(loose->param.grad_dtype);
    loose->n_chunks = n_chunks;
    loose->segments = calloc(n_chunks, sizeof *loose->segments);
    loose->chunks = calloc(n_chunks, sizeof *loose->chunks);
    loose->slots = (zfi_slots_t){.n_tables = 1, .n_layers = 1, .interval = loose->n_slots, .layers = &loose->layer};
    loose->slots.tables = calloc(loose->n_slots + 1, sizeof *loose->slots.tables);
    loose->mask = calloc(loose->matrix.n_channels, 1);
    loose->slots.pool = malloc((loose->n_slots + 1) * n * elem);
    if (!loose->segments || !loose->chunks || !loose->slots.tables || !loose->mask || !loose->slots.pool)
        return -1;
    for (uint32_t i = 0; i < n_chunks; i++) {
        uint64_t first = (uint64_t)i * CHUNK_ELEMS;
        uint32_t count = (uint32_t)(n - first < CHUNK_ELEMS ? n - first : CHUNK_ELEMS);
        loose->segments[i] = (zfi_segment_t){.chunk = i, .n_elems = count, .matrix_offset = first};
        loose->chunks[i] = (zfi_chunk_t){.state_base = first,
                                         .n_elems = count,
                                         .first_segment = i,
                                         .n_segments = 1,
                                         .dtype = loose->param.dtype,
                                         .grad_dtype = loose->param.grad_dtype,
                                         .slot_offset = first * elem};
    }
    for (uint32_t k = 0; k < loose->n_slots; k++)
        loose->slots.tables[k] = (int32_t)k;
    loose->layer.piece_nbytes = n * elem;
    return 0;
}

static int make_rows(loose_t *loose, const zfi_saved_t *saved, uint32_t p) {
    uint32_t n_groups = saved->shape.n_groups;
    loose->rows.n = (uint32_t)saved->n_steps + 1;
    loose->rows.all = calloc(loose->rows.n, sizeof *loose->rows.all);
    for (uint32_t i = 0; loose->rows.all && i < loose->rows.n; i++) {
        loose->rows.all[i].present = calloc(1, 1);
        loose->rows.all[i].hyper = calloc(n_groups, sizeof *loose->rows.all[i].hyper);
        if (!loose->rows.all[i].present || !loose->rows.all[i].hyper)
            return -1;
    }
    if (!loose->rows.all)
        return -1;
    for (uint64_t s = 0; s < saved->n_steps; s++) {
        uint64_t t = saved->first_step + s;
        zfi_step_row_t *row = zfi_row(&loose->rows, t);
        const double *scalars = (const double *)saved->step_values[ZFI_STEPS_SCALARS] + s * ZFI_N_STEP_SCALARS;
        const double *hyper = (const double *)saved->step_values[ZFI_STEPS_HYPER] + s * 5u * n_groups;
        row->t = t;
        row->present[0] = ((const uint8_t *)saved->step_values[ZFI_STEPS_PRESENT])[s * saved->n_params + p];
        row->scalars = (zfi_step_scalars_t){.applied = scalars[ZFI_SCALAR_APPLIED] != 0,
                                            .norm = scalars[1],
                                            .clip_factor = scalars[2],
                                            .s_exact = scalars[3],
                                            .s = (float)scalars[4]};
        for (uint32_t g = 0; g < n_groups; g++)
            zfi_state_hyper(hyper + 5u * g, &row->hyper[g]);
    }
    return 0;
}

static zf_status_t loose_make(loose_t *loose, const zfi_saved_t *saved, uint32_t p, uint32_t m,
                              const zfi_kernels_t *kernels, zf_error_t *err) {
    const zfi_matrix_t *cut = &saved->params[p].matrices[m];
    loose->param = saved->params[p].param;
    loose->param.id = loose->param.owner = 0;
    loose->matrix = *cut;
    loose->matrix.rounding_base = zfi_rounding_base(saved->params[p].param.id); /* as in the run that saved it */
    loose->matrix.cohort = loose->matrix.param = 0;
    loose->matrix.place = (zfi_place_t){.dtype = loose->param.dtype};
    loose->matrix.count_base = 0;
    loose->matrix.n_counts = saved->shape.is_mean ? cut->n_channels : 1;
    loose->view = (zfi_replay_view_t){.kernels = kernels};
    zfi_replay_settings(&saved->config, &loose->view);
    if (!saved->is_compact && !cut->is_resident) {
        uint64_t t = saved->clocks[ZFI_CLOCK_T][0];
        loose->window = (zfi_close_t){.step = t,
                                      .first_step = saved->clocks[ZFI_CLOCK_WINDOW_FIRST][cut->cohort],
                                      .is_warm_up = t <= zfi_config_warm_up(&saved->config)};
        loose->n_slots = loose->window.n_slots = (uint32_t)(t + 1 - loose->window.first_step);
    }
    if (lay_out(loose) || make_rows(loose, saved, p))
        return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory to replay a matrix of \"%s\"", loose->param.name);
    loose->view.params = &loose->param;
    loose->view.matrices = &loose->matrix;
    loose->view.segments = loose->segments;
    loose->view.chunks = loose->chunks;
    loose->view.mask = loose->mask;
    loose->view.rows = &loose->rows;
    loose->view.slots = &loose->slots;
    return ZF_OK;
}

static zf_status_t loose_read(loose_t *loose, zfi_store_t *store, const zfi_saved_t *saved, uint32_t p, uint32_t m,
                              zfi_flushed_t *out, zf_error_t *err) {
    const zfi_saved_param_t *param = &saved->params[p];
    const struct {
        const char *name;
        void *to;
    } arrays[] = {{"w", out->arrays[ZFI_STATE_W]},
                  {"m", out->arrays[ZFI_STATE_M]},
                  {"v", out->arrays[ZFI_STATE_V]},
                  {"n", out->n},
                  {"selected", loose->mask}}; /* none in a compact one */
    zf_status_t st = ZF_OK;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays && !st; i++)
        st = zfi_state_read_part(store, saved, param, zfi_saved_find(param, arrays[i].name, 0), m, arrays[i].to, err);
    for (uint32_t k = 0; k < loose->n_slots && !st; k++)
        st = zfi_state_read_part(store, saved, param, zfi_saved_find(param, "slot", loose->window.first_step + k), m,
                                 loose->slots.pool + k * loose->layer.piece_nbytes, err);
    if (!saved->shape.is_mean) /* one count for all */
        for (uint32_t c = 1; c < loose->matrix.n_channels; c++)
            out->n[c] = out->n[0];
    loose->view.n = out->n;
    return st;
}

/* scratch: m, v of a chunk, and what mean mode needs. */
static zf_status_t replay_chunk(const loose_t *loose, uint32_t number, float *scratch, zfi_flushed_t *out) {
    zfi_moments_t kind = loose->view.moments;
    const zfi_kernels_t *kernels = loose->view.kernels;
    uint64_t base = loose->chunks[number].state_base, n = loose->chunks[number].n_elems;
    uint32_t n_moments = loose->param.rule->n_moments;
    zfi_replay_target_t target = {.w = out->arrays[ZFI_STATE_W] + base,
                                  .m = n_moments > 0 ? scratch : NULL,
                                  .v = n_moments > 1 ? scratch + CHUNK_ELEMS : NULL,
                                  .scratch = scratch + 2 * CHUNK_ELEMS};
    zfi_replayed_t replayed;
    zfi_moments_put(kind, kernels, target.m, 0, n, out->arrays[ZFI_STATE_M] + base);
    zfi_moments_put(kind, kernels, target.v, 0, n, out->arrays[ZFI_STATE_V] + base);
    zf_status_t st = zfi_replay_chunk(&loose->view, &loose->window, number, &target, &replayed);
    zfi_moments_get(kind, target.m, 0, n, out->arrays[ZFI_STATE_M] + base);
    zfi_moments_get(kind, target.v, 0, n, out->arrays[ZFI_STATE_V] + base);
    return st;
}

/* n[0] is what the others' counts may begin from, so it comes last. */
static void count_updates(const loose_t *loose, zfi_flushed_t *out) {
    for (uint32_t c = loose->matrix.n_channels; c-- > 0;)
        out->n[c] = zfi_replay_count_of(&loose->view, &loose->window, 0, c);
}

static zf_status_t loose_replay(const loose_t *loose, zfi_flushed_t *out, zf_error_t *err) {
    float *scratch = malloc((2 * CHUNK_ELEMS + zfi_replay_scratch(&loose->view, CHUNK_ELEMS)) * sizeof *scratch);
    zf_status_t st = ZF_OK;
    fenv_t callers;
    if (!scratch)
        return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory to replay a chunk");
    fegetenv(&callers);
    zfi_fp_mode_ieee();
    for (uint32_t i = 0; i < loose->n_chunks && !st; i++)
        st = replay_chunk(loose, i, scratch, out);
    fesetenv(&callers);
    free(scratch);
    if (st == ZF_ERR_POISONED)
        return zfi_poisoned(loose->param.rule->engine, err);
    if (st)
        return zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                         "the open windows of the checkpoint make a weight of \"%s\" Inf or NaN: load an older one",
                         loose->param.name);
    count_updates(loose, out);
    return ZF_OK;
}

static zf_status_t take_rule(loose_t *loose, const zfi_group_rule_t *rule, zf_error_t *err) {
    if (rule)
        loose->param.rule = rule;
    if (loose->param.rule->number != ZF_RULE_CALLBACK || rule)
        return ZF_OK;
    return zfi_error(
        err, ZF_ERR_CHECKPOINT, "state",
        "the checkpoint has open windows of a rule that only the trainer knows: load it there, or save it compact");
}

zf_status_t zfi_state_flushed(zfi_store_t *store, const zfi_saved_t *saved, uint32_t p, uint32_t m,
                              const zfi_kernels_t *kernels, const zfi_group_rule_t *rule, zfi_flushed_t *out,
                              zf_error_t *err) {
    loose_t loose = {0};
    zf_status_t st = allocate(&saved->params[p].matrices[m], out, err);
    if (st)
        return st;
    st = loose_make(&loose, saved, p, m, kernels, err);
    if (!st)
        st = loose_read(&loose, store, saved, p, m, out, err);
    if (!st && loose.n_slots)
        st = take_rule(&loose, rule, err);
    if (!st && loose.n_slots)
        st = loose_replay(&loose, out, err);
    loose_free(&loose);
    if (st)
        zfi_flushed_free(out);
    return st;
}
