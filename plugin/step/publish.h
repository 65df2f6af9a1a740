/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/publish.h - the values of a close on their way up: bucket by bucket into the device's ring, and from
 * there into what the model reads. Programs add to the lists of the streams (device/list.h). */
#pragma once

#include "instance/run.h"

/* [hook, control] Where the bucket ends that has chunk `at` of a close. */
uint32_t zfi_publish_bucket_end(const zfi_plan_t *plan, const zfi_close_t *close, uint32_t at);
/* [hook] Up: the values of a close, as its chunks are replayed; signals up. */
void zfi_publish_upload(zfi_publishing_t *publishing, const zfi_close_t *close);
/* [hook] What was collected last writes visible values: its mark. */
void zfi_publish_note(zfi_engine_t *engine, zfi_writes_t *writes, uint64_t *out_mark);
/* [hook] A close, or all that are due, become visible once the lists are sent: tells the up stream, which may be
 * waiting for room, as well. */
void zfi_publish_now(zfi_publishing_t *publishing, const zfi_close_t *close);
void zfi_publish_due(zfi_publishing_t *publishing);
/* Does nothing, where nothing is ever due at the end of a step. */
void zfi_publish_nothing(zfi_publishing_t *publishing);
/* [hook] What was published anywhere, and what is resident, is shown on this rank. Which cohorts that were is
 * forgotten: a fetch waits for all. */
void zfi_publish_share(zfi_publishing_t *publishing, uint64_t step);
/* [control] Each rank has written what it owns: all show all of it when this returns. */
zf_status_t zfi_publish_share_all(zfi_ranks_t *ranks, uint64_t step);
/* [control] What `up` reaches while nothing more is merged than what is due now. */
uint64_t zfi_publish_at_rest(const zfi_publishing_t *publishing);
/* [control] Publications that are due of matrices [first, first + n) are dropped. */
void zfi_publish_drop(zfi_publishing_t *publishing, uint32_t first, uint32_t n);
/* [control] No publication is dropped. */
void zfi_publish_keep_all(zfi_publishing_t *publishing);
