/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/load_own.c - what of a tensor this rank keeps (contract in state/loader.h).
 *
 * A tensor with a value per element is the parameter itself. Where each rank keeps a part of the state it reads that
 * alone, and the checksum is joined over the ranks (state/spread.h). */
#include <stdlib.h>

#include "base/error.h"
#include "state/loader.h"
#include "state/spread.h"

/* Whether all of a tensor is read, also what others keep. */
static int is_read_whole(const zfi_loader_t *loader, uint32_t p) {
    return !zfi_is_sharded(loader->run->engine) ||
           zfi_spread_is_gathered(&loader->run->ranks, loader->together, loader->ids[p]);
}

/* The elements of a matrix that are read. */
static zfi_slice_t range_of(const zfi_loader_t *loader, uint32_t p, uint32_t number) {
    const zfi_matrix_t *matrix = &loader->run->plan.matrices[number];
    return is_read_whole(loader, p) ? (zfi_slice_t){.n = matrix->rows * matrix->cols} : matrix->own;
}

static zf_status_t read_matrix(zfi_loader_t *loader, uint32_t p, zfi_saved_array_t array, uint32_t number,
                               const zfi_state_t *into, float *block, zf_error_t *err) {
    enum { MOST = ZFI_STATE_BLOCK / sizeof(float) };
    zfi_saved_param_t *param = &loader->saved.params[p];
    zfi_saved_tensor_t *tensor = &param->tensors[array];
    uint64_t base = loader->run->plan.matrices[number].param_offset, n;
    zfi_slice_t range = range_of(loader, p, number);
    zf_status_t st = ZF_OK;
    for (; range.n && !st; range.first += n, range.n -= n) {
        uint64_t at = (base + range.first) * sizeof *block;
        n = range.n < MOST ? range.n : MOST;
        st = zfi_store_read(loader->store, loader->saved.files[param->file].name, tensor->offset + at, block,
                            n * sizeof *block, err);
        if (st)
            return st;
        zfi_spread_add(&tensor->crc, block, n * sizeof *block, tensor->nbytes - at - n * sizeof *block);
        st = zfi_state_check_values(&loader->saved, param, array, base + range.first, block, n, err);
        if (!st && into)
            st = zfi_values_put(into, array, loader->ids[p], base + range.first, n, block, err);
    }
    return st;
}

static zf_status_t damaged(const zfi_saved_param_t *param, zfi_saved_array_t array, zf_error_t *err) {
    return zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                     "%s of \"%s\" is damaged, or was changed while it was read: load another checkpoint",
                     zfi_saved_name(array), param->name);
}

zf_status_t zfi_own_want(const zfi_loader_t *loader, zf_error_t *err) {
    const zfi_saved_t *saved = &loader->saved;
    zf_status_t st = ZF_OK;
    for (uint32_t p = 0; p < saved->n_params; p++)
        for (int a = 0; a <= ZFI_SAVED_V && loader->ids[p] != ZF_NO_ID; a++) {
            const zfi_param_t *here = &loader->run->params[loader->ids[p]];
            const zfi_saved_tensor_t *tensor = &saved->params[p].tensors[a];
            for (uint32_t m = here->first_matrix; m < here->first_matrix + here->n_matrices && tensor->nbytes && !st;
                 m++) {
                zfi_slice_t range = range_of(loader, p, m);
                if (range.n)
                    st = zfi_store_want(loader->store, saved->files[saved->params[p].file].name,
                                        tensor->offset +
                                            (loader->run->plan.matrices[m].param_offset + range.first) * sizeof(float),
                                        range.n * sizeof(float), err);
            }
        }
    return st;
}

zf_status_t zfi_own_read(zfi_loader_t *loader, uint32_t p, zfi_saved_array_t array, const zfi_state_t *into,
                         zf_error_t *err) {
    const zfi_param_t *here = &loader->run->params[loader->ids[p]];
    zfi_saved_tensor_t *tensor = &loader->saved.params[p].tensors[array];
    float *block = malloc(ZFI_STATE_BLOCK);
    uint32_t need = tensor->crc;
    zf_status_t st = block ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for a block of a checkpoint");
    tensor->crc = 0;
    for (uint32_t m = here->first_matrix; m < here->first_matrix + here->n_matrices && !st; m++)
        st = read_matrix(loader, p, array, m, into, block, err);
    free(block);
    if (!is_read_whole(loader, p))
        return st;
    if (!st && tensor->crc != need && !tensor->lacks_crc)
        st = damaged(&loader->saved.params[p], array, err);
    tensor->lacks_crc = 0;
    return st;
}

static zf_status_t join(zfi_loader_t *loader, zf_error_t *err) {
    zf_status_t st = zfi_spread_join(&loader->run->ranks, loader->ids, loader->together, &loader->saved, err);
    for (uint64_t i = 0; i < (uint64_t)loader->saved.n_params * ZFI_SAVED_ARRAYS && !st; i++) {
        zfi_saved_param_t *param = &loader->saved.params[i / ZFI_SAVED_ARRAYS];
        zfi_saved_tensor_t *tensor = &param->tensors[i % ZFI_SAVED_ARRAYS];
        if (tensor->lacks_crc) {
            loader->crcs[i] = tensor->crc;
            tensor->lacks_crc = 0;
        } else if (tensor->crc != loader->crcs[i]) {
            st = damaged(param, (zfi_saved_array_t)(i % ZFI_SAVED_ARRAYS), err);
        }
    }
    return st;
}

zf_status_t zfi_own_agree(zfi_loader_t *loader, zf_status_t st, zf_error_t *err) {
    st = zfi_together_meet(loader->together, st, err);
    if (st || !zfi_is_sharded(loader->run->engine))
        return st;
    return zfi_together_meet(loader->together, join(loader, err), err);
}
