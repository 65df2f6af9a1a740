/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/matrices.c - whole matrices and the host's function (contract in matrices.h).
 *
 *   updated(t) ── edits become masters ── the host's function ── visible = round(w) ── published
 *
 * The first and the third pass are shared with the workers block by block, as launches of the device are. */
#include "step/matrices.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "instance/moments.h"
#include "replay/state_arrays.h"

/* A step's updates, one for each whole matrix. */
typedef struct updates {
    const zfi_state_t *state;
    const zfi_step_row_t *row;
    const zfi_group_rule_t *rule; /* of some group: all have one function */
    uint32_t n;                   /* of matrices that this rank owns */
    uint64_t key;                 /* of the step's rounding of moments */
} updates_t;

static const zfi_matrix_t *matrix_at(const updates_t *updates, uint32_t i) {
    return &updates->state->plan->matrices[i];
}

/* Whether block i is one of an update. */
static int is_updated(const updates_t *updates, uint32_t i) {
    const zfi_matrix_t *matrix = matrix_at(updates, i);
    return matrix->takes_whole && updates->row->present[matrix->param];
}

static float *master(const zfi_state_t *state, const zfi_matrix_t *matrix) {
    return zfi_is_own_master(matrix) ? (float *)(void *)matrix->place.visible
                                     : state->dev->head.all_w + matrix->state_base;
}

/* A moment of a rule that has it. */
static void *moment(const zfi_group_rule_t *rule, const zfi_data_t *head, zfi_moment_t which,
                    const zfi_matrix_t *matrix) {
    unsigned char *all = which == ZFI_M ? head->all_m : head->all_v;
    if (rule->n_moments <= (uint32_t)which)
        return NULL;
    return all + zfi_resident_before(head, which, matrix->state_base);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static void take_edits(void *raw, uint32_t i) {
    const updates_t *updates = raw;
    const zfi_matrix_t *matrix = matrix_at(updates, i);
    if (is_updated(updates, i) && matrix->own.n && matrix->sees_edits && !zfi_is_own_master(matrix))
        zfi_state_take_edits(updates->state, matrix, 0, matrix->own.n, master(updates->state, matrix));
}

/* The lowest parameter stays noted; a later hook says so (zfi_resident_check). */
static void note_nonfinite(const zfi_state_t *state, uint32_t param) {
    uint64_t *noted = &state->engine->totals->nonfinite_param, was = __atomic_load_n(noted, __ATOMIC_RELAXED);
    while ((was == 0 || was > (uint64_t)param + 1) &&
           !__atomic_compare_exchange_n(noted, &was, (uint64_t)param + 1, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        ;
}

/* Values of a step that is skipped, where the gradient lay. */
static void give_back(void *raw, uint32_t i) {
    const updates_t *updates = raw;
    const zfi_matrix_t *matrix = matrix_at(updates, i);
    if (is_updated(updates, i) && matrix->own.n && matrix->carries)
        updates->state->engine->kernels->narrow(matrix->place.visible, matrix->place.dtype,
                                                master(updates->state, matrix), matrix->own.n);
}

static void show(void *raw, uint32_t i) {
    const updates_t *updates = raw;
    const zfi_matrix_t *matrix = matrix_at(updates, i);
    if (!is_updated(updates, i))
        return;
    updates->state->dev->head.all_n[i]++;
    if (!matrix->own.n)
        return;
    const float *w = master(updates->state, matrix);
    for (uint64_t e = 0; e < matrix->own.n; e++)
        if (!isfinite(w[e])) {
            note_nonfinite(updates->state, matrix->param);
            break;
        }
    if (!zfi_is_own_master(matrix))
        updates->state->engine->kernels->narrow(matrix->place.visible, matrix->place.dtype, w, matrix->own.n);
}

/* fn of every block, some at once. */
static void share(updates_t *updates, zfi_part_fn fn) {
    const zfi_data_t *head = &updates->state->dev->head;
    head->share(head->share_ctx, updates->state->plan->n_matrices, fn, updates);
}

/* ---- moments in 16 bits ------------------------------------------------------------------------------------------ */

/* A moment's elements [first, first + n) that the host's function gives. */
typedef struct values {
    const zf_matrix_update_t *update;
    uint32_t which;
    uint64_t first, n;
    const float *from;
} values_t;

enum { STRIP = 1024, PART = 64 * STRIP };

static void store_strip(const values_t *values, uint64_t at, uint64_t n) {
    const zf_matrix_update_t *update = values->update;
    const updates_t *updates = update->rounding;
    const zfi_data_t *head = &updates->state->dev->head;
    const zfi_kernels_t *kernels = updates->state->engine->kernels;
    uint64_t element = values->first + at;
    float rounded[2][STRIP] = {{0}};
    zfi_round_moments_t job = {.m = rounded[0],
                               .v = rounded[1],
                               .sub = {NULL, NULL, 1, n},
                               .cols = n,
                               .state_base = zfi_rounding_base(update->param) +
                                             update->batch * update->rows * update->cols + element,
                               .moments = head->moments,
                               .key = updates->key};
    memcpy(rounded[values->which], values->from + at, n * sizeof(float));
    kernels->round_moments(&job);
    kernels->narrow(zfi_moment_at(head->moments, ZFI_M, values->which ? update->v : update->m, element), ZFI_BF16,
                    rounded[values->which], n);
}

static void store_part(void *raw, uint32_t i) {
    const values_t *values = raw;
    uint64_t at = (uint64_t)i * PART, end = values->n - at < PART ? values->n : at + PART;
    for (; at < end; at += STRIP)
        store_strip(values, at, end - at < STRIP ? end - at : STRIP);
}

static void store(const zf_matrix_update_t *update, uint32_t which, uint64_t first, uint64_t n, const float *values) {
    const zfi_data_t *head = &((const updates_t *)update->rounding)->state->dev->head;
    values_t all = {.update = update, .which = which, .first = first, .n = n, .from = values};
    head->share(head->share_ctx, (uint32_t)((n + PART - 1) / PART), store_part, &all);
}

/* ---- the function ------------------------------------------------------------------------------------------------ */

/* The update of a parameter's matrix whose first block is `first`. */
static zf_matrix_update_t update_of(const updates_t *updates, const zfi_param_t *param, uint32_t batch,
                                    uint32_t first) {
    const zfi_state_t *state = updates->state;
    const zfi_matrix_t *matrix = &state->plan->matrices[first];
    const zfi_hyper_t *hyper = &updates->row->hyper[param->group];
    const unsigned char *grad = state->dev->head.held[param->id];
    static const zf_dtype_t dtypes[] = {[ZFI_F32] = {ZF_DTYPE_CODE_FLOAT, 32, 1},
                                        [ZFI_BF16] = {ZF_DTYPE_CODE_BFLOAT, 16, 1},
                                        [ZFI_F16] = {ZF_DTYPE_CODE_FLOAT, 16, 1}};
    return (zf_matrix_update_t){.struct_size = sizeof(zf_matrix_update_t),
                                .group = param->group,
                                .param = param->id,
                                .batch = batch,
                                .rows = param->rows,
                                .cols = param->cols,
                                .n = state->dev->head.all_n[first] + 1ull,
                                .w = master(state, matrix),
                                .m = moment(param->rule, &state->dev->head, ZFI_M, matrix),
                                .v = moment(param->rule, &state->dev->head, ZFI_V, matrix),
                                .g = grad + matrix->grad_offset * zfi_dtype_nbytes(param->grad_dtype),
                                .grad_dtype = dtypes[param->grad_dtype],
                                .moments_dtype = dtypes[zfi_state_dtype(matrix, ZFI_STATE_M)],
                                .s = (double)updates->row->scalars.s,
                                .lr = hyper->lr,
                                .beta1 = hyper->beta1,
                                .beta2 = hyper->beta2,
                                .eps = hyper->eps,
                                .weight_decay = hyper->weight_decay,
                                .rounding = updates,
                                .store = state->dev->head.moments == ZFI_MOMENTS_F32 ? NULL : store};
}

static void list(updates_t *updates) {
    const zfi_device_side_t *side = updates->state->side;
    zf_matrix_update_t *out = updates->state->host->updates;
    for (uint32_t i = 0; i < side->n_params; i++) {
        const zfi_param_t *param = &side->params[i];
        if (!param->has_state || !is_updated(updates, param->first_matrix))
            continue;
        updates->rule = param->rule;
        for (uint32_t b = 0; b < param->n_batch; b++) {
            uint32_t first = param->first_matrix + b * (param->n_matrices / (uint32_t)param->n_batch);
            if (matrix_at(updates, first)->own.n)
                out[updates->n++] = update_of(updates, param, b, first);
        }
    }
}

static zf_status_t call(const updates_t *updates) {
    const zf_matrix_rules_t *rules = &updates->rule->matrices;
    zf_error_t error = {.struct_size = sizeof error};
    int32_t code = rules->update(rules->ctx, updates->state->host->updates, updates->n, sizeof(zf_matrix_update_t));
    if (!code)
        return ZF_OK;
    zfi_error_scoped(&error, ZF_ERR_RULE, ZF_SCOPE_INSTANCE, code, "rule",
                     "the host's function of whole matrices (%s; group %u: \"%s\") returned %d for %u matrices",
                     ZF_EXT_MATRIX, updates->rule->group, updates->rule->name, code, updates->n);
    zfi_poison(updates->state->engine, &error);
    return ZF_ERR_POISONED;
}

zf_status_t zfi_matrices_update(const zfi_state_t *state, uint64_t t) {
    zfi_engine_t *engine = state->engine;
    updates_t updates = {.state = state, .row = zfi_row(state->windows->rows, t), .key = zfi_rounding_key(t)};
    zf_status_t st = zfi_synchronise(engine, 1);
    if (!st)
        st = zfi_wait(engine, &engine->lines.down, t, &engine->count.host_wait_ns);
    if (!st && !updates.row->scalars.applied)
        share(&updates, give_back);
    if (st || !updates.row->scalars.applied)
        return st;
    list(&updates);
    share(&updates, take_edits);
    st = updates.n ? call(&updates) : ZF_OK;
    if (!st)
        share(&updates, show);
    return st;
}
