/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/memory.h - every long-lived byte of a run: one layout function counts it (the plan) and hands
 * it out. */
#ifndef ZFI_MEMORY_H
#define ZFI_MEMORY_H

#include "instance/run.h"

/* [control] Plans run->mem.layout from run->plan and maps nothing: the figures that bind would have. */
void zfi_memory_plan(zfi_run_t *run);
/* [control] Bytes of device memory, in whole MiB, that a plan and what is mapped later leave, less a quarter of all for
 * what the trainer has yet to allocate. 0 where the device's memory is the host's. */
uint64_t zfi_memory_left(zfi_run_t *run);
/* [control] The same, checks it against what the machine has, maps both arenas. */
zf_status_t zfi_memory_bind(zfi_run_t *run, zf_error_t *err);
void zfi_memory_free(zfi_run_t *run);
/* The plan as bind_params tells it: with what several ranks map beside the arenas. */
void zfi_memory_layout(const zfi_run_t *run, zf_layout_t *out);

/* [hook] Device staging for gradients that must be copied while the hook runs, or that are strided; mapped at first
 * use. Several ranks: the flat memory of all buckets, or what is kept of their sums, and behind it room for what
 * arrives of one; mapped at bind. */
zf_status_t zfi_memory_need_staging(zfi_run_t *run, zf_error_t *err);
/* Bytes of each of the two, mapped or not. */
uint64_t zfi_memory_staging_nbytes(const zfi_run_t *run);
uint64_t zfi_memory_sums_nbytes(const zfi_run_t *run);
/* Several ranks on a device with memory of its own: bytes of the page-locked copies of staging and of the selected
 * channels' gradient (ranks/mirror.h). */
uint64_t zfi_memory_mirrors_nbytes(const zfi_run_t *run);
/* ... of which a rank has to move at most so many pieces of the selected channels of a bucket, all ranks' together. */
uint64_t zfi_memory_n_moves(const zfi_run_t *run, uint32_t bucket);
/* [hook] fp32 sums of micro-batch parts; mapped at first use. */
zf_status_t zfi_memory_need_sums(zfi_run_t *run, zf_error_t *err);

/* [hook] nbytes more of device memory, which the run frees at its end. */
zf_status_t zfi_memory_map_more(zfi_run_t *run, zfi_arena_t *arena, uint64_t nbytes, const char *what, zf_error_t *err);

/* [hook] The same of page-locked host memory, which the caller frees; nothing for 0 bytes. */
zf_status_t zfi_memory_map_pinned(zfi_run_t *run, zfi_arena_t *arena, uint64_t nbytes, const char *what,
                                  zf_error_t *err);

/* Whether the device keeps a second copy of what kernels wrote to visible values, to tell edits by element. */
int zfi_memory_keeps_shown(const zfi_engine_t *engine);

/* Several ranks: the memory of a bucket's gradients; NULL: it has none now (ranks/buffers.h). */
static inline unsigned char *zfi_flat(const zfi_run_t *run, uint32_t bucket) {
    const zfi_opened_t *opened = run->reduction.opened;
    if (!opened)
        return run->mem.staging_arena.base + run->buckets.all[bucket].offset_nbytes;
    return opened[bucket].buffer == ZF_NO_ID ? NULL : run->reduction.buffers[opened[bucket].buffer].arena.base;
}

static inline void *zfi_staging(const zfi_run_t *run, uint32_t param) {
    if (run->buckets.n) {
        uint32_t number = run->buckets.of_param[param];
        unsigned char *flat = zfi_flat(run, number);
        size_t elem = zfi_dtype_nbytes(run->buckets.all[number].dtype);
        return flat ? flat + run->buckets.offset[param] * elem : NULL;
    }
    return run->mem.staging_arena.base + run->mem.param_base[param] * 4;
}
/* Several ranks: bytes of all buckets' sums, as far as this rank keeps them. */
static inline uint64_t zfi_sums_nbytes(const zfi_buckets_t *buckets, const zfi_reduction_t *reduction) {
    const zfi_opened_t *last = reduction->opened ? &reduction->opened[buckets->n - 1] : NULL;
    return last ? last->kept_at + last->kept_nbytes : buckets->nbytes;
}
/* Where the sums over ranks of a parameter lie. Where this rank keeps a part of them, so does what is read of them: the
 * address is that of its first element, kept or not. */
static inline void *zfi_summed(const zfi_run_t *run, uint32_t param) {
    const zfi_opened_t *opened = run->reduction.opened;
    uint32_t number = run->buckets.of_param[param];
    size_t elem = zfi_dtype_nbytes(run->buckets.all[number].dtype);
    if (!opened)
        return zfi_staging(run, param);
    return (void *)((uintptr_t)run->mem.staging_arena.base + opened[number].kept_at +
                    (run->buckets.offset[param] - opened[number].kept_first) * elem); /* may wrap around, and back */
}
/* Several ranks: where a bucket's parts arrive; the communication thread's. */
static inline unsigned char *zfi_arriving(const zfi_run_t *run) {
    return run->mem.staging_arena.base + zfi_sums_nbytes(&run->buckets, &run->reduction);
}
/* Sharded: the flat memory of a bucket's values. */
static inline unsigned char *zfi_values(const zfi_run_t *run, uint32_t bucket) {
    return zfi_arriving(run) + run->buckets.arriving_nbytes + run->buckets.all[bucket].values_offset_nbytes;
}
/* Sharded: [ranks] the ranks' parts of a step's norm. */
static inline zfi_norm_part_t *zfi_norm_parts(const zfi_run_t *run) {
    uint64_t values_nbytes = zfi_is_sharded(run->engine) ? run->buckets.values_nbytes : 0;
    return (void *)(zfi_arriving(run) + run->buckets.arriving_nbytes + values_nbytes);
}
static inline uint64_t zfi_norm_nbytes(zfi_engine_t *engine) {
    return zfi_norm_member(engine).n_ranks * sizeof(zfi_norm_part_t);
}
static inline float *zfi_sum(const zfi_run_memory_t *mem, uint32_t param) {
    return (float *)(void *)mem->sum_arena.base + mem->param_base[param];
}

/* Bytes mapped now. */
uint64_t zfi_memory_host_nbytes(const zfi_run_memory_t *mem);
uint64_t zfi_memory_device_nbytes(const zfi_run_memory_t *mem);
/* [hook] The figures of this run's memory become the instance's, for zf.stats/1. */
void zfi_memory_report(zfi_run_t *run);

#endif
