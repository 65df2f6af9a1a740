/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/memory_sizes.c - formulas of what is mapped beside the two arenas (contract in memory_sizes.h). */
#include "instance/memory_sizes.h"

#include "base/arena.h"

uint64_t zfi_memory_after(uint64_t base, const zfi_param_t *param) {
    return base + (param->has_state ? (param->n_elems + ZFI_STATE_ALIGN - 1) / ZFI_STATE_ALIGN * ZFI_STATE_ALIGN : 0);
}

uint64_t zfi_memory_per_element_nbytes(const zfi_ranks_t *ranks) {
    uint64_t n = 0, base = 0;
    for (uint32_t i = 0; i < ranks->n_params; i++) {
        if (ranks->params[i].has_state)
            n = base + ranks->params[i].n_elems;
        base = zfi_memory_after(base, &ranks->params[i]);
    }
    return 4 * n;
}

static uint64_t exchanged_nbytes(const zfi_ranks_t *ranks) {
    uint64_t nbytes = zfi_sums_nbytes(ranks->buckets, ranks->reduction) + ranks->buckets->arriving_nbytes;
    if (zfi_is_sharded(ranks->engine))
        nbytes += ranks->buckets->parts_nbytes + ranks->buckets->staged_nbytes;
    if (zfi_has_norm_parts(ranks->engine))
        nbytes += zfi_norm_nbytes(ranks->engine);
    return nbytes;
}

uint64_t zfi_memory_gradients_nbytes(const zfi_ranks_t *ranks) {
    return ranks->buckets->n ? exchanged_nbytes(ranks) : zfi_memory_per_element_nbytes(ranks);
}

static uint64_t mapped(uint64_t nbytes) {
    zfi_arena_t arena = {0};
    zfi_arena_take(&arena, nbytes, 1);
    return zfi_arena_mapped_nbytes(&arena);
}

/* Stage 3: this rank's parts of the parameters, the buckets that are fetched, and the one on its way. */
static uint64_t shards_nbytes(const zfi_shards_t *shards) {
    uint64_t n_buffers = shards->n_whole < ZFI_LEAST_BUFFERS ? shards->n_whole : ZFI_LEAST_BUFFERS;
    if (!shards->n_whole)
        return 0;
    return mapped(shards->nbytes) + mapped(shards->parts_nbytes) + n_buffers * mapped(shards->buffer_nbytes);
}

uint64_t zfi_memory_staging_nbytes(const zfi_ranks_t *ranks) {
    uint64_t n_buffers = ranks->buckets->n < ZFI_LEAST_BUFFERS ? ranks->buckets->n : ZFI_LEAST_BUFFERS;
    if (!zfi_is_sharded(ranks->engine))
        n_buffers = 0;
    return mapped(zfi_memory_gradients_nbytes(ranks)) + n_buffers * mapped(ranks->buckets->most_nbytes) +
           shards_nbytes(ranks->shards);
}

/* A slice's rows of selected columns lie in one piece; selected rows one by one, in the order of positions. */
uint64_t zfi_memory_n_moves(const zfi_ranks_t *ranks, uint32_t bucket) {
    const zfi_bucket_t *all = &ranks->buckets->all[bucket];
    uint64_t n = 0, n_ranks = all->place.n_ranks;
    for (uint32_t i = 0; i < all->n_params; i++) {
        const zfi_param_t *param = &ranks->params[ranks->buckets->params[all->first + i]];
        for (uint32_t m = param->first_matrix; m < param->first_matrix + param->n_matrices; m++) {
            const zfi_matrix_t *matrix = &ranks->plan->matrices[m];
            n += matrix->channels_are_rows ? matrix->k : n_ranks;
        }
    }
    return n;
}

static uint64_t moves_nbytes(const zfi_ranks_t *ranks) {
    uint64_t n = 0;
    for (uint32_t b = 0; b < ranks->buckets->n && ranks->engine->policy.selects; b++)
        n += zfi_memory_n_moves(ranks, b);
    return n * sizeof(zfi_move_t);
}

uint64_t zfi_memory_cut_nbytes(const zfi_ranks_t *ranks) {
    const zfi_bucket_t *last = &ranks->buckets->all[ranks->buckets->n - 1];
    return (last->first_move + last->n_moves + 1) * sizeof(zfi_move_t);
}

uint64_t zfi_memory_pieces_nbytes(const zfi_ranks_t *ranks) {
    uint64_t n_ranks = ranks->buckets->most_ranks;
    return ranks->buckets->n * (ranks->plan->n_cohorts + 1ull) * n_ranks * sizeof(uint64_t) +
           ranks->plan->n_matrices * n_ranks * sizeof(zfi_placed_t);
}

/* Bytes of mirrors where ranks exchange the host's memory: staging, values that wait, and the parts of the bucket that
 * is fetched. */
static uint64_t all_mirrors_nbytes(const zfi_ranks_t *ranks) {
    const zfi_shards_t *shards = ranks->shards;
    zfi_arena_t selected = {0};
    uint64_t nbytes = zfi_memory_staging_nbytes(ranks) - shards_nbytes(shards);
    if (shards->n_whole)
        nbytes += mapped(shards->parts_nbytes);
    if (ranks->buckets->values_wait)
        nbytes += mapped(ranks->buckets->values_nbytes);
    zfi_arena_take(&selected, ranks->plan->n_sel_grad_nbytes, 1);
    zfi_arena_take(&selected, ranks->plan->n_index, sizeof *ranks->dev->head.index);
    return nbytes + (zfi_is_sharded(ranks->engine) ? zfi_arena_mapped_nbytes(&selected) : 0);
}

uint64_t zfi_memory_mirrors_nbytes(const zfi_ranks_t *ranks) {
    uint64_t nbytes = 0;
    if (!ranks->buckets->n)
        return 0;
    if (zfi_is_sharded(ranks->engine))
        nbytes = mapped(zfi_memory_cut_nbytes(ranks)) + mapped(zfi_memory_pieces_nbytes(ranks));
    if (zfi_has_mirrors(ranks->engine))
        return nbytes + all_mirrors_nbytes(ranks);
    if (!ranks->engine->ops->has_own_memory)
        return nbytes;
    if (zfi_is_grouped(ranks->engine))
        nbytes += mapped(zfi_norm_nbytes(ranks->engine));
    if (zfi_is_sharded(ranks->engine))
        nbytes += mapped(ranks->plan->n_index * sizeof *ranks->dev->head.index) + mapped(moves_nbytes(ranks));
    return nbytes;
}

uint64_t zfi_memory_sums_nbytes(const zfi_ranks_t *ranks) { return mapped(zfi_memory_per_element_nbytes(ranks)); }
