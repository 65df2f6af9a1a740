/* plugin/memory.h - every long-lived byte of an instance: one layout function counts it (the plan) and hands it out. */
#ifndef ZFI_MEMORY_H
#define ZFI_MEMORY_H

#include "instance.h"

/* [control] Plans inst->layout from inst->plan, checks it against what the machine has, maps both arenas. */
zf_status_t zfi_memory_bind(zf_instance_t *inst, zf_error_t *err);
void zfi_memory_free(zf_instance_t *inst);

/* Places the compact state and gradients of selected channels, in matrix order, by each matrix's k: at bind, and by
 * control once topk_ratio = auto has decided k. */
void zfi_memory_place_selected(zf_instance_t *inst);

/* [hook] Device staging for gradients that must be copied while the hook runs, or that are strided; mapped at first
 * use. */
zf_status_t zfi_memory_need_staging(zf_instance_t *inst, zf_error_t *err);
/* [hook] fp32 sums of micro-batch parts; mapped at first use. */
zf_status_t zfi_memory_need_sums(zf_instance_t *inst, zf_error_t *err);

static inline void *zfi_staging(const zf_instance_t *inst, uint32_t param) {
    return inst->staging_arena.base + inst->param_base[param] * 4;
}
static inline float *zfi_sum(const zf_instance_t *inst, uint32_t param) {
    return (float *)(void *)inst->sum_arena.base + inst->param_base[param];
}

/* Bytes mapped now. */
uint64_t zfi_memory_host_nbytes(const zf_instance_t *inst);
uint64_t zfi_memory_device_nbytes(const zf_instance_t *inst);

#endif
