/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/load_exact.c - arrays and clocks of a checkpoint back to where they were (contract in state/loader.h).
 *
 * Where each rank keeps a part of the state, it reads the ranges of its own elements, and the ranks join the checksums
 * of what they read (state/spread.h). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "base/error.h"
#include "instance/memory.h"
#include "plan/slice.h"
#include "schedule/window.h"
#include "state/loader.h"
#include "state/spread.h"

typedef struct put_args {
    zfi_state_io_t *io;
    const zfi_saved_t *saved;
    const zfi_saved_param_t *param;
    const zfi_saved_tensor_t *tensor;
    uint32_t id;               /* of the parameter here */
    uint32_t first_matrix, at; /* matrix being filled: number `at` of the tensor's list */
    uint64_t done;             /* values of it */
    int is_owned;              /* ... of which this rank's elements alone are put */
    zfi_value_check_t check;   /* this is the second read: the first one's checks say nothing of these bytes */
} put_args_t;

/* The next `count` values of a matrix, as far as they are this rank's. */
static void put_values(const put_args_t *args, uint32_t number, uint64_t count, const unsigned char *from) {
    const zfi_state_array_t *array = args->tensor->array;
    uint64_t first = 0, end = count;
    if (args->is_owned) {
        const zfi_slice_t *own = &args->io->state->plan->matrices[number].own;
        zfi_overlap(args->done, count, own->first, own->first + own->n, &first, &end);
    }
    if (first < end)
        array->put(args->io, &(zfi_state_at_t){number, args->tensor->step, args->done + first, end - first},
                   from + first * zfi_saved_elem_nbytes(args->param, args->tensor));
}

static zf_status_t put_block(void *arg, uint64_t offset, const void *block, uint64_t nbytes, zf_error_t *err) {
    put_args_t *args = arg;
    const zfi_state_array_t *array = args->tensor->array;
    size_t elem = zfi_saved_elem_nbytes(args->param, args->tensor);
    uint64_t n = nbytes / elem;
    const unsigned char *from = block;
    zf_status_t st = zfi_state_check_block(&args->check, offset, block, nbytes, err);
    if (st)
        return st;
    while (n) {
        uint32_t m = args->tensor->matrices[args->at];
        uint64_t length = array->length(&args->saved->shape, &args->param->matrices[m]);
        uint64_t count = length - args->done < n ? length - args->done : n;
        put_values(args, args->first_matrix + m, count, from);
        if (args->io->status)
            return zfi_error(err, args->io->status, "state", "the device did not take %s of \"%s\"", array->name,
                             args->param->param.name);
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
    for (uint32_t i = 0; i < plan->n_matrices; i++)
        first_job[i] = first_job[i] ? into->clock.next_job : 0;
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

/* ---- this rank's elements ---------------------------------------------------------------------------------------- */

/* Values [first, end) of the matrix that args is at, which begin `from` bytes into the tensor. */
static zf_status_t read_share(const zfi_loader_t *loader, put_args_t *args, uint64_t from, uint64_t first, uint64_t end,
                              unsigned char *block, uint32_t *crc, zf_error_t *err) {
    const zfi_saved_tensor_t *tensor = args->tensor;
    size_t elem = zfi_saved_elem_nbytes(args->param, tensor);
    const char *file = loader->saved.files[tensor->file].name;
    uint64_t most = ZFI_STATE_BLOCK / elem, n;
    zf_status_t st = ZF_OK;
    for (; first < end && !st; first += n) {
        uint64_t at = from + first * elem;
        n = end - first < most ? end - first : most;
        st = zfi_store_read(loader->store, file, tensor->offset + at, block, n * elem, err);
        if (st)
            return st;
        zfi_spread_add(crc, block, n * elem, tensor->nbytes - at - n * elem);
        st = zfi_state_check_block(&args->check, at, block, n * elem, err);
        if (!st)
            tensor->array->put(
                args->io, &(zfi_state_at_t){args->first_matrix + tensor->matrices[args->at], tensor->step, first, n},
                block);
        if (!st && args->io->status)
            st = zfi_error(err, args->io->status, "state", "the device did not take %s of \"%s\"", tensor->array->name,
                           args->param->param.name);
    }
    return st;
}

/* The tensor's checksum becomes that of this rank's slices of it. */
static zf_status_t put_share(const zfi_loader_t *loader, put_args_t *args, zfi_saved_tensor_t *tensor,
                             zf_error_t *err) {
    const zfi_saved_t *saved = &loader->saved;
    size_t elem = zfi_saved_elem_nbytes(args->param, tensor);
    unsigned char *block = malloc(ZFI_STATE_BLOCK);
    uint64_t from = 0, first, end;
    uint32_t crc = 0;
    zf_status_t st = block ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for a block of a checkpoint");
    for (args->at = 0; args->at < tensor->n_matrices && !st; args->at++) {
        const zfi_matrix_t *matrix = &args->param->matrices[tensor->matrices[args->at]];
        zfi_spread_share(args->io->state->ranks, tensor->array, &saved->shape, matrix,
                         args->first_matrix + tensor->matrices[args->at], loader->together, &first, &end);
        st = read_share(loader, args, from, first, end, block, &crc, err);
        from += tensor->array->length(&saved->shape, matrix) * elem;
    }
    free(block);
    tensor->crc = crc;
    return st;
}

/* What was read is what was saved: joined, the checksums of the ranges are the index's. */
static zf_status_t check_shares(zfi_loader_t *loader, const uint32_t *crcs, zf_error_t *err) {
    zf_status_t st = zfi_spread_join(&loader->run->ranks, loader->ids, loader->together, &loader->saved, err);
    for (zfi_tensor_walk_t at = {0}; !st && zfi_next_tensor(&loader->saved, &at);)
        if (at.tensor->crc != *crcs++)
            st = zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                           "%s of \"%s\" is damaged, or was changed while it was read: load another checkpoint",
                           at.param ? at.tensor->array->name : zfi_state_steps[at.number].name,
                           at.param ? at.param->param.name : "the steps");
    return st;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static zf_status_t put_tensor(zfi_loader_t *loader, zfi_replacement_t *replacement, zfi_state_io_t *io, uint32_t p,
                              zfi_saved_tensor_t *tensor, zf_error_t *err) {
    const zfi_saved_param_t *param = &loader->saved.params[p];
    uint32_t id = loader->ids[p], first_matrix = replacement->into->params[id].first_matrix;
    int is_owned = zfi_is_sharded(replacement->into->engine) && (tensor->array->flags & ZFI_ARRAY_PER_ELEMENT) != 0;
    put_args_t args = {.io = io,
                       .saved = &loader->saved,
                       .param = param,
                       .tensor = tensor,
                       .id = id,
                       .first_matrix = first_matrix,
                       .is_owned = is_owned,
                       .check = {.saved = &loader->saved, .param = param, .tensor = tensor}};
    char name[ZFI_TENSOR_NAME];
    zf_status_t st = need_overlay(replacement, param, tensor, first_matrix, err);
    if (st)
        return st;
    if (is_owned && !zfi_spread_is_gathered(&replacement->into->ranks, loader->together, id))
        return put_share(loader, &args, tensor, err);
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

/* [n] The checksums of the index, which ranges take the place of; to be freed, NULL without memory. */
static uint32_t *keep_checksums(const zfi_saved_t *saved) {
    uint32_t *out = malloc((zfi_count_tensors(saved) + 1) * sizeof *out), n = 0;
    for (zfi_tensor_walk_t at = {0}; out && zfi_next_tensor(saved, &at);)
        out[n++] = at.tensor->crc;
    return out;
}

zf_status_t zfi_load_exact(zfi_loader_t *loader, zf_error_t *err) {
    zfi_replacement_t replacement;
    uint32_t *crcs = keep_checksums(&loader->saved);
    zf_status_t st = crcs ? zfi_loader_begin(loader, &replacement, err)
                          : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for checksums");
    int has_begun = !st;
    if (!st)
        st = put_all(loader, &replacement, err);
    st = zfi_together_meet(loader->together, st, err);
    if (!st && zfi_is_sharded(loader->run->engine))
        st = check_shares(loader, crcs, err);
    free(crcs);
    if (!st)
        return zfi_replace_commit(&replacement, err);
    if (has_begun)
        zfi_replace_cancel(&replacement, err);
    return st;
}
