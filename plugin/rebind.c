/* plugin/rebind.c - bind_params on an instance that has parameters already (contract in zf/plugin.h).
 *
 * The same set: only the memory that the model reads has moved; everything goes on. Another set: what is trained in
 * both keeps w, m, v and n as FLUSH would leave them, by name and row-major index, and the schedule begins anew. All of
 * it is made beside the present parts and exchanged at the end (state_replace.c), so a failure changes nothing. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "hooks.h"
#include "quiesce.h"
#include "state.h"

static int is_same_param(const zfi_param_t *a, const zfi_param_t *b) {
    return strcmp(a->name, b->name) == 0 && a->flags == b->flags && a->owner == b->owner &&
           a->has_state == b->has_state && a->dtype == b->dtype && a->grad_dtype == b->grad_dtype &&
           a->group == b->group && a->n_batch_axes == b->n_batch_axes && a->channels_are_rows == b->channels_are_rows &&
           a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0;
}

static int is_same_set(const zf_instance_t *inst, const zfi_param_t *params, uint32_t n) {
    for (uint32_t i = 0; i < n && n == inst->n_params; i++)
        if (!is_same_param(&inst->params[i], &params[i]))
            return 0;
    return n == inst->n_params;
}

/* ---- the same set --------------------------------------------------------------------------------------------------
 */

static void move_storage(zf_instance_t *inst, zfi_param_t *params) {
    for (uint32_t i = 0; i < inst->n_params; i++) {
        zfi_param_t *param = &inst->params[i];
        int64_t *columns = param->col_offset;
        param->visible = params[i].visible;
        param->is_contiguous = params[i].is_contiguous;
        param->row_stride = params[i].row_stride;
        memcpy(param->strides, params[i].strides, sizeof param->strides);
        param->col_offset = params[i].col_offset;
        params[i].col_offset = columns; /* freed with the rest */
    }
    zfi_plan_place(&inst->plan, inst->params);
    zfi_params_free(params, inst->n_params);
}

/* ---- another set ---------------------------------------------------------------------------------------------------
 */

typedef struct named {
    const char *name;
    uint32_t id;
} named_t;

static int by_name(const void *a, const void *b) {
    return strcmp(((const named_t *)a)->name, ((const named_t *)b)->name);
}

static uint32_t find(const zf_instance_t *into, const named_t *sorted, uint32_t n, const zfi_param_t *old) {
    named_t key = {old->name, 0};
    const named_t *found = bsearch(&key, sorted, n, sizeof *sorted, by_name);
    const zfi_param_t *param = found ? &into->params[found->id] : NULL;
    if (!param || !param->has_state || param->ndim != old->ndim ||
        memcmp(param->shape, old->shape, (size_t)old->ndim * sizeof *old->shape) != 0)
        return ZF_NO_ID;
    return found->id;
}

static zf_status_t carry_all(zf_instance_t *inst, zf_instance_t *into, const named_t *sorted, zf_error_t *err) {
    zfi_rehearsal_t *rehearsal = zfi_rehearsal_new(inst);
    zf_status_t st = rehearsal ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory for a chunk's copies");
    for (uint32_t i = 0; i < inst->plan.n_matrices && !st; i++) {
        const zfi_matrix_t *matrix = &inst->plan.matrices[i];
        uint32_t to = find(into, sorted, into->n_params, &inst->params[matrix->param]);
        zfi_flushed_t flushed;
        if (to == ZF_NO_ID)
            continue;
        st = zfi_instance_flushed(inst, rehearsal, i, &flushed, err);
        if (st)
            break;
        zfi_carry(into, to, &(zfi_carried_t){matrix, flushed.w, flushed.m, flushed.v, flushed.n});
        zfi_flushed_free(&flushed);
    }
    zfi_rehearsal_free(rehearsal);
    return st;
}

static zf_status_t change_set(zf_instance_t *inst, zfi_param_t *params, uint32_t n, zf_error_t *err) {
    zfi_replacement_t replacement;
    named_t *sorted = malloc(n * sizeof *sorted);
    zf_status_t st;
    if (!sorted) {
        zfi_params_free(params, n);
        return zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory to compare %u parameters", n);
    }
    st = zfi_replace_begin(inst, params, n, 1, &replacement, err);
    if (st) {
        free(sorted);
        return st;
    }
    for (uint32_t i = 0; i < n; i++)
        sorted[i] = (named_t){replacement.into->params[i].name, i};
    qsort(sorted, n, sizeof *sorted, by_name);
    st = carry_all(inst, replacement.into, sorted, err);
    free(sorted);
    if (st) {
        zfi_replace_cancel(&replacement);
        return st;
    }
    replacement.into->steps_before = inst->t + inst->steps_before;
    return zfi_replace_commit(&replacement, err);
}

zf_status_t zfi_rebind(zf_instance_t *inst, const zf_param_decl_t *decls, uint32_t n, uint32_t elem_size,
                       zf_error_t *err) {
    zfi_param_t *params = NULL;
    zf_status_t st = zfi_params_build(decls, n, elem_size, inst->device_type, &params, err);
    if (st)
        return st;
    st = zfi_drain(inst, err);
    if (st) {
        zfi_params_free(params, n);
        return st;
    }
    if (!is_same_set(inst, params, n))
        return change_set(inst, params, n, err);
    move_storage(inst, params);
    return ZF_OK;
}
