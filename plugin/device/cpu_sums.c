/* plugin/device/cpu_sums.c - moments mode with accumulate_on = device: the sums of the open windows (SCHEDULE.md).
 *
 * A gradient is read when it is delivered, for its statistics, and again once s is known, for the sums; in between it
 * lies in the host's memory or in staging (deliver.c). Sums lie in the order of the host's state, fp32. A close rounds
 * its cohort's in place, where gradients have 2 bytes, into the first half of each chunk's range, from which the down
 * stream takes them; the next step of the cohort overwrites them, so it waits for that transfer. Nothing is ever
 * zeroed: the first applied gradient of a window starts the sums. */
#include "device/cpu.h"

#include <string.h>

#include "fault.h"

enum { ROUND_ELEMS = 512 };

typedef struct sums_args {
    zf_instance_t *inst;
    uint64_t number; /* of the step, or of the transfer */
    uint32_t cohort;
} sums_args_t;

/* ---- adding ------------------------------------------------------------------------------------------------------ */

/* No gradient of this parameter was added in the window that opened at step first. */
static int starts_window(const zf_instance_t *inst, uint32_t param, uint64_t first, uint64_t t) {
    for (uint64_t u = first; u < t; u++) {
        const zfi_step_row_t *row = zfi_row((zf_instance_t *)(uintptr_t)inst, u);
        if (row->present[param] && row->dev.applied)
            return 0;
    }
    return !ZFI_FAULT_SUMS_NOT_RESTARTED || t == inst->config.full_warm_up_rounds + 1;
}

static zf_status_t add_param(zf_instance_t *inst, const zfi_param_t *param, const zfi_step_row_t *row) {
    const unsigned char *grad = inst->dev.held[param->id];
    size_t elem = zfi_dtype_nbytes(param->grad_dtype);
    for (uint32_t i = param->first_matrix; i < param->first_matrix + param->n_matrices; i++) {
        const zfi_matrix_t *matrix = &inst->plan.matrices[i];
        int is_first = starts_window(inst, param->id, row->cohort_first[matrix->cohort], row->t);
        if (zfi_wait(inst, &inst->sums, row->cohort_sums[matrix->cohort], &inst->count.stall_pool_ns))
            return ZF_ERR_POISONED;
        inst->kernels->accumulate_sums(inst->dev.sum1 + matrix->state_base, inst->dev.sum2 + matrix->state_base,
                                       grad + matrix->param_offset * elem, param->grad_dtype, row->dev.s,
                                       matrix->rows * matrix->cols, is_first);
    }
    return ZF_OK;
}

static void run_sum(void *raw) {
    const sums_args_t *args = raw;
    zf_instance_t *inst = args->inst;
    const zfi_step_row_t *row = zfi_row(inst, args->number);
    if (atomic_load(&inst->is_poisoned))
        return; /* the host's memory may be gone */
    zfi_fp_mode_ieee();
    for (uint32_t i = 0; i < inst->n_params; i++)
        if (row->dev.applied && row->present[i] && !zfi_is_warm_up(inst, args->number) &&
            add_param(inst, &inst->params[i], row))
            return;
    zfi_timeline_signal(&inst->summed, args->number);
}

zf_status_t zfi_cpu_sum(zf_instance_t *inst, uint64_t t) {
    sums_args_t args = {.inst = inst, .number = t};
    return zfi_cpu_push(inst, run_sum, &args, sizeof args);
}

/* ---- rounding ---------------------------------------------------------------------------------------------------- */

/* to may be sum itself: block by block, what is written never reaches what is still to be read. */
static void round_to(const zf_instance_t *inst, void *to, const float *sum, const zfi_chunk_t *chunk) {
    float block[ROUND_ELEMS];
    for (uint32_t i = 0; i < chunk->n_elems; i += ROUND_ELEMS) {
        uint32_t n = chunk->n_elems - i < ROUND_ELEMS ? chunk->n_elems - i : ROUND_ELEMS;
        memcpy(block, sum + i, n * sizeof *block);
        inst->kernels->narrow((unsigned char *)to + i * zfi_dtype_nbytes(ZFI_BF16), ZFI_BF16, block, n);
    }
}

static void run_round_sums(void *raw) {
    const sums_args_t *args = raw;
    zf_instance_t *inst = args->inst;
    const zfi_cohort_plan_t *cohort = &inst->plan.cohorts[args->cohort];
    if (atomic_load(&inst->is_poisoned))
        return;
    zfi_fp_mode_ieee();
    for (uint32_t i = cohort->first_chunk; i < cohort->first_chunk + cohort->n_chunks; i++) {
        const zfi_chunk_t *chunk = &inst->plan.chunks[i];
        if (zfi_sum_dtype(chunk) == ZFI_F32)
            continue;
        round_to(inst, inst->dev.sum1 + chunk->state_base, inst->dev.sum1 + chunk->state_base, chunk);
        round_to(inst, inst->dev.sum2 + chunk->state_base, inst->dev.sum2 + chunk->state_base, chunk);
    }
    zfi_timeline_signal(&inst->rounded, args->number);
}

zf_status_t zfi_cpu_round_sums(zf_instance_t *inst, uint32_t cohort, uint64_t number) {
    sums_args_t args = {.inst = inst, .number = number, .cohort = cohort};
    return zfi_cpu_push(inst, run_round_sums, &args, sizeof args);
}

static void read_sum(const zf_instance_t *inst, const zfi_chunk_t *chunk, const float *sum, void *out) {
    if (zfi_sum_dtype(chunk) == ZFI_F32)
        memcpy(out, sum, chunk->n_elems * sizeof *sum);
    else
        round_to(inst, out, sum, chunk);
}

void zfi_cpu_read_sums(const zf_instance_t *inst, uint32_t number, void *out_sum1, void *out_sum2) {
    const zfi_chunk_t *chunk = &inst->plan.chunks[number];
    read_sum(inst, chunk, inst->dev.sum1 + chunk->state_base, out_sum1);
    read_sum(inst, chunk, inst->dev.sum2 + chunk->state_base, out_sum2);
}
