/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/shards.h - parameters are sharded, too ([shard] stage = 3): what a rank keeps of them, and the memory
 * in which the host finds whole ones.
 *
 * Model. Of each bucket a rank keeps its part of the visible values: its slice of every matrix, which is a matrix of
 * fewer rows to kernels. param_fetch gathers the parts of all ranks, and takes their slices apart to where they lie in
 * the flat memory of a buffer; the host reads there until param_release. A bucket that is gathered stays until a step,
 * FLUSH or a load changes its values, or another needs the buffer.
 *
 *   own        | part of 0 | part of 1 | part of 2 | ...                     always
 *   arriving   | bucket 2 | bucket 1 | bucket 0 |      | bucket 1 |          one: what is there is taken apart first
 *   buffer 0        | bucket 2            | bucket 0         ...             two of them where at most two buckets are
 *   buffer 1                   | bucket 1                   | bucket 1       held at the same time
 *
 * Prefetch. A forward pass goes through the buckets from the last to the first, a backward pass from the first to the
 * last: with each fetch the one that follows in the present direction is gathered, and after a step the one that the
 * next forward pass begins with. A host in another order gets the same values, later. Buffers are as many as
 * buckets are held at the same time, at least two; they are never given back.
 *
 * Order. What is gathered, and when, follows from the calls of fetch, release and step alone, never from time: so
 * gathers come in one order on all ranks if these calls do. Where they do not, a transport does not pair them, or the
 * next agreement finds it (hooks/reduce.h), before anything is updated.
 *
 * Small parameters and vectors stay whole on every rank, in the host's own memory, as at stage 2. [hook] where nothing
 * else is said; elsewhere than at stage 3 nothing happens. */
#pragma once

#include "instance/run.h"

/* [control] Says which parameters are sharded, those of more than whole_nbytes: before all else is made of them. */
void zfi_shards_mark(const zfi_engine_t *engine, uint32_t whole_nbytes, zfi_param_t *params, uint32_t n);
/* [control] Counts memory, once the plan is made, and again with another one: its own, and that of published values,
 * which whole parameters alone need. new maps it; free is legal after a failure of either. */
zf_status_t zfi_shards_plan(zfi_ranks_t *ranks);
zf_status_t zfi_shards_new(zfi_ranks_t *ranks, zf_error_t *err);
void zfi_shards_free(zfi_ranks_t *ranks);
/* [control] This rank's parts of what the parameters show are kept from here on, and shown there. */
zf_status_t zfi_shards_keep(zfi_ranks_t *ranks);

/* Parameters, n of them: the first id, and the bytes from one id to the next. n = 0: all. */
typedef struct zfi_ids {
    const uint32_t *first;
    uint32_t n, step_nbytes;
} zfi_ids_t;

/* The device stream waits for the values of these parameters. ranks->shards->newest marks that. What is held already
 * stays. ZF_ERR_MEMORY: one more buffer is needed and not to be had; then nothing is held that was not. */
zf_status_t zfi_shards_fetch(zfi_ranks_t *ranks, const zfi_ids_t *ids, zf_error_t *err);
/* The host has read them, in the order of the device stream. What is tied to them and held stays. */
void zfi_shards_release(zfi_ranks_t *ranks, const zfi_ids_t *ids);

/* A parameter's first element; NULL: it is sharded, and neither it nor what it shares memory with is held. */
void *zfi_shards_address(const zfi_ranks_t *ranks, uint32_t id);
/* The first parameter that is held, or ZF_NO_ID. */
uint32_t zfi_shards_held(const zfi_ranks_t *ranks);

/* Visible values are about to be others: what is gathered is void. Nothing is held. */
void zfi_shards_forget(zfi_buckets_t *buckets, zfi_shards_t *shards);
/* They are, with what is collected so far: the first bucket of the next forward pass is gathered. */
void zfi_shards_begin(zfi_ranks_t *ranks);

/* [control] This rank's part of a parameter becomes what the host wrote where it is held. */
void zfi_shards_take(zfi_ranks_t *ranks, uint32_t id);
