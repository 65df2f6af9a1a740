/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/program.h - the programs of a step and of what ends windows early: which work is enqueued on which
 * stream, in which order. What they do is collected (device/list.h) and sent once or a few times. SCHEDULE.md says what
 * it computes, timelines.h what waits for what. */
#pragma once

#include "instance/run.h"

/* [hook] A batch of gradients of the coming step (gradients.h). */
zf_status_t zfi_program_ship(zfi_run_t *run, uint64_t number);

/* [hook] Step t, whose row is filled and whose gradients are shipped. is_checked: visible values are known to be those
 * that the plugin wrote (guard.h); else the step begins with a check. */
zf_status_t zfi_program_step(zfi_run_t *run, uint64_t t, int is_checked);

/* [hook] FLUSH: what is due and what is open becomes visible; clocks restart. The run is drained. */
zf_status_t zfi_program_close_all(zfi_run_t *run);

/* [hook] Mark on the device stream of the newest visible write of matrices [first, end), or of one that comes before it
 * there; 0: none since it is this stream. */
uint64_t zfi_program_newest_write(const zfi_run_t *run, uint32_t first, uint32_t end);
/* [hook] The device stream is another one, which comes after all writes so far. */
void zfi_program_forget_writes(zfi_run_t *run);

/* [control] Waits until every thread and stream has come to rest, with windows as they are. */
zf_status_t zfi_program_rest(zfi_run_t *run);
/* [control] The same, but what waits to be fetched goes on waiting: no visible value is written. */
zf_status_t zfi_program_rest_but_unfetched(zfi_run_t *run);
/* [control] Waits for that, but no longer than this: ZF_ERR_TIMEOUT, which ends nothing. */
zf_status_t zfi_program_ends_within(zfi_run_t *run, uint64_t ns);
