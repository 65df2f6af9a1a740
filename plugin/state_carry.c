/* plugin/state_carry.c - w, m, v and n out of one cut and schedule into another (contract in state.h).
 *
 * A matrix of a checkpoint is flushed by an instance of one matrix that is made for it: its slots in one table, one
 * chunk per block of elements, replayed by the same code that closes windows. */
#include <fenv.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "offload/replay.h"
#include "offload/replay_columns.h"
#include "state.h"

void zfi_flushed_free(zfi_flushed_t *flushed) {
    free(flushed->w);
    free(flushed->m);
    free(flushed->v);
    free(flushed->n);
    memset(flushed, 0, sizeof *flushed);
}

static zf_status_t allocate(const zfi_matrix_t *matrix, zfi_flushed_t *out, zf_error_t *err) {
    uint64_t n = matrix->rows * matrix->cols;
    *out = (zfi_flushed_t){malloc(n * sizeof(float)), malloc(n * sizeof(float)), malloc(n * sizeof(float)),
                           calloc(matrix->n_channels, sizeof(uint32_t))};
    if (out->w && out->m && out->v && out->n)
        return ZF_OK;
    zfi_flushed_free(out);
    return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for a matrix of %llu elements", (unsigned long long)n);
}

/* ---- into another cut ----------------------------------------------------------------------------------------------
 */

static uint64_t channel_of(const zfi_matrix_t *matrix, uint64_t linear) {
    return matrix->channels_are_rows ? linear / matrix->cols : linear % matrix->cols;
}

static void carry_matrix(zf_instance_t *into, uint32_t number, const zfi_carried_t *from) {
    const zfi_matrix_t *to = &into->plan.matrices[number], *cut = from->cut;
    uint64_t first = to->param_offset, end = first + to->rows * to->cols;
    uint64_t cut_end = cut->param_offset + cut->rows * cut->cols;
    first = first > cut->param_offset ? first : cut->param_offset;
    end = end < cut_end ? end : cut_end;
    if (first >= end)
        return;
    memcpy(into->hs.w + to->state_base + (first - to->param_offset), from->w + (first - cut->param_offset),
           (end - first) * sizeof(float));
    zfi_moments_put(into, into->hs.m, to->state_base + (first - to->param_offset), end - first,
                    from->m + (first - cut->param_offset));
    zfi_moments_put(into, into->hs.v, to->state_base + (first - to->param_offset), end - first,
                    from->v + (first - cut->param_offset));
    for (uint64_t e = first; e < end; e++) {
        uint32_t n = from->n[channel_of(cut, e - cut->param_offset)];
        uint32_t *at = zfi_is_mean(into) ? &into->hs.n[to->channel_base + channel_of(to, e - to->param_offset)]
                                         : &into->hs.n[number];
        if (n > *at)
            *at = n;
    }
}

void zfi_carry(zf_instance_t *into, uint32_t param, const zfi_carried_t *from) {
    const zfi_param_t *to = &into->params[param];
    for (uint32_t i = to->first_matrix; i < to->first_matrix + to->n_matrices; i++)
        carry_matrix(into, i, from);
}

/* ---- of a drained instance -----------------------------------------------------------------------------------------
 */

zf_status_t zfi_instance_flushed(zf_instance_t *inst, zfi_rehearsal_t *rehearsal, uint32_t number, zfi_flushed_t *out,
                                 zf_error_t *err) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[number];
    uint64_t n = matrix->rows * matrix->cols;
    zf_status_t st = allocate(matrix, out, err);
    if (st)
        return st;
    st = zfi_rehearsal_read(rehearsal, ZFI_STATE_W, number, 0, n, out->w);
    if (!st)
        st = zfi_rehearsal_read(rehearsal, ZFI_STATE_M, number, 0, n, out->m);
    if (!st)
        st = zfi_rehearsal_read(rehearsal, ZFI_STATE_V, number, 0, n, out->v);
    for (uint32_t c = 0; c < matrix->n_channels; c++)
        out->n[c] = zfi_rehearsal_count(rehearsal, number, c);
    if (!st)
        return ZF_OK;
    zfi_flushed_free(out);
    return zfi_error(err, st, "state", "the open windows would make a weight of \"%s\" Inf or NaN",
                     inst->params[matrix->param].name);
}

/* ---- of a checkpoint -----------------------------------------------------------------------------------------------
 */

enum { CHUNK_ELEMS = 1 << 18 };

typedef struct ghost {
    zf_instance_t inst;
    zfi_param_t param;
    zfi_matrix_t matrix;
    zfi_cohort_plan_t cohort;
    uint32_t cohort_matrix;
    zfi_close_t window;
    unsigned char *slots; /* [n_slots][matrix elements] */
    size_t grad_nbytes;
    uint32_t n_slots;
    float *sums[2]; /* [matrix elements] moments mode, else NULL */
} ghost_t;

/* Reads the values of a matrix. Checksums are of whole tensors and were checked by zfi_state_check; only the matrix's
 * own bytes are read again. 0 bytes, where the tensor does not hold the matrix, leave `out` as it is. */
static zf_status_t read_part(zfi_store_t *store, const zfi_saved_t *saved, const zfi_saved_param_t *param,
                             const zfi_saved_tensor_t *tensor, uint32_t matrix, void *out, zf_error_t *err) {
    size_t elem = tensor ? zfi_state_dtype_nbytes(zfi_state_array_dtype(tensor->array, &param->param)) : 0;
    uint64_t at = 0;
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; tensor && i < tensor->n_matrices; i++) {
        uint64_t nbytes = elem * tensor->array->length(&saved->shape, &param->matrices[tensor->matrices[i]]);
        for (uint64_t done = 0; tensor->matrices[i] == matrix && done < nbytes && !st; done += ZFI_STATE_BLOCK) {
            uint64_t n = nbytes - done < ZFI_STATE_BLOCK ? nbytes - done : ZFI_STATE_BLOCK;
            st = zfi_store_read(store, saved->files[tensor->file].name, tensor->offset + at + done,
                                (unsigned char *)out + done, n, err);
        }
        at += nbytes;
    }
    return st;
}

static void ghost_free(ghost_t *ghost) {
    zf_instance_t *inst = &ghost->inst;
    free(inst->plan.segments);
    free(inst->plan.chunks);
    free(inst->slots.tables);
    free(inst->sel.mask);
    for (uint32_t i = 0; inst->rows && i < inst->n_rows; i++) {
        free(inst->rows[i].present);
        free(inst->rows[i].hyper);
    }
    free(inst->rows);
    free(ghost->slots);
    free(ghost->sums[0]);
    free(ghost->sums[1]);
}

/* One chunk per block of elements. Piece numbers count elements' blocks: chunk * n_slots + slot. */
static int ghost_plan(ghost_t *ghost) {
    zf_instance_t *inst = &ghost->inst;
    zfi_plan_t *plan = &inst->plan;
    uint64_t n = ghost->matrix.rows * ghost->matrix.cols;
    uint32_t n_chunks = (uint32_t)((n + CHUNK_ELEMS - 1) / CHUNK_ELEMS);
    *plan = (zfi_plan_t){.n_matrices = 1,
                         .n_segments = n_chunks,
                         .n_chunks = n_chunks,
                         .n_cohorts = 1,
                         .matrices = &ghost->matrix,
                         .cohort_matrices = &ghost->cohort_matrix,
                         .cohorts = &ghost->cohort,
                         .n_state_elems = n,
                         .n_channels = ghost->matrix.n_channels};
    ghost->cohort = (zfi_cohort_plan_t){.n_chunks = n_chunks, .n_matrices = 1};
    plan->piece_stride = CHUNK_ELEMS * (uint32_t)zfi_dtype_nbytes(ghost->param.grad_dtype);
    plan->segments = calloc(n_chunks, sizeof *plan->segments);
    plan->chunks = calloc(n_chunks, sizeof *plan->chunks);
    inst->slots.n_tables = 1;
    inst->slots.tables = calloc((uint64_t)n_chunks * inst->config.update_interval, sizeof(int32_t));
    inst->sel.mask = calloc(ghost->matrix.n_channels, 1);
    ghost->slots = malloc((uint64_t)(ghost->n_slots + 1) * n_chunks * plan->piece_stride);
    inst->slots.pieces = ghost->slots;
    if (!plan->segments || !plan->chunks || !inst->slots.tables || !inst->sel.mask || !ghost->slots)
        return -1;
    for (uint32_t i = 0; i < n_chunks; i++) {
        uint64_t first = (uint64_t)i * CHUNK_ELEMS;
        uint32_t count = (uint32_t)(n - first < CHUNK_ELEMS ? n - first : CHUNK_ELEMS);
        plan->segments[i] = (zfi_segment_t){.chunk = i, .n_elems = count, .matrix_offset = first};
        plan->chunks[i] = (zfi_chunk_t){first, count, i, 1, ghost->param.dtype, ghost->param.grad_dtype};
        for (uint32_t k = 0; k < ghost->n_slots; k++) /* slot by slot, each the whole matrix */
            zfi_slot_table(inst, i, 0)[k] = (int32_t)(k * n_chunks + i);
    }
    return 0;
}

static int ghost_rows(ghost_t *ghost, const zfi_saved_t *saved, uint32_t p) {
    zf_instance_t *inst = &ghost->inst;
    inst->n_rows = (uint32_t)saved->n_steps + 1;
    inst->rows = calloc(inst->n_rows, sizeof *inst->rows);
    for (uint32_t i = 0; inst->rows && i < inst->n_rows; i++) {
        inst->rows[i].present = calloc(saved->n_params, 1);
        inst->rows[i].hyper = calloc(saved->shape.n_groups, sizeof *inst->rows[i].hyper);
        if (!inst->rows[i].present || !inst->rows[i].hyper)
            return -1;
    }
    if (!inst->rows)
        return -1;
    for (uint64_t s = 0; s < saved->n_steps; s++) {
        zfi_step_row_t *row = zfi_row(inst, saved->first_step + s);
        uint32_t none = ZF_NO_ID;
        zfi_state_io_t io = {.inst = inst, .ids = &none, .n_ids = 0};
        const double *scalars = (const double *)saved->step_values[ZFI_STEPS_SCALARS] + s * ZFI_N_STEP_SCALARS;
        row->t = saved->first_step + s;
        row->present[0] = ((const uint8_t *)saved->step_values[ZFI_STEPS_PRESENT])[s * saved->n_params + p];
        row->scalars = (zfi_step_scalars_t){.applied = scalars[ZFI_SCALAR_APPLIED] != 0,
                                            .norm = scalars[1],
                                            .clip_factor = scalars[2],
                                            .s_exact = scalars[3],
                                            .s = (float)scalars[4]};
        zfi_state_steps[ZFI_STEPS_HYPER].put(
            &io, row, (const double *)saved->step_values[ZFI_STEPS_HYPER] + s * 5u * saved->shape.n_groups);
    }
    return 0;
}

static zf_status_t ghost_make(ghost_t *ghost, const zfi_saved_t *saved, uint32_t p, uint32_t m,
                              const zfi_kernels_t *kernels, zf_error_t *err) {
    const zfi_matrix_t *cut = &saved->params[p].matrices[m];
    zf_instance_t *inst = &ghost->inst;
    ghost->param = saved->params[p].param;
    ghost->param.id = ghost->param.owner = 0;
    ghost->matrix = *cut;
    ghost->matrix.cohort = ghost->matrix.param = 0;
    ghost->matrix.place = (zfi_place_t){.dtype = ghost->param.dtype};
    inst->config = saved->config;
    inst->rule = saved->rule;
    inst->kernels = kernels;
    inst->params = &ghost->param;
    inst->n_params = 1;
    inst->n_groups = saved->shape.n_groups;
    if (!saved->is_compact) {
        inst->t = saved->clocks[ZFI_CLOCK_T][0];
        ghost->window = (zfi_close_t){.step = inst->t,
                                      .first_step = saved->clocks[ZFI_CLOCK_WINDOW_FIRST][cut->cohort],
                                      .is_warm_up = zfi_is_warm_up(inst, inst->t)};
        ghost->n_slots = ghost->window.n_slots = (uint32_t)(inst->t + 1 - ghost->window.first_step);
    }
    if (ghost_plan(ghost) || ghost_rows(ghost, saved, p))
        return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory to replay a matrix of \"%s\"", ghost->param.name);
    return ZF_OK;
}

/* Moments mode: the sums as a close would have read them. */
static zf_status_t ghost_sums(ghost_t *ghost, zfi_store_t *store, const zfi_saved_t *saved, uint32_t p, uint32_t m,
                              zf_error_t *err) {
    static const char *const names[2] = {"sum1", "sum2"};
    const zfi_saved_param_t *param = &saved->params[p];
    const zfi_kernels_t *kernels = ghost->inst.kernels;
    uint64_t n = ghost->matrix.rows * ghost->matrix.cols;
    zf_status_t st = ZF_OK;
    for (int k = 0; k < 2 && !st; k++) {
        ghost->sums[k] = calloc(n, sizeof(float));
        if (!ghost->sums[k])
            return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the sums of \"%s\"", ghost->param.name);
        st = read_part(store, saved, param, zfi_saved_find(param, names[k], 0), m, ghost->sums[k], err);
        for (uint64_t i = 0;
             zfi_sums_on_device(&ghost->inst) && zfi_dtype_nbytes(ghost->param.grad_dtype) == 2 && i < n; i++) {
            uint16_t bits;
            kernels->narrow(&bits, ZFI_BF16, &ghost->sums[k][i], 1);
            kernels->widen(&ghost->sums[k][i], &bits, ZFI_BF16, 1);
        }
    }
    return st;
}

static zf_status_t ghost_read(ghost_t *ghost, zfi_store_t *store, const zfi_saved_t *saved, uint32_t p, uint32_t m,
                              zfi_flushed_t *out, zf_error_t *err) {
    const zfi_saved_param_t *param = &saved->params[p];
    uint32_t n_chunks = ghost->inst.plan.n_chunks;
    zf_status_t st = read_part(store, saved, param, zfi_saved_find(param, "w", 0), m, out->w, err);
    if (!st)
        st = read_part(store, saved, param, zfi_saved_find(param, "m", 0), m, out->m, err);
    if (!st)
        st = read_part(store, saved, param, zfi_saved_find(param, "v", 0), m, out->v, err);
    if (!st)
        st = read_part(store, saved, param, zfi_saved_find(param, "n", 0), m, out->n, err);
    if (!st && !saved->is_compact)
        st = read_part(store, saved, param, zfi_saved_find(param, "selected", 0), m, ghost->inst.sel.mask, err);
    if (!st && zfi_is_moments(&ghost->inst) && ghost->n_slots)
        st = ghost_sums(ghost, store, saved, p, m, err);
    for (uint32_t k = 0; k < ghost->n_slots && !st; k++)
        st = read_part(store, saved, param, zfi_saved_find(param, "slot", ghost->window.first_step + k), m,
                       ghost->slots + (uint64_t)k * n_chunks * ghost->inst.plan.piece_stride, err);
    if (!saved->shape.is_mean) /* one count for all */
        for (uint32_t c = 1; c < ghost->matrix.n_channels; c++)
            out->n[c] = out->n[0];
    return st;
}

static zf_status_t ghost_replay(ghost_t *ghost, zfi_flushed_t *out, zf_error_t *err) {
    zf_instance_t *inst = &ghost->inst;
    /* m, v of a chunk, and what mean mode needs */
    float *scratch = malloc((2 * CHUNK_ELEMS + zfi_replay_columns_scratch(CHUNK_ELEMS)) * sizeof *scratch);
    uint32_t after = 0;
    fenv_t callers;
    zf_status_t st = scratch ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory to replay a chunk");
    inst->hs = (zfi_host_state_t){.w = out->w, .n = out->n};
    fegetenv(&callers);
    zfi_fp_mode_ieee();
    for (uint32_t i = 0; i < inst->plan.n_chunks && !st; i++) {
        uint64_t base = inst->plan.chunks[i].state_base;
        uint32_t n = inst->plan.chunks[i].n_elems;
        zfi_replay_target_t target = {.w = out->w + base,
                                      .m = zfi_n_moments(inst) > 0 ? scratch : NULL,
                                      .v = zfi_n_moments(inst) > 1 ? scratch + CHUNK_ELEMS : NULL,
                                      .scratch = scratch + 2 * CHUNK_ELEMS,
                                      .is_rehearsal = 1};
        zfi_moments_put(inst, target.m, 0, n, out->m + base);
        zfi_moments_put(inst, target.v, 0, n, out->v + base);
        if (ghost->sums[0]) {
            target.sum1 = ghost->sums[0] + base;
            target.sum2 = ghost->sums[1] + base;
        }
        st = zfi_replay_chunk(inst, &ghost->window, i, &target);
        zfi_moments_get(inst, target.m, 0, n, out->m + base);
        zfi_moments_get(inst, target.v, 0, n, out->v + base);
        if (st)
            zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                      "the open windows of the checkpoint make a weight of \"%s\" Inf or NaN: load an older one",
                      ghost->param.name);
    }
    fesetenv(&callers);
    free(scratch);
    for (uint32_t c = 0; c < ghost->matrix.n_channels && !st; c++) { /* n[0] is what the others' counts begin from */
        uint32_t n = zfi_is_mean(inst) || c == 0 ? zfi_replay_count_of(inst, &ghost->window, 0, c) : after;
        if (c == 0)
            after = n;
        else
            out->n[c] = n;
    }
    if (!st)
        out->n[0] = after;
    return st ? ZF_ERR_CHECKPOINT : ZF_OK;
}

static zf_status_t ghost_rule(ghost_t *ghost, const zf_rule_callback_t *callback, zf_error_t *err) {
    if (ghost->inst.rule != ZF_RULE_CALLBACK)
        return ZF_OK;
    if (!callback)
        return zfi_error(
            err, ZF_ERR_CHECKPOINT, "state",
            "the checkpoint has open windows of a rule that only the trainer knows: load it there, or save "
            "it compact");
    ghost->inst.callback = *callback;
    return ZF_OK;
}

zf_status_t zfi_state_flushed(zfi_store_t *store, const zfi_saved_t *saved, uint32_t p, uint32_t m,
                              const zfi_kernels_t *kernels, const zf_rule_callback_t *callback, zfi_flushed_t *out,
                              zf_error_t *err) {
    ghost_t *ghost = calloc(1, sizeof *ghost);
    zf_status_t st = ghost ? allocate(&saved->params[p].matrices[m], out, err)
                           : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory to replay a matrix");
    if (st) {
        free(ghost);
        return st;
    }
    st = ghost_make(ghost, saved, p, m, kernels, err);
    if (!st)
        st = ghost_read(ghost, store, saved, p, m, out, err);
    if (!st && ghost->n_slots)
        st = ghost_rule(ghost, callback, err);
    if (!st && ghost->n_slots)
        st = ghost_replay(ghost, out, err);
    ghost_free(ghost);
    free(ghost);
    if (st)
        zfi_flushed_free(out);
    return st;
}
