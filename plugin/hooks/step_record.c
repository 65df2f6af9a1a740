/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/step_record.c - where the time of each step went (contract in step_record.h).
 *
 * A record is what the counters grew by since the one before, taken when the hook returns; the report follows when a
 * hook sees that the device has finished the step. Nothing is counted anew, so the records add up to zf_stats_t. */
#include "hooks/step_record.h"

#include <string.h>

#include "base/timeline.h"
#include "hooks/hooks.h"

void zfi_step_records_begin(zfi_step_records_t *records) {
    pthread_mutex_init(&records->lock, NULL);
    records->newest_ns = zfi_now_ns();
}

void zfi_step_records_end(zfi_step_records_t *records) { pthread_mutex_destroy(&records->lock); }

static zf_step_record_t *row_of(zfi_step_records_t *records, uint64_t step) {
    return &records->rows[step % ZFI_STEP_RECORDS];
}

/* Members that are counters in both structs. */
static void subtract(const zf_stats_t *now, const zf_stats_t *before, zf_step_record_t *out) {
#define GREW(member) out->member = now->member - before->member
    GREW(host_wait_ns);
    GREW(stall_replay_ns);
    GREW(stall_select_ns);
    GREW(stall_pool_ns);
    GREW(stall_ranks_ns);
    GREW(replay_ns);
    GREW(exchange_ns);
    GREW(replay_elems);
    GREW(window_closes);
    GREW(reselects);
    GREW(down_grad_nbytes);
    GREW(down_record_nbytes);
    GREW(up_publish_nbytes);
    GREW(up_enter_nbytes);
    GREW(lost_overlap_nbytes);
    GREW(exchanges);
    GREW(sent_nbytes);
#undef GREW
}

void zfi_step_record(zf_instance_t *inst, uint64_t step) {
    zfi_step_records_t *records = &inst->step_records;
    uint64_t now_ns = zfi_now_ns();
    zf_step_record_t record = {.struct_size = sizeof record, .step = step, .step_ns = now_ns - records->newest_ns};
    zf_stats_t now;
    zfi_stats_fill(inst, &now);
    subtract(&now, &records->counted, &record);
    record.update_interval = now.update_interval;
    record.publish_lag = now.publish_lag;
    records->counted = now;
    records->newest_ns = now_ns;
    pthread_mutex_lock(&records->lock);
    *row_of(records, step) = record;
    records->newest = step;
    if (records->finished > step) /* a load took steps back */
        records->finished = 0;
    pthread_mutex_unlock(&records->lock);
}

/* The hooks alone write rows, so they read them without the lock. */
int zfi_step_record_lacks_report(zf_instance_t *inst, uint64_t step) {
    const zf_step_record_t *row = row_of(&inst->step_records, step);
    return step != 0 && row->step == step && !row->is_finished;
}

void zfi_step_record_report(zf_instance_t *inst, const zf_step_report_t *report) {
    zfi_step_records_t *records = &inst->step_records;
    zf_step_record_t *row = row_of(records, report->step);
    pthread_mutex_lock(&records->lock);
    row->is_finished = 1;
    row->applied = report->applied;
    row->skip_reason = report->skip_reason;
    row->n_present = report->n_present;
    row->grad_norm = report->grad_norm;
    row->clip_factor = report->clip_factor;
    if (report->step > records->finished)
        records->finished = report->step;
    pthread_mutex_unlock(&records->lock);
}

zf_status_t zfi_step_record_read(zf_instance_t *inst, uint64_t step, zf_step_record_t *out) {
    zfi_step_records_t *records = &inst->step_records;
    zfi_meter_reading_t lateness;
    int is_kept;
    pthread_mutex_lock(&records->lock);
    if (step == 0)
        step = records->finished;
    is_kept = step != 0 && step <= records->newest && row_of(records, step)->step == step;
    if (is_kept)
        *out = *row_of(records, step);
    else
        *out = (zf_step_record_t){.struct_size = sizeof *out};
    pthread_mutex_unlock(&records->lock);
    if (is_kept && zfi_meter_read(&inst->engine.meter, step, UINT32_MAX, &lateness)) {
        out->has_lateness = 1;
        out->lateness = lateness.loss;
    }
    return is_kept && out->is_finished ? ZF_OK : ZF_IN_PROGRESS;
}
