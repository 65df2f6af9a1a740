/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/memory_sizes.c - formulas of what is mapped beside the two arenas (contract in memory_sizes.h). */
#include "instance/memory_sizes.h"

#include "base/arena.h"

uint64_t zfi_memory_after(uint64_t base, const zfi_param_t *param) {
    return base + (param->has_state ? (param->n_elems + ZFI_STATE_ALIGN - 1) / ZFI_STATE_ALIGN * ZFI_STATE_ALIGN : 0);
}

uint64_t zfi_memory_per_element_nbytes(const zfi_run_t *run) {
    uint64_t n = 0, base = 0;
    for (uint32_t i = 0; i < run->n_params; i++) {
        if (run->params[i].has_state)
            n = base + run->params[i].n_elems;
        base = zfi_memory_after(base, &run->params[i]);
    }
    return 4 * n;
}

static uint64_t exchanged_nbytes(const zfi_run_t *run) {
    uint64_t nbytes = zfi_sums_nbytes(&run->buckets, &run->reduction) + run->buckets.arriving_nbytes;
    if (zfi_is_sharded(run->engine))
        nbytes += run->buckets.values_nbytes;
    if (zfi_has_norm_parts(run->engine))
        nbytes += zfi_norm_nbytes(run->engine);
    return nbytes;
}

uint64_t zfi_memory_gradients_nbytes(const zfi_run_t *run) {
    return run->buckets.n ? exchanged_nbytes(run) : zfi_memory_per_element_nbytes(run);
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

uint64_t zfi_memory_staging_nbytes(const zfi_run_t *run) {
    uint64_t n_buffers = run->buckets.n < ZFI_LEAST_BUFFERS ? run->buckets.n : ZFI_LEAST_BUFFERS;
    if (!zfi_shards_gradients(run->engine))
        n_buffers = 0;
    return mapped(zfi_memory_gradients_nbytes(run)) + n_buffers * mapped(run->buckets.most_nbytes) +
           shards_nbytes(&run->shards);
}

/* Where all channels are selected they lie in one piece. An edge between two ranks cuts a row: where its selected
 * elements are many, each is a piece, for positions are not in the order of channels. */
uint64_t zfi_memory_n_moves(const zfi_run_t *run, uint32_t bucket) {
    const zfi_bucket_t *all = &run->buckets.all[bucket];
    uint64_t n = 0, most = 0;
    for (uint32_t i = 0; i < all->n_params; i++) {
        const zfi_param_t *param = &run->params[run->buckets.params[all->first + i]];
        for (uint32_t m = param->first_matrix; m < param->first_matrix + param->n_matrices; m++) {
            const zfi_matrix_t *matrix = &run->plan.matrices[m];
            uint64_t k = matrix->is_choosable ? matrix->k : 0;
            n += k + 1;
            most = k > most ? k : most;
        }
    }
    return n + zfi_n_ranks(run->engine) * (most + 1);
}

static uint64_t moves_nbytes(const zfi_run_t *run) {
    uint64_t n = 0;
    for (uint32_t b = 0; b < run->buckets.n; b++)
        n += zfi_memory_n_moves(run, b);
    return n * sizeof(zfi_move_t);
}

/* Where ranks exchange the host's memory. */
static uint64_t all_mirrors_nbytes(const zfi_run_t *run) {
    zfi_arena_t selected = {0};
    uint64_t own =
        run->shards.n_whole ? mapped(run->shards.nbytes) : 0; /* this rank's parts do not travel from there */
    uint64_t nbytes = zfi_memory_staging_nbytes(run) - own;
    zfi_arena_take(&selected, run->plan.n_sel_grad_nbytes, 1);
    zfi_arena_take(&selected, run->plan.n_index, sizeof *run->dev.head.index);
    return nbytes + (zfi_is_sharded(run->engine) ? zfi_arena_mapped_nbytes(&selected) : 0);
}

uint64_t zfi_memory_mirrors_nbytes(const zfi_run_t *run) {
    uint64_t nbytes = 0;
    if (!run->buckets.n || !run->engine->ops->has_own_memory)
        return 0;
    if (!zfi_exchanges_on_device(run->engine))
        return all_mirrors_nbytes(run);
    if (zfi_is_grouped(run->engine))
        nbytes = mapped(zfi_norm_nbytes(run->engine));
    if (zfi_is_sharded(run->engine))
        nbytes += mapped(run->plan.n_index * sizeof *run->dev.head.index) + mapped(moves_nbytes(run));
    return nbytes;
}

uint64_t zfi_memory_sums_nbytes(const zfi_run_t *run) { return mapped(zfi_memory_per_element_nbytes(run)); }
