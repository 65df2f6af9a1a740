/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/step_record.c - where the time of each step went (contract in step_record.h).
 *
 * A record is what the counters grew by since the one before, taken when the hook returns; the report follows when a
 * hook sees that the device has finished the step. Nothing is counted again, so the records add up to the counters. */
#include "hooks/step_record.h"

#include <string.h>

#include "base/timeline.h"
#include "hooks/hooks.h"

void zfi_step_records_begin(zfi_step_records_t *records) {
    pthread_mutex_init(&records->lock, NULL);
    records->newest_ns = zfi_now_ns();
}

void zfi_step_records_end(zfi_step_records_t *records) { pthread_mutex_destroy(&records->lock); }

static zfi_step_kept_t *row_of(zfi_step_records_t *records, uint64_t step) {
    return &records->rows[step % ZFI_STEP_RECORDS];
}

void zfi_step_record(zf_instance_t *inst, uint64_t step) {
    zfi_step_records_t *records = &inst->step_records;
    uint64_t now_ns = zfi_now_ns(), now[ZFI_N_COUNTERS];
    zfi_step_kept_t *row = row_of(records, step);
    zfi_stats_take(&inst->engine, now);
    pthread_mutex_lock(&records->lock);
    row->record =
        (zf_step_record_t){.struct_size = sizeof row->record, .step = step, .step_ns = now_ns - records->newest_ns};
    zfi_stats_grown(now, records->counted, row->grown);
    records->newest = step;
    if (records->finished > step) /* a load took steps back */
        records->finished = 0;
    pthread_mutex_unlock(&records->lock);
    memcpy(records->counted, now, sizeof now);
    records->newest_ns = now_ns;
}

/* The hooks alone write rows, so they read them without the lock. */
int zfi_step_record_lacks_report(zf_instance_t *inst, uint64_t step) {
    const zf_step_record_t *row = &row_of(&inst->step_records, step)->record;
    return step != 0 && row->step == step && !row->is_finished;
}

void zfi_step_record_report(zf_instance_t *inst, const zf_step_report_t *report) {
    zfi_step_records_t *records = &inst->step_records;
    zf_step_record_t *row = &row_of(records, report->step)->record;
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

/* [lock] The row of a step, 0 = the newest that is finished; NULL: it is not kept. */
static const zfi_step_kept_t *find(zfi_step_records_t *records, uint64_t step) {
    step = step ? step : records->finished;
    return step != 0 && step <= records->newest && row_of(records, step)->record.step == step ? row_of(records, step)
                                                                                              : NULL;
}

zf_status_t zfi_step_record_read(zf_instance_t *inst, uint64_t step, zf_step_record_t *out) {
    zfi_step_records_t *records = &inst->step_records;
    pthread_mutex_lock(&records->lock);
    const zfi_step_kept_t *row = find(records, step);
    *out = row ? row->record : (zf_step_record_t){.struct_size = sizeof *out};
    pthread_mutex_unlock(&records->lock);
    return out->is_finished ? ZF_OK : ZF_IN_PROGRESS;
}

zf_status_t zfi_step_record_counter(zf_instance_t *inst, uint64_t step, uint32_t i, uint64_t *out) {
    zfi_step_records_t *records = &inst->step_records;
    pthread_mutex_lock(&records->lock);
    const zfi_step_kept_t *row = find(records, step);
    *out = row ? row->grown[i] : 0;
    pthread_mutex_unlock(&records->lock);
    return row ? ZF_OK : ZF_IN_PROGRESS;
}
