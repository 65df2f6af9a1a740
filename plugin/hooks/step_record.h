/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/step_record.h - where the time of each step went: what zf.stats/1 keeps of the newest steps. */
#pragma once

#include "instance/instance.h"

/* [control] Counting begins. end: no thread uses them any more. */
void zfi_step_records_begin(zfi_step_records_t *records);
void zfi_step_records_end(zfi_step_records_t *records);

/* [hook] This step was submitted and its hook is about to return. */
void zfi_step_record(zf_instance_t *inst, uint64_t step);
/* [hook] Whether the record of a step still lacks its report, and giving it. */
int zfi_step_record_lacks_report(zf_instance_t *inst, uint64_t step);
void zfi_step_record_report(zf_instance_t *inst, const zf_step_report_t *report);

/* [any-thread] zf.stats/1: 0, or ZF_IN_PROGRESS. */
zf_status_t zfi_step_record_read(zf_instance_t *inst, uint64_t step, zf_step_record_t *out);
/* Reads what counter i of zf.stats/1 grew by in a step. */
zf_status_t zfi_step_record_counter(zf_instance_t *inst, uint64_t step, uint32_t i, uint64_t *out);
