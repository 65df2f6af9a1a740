/* plugin/offload/transfer.c - the copies between device and host (contract in transfer.h). Every link byte is counted
 * here, in select.c (entering state) or in device/cpu.c (maps). */
#include "offload/transfer.h"

#include <string.h>

typedef struct transfer_args {
    zf_instance_t *inst;
    uint64_t number;
    zfi_close_t close;
} transfer_args_t;

static void copy_gradient(zf_instance_t *inst, const zfi_step_row_t *row, const zfi_delivery_t *entry) {
    const zfi_param_t *param = &inst->params[entry->param];
    size_t elem = zfi_dtype_nbytes(param->grad_dtype);
    for (uint32_t i = 0; i < param->n_refs; i++) {
        const zfi_segment_t *segment = &inst->plan.segments[inst->plan.param_segments[param->first_ref + i]];
        const zfi_matrix_t *matrix = &inst->plan.matrices[segment->matrix];
        uint32_t cohort = matrix->cohort;
        int32_t piece =
            zfi_slot_table(inst, segment->chunk, (uint32_t)row->cohort_table[cohort])[row->cohort_slot[cohort]];
        memcpy(zfi_piece(inst, piece) + segment->chunk_offset * elem,
               (const unsigned char *)entry->grad + (matrix->param_offset + segment->matrix_offset) * elem,
               segment->n_elems * elem);
    }
    atomic_fetch_add(&inst->count.down_grad_nbytes, param->n_elems * elem);
}

static void run_gradients(void *raw) {
    const transfer_args_t *args = raw;
    zf_instance_t *inst = args->inst;
    const zfi_batch_t *batch = &inst->batch_ring[args->number % ZFI_N_BATCHES];
    int stays = zfi_sums_on_device(inst) && !zfi_is_warm_up(inst, batch->step);
    if (zfi_wait(inst, &inst->shipped, args->number + 1, NULL))
        return;
    if (zfi_wait(inst, &inst->jobs, batch->needs_job, &inst->count.stall_pool_ns))
        return;
    for (uint32_t i = 0; i < batch->n && !stays; i++)
        if (batch->entries[i].flags & ZFI_DELIVER_SHIP)
            copy_gradient(inst, zfi_row(inst, batch->step), &batch->entries[i]);
    zfi_timeline_signal(&inst->batches, args->number + 1);
}

/* Whether a gradient of this parameter came in the window; params_changed makes it 0 for what it drops. */
static int has_gradients(zf_instance_t *inst, const zfi_close_t *close, uint32_t param) {
    for (uint32_t k = 0; k < close->n_slots; k++)
        if (zfi_row(inst, close->first_step + k)->present[param])
            return 1;
    return 0;
}

static void copy_sums(zf_instance_t *inst, const zfi_close_t *close, uint32_t number) {
    const zfi_chunk_t *chunk = &inst->plan.chunks[number];
    const int32_t *table = zfi_slot_table(inst, number, close->table);
    size_t elem = zfi_dtype_nbytes(zfi_sum_dtype(chunk));
    for (uint32_t i = chunk->first_segment; i < chunk->first_segment + chunk->n_segments; i++) {
        const zfi_segment_t *segment = &inst->plan.segments[i];
        size_t at = segment->chunk_offset * elem, nbytes = segment->n_elems * elem;
        if (!has_gradients(inst, close, inst->plan.matrices[segment->matrix].param))
            continue;
        memcpy(zfi_piece(inst, table[0]) + at, (const unsigned char *)(inst->dev.sum1 + chunk->state_base) + at,
               nbytes);
        memcpy(zfi_piece(inst, table[1]) + at, (const unsigned char *)(inst->dev.sum2 + chunk->state_base) + at,
               nbytes);
        atomic_fetch_add(&inst->count.down_grad_nbytes, 2 * nbytes);
    }
}

static void run_sums(void *raw) {
    const transfer_args_t *args = raw;
    zf_instance_t *inst = args->inst;
    const zfi_close_t *close = &args->close;
    uint32_t first = inst->plan.cohorts[close->cohort].first_chunk;
    if (zfi_wait(inst, &inst->rounded, close->sums, NULL))
        return;
    if (zfi_wait(inst, &inst->jobs, close->needs_job, &inst->count.stall_pool_ns))
        return;
    for (uint32_t i = first; i < first + close->n_chunks; i++)
        copy_sums(inst, close, i);
    zfi_timeline_signal(&inst->sums, close->sums);
}

static void run_record(void *raw) {
    const transfer_args_t *args = raw;
    zf_instance_t *inst = args->inst;
    uint64_t t = args->number;
    zfi_step_row_t *row = zfi_row(inst, t);
    uint64_t nbytes = inst->plan.n_sums * sizeof(double);
    if (zfi_wait(inst, &inst->finished, t, NULL))
        return;
    if (t > ZFI_RECORD_DEPTH && zfi_wait(inst, &inst->control, t - ZFI_RECORD_DEPTH, NULL))
        return;
    row->scalars = row->dev;
    if (nbytes)
        memcpy(inst->sel.records[t % ZFI_RECORD_DEPTH], inst->dev.sums[t & 1], nbytes);
    atomic_fetch_add(&inst->count.down_record_nbytes, nbytes + sizeof row->dev);
    zfi_timeline_signal(&inst->down, t);
}

/* The ring's piece is free once its former chunk is visible; the host decides when that is due (publish_lag). */
static zf_status_t wait_for_ring(zf_instance_t *inst, uint64_t p) {
    zf_status_t st;
    if (p < ZFI_RING_CHUNKS)
        return ZF_OK;
    st = zfi_wait_for_host(inst, &inst->publish_due, p - ZFI_RING_CHUNKS + 1);
    return st ? st : zfi_wait(inst, &inst->merged, p - ZFI_RING_CHUNKS + 1, NULL);
}

static void run_publish(void *raw) {
    const transfer_args_t *args = raw;
    zf_instance_t *inst = args->inst;
    const zfi_close_t *close = &args->close;
    const zfi_plan_t *plan = &inst->plan;
    for (uint32_t i = 0; i < close->n_chunks; i++) {
        const zfi_chunk_t *chunk = &plan->chunks[plan->cohorts[close->cohort].first_chunk + i];
        uint64_t p = close->first_publish + i, nbytes = chunk->n_elems * zfi_dtype_nbytes(chunk->dtype);
        if (zfi_wait(inst, &inst->jobs, close->first_job + i + 1, NULL))
            return;
        if (wait_for_ring(inst, p))
            return;
        memcpy(inst->dev.ring + p % ZFI_RING_CHUNKS * plan->publish_piece_nbytes,
               inst->publish + p % plan->max_close_chunks * plan->publish_piece_nbytes, nbytes);
        atomic_fetch_add(&inst->count.up_publish_nbytes, nbytes);
        zfi_timeline_signal(&inst->up, p + 1);
    }
}

zf_status_t zfi_transfer_gradients(zf_instance_t *inst, uint64_t batch) {
    transfer_args_t args = {.inst = inst, .number = batch};
    return zfi_queue_push(inst->down_stream, run_gradients, &args, sizeof args, NULL);
}

zf_status_t zfi_transfer_sums(zf_instance_t *inst, const zfi_close_t *close) {
    transfer_args_t args = {.inst = inst, .close = *close};
    return zfi_queue_push(inst->down_stream, run_sums, &args, sizeof args, NULL);
}

zf_status_t zfi_transfer_record(zf_instance_t *inst, uint64_t t) {
    transfer_args_t args = {.inst = inst, .number = t};
    return zfi_queue_push(inst->down_stream, run_record, &args, sizeof args, NULL);
}

zf_status_t zfi_transfer_publish(zf_instance_t *inst, const zfi_close_t *close) {
    transfer_args_t args = {.inst = inst, .close = *close};
    return zfi_queue_push(inst->up_stream, run_publish, &args, sizeof args, NULL);
}
