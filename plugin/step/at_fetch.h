/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/at_fetch.h - publishing at fetch (SCHEDULE.md): with publish_lag = 0 and a host that fetches, a closed
 * window's values become visible matrix by matrix, when the host asks for them, and the replay runs meanwhile.
 *
 * Model: the closes of the newest step are kept in run->clock.due. A merge takes the segments of the matrices that
 * are fetched, in whatever order. Publications travel through the device's ring in their own order, and a place is free
 * again once all before it are merged: a host that fetches in the order of its declarations goes through the ring; what
 * it fetches out of order, beyond the ring's reach, is copied by the device stream itself. Nothing here depends on
 * time.
 */
#ifndef ZFI_AT_FETCH_H
#define ZFI_AT_FETCH_H

#include "instance/run.h"

/* [hook] A close of the newest step, whose replay and upload are enqueued: its values wait to be fetched. */
void zfi_at_fetch_keep(zfi_run_t *run, const zfi_close_t *close);

/* [hook] Values of matrices [first, end) that wait become visible; the others stay. */
zf_status_t zfi_at_fetch_merge(zfi_run_t *run, uint32_t first, uint32_t end);

/* [hook] All that still wait become visible: before a step's own visible writes, and where the instance comes to rest.
 * is_checked: what they replace is known to be the plugin's own (guard.h); else that is checked first. */
zf_status_t zfi_at_fetch_rest(zfi_run_t *run, int is_checked);

/* [hook] The values of matrices [first, end) that wait are dropped: the host has written others. */
zf_status_t zfi_at_fetch_drop(zfi_run_t *run, uint32_t first, uint32_t end);

#endif
