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
#include "step/exchange.h"

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

void zfi_spread_share(const zfi_ranks_t *ranks, const zfi_state_array_t *array, const zfi_state_shape_t *shape,
                      const zfi_matrix_t *saved, uint32_t matrix, const zfi_together_t *together, uint64_t *out_first,
                      uint64_t *out_end) {
    *out_first = 0;
    *out_end = array->length(shape, saved);
    if (ranks->buckets->n == 0)
        return;
    if ((array->flags & ZFI_ARRAY_PER_ELEMENT) && is_dealt(ranks, together, ranks->plan->matrices[matrix].param)) {
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

/* Whether each rank has a share of a tensor: else it is rank 0's, though all may have read it. */
static int has_shares(const zfi_ranks_t *ranks, const uint32_t *ids, const zfi_together_t *together,
                      const zfi_tensor_walk_t *at) {
    return at->param && (at->tensor->array->flags & ZFI_ARRAY_PER_ELEMENT) && ids[at->number] != ZF_NO_ID &&
           is_dealt(ranks, together, ids[at->number]);
}

typedef struct shares {
    const zfi_saved_t *saved;
    const uint32_t *ids;
    const zfi_together_t *together;
    uint64_t n;    /* tensors */
    uint32_t *all; /* [ranks][n] their checksums */
} shares_t;

/* Whose slices a tensor is made of; NULL: it is not dealt. */
static const zfi_holders_t *holders_of(const zfi_ranks_t *ranks, const shares_t *shares, const zfi_tensor_walk_t *at) {
    if (!has_shares(ranks, shares->ids, shares->together, at))
        return NULL;
    uint32_t holders = ranks->plan->matrices[ranks->params[shares->ids[at->number]].first_matrix].holders;
    return &ranks->buckets->holders[holders];
}

static void walk_shares(zfi_gathering_t *gathering, uint32_t rank) {
    const shares_t *shares = gathering->arg;
    const zfi_holders_t *holders = &gathering->ranks->buckets->holders[gathering->holders];
    uint64_t i = 0;
    for (zfi_tensor_walk_t at = {0}; zfi_next_tensor(shares->saved, &at); i++)
        if (holders_of(gathering->ranks, shares, &at) == holders)
            zfi_gathering_pass(gathering, &shares->all[rank * shares->n + i], sizeof *shares->all);
}

/* Where each writes its own slices: those who hold a parameter have its checksum, which with experts are not those that
 * have a checkpoint. */
static zf_status_t join_apart(zfi_ranks_t *ranks, const uint32_t *ids, zfi_together_t *together, zfi_saved_t *saved,
                              zf_error_t *err) {
    shares_t shares = {.saved = saved, .ids = ids, .together = together, .n = zfi_count_tensors(saved)};
    zfi_gathering_t gathering = {.ranks = ranks, .walk = walk_shares, .arg = &shares};
    const zfi_holders_t *holders;
    uint64_t i = 0;
    zf_status_t st;
    shares.all = calloc((shares.n + 1) * together->meeting.n_ranks, sizeof *shares.all);
    for (zfi_tensor_walk_t at = {0}; shares.all && zfi_next_tensor(saved, &at); i++)
        if ((holders = holders_of(ranks, &shares, &at)))
            shares.all[holders->place.rank * shares.n + i] = at.tensor->crc;
    st = shares.all ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the checksums of all ranks");
    st = zfi_together_meet(together, st, err);
    if (!st && zfi_gathering_at_rest(&gathering))
        st = zfi_poisoned(together->engine, err);
    i = 0;
    for (zfi_tensor_walk_t at = {0}; !st && zfi_next_tensor(saved, &at); i++)
        if ((holders = holders_of(ranks, &shares, &at)))
            for (uint32_t r = 0; r < holders->place.n_ranks; r++)
                at.tensor->crc ^= r == holders->place.rank ? 0 : shares.all[r * shares.n + i];
    free(shares.all);
    return st;
}

zf_status_t zfi_spread_join(zfi_ranks_t *ranks, const uint32_t *ids, zfi_together_t *together, zfi_saved_t *saved,
                            zf_error_t *err) {
    uint64_t n = zfi_count_tensors(saved), i = 0;
    uint32_t *own, *all;
    if (together->is_alone)
        return zfi_together_meet(together, ZF_OK, err);
    if (together->is_apart && ranks->buckets->is_owner)
        return join_apart(ranks, ids, together, saved, err);
    own = calloc(n + 1, sizeof *own);
    for (zfi_tensor_walk_t at = {0}; own && zfi_next_tensor(saved, &at); i++)
        own[i] = together->rank == 0 || has_shares(ranks, ids, together, &at) ? at.tensor->crc : 0;
    zf_status_t st = own ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the checksums of all ranks");
    st = zfi_together_tell(together, ZFI_AMONG_OWN, st, own, n * sizeof *own, (void **)&all, err);
    free(own);
    i = 0;
    for (zfi_tensor_walk_t at = {0}; !st && zfi_next_tensor(saved, &at); i++) {
        at.tensor->crc = all[i];
        for (uint32_t r = 1; r < together->n_ranks; r++)
            at.tensor->crc ^= all[r * n + i];
    }
    zfi_together_drop(together, all);
    return st;
}

/* ---- what the ranks show ----------------------------------------------------------------------------------------- */

zf_status_t zfi_spread_find_visible(const zfi_state_t *state, zfi_together_t *together, uint8_t **out,
                                    zf_error_t *err) {
    uint64_t n = state->plan->n_matrices;
    uint8_t *own = calloc(n, 1), *all;
    zf_status_t st = own ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory to compare what the ranks show");
    for (uint32_t i = 0; i < n && !st; i++) {
        int is_equal = 1;
        st = zfi_exchange_shows_state(state, i, &is_equal);
        if (st)
            zfi_error(err, st, "state", "the device did not give what it shows");
        own[i] = !is_equal;
    }
    st = zfi_together_tell(together, ZFI_AMONG_MET, st, own, n, (void **)&all, err);
    free(own);
    for (uint32_t r = 1; r < together->meeting.n_ranks && !st; r++)
        for (uint32_t i = 0; i < n; i++)
            all[i] |= all[r * n + i];
    *out = all;
    return st;
}
