/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/load_exact.c - arrays and clocks of a checkpoint back to where they were (contract in state/loader.h).
 *
 * What has a value per element each rank reads as far as it keeps it (state/load_own.c), all else whole. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "instance/memory.h"
#include "schedule/window.h"
#include "state/loader.h"

typedef struct put_args {
    zfi_state_io_t *io;
    uint32_t first_matrix;   /* of the parameter here */
    uint64_t done;           /* values of the matrix that check is at */
    uint32_t at;             /* ... number `at` of the tensor's list */
    zfi_value_check_t check; /* this is the second read: the first one's checks say nothing of these bytes */
} put_args_t;

static zf_status_t put_block(void *arg, uint64_t offset, const void *block, uint64_t nbytes, zf_error_t *err) {
    put_args_t *args = arg;
    const zfi_value_check_t *of = &args->check;
    const zfi_state_array_t *array = of->tensor->array;
    size_t elem = zfi_saved_elem_nbytes(of->param, of->tensor);
    uint64_t n = nbytes / elem;
    const unsigned char *from = block;
    zf_status_t st = zfi_state_check_block(&args->check, offset, block, nbytes, err);
    if (st)
        return st;
    while (n) {
        uint32_t m = of->tensor->matrices[args->at];
        uint64_t length = array->length(&of->saved->shape, &of->param->matrices[m]);
        uint64_t count = length - args->done < n ? length - args->done : n;
        array->put(args->io, &(zfi_state_at_t){args->first_matrix + m, of->tensor->step, args->done, count}, from);
        if (args->io->status)
            return zfi_error(err, args->io->status, "state", "the device did not take %s of \"%s\"", array->name,
                             of->param->param.name);
        from += count * elem;
        n -= count;
        args->done += count;
        if (args->done == length) {
            args->done = 0;
            args->at++;
        }
    }
    return ZF_OK;
}

/* Room for visible values of their own, which are not put into the run itself. */
static zf_status_t need_overlay(zfi_replacement_t *replacement, const zfi_saved_param_t *param,
                                const zfi_saved_tensor_t *tensor, uint32_t first_matrix, zf_error_t *err) {
    for (uint32_t i = 0; i < tensor->n_matrices && strcmp(tensor->array->name, "visible") == 0; i++) {
        const zfi_matrix_t *matrix = &param->matrices[tensor->matrices[i]];
        unsigned char **at = &replacement->overlay[first_matrix + tensor->matrices[i]];
        *at = malloc(matrix->rows * matrix->cols * zfi_dtype_nbytes(param->param.dtype));
        if (!*at)
            return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the visible values of \"%s\"",
                             param->param.name);
    }
    return ZF_OK;
}

/* Closes that wait for their publication, and which matrices take part in it; before their values come. */
static void make_due(zfi_run_t *into, const zfi_loader_t *loader) {
    const zfi_plan_t *plan = &into->plan;
    uint64_t *first_job = into->clock.skip_publish_below, is_due = 0; /* is_due: bit c of cohort c */
    into->clock.next_job = 0;
    into->clock.n_due = 0;
    memset(first_job, 0xFF, plan->n_matrices * sizeof *first_job);
    for (uint32_t p = 0; p < loader->saved.n_params; p++) {
        const zfi_saved_param_t *param = &loader->saved.params[p];
        const zfi_saved_tensor_t *tensor = zfi_saved_find(param, "publish", 0);
        for (uint32_t i = 0; tensor && i < tensor->n_matrices; i++) {
            is_due |= (uint64_t)1 << param->matrices[tensor->matrices[i]].cohort;
            first_job[into->params[loader->ids[p]].first_matrix + tensor->matrices[i]] = 0;
        }
    }
    for (uint32_t c = 0; c < plan->n_cohorts; c++) {
        if (!(is_due >> c & 1))
            continue;
        into->clock.due[into->clock.n_due++] = (zfi_close_t){.cohort = c,
                                                             .n_chunks = plan->cohorts[c].n_chunks,
                                                             .step = into->clock.t,
                                                             .first_step = into->clock.t + 1,
                                                             .first_job = into->clock.next_job,
                                                             .choice_step = into->clock.last_choice[c]};
        into->clock.next_job += plan->cohorts[c].n_chunks;
    }
    for (uint32_t i = 0; i < plan->n_matrices; i++) {
        if (into->unfetched.is_done)
            into->unfetched.is_done[i] = first_job[i] != 0;
        first_job[i] = first_job[i] ? into->clock.next_job : 0;
    }
}

static void put_clocks(zfi_run_t *into, const zfi_loader_t *loader) {
    const zfi_saved_t *saved = &loader->saved;
    zfi_state_io_t io = {.state = &into->state, .ids = loader->ids, .n_ids = saved->n_params};
    for (int i = 0; i < ZFI_N_CLOCKS; i++)
        for (uint32_t c = 0; c < (zfi_state_clocks[i].is_per_cohort ? saved->n_cohorts : 1); c++)
            zfi_state_clock_put(&into->state, i, c, saved->clocks[i][c]);
    for (uint64_t s = 0; s < saved->n_steps; s++) {
        zfi_step_row_t *row = zfi_row(&into->rows, saved->first_step + s);
        memset(row->present, 0, into->n_params);
        memset(row->chooses, 0, into->plan.n_cohorts);
        row->t = saved->first_step + s;
        row->has_choice = 0;
        for (int i = 0; i < ZFI_N_STATE_STEPS; i++)
            zfi_state_steps[i].put(
                &io, row, (const unsigned char *)saved->step_values[i] + s * (saved->steps[i].nbytes / saved->n_steps));
    }
    zfi_window_clear_slots(&into->windows);
    make_due(into, loader);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static zf_status_t put_tensor(zfi_loader_t *loader, zfi_replacement_t *replacement, zfi_state_io_t *io, uint32_t p,
                              zfi_saved_tensor_t *tensor, zf_error_t *err) {
    const zfi_saved_param_t *param = &loader->saved.params[p];
    uint32_t first_matrix = replacement->into->params[loader->ids[p]].first_matrix;
    put_args_t args = {
        .io = io, .first_matrix = first_matrix, .check = {.saved = &loader->saved, .param = param, .tensor = tensor}};
    char name[ZFI_TENSOR_NAME];
    zf_status_t st = need_overlay(replacement, param, tensor, first_matrix, err);
    if (st)
        return st;
    if (tensor->array->flags & ZFI_ARRAY_PER_ELEMENT)
        return zfi_own_read(loader, p, tensor, io, err);
    zfi_saved_tensor_name(param, tensor, 0, name, sizeof name);
    return zfi_state_stream(loader->store, &loader->saved, tensor, name, put_block, &args, err);
}

static zf_status_t put_all(zfi_loader_t *loader, zfi_replacement_t *replacement, zf_error_t *err) {
    zfi_state_io_t io = {.state = &replacement->into->state,
                         .overlay = replacement->overlay,
                         .ids = loader->ids,
                         .n_ids = loader->saved.n_params};
    zf_status_t st = ZF_OK;
    put_clocks(replacement->into, loader);
    for (zfi_tensor_walk_t at = {0}; !st && zfi_next_tensor(&loader->saved, &at);)
        if (at.param)
            st = put_tensor(loader, replacement, &io, at.number, at.tensor, err);
    return st;
}

zf_status_t zfi_load_exact(zfi_loader_t *loader, zf_error_t *err) {
    zfi_replacement_t replacement;
    zf_status_t st = zfi_loader_begin(loader, &replacement, err);
    int has_begun = !st;
    if (!st)
        st = put_all(loader, &replacement, err);
    st = zfi_own_agree(loader, st, err);
    if (!st)
        return zfi_replace_commit(&replacement, err);
    if (has_begun)
        zfi_replace_cancel(&replacement, err);
    return st;
}
