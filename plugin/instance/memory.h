/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/memory.h - every long-lived byte of a run: planned, checked against what the machine has, mapped. */
#pragma once

#include "instance/memory_sizes.h"
#include "instance/run.h"

/* [control] Plans run->mem.layout from run->plan and maps nothing: the figures that bind would have. [host]
 * memory_limit_mib takes room from early replays, as it does there, and refuses nothing. */
void zfi_memory_plan(zfi_run_t *run);
/* [control] Bytes of device memory, in whole MiB, that a plan and what is mapped later leave, less a quarter of all for
 * what the trainer has yet to allocate. 0 where the device's memory is the host's. */
uint64_t zfi_memory_left(zfi_run_t *run);
/* [control] Whether a second run like this one may be mapped beside it; [host] memory_limit_mib is for both. */
int zfi_memory_has_room_beside(const zfi_ranks_t *ranks);
/* [control] The same, checks it against what the machine has, maps both arenas. */
zf_status_t zfi_memory_bind(zfi_run_t *run, zf_error_t *err);
void zfi_memory_free(zfi_run_t *run);
/* The plan as bind_params tells it: with what several ranks map beside the arenas. */
void zfi_memory_planned(const zfi_ranks_t *ranks, zf_bind_report_t *out);

/* [hook] Device staging for gradients that must be copied while the hook runs, or that are strided; mapped at first
 * use. Several ranks: the flat memory of all buckets, or what is kept of their sums, and behind it room for what
 * arrives of one; mapped at bind. */
zf_status_t zfi_memory_need_staging(zfi_ranks_t *ranks, zf_error_t *err);
/* [hook] fp32 sums of micro-batch parts; mapped at first use. */
zf_status_t zfi_memory_need_sums(zfi_ranks_t *ranks, zf_error_t *err);

/* [hook] nbytes more of device memory, which the run frees at its end. */
zf_status_t zfi_memory_map_more(zfi_ranks_t *ranks, zfi_arena_t *arena, uint64_t nbytes, const char *what,
                                zf_error_t *err);

/* [hook] The same of page-locked host memory, which the caller frees; nothing for 0 bytes. */
zf_status_t zfi_memory_map_pinned(zfi_ranks_t *ranks, zfi_arena_t *arena, uint64_t nbytes, const char *what,
                                  zf_error_t *err);

/* Which of the parts of a bucket is this rank's. */
static inline uint32_t zfi_own_part(const zfi_engine_t *engine, const zfi_bucket_t *bucket) {
    return zfi_part_of(engine, bucket->group, bucket->place.rank);
}
/* Several ranks: where a bucket's parts arrive; the communication thread's. */
static inline unsigned char *zfi_arriving(const zfi_ranks_t *ranks) {
    return ranks->mem->staging_arena.base + zfi_sums_nbytes(ranks->buckets, ranks->reduction);
}
/* Sharded: where a bucket's parts are collected from its flat memory; the communication thread's. */
static inline unsigned char *zfi_parts(const zfi_ranks_t *ranks) {
    return zfi_arriving(ranks) + ranks->buckets->arriving_nbytes;
}
/* Sharded: values on the device, all of them, or where they wait in the host's memory the part that is on its way. */
static inline unsigned char *zfi_staged_values(const zfi_ranks_t *ranks) {
    return zfi_parts(ranks) + ranks->buckets->parts_nbytes;
}
/* Sharded: the memory of a bucket's values. */
static inline unsigned char *zfi_values(const zfi_ranks_t *ranks, uint32_t bucket) {
    unsigned char *all = ranks->buckets->values_wait ? ranks->mem->values.arena.base : zfi_staged_values(ranks);
    return all + ranks->buckets->all[bucket].values_offset_nbytes;
}
/* Sharded: [ranks] the ranks' parts of a step's norm. */
static inline zfi_norm_part_t *zfi_norm_parts(const zfi_ranks_t *ranks) {
    return (void *)(zfi_staged_values(ranks) + ranks->buckets->staged_nbytes);
}
static inline float *zfi_sum(const zfi_run_memory_t *mem, uint32_t param) {
    return (float *)(void *)mem->sum_arena.base + mem->param_base[param];
}

/* [hook] The figures of this run's memory become the instance's, for zf.stats/1: what is planned, and what hooks have
 * asked for since `bound` said that all of that is mapped. */
void zfi_memory_report(const zfi_ranks_t *ranks);
void zfi_memory_bound(const zfi_ranks_t *ranks);
