/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/spread.c - shares of a checkpoint (contract in state/spread.h). */
#include "state/spread.h"

#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "base/error.h"
#include "ranks/groups.h"
#include "step/exchange.h"

void zfi_spread_share(const zfi_ranks_t *ranks, const zfi_state_array_t *array, uint32_t id,
                      const zfi_state_shape_t *shape, const zfi_matrix_t *matrix, uint32_t rank, uint64_t *out_first,
                      uint64_t *out_end) {
    uint64_t n = array->length(shape, matrix), first, end;
    *out_first = 0;
    *out_end = n;
    if (ranks->buckets->n == 0)
        return;
    if ((array->flags & ZFI_ARRAY_PER_ELEMENT) && !zfi_has_experts(ranks->reduction)) {
        zfi_bucket_owned(ranks->buckets, &ranks->params[id], rank, &first, &end);
        zfi_overlap(matrix->param_offset, n, first, end, out_first, out_end);
    } else if (rank != 0) {
        *out_end = 0;
    }
}

/* ---- checksums --------------------------------------------------------------------------------------------------- */

static uint64_t share_nbytes(const zfi_ranks_t *ranks, uint32_t id, const zfi_saved_t *saved,
                             const zfi_saved_param_t *param, const zfi_saved_tensor_t *tensor, uint32_t rank) {
    uint64_t n = 0, first, end;
    for (uint32_t i = 0; i < tensor->n_matrices; i++) {
        zfi_spread_share(ranks, tensor->array, id, &saved->shape, &param->matrices[tensor->matrices[i]], rank, &first,
                         &end);
        n += end - first;
    }
    return n * zfi_state_dtype_nbytes(zfi_state_array_dtype(tensor->array, &param->param));
}

/* crcs[n_ranks][n_all]: of one tensor they are n_all apart. */
static uint32_t join(const zfi_ranks_t *ranks, uint32_t id, const zfi_saved_t *saved, const zfi_saved_param_t *param,
                     const zfi_saved_tensor_t *tensor, const uint32_t *crcs, uint64_t n_all) {
    uint32_t crc = 0;
    for (uint32_t r = 0; r < ranks->buckets->n_ranks; r++) {
        uint64_t nbytes = share_nbytes(ranks, id, saved, param, tensor, r);
        if (nbytes)
            crc = zfi_crc32_join(crc, crcs[r * n_all], nbytes);
    }
    return crc;
}

static uint64_t count_tensors(const zfi_saved_t *saved) {
    uint64_t n = ZFI_N_STATE_STEPS;
    for (uint32_t p = 0; p < saved->n_params; p++)
        n += saved->params[p].n_tensors;
    return n;
}

zf_status_t zfi_spread_join(const zfi_ranks_t *ranks, const uint32_t *ids, zfi_together_t *together, zfi_saved_t *saved,
                            zf_error_t *err) {
    uint64_t n = count_tensors(saved), at = ZFI_N_STATE_STEPS;
    uint32_t *all = calloc(together->n_ranks, n * sizeof *all);
    uint32_t *own = all ? all + together->rank * n : NULL;
    zf_status_t st = all ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the checksums of all ranks");
    for (int i = 0; own && i < ZFI_N_STATE_STEPS; i++)
        own[i] = saved->steps[i].crc;
    for (uint32_t p = 0; own && p < saved->n_params; p++)
        for (uint32_t i = 0; i < saved->params[p].n_tensors; i++)
            own[at++] = saved->params[p].tensors[i].crc;
    st = zfi_together_meet(together, st, err);
    if (!st)
        st = zfi_together_gather(together, all, n * sizeof *all, err);
    at = ZFI_N_STATE_STEPS;
    for (int i = 0; i < ZFI_N_STATE_STEPS && !st; i++)
        saved->steps[i].crc = all[i]; /* rank 0's */
    for (uint32_t p = 0; p < saved->n_params && !st; p++)
        for (uint32_t i = 0; i < saved->params[p].n_tensors; i++)
            saved->params[p].tensors[i].crc =
                join(ranks, ids[p], saved, &saved->params[p], &saved->params[p].tensors[i], all + at++, n);
    zfi_together_drop(together, all);
    return st;
}

/* ---- what the ranks show ----------------------------------------------------------------------------------------- */

zf_status_t zfi_spread_find_visible(const zfi_state_t *state, zfi_together_t *together, uint8_t **out,
                                    zf_error_t *err) {
    uint64_t n = state->plan->n_matrices;
    uint8_t *all = calloc(together->n_ranks, n);
    zf_status_t st = all ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory to compare what the ranks show");
    for (uint32_t i = 0; i < n && !st; i++) {
        int is_equal = 1;
        st = zfi_exchange_shows_state(state, i, &is_equal);
        if (st)
            zfi_error(err, st, "state", "the device did not give what it shows");
        all[together->rank * n + i] = !is_equal;
    }
    st = zfi_together_meet(together, st, err);
    if (!st)
        st = zfi_together_gather(together, all, n, err);
    for (uint32_t r = 1; r < together->n_ranks && !st; r++)
        for (uint32_t i = 0; i < n; i++)
            all[i] |= all[r * n + i];
    *out = all;
    return st;
}
