/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/load_own.c - what of a tensor this rank keeps (contract in state/loader.h).
 *
 * A tensor with a value per element is the parameter itself, or some of its matrices. A compact checkpoint may be cut
 * otherwise than the run; then the run's matrices are looked for in it, not the saved ones. Where each rank keeps a
 * part of the state it reads that alone, and the checksum is joined over the ranks (state/spread.h). */
#include <stdlib.h>

#include "base/error.h"
#include "plan/slice.h"
#include "state/loader.h"
#include "state/spread.h"

/* A range of a tensor. */
typedef struct range {
    uint32_t matrix;     /* of the run: number ... */
    uint64_t at;         /* ... and where its values begin in the tensor */
    uint64_t first, end; /* values of it */
} range_t;

/* All that the ranges of a tensor depend on. */
typedef struct own {
    const zfi_loader_t *loader;
    const zfi_saved_param_t *param;
    const zfi_saved_tensor_t *tensor;
    const zfi_param_t *here;
    int is_whole; /* all of it is read, whoever keeps it */
} own_t;

static own_t own_of(const zfi_loader_t *loader, uint32_t p, const zfi_saved_tensor_t *tensor) {
    const zfi_ranks_t *ranks = &loader->run->ranks;
    return (own_t){.loader = loader,
                   .param = &loader->saved.params[p],
                   .tensor = tensor,
                   .here = &loader->run->params[loader->ids[p]],
                   .is_whole = !zfi_is_sharded(loader->run->engine) ||
                               zfi_spread_is_gathered(ranks, loader->together, loader->ids[p])};
}

/* The i-th range, after range i - 1 (or zeros); 0: there is none. */
static int next_range(const own_t *own, uint32_t i, range_t *range) {
    const zfi_matrix_t *matrices = own->loader->run->plan.matrices;
    int is_compact = own->loader->saved.is_compact;
    if (i == (is_compact ? own->here->n_matrices : own->tensor->n_matrices))
        return 0;
    if (i)
        range->at += matrices[range->matrix].rows * matrices[range->matrix].cols;
    range->matrix = own->here->first_matrix + (is_compact ? i : own->tensor->matrices[i]);
    const zfi_matrix_t *matrix = &matrices[range->matrix];
    range->first = own->is_whole ? 0 : matrix->own.first;
    range->end = own->is_whole ? matrix->rows * matrix->cols : matrix->own.first + matrix->own.n;
    return 1;
}

/* Values [first, first + n) of a matrix, as far as this rank keeps them. */
static zf_status_t put(const own_t *own, zfi_state_io_t *io, uint32_t number, uint64_t first, uint64_t n,
                       const unsigned char *from, zf_error_t *err) {
    const zfi_slice_t *kept = &io->state->plan->matrices[number].own;
    uint64_t begin, end;
    zfi_overlap(first, n, kept->first, kept->first + kept->n, &begin, &end);
    if (begin < end)
        own->tensor->array->put(io, &(zfi_state_at_t){number, own->tensor->step, first + begin, end - begin},
                                from + begin * zfi_saved_elem_nbytes(own->param, own->tensor));
    return io->status ? zfi_error(err, io->status, "state", "the device did not take %s of \"%s\"",
                                  own->tensor->array->name, own->param->param.name)
                      : ZF_OK;
}

static zf_status_t read_range(const own_t *own, const range_t *range, zfi_state_io_t *io, unsigned char *block,
                              uint32_t *crc, zf_error_t *err) {
    const zfi_saved_t *saved = &own->loader->saved;
    const zfi_saved_tensor_t *tensor = own->tensor;
    zfi_value_check_t check = {.saved = saved, .param = own->param, .tensor = tensor};
    size_t elem = zfi_saved_elem_nbytes(own->param, tensor);
    uint64_t most = ZFI_STATE_BLOCK / elem, n;
    zf_status_t st = ZF_OK;
    for (uint64_t first = range->first; first < range->end && !st; first += n) {
        uint64_t at = (range->at + first) * elem;
        n = range->end - first < most ? range->end - first : most;
        st = zfi_store_read(own->loader->store, saved->files[tensor->file].name, tensor->offset + at, block, n * elem,
                            err);
        if (st)
            return st;
        zfi_spread_add(crc, block, n * elem, tensor->nbytes - at - n * elem);
        st = zfi_state_check_block(&check, at, block, n * elem, err);
        if (!st && io)
            st = put(own, io, range->matrix, first, n, block, err);
    }
    return st;
}

static zf_status_t damaged(const zfi_tensor_walk_t *at, zf_error_t *err) {
    return zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                     "%s of \"%s\" is damaged, or was changed while it was read: load another checkpoint",
                     at->param ? at->tensor->array->name : zfi_state_steps[at->number].name,
                     at->param ? at->param->param.name : "the steps");
}

zf_status_t zfi_own_want(const zfi_loader_t *loader, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    for (zfi_tensor_walk_t at = {0}; !st && zfi_next_tensor(&loader->saved, &at);) {
        int is_read = loader->ids[at.number] != ZF_NO_ID && (at.tensor->array->flags & ZFI_ARRAY_PER_ELEMENT);
        own_t own = is_read ? own_of(loader, at.number, at.tensor) : (own_t){0};
        size_t elem = zfi_saved_elem_nbytes(at.param, at.tensor);
        range_t range = {0};
        for (uint32_t i = 0; is_read && !st && next_range(&own, i, &range); i++)
            if (range.first < range.end)
                st = zfi_store_want(loader->store, loader->saved.files[at.tensor->file].name,
                                    at.tensor->offset + (range.at + range.first) * elem,
                                    (range.end - range.first) * elem, err);
    }
    return st;
}

zf_status_t zfi_own_read(zfi_loader_t *loader, uint32_t p, zfi_saved_tensor_t *tensor, zfi_state_io_t *io,
                         zf_error_t *err) {
    own_t own = own_of(loader, p, tensor);
    unsigned char *block = malloc(ZFI_STATE_BLOCK);
    range_t range = {0};
    uint32_t crc = 0;
    zf_status_t st = block ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for a block of a checkpoint");
    for (uint32_t i = 0; !st && next_range(&own, i, &range); i++)
        st = read_range(&own, &range, io, block, &crc, err);
    free(block);
    if (!st && own.is_whole && crc != tensor->crc && !tensor->lacks_crc)
        st = damaged(&(zfi_tensor_walk_t){.param = &loader->saved.params[p], .tensor = tensor}, err);
    if (own.is_whole)
        tensor->lacks_crc = 0;
    tensor->crc = crc;
    return st;
}

static zf_status_t join(zfi_loader_t *loader, zf_error_t *err) {
    zf_status_t st = zfi_spread_join(&loader->run->ranks, loader->ids, loader->together, &loader->saved, err);
    uint32_t *crc = loader->crcs;
    for (zfi_tensor_walk_t at = {0}; !st && zfi_next_tensor(&loader->saved, &at); crc++)
        if (at.tensor->lacks_crc)
            *crc = at.tensor->crc, at.tensor->lacks_crc = 0;
        else if (at.tensor->crc != *crc)
            st = damaged(&at, err);
    return st;
}

zf_status_t zfi_own_agree(zfi_loader_t *loader, zf_status_t st, zf_error_t *err) {
    st = zfi_together_meet(loader->together, st, err);
    if (st || !zfi_is_sharded(loader->run->engine))
        return st;
    return zfi_together_meet(loader->together, join(loader, err), err);
}
