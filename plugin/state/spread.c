/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/spread.c - shares of a checkpoint (contract in state/spread.h). */
#include "state/spread.h"

#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "base/error.h"
#include "ranks/gathering.h"
#include "ranks/groups.h"
#include "ranks/ranks.h"

int zfi_spread_gathers(const zfi_ranks_t *ranks, const zfi_together_t *together) {
    return ranks->buckets->is_owner && !together->is_apart && (together->is_alone || zfi_has_experts(ranks->reduction));
}

int zfi_spread_is_gathered(const zfi_ranks_t *ranks, const zfi_together_t *together, uint32_t id) {
    return zfi_spread_gathers(ranks, together) && (together->is_alone || ranks->params[id].group_index[0] == 0);
}

/* Whether each rank has its slices of a parameter: others are rank 0's. */
static int is_dealt(const zfi_ranks_t *ranks, const zfi_together_t *together, uint32_t id) {
    if (together->is_alone || (zfi_has_experts(ranks->reduction) && !ranks->buckets->is_owner))
        return 0;
    return !zfi_spread_is_gathered(ranks, together, id);
}

void zfi_spread_share(const zfi_ranks_t *ranks, zfi_saved_array_t array, uint64_t n, uint32_t matrix,
                      const zfi_together_t *together, uint64_t *out_first, uint64_t *out_end) {
    *out_first = 0;
    *out_end = n;
    if (ranks->buckets->n == 0)
        return;
    if (zfi_saved_is_by_element(array) && is_dealt(ranks, together, ranks->plan->matrices[matrix].param)) {
        const zfi_matrix_t *of = &ranks->plan->matrices[matrix];
        const zfi_slice_t *slice = &of->slices[ranks->buckets->holders[of->holders].place.rank];
        *out_first = slice->first;
        *out_end = slice->first + slice->n;
    } else if (together->rank != 0 && !together->is_apart) {
        *out_end = 0;
    }
}

/* ---- checksums --------------------------------------------------------------------------------------------------- */

/* The checksum of bytes one behind the other is the sum without carry of those of its stretches, each with zeros behind
 * it up to the end. */
void zfi_spread_add(uint32_t *crc, const void *bytes, uint64_t nbytes, uint64_t behind_nbytes) {
    *crc ^= zfi_crc32_join(zfi_crc32(0, bytes, nbytes), 0, behind_nbytes);
}

/* Tensor i of a checkpoint: array i % ZFI_SAVED_ARRAYS of a parameter. */
static zfi_saved_tensor_t *tensor_at(const zfi_saved_t *saved, uint64_t i) {
    return &saved->params[i / ZFI_SAVED_ARRAYS].tensors[i % ZFI_SAVED_ARRAYS];
}

/* Whether each rank has a share of it: else it is rank 0's, though all may have read it. */
static int has_shares(const zfi_ranks_t *ranks, const uint32_t *ids, const zfi_together_t *together, uint64_t i) {
    uint32_t id = ids[i / ZFI_SAVED_ARRAYS];
    return zfi_saved_is_by_element((zfi_saved_array_t)(i % ZFI_SAVED_ARRAYS)) && id != ZF_NO_ID &&
           is_dealt(ranks, together, id);
}

typedef struct shares {
    const uint32_t *ids;
    const zfi_together_t *together;
    uint64_t n;    /* tensors */
    uint32_t *all; /* [ranks][n] their checksums */
} shares_t;

/* Whose slices a tensor is made of; NULL: it is not dealt. */
static const zfi_holders_t *holders_of(const zfi_ranks_t *ranks, const shares_t *shares, uint64_t i) {
    if (!has_shares(ranks, shares->ids, shares->together, i))
        return NULL;
    uint32_t first = ranks->params[shares->ids[i / ZFI_SAVED_ARRAYS]].first_matrix;
    return &ranks->buckets->holders[ranks->plan->matrices[first].holders];
}

static void walk_shares(zfi_gathering_t *gathering, uint32_t rank) {
    const shares_t *shares = gathering->arg;
    const zfi_holders_t *holders = &gathering->ranks->buckets->holders[gathering->holders];
    for (uint64_t i = 0; i < shares->n; i++)
        if (holders_of(gathering->ranks, shares, i) == holders)
            zfi_gathering_pass(gathering, &shares->all[rank * shares->n + i], sizeof *shares->all);
}

/* Joins checksums where each rank writes its own slices, over those that hold a parameter: with experts they are not
 * those that have a checkpoint. */
static zf_status_t join_apart(zfi_ranks_t *ranks, const uint32_t *ids, zfi_together_t *together, zfi_saved_t *saved,
                              zf_error_t *err) {
    shares_t shares = {.ids = ids, .together = together, .n = (uint64_t)saved->n_params * ZFI_SAVED_ARRAYS};
    zfi_gathering_t gathering = {.ranks = ranks, .walk = walk_shares, .arg = &shares};
    const zfi_holders_t *holders;
    zf_status_t st;
    shares.all = calloc((shares.n + 1) * together->meeting.n_ranks, sizeof *shares.all);
    for (uint64_t i = 0; shares.all && i < shares.n; i++)
        if ((holders = holders_of(ranks, &shares, i)))
            shares.all[holders->place.rank * shares.n + i] = tensor_at(saved, i)->crc;
    st = shares.all ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the checksums of all ranks");
    st = zfi_together_meet(together, st, err);
    if (!st && zfi_gathering_at_rest(&gathering))
        st = zfi_poisoned(together->engine, err);
    for (uint64_t i = 0; !st && i < shares.n; i++)
        if ((holders = holders_of(ranks, &shares, i)))
            for (uint32_t r = 0; r < holders->place.n_ranks; r++)
                tensor_at(saved, i)->crc ^= r == holders->place.rank ? 0 : shares.all[r * shares.n + i];
    free(shares.all);
    return st;
}

zf_status_t zfi_spread_join(zfi_ranks_t *ranks, const uint32_t *ids, zfi_together_t *together, zfi_saved_t *saved,
                            zf_error_t *err) {
    uint64_t n = (uint64_t)saved->n_params * ZFI_SAVED_ARRAYS;
    uint32_t *own, *all;
    if (together->is_alone)
        return zfi_together_meet(together, ZF_OK, err);
    if (together->is_apart && ranks->buckets->is_owner)
        return join_apart(ranks, ids, together, saved, err);
    own = calloc(n + 1, sizeof *own);
    for (uint64_t i = 0; own && i < n; i++)
        own[i] = together->rank == 0 || has_shares(ranks, ids, together, i) ? tensor_at(saved, i)->crc : 0;
    zf_status_t st = own ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the checksums of all ranks");
    st = zfi_together_tell(together, ZFI_AMONG_OWN, st, own, n * sizeof *own, (void **)&all, err);
    free(own);
    for (uint64_t i = 0; !st && i < n; i++) {
        tensor_at(saved, i)->crc = all[i];
        for (uint32_t r = 1; r < together->n_ranks; r++)
            tensor_at(saved, i)->crc ^= all[r * n + i];
    }
    zfi_together_drop(together, all);
    return st;
}
