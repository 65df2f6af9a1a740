/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/memory_sizes.h - how many bytes are mapped beside the arenas of a run: gradients, their sums,
 * mirrors. zf.plan/0 says the same figures before there is a run that trains. */
#pragma once

#include "instance/run.h"

/* Bytes of the memory of gradients and of their fp32 sums (memory.h, need_staging, need_sums), mapped or not. */
uint64_t zfi_memory_staging_nbytes(const zfi_ranks_t *ranks);
uint64_t zfi_memory_sums_nbytes(const zfi_ranks_t *ranks);
/* Several ranks on a device with memory of its own: bytes of the page-locked copies of staging and of the selected
 * channels' gradient (ranks/mirror.h). */
uint64_t zfi_memory_mirrors_nbytes(const zfi_ranks_t *ranks);
/* The most pieces that a rank has to move of the selected channels of a bucket, all ranks' together. */
uint64_t zfi_memory_n_moves(const zfi_ranks_t *ranks, uint32_t bucket);
/* Sharded: the table of where slices of flat memory lie in parts (zfi_run_memory_t.cut). */
uint64_t zfi_memory_cut_nbytes(const zfi_ranks_t *ranks);
/* Bytes of the pieces of published values (ranks/value_pieces.h). */
uint64_t zfi_memory_pieces_nbytes(const zfi_ranks_t *ranks);
/* Bytes that are asked for: four per element of each parameter with state; where ranks exchange, those of buckets. */
uint64_t zfi_memory_per_element_nbytes(const zfi_ranks_t *ranks);
uint64_t zfi_memory_gradients_nbytes(const zfi_ranks_t *ranks);
/* In memory that has four bytes per element of each parameter: where the one behind a parameter at `base` lies. */
uint64_t zfi_memory_after(uint64_t base, const zfi_param_t *param);

/* Sharded: bytes of what this rank keeps of a bucket's sums. */
static inline uint64_t zfi_kept_nbytes(const zfi_bucket_t *bucket) { return (zfi_part_nbytes(bucket) + 63) / 64 * 64; }
/* Several ranks: bytes of all buckets' sums, as far as this rank keeps them. */
static inline uint64_t zfi_sums_nbytes(const zfi_buckets_t *buckets, const zfi_reduction_t *reduction) {
    const zfi_opened_t *last = reduction->opened ? &reduction->opened[buckets->n - 1] : NULL;
    return last ? last->kept_at + zfi_kept_nbytes(&buckets->all[buckets->n - 1]) : buckets->nbytes;
}
static inline uint64_t zfi_norm_nbytes(zfi_engine_t *engine) {
    return zfi_norm_member(engine).n_ranks * sizeof(zfi_norm_part_t);
}
