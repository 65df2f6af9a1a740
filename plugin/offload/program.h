/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/offload/program.h - the programs of a step and of what ends windows early: which work is enqueued on which
 * stream, in which order. SCHEDULE.md says what it computes, timelines.h what waits for what. */
#ifndef ZFI_PROGRAM_H
#define ZFI_PROGRAM_H

#include "instance/run.h"

/* [hook] First program of the coming step, if it was not enqueued yet. */
zf_status_t zfi_program_begin(zfi_run_t *run);

/* [hook] Step t, whose row is filled and whose gradients are shipped. */
zf_status_t zfi_program_step(zfi_run_t *run, uint64_t t);

/* [hook] FLUSH: what is due and what is open becomes visible; clocks restart. The run is drained. */
zf_status_t zfi_program_close_all(zfi_run_t *run);

/* [hook] A close becomes visible: tells the up stream, which may be waiting for room, as well. */
zf_status_t zfi_program_publish(zfi_run_t *run, const zfi_close_t *close);

/* [control] Waits until every thread and stream has come to rest, with windows as they are. */
zf_status_t zfi_program_rest(zfi_run_t *run);

#endif
