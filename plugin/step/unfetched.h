/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/unfetched.h - what waits to be fetched (SCHEDULE.md): with publish_lag = 0 and a host that fetches, a
 * closed window's values become visible matrix by matrix, when the host asks for them, and the replay runs
 * meanwhile.
 *
 * Model: the closes of the newest step are kept in publishing->clock->due. A merge takes the segments of the matrices
 * that are fetched, in whatever order. Publications travel through the device's ring in their own order, and a place is
 * free again once all before it are merged: a host that fetches in the order of its declarations goes through the ring;
 * what it fetches out of order, beyond the ring's reach, is copied by the device stream itself. Nothing here depends on
 * time. */
#pragma once

#include "instance/run.h"

/* [hook] A close of the newest step, whose replay is enqueued: its values wait to be fetched. */
void zfi_unfetched_keep(zfi_publishing_t *publishing, const zfi_close_t *close);

/* [hook] Those of matrices [first, end) that wait become visible by `show`, which adds to the device's list.
 * is_checked: what they replace is known to be the plugin's own (guard.h); else that is checked first. */
typedef void (*zfi_show_fn)(zfi_publishing_t *publishing, uint32_t first, uint32_t end);
zf_status_t zfi_unfetched_show(zfi_publishing_t *publishing, uint32_t first, uint32_t end, int is_checked,
                               zfi_show_fn show);
