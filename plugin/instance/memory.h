/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/memory.h - every long-lived byte of a run: one layout function counts it (the plan) and hands
 * it out. */
#ifndef ZFI_MEMORY_H
#define ZFI_MEMORY_H

#include "instance/run.h"

/* [control] Plans run->mem.layout from run->plan, checks it against what the machine has, maps both arenas. */
zf_status_t zfi_memory_bind(zfi_run_t *run, zf_error_t *err);
void zfi_memory_free(zfi_run_t *run);

/* Places the compact state and gradients of selected channels, in matrix order, by each matrix's k: at bind, and by
 * control once topk_ratio = auto has decided k. */
void zfi_memory_place_selected(zfi_run_t *run);

/* [hook] Device staging for gradients that must be copied while the hook runs, or that are strided; mapped at first
 * use. Several ranks: the flat memory of all buckets, and behind it room for what arrives of one; mapped at bind. */
zf_status_t zfi_memory_need_staging(zfi_run_t *run, zf_error_t *err);
/* [hook] fp32 sums of micro-batch parts; mapped at first use. */
zf_status_t zfi_memory_need_sums(zfi_run_t *run, zf_error_t *err);

static inline void *zfi_staging(const zfi_run_t *run, uint32_t param) {
    if (run->buckets.n) {
        const zfi_bucket_t *bucket = &run->buckets.all[run->buckets.of_param[param]];
        return run->mem.staging_arena.base + bucket->offset_nbytes +
               run->buckets.offset[param] * zfi_dtype_nbytes(bucket->dtype);
    }
    return run->mem.staging_arena.base + run->mem.param_base[param] * 4;
}
/* Several ranks: where a bucket's parts arrive; the communication thread's. */
static inline unsigned char *zfi_arriving(const zfi_run_t *run) {
    return run->mem.staging_arena.base + run->buckets.nbytes;
}
/* Sharded: the flat memory of a bucket's values. */
static inline unsigned char *zfi_values(const zfi_run_t *run, uint32_t bucket) {
    return run->mem.staging_arena.base + run->buckets.nbytes + run->buckets.most_nbytes +
           run->buckets.all[bucket].values_offset_nbytes;
}
/* Sharded: [ranks] the ranks' parts of a step's norm. */
static inline zfi_norm_part_t *zfi_norm_parts(const zfi_run_t *run) {
    return (void *)(run->mem.staging_arena.base + run->buckets.nbytes + run->buckets.most_nbytes +
                    run->buckets.values_nbytes);
}
static inline float *zfi_sum(const zfi_run_t *run, uint32_t param) {
    return (float *)(void *)run->mem.sum_arena.base + run->mem.param_base[param];
}

/* Bytes mapped now. */
uint64_t zfi_memory_host_nbytes(const zfi_run_t *run);
uint64_t zfi_memory_device_nbytes(const zfi_run_t *run);
/* [hook] The figures of this run's memory become the instance's, for zf.stats/1. */
void zfi_memory_report(zfi_run_t *run);

#endif
