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
        nbytes += ranks->buckets->values_nbytes;
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

/* Stage 3: this rank's parts of the parameters, and the buckets that are fetched. */
static uint64_t shards_nbytes(const zfi_shards_t *shards) {
    uint64_t n_buffers = shards->n_whole < ZFI_LEAST_BUFFERS ? shards->n_whole : ZFI_LEAST_BUFFERS;
    return shards->n_whole ? mapped(shards->nbytes) + n_buffers * mapped(shards->buffer_nbytes) : 0;
}

uint64_t zfi_memory_staging_nbytes(const zfi_ranks_t *ranks) {
    uint64_t n_buffers = ranks->buckets->n < ZFI_LEAST_BUFFERS ? ranks->buckets->n : ZFI_LEAST_BUFFERS;
    if (!zfi_shards_gradients(ranks->engine))
        n_buffers = 0;
    return mapped(zfi_memory_gradients_nbytes(ranks)) + n_buffers * mapped(ranks->buckets->most_nbytes) +
           shards_nbytes(ranks->shards);
}

/* Where all channels are selected they lie in one piece. An edge between two ranks cuts a row: where its selected
 * elements are many, each is a piece, for positions are not in the order of channels. */
uint64_t zfi_memory_n_moves(const zfi_ranks_t *ranks, uint32_t bucket) {
    const zfi_bucket_t *all = &ranks->buckets->all[bucket];
    uint64_t n = 0, most = 0;
    for (uint32_t i = 0; i < all->n_params; i++) {
        const zfi_param_t *param = &ranks->params[ranks->buckets->params[all->first + i]];
        for (uint32_t m = param->first_matrix; m < param->first_matrix + param->n_matrices; m++) {
            const zfi_matrix_t *matrix = &ranks->plan->matrices[m];
            uint64_t k = matrix->is_choosable ? matrix->k : 0;
            n += k + 1;
            most = k > most ? k : most;
        }
    }
    return n + zfi_n_ranks(ranks->engine) * (most + 1);
}

static uint64_t moves_nbytes(const zfi_ranks_t *ranks) {
    uint64_t n = 0;
    for (uint32_t b = 0; b < ranks->buckets->n; b++)
        n += zfi_memory_n_moves(ranks, b);
    return n * sizeof(zfi_move_t);
}

/* Where ranks exchange the host's memory. */
static uint64_t all_mirrors_nbytes(const zfi_ranks_t *ranks) {
    zfi_arena_t selected = {0};
    uint64_t own =
        ranks->shards->n_whole ? mapped(ranks->shards->nbytes) : 0; /* this rank's parts do not travel from there */
    uint64_t nbytes = zfi_memory_staging_nbytes(ranks) - own;
    zfi_arena_take(&selected, ranks->plan->n_sel_grad_nbytes, 1);
    zfi_arena_take(&selected, ranks->plan->n_index, sizeof *ranks->dev->head.index);
    return nbytes + (zfi_is_sharded(ranks->engine) ? zfi_arena_mapped_nbytes(&selected) : 0);
}

uint64_t zfi_memory_mirrors_nbytes(const zfi_ranks_t *ranks) {
    uint64_t nbytes = 0;
    if (!ranks->buckets->n || !ranks->engine->ops->has_own_memory)
        return 0;
    if (!zfi_exchanges_on_device(ranks->engine))
        return all_mirrors_nbytes(ranks);
    if (zfi_is_grouped(ranks->engine))
        nbytes = mapped(zfi_norm_nbytes(ranks->engine));
    if (zfi_is_sharded(ranks->engine))
        nbytes += mapped(ranks->plan->n_index * sizeof *ranks->dev->head.index) + mapped(moves_nbytes(ranks));
    return nbytes;
}

uint64_t zfi_memory_sums_nbytes(const zfi_ranks_t *ranks) { return mapped(zfi_memory_per_element_nbytes(ranks)); }
