/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/offload/pace.h - update_interval = fit: times taken during warm-up; decide.h is what they are for.
 *
 * The control thread takes the times, as the timelines pass: of every step, and of fetches of the parameters after it.
 * Nothing is measured, and nothing here runs, once the choice is made. */
#ifndef ZFI_PACE_H
#define ZFI_PACE_H

#include "instance/run.h"
#include "schedule/fit.h"

/* [own threads: control] Times step row->t of warm-up; returns when it is over. */
zf_status_t zfi_pace_measure(zfi_run_t *run, const zfi_step_row_t *row);

/* [hook] The host fetches these parameters, n = 0: all; the device will reach that when it runs what is enqueued now.
 */
zf_status_t zfi_pace_fetch(zfi_run_t *run, const uint32_t *ids, uint32_t n);
/* [hook] A step is submitted: fetches are timed anew. */
void zfi_pace_step(zfi_run_t *run);

/* [own threads: control] Medians of what was taken; of replay_s the first alone. Returns of how many whole steps. */
uint32_t zfi_pace_times(const zfi_run_t *run, zfi_fit_times_t *out);

#endif
