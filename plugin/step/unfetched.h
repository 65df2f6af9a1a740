/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/unfetched.h - what waits to be fetched (SCHEDULE.md): with publish_lag = 0 and a host that fetches, a
 * closed window's values become visible matrix by matrix, when the host asks for them, and the replay runs
 * meanwhile.
 *
 * Model: the closes of the newest step are kept in publishing->clock->due. A merge takes the segments of the matrices
 * that are fetched, in whatever order. Publications travel through the device's ring in their own order, and a place is
 * free again once all before it are merged: a host that fetches in the order of its declarations goes through the ring;
 * what it fetches out of order, beyond the ring's reach, is copied by the device stream itself. Nothing here depends on
 * time.
 *
 * Where a host trains in exact on one rank (plan.values_in_slots) a close's values have no memory of their own: each
 * chunk's wait in its slot, where its gradient was, until the next gradient comes. What the ring reaches by then is
 * read first, and the gradient waits for that. Beyond its reach, of what was not fetched before it got its gradient,
 * the value is lost, and made of the master again where it is shown; the host's thread does so, and waits for its
 * replay. */
#pragma once

#include "instance/run.h"

/* [hook] A close of the newest step, whose replay is enqueued: its values wait to be fetched. */
void zfi_unfetched_keep(zfi_publishing_t *publishing, const zfi_close_t *close);

/* [hook] Those of matrices [first, end) that wait become visible by `show`, which adds to the device's list.
 * is_checked: what they replace is known to be the plugin's own (guard.h); else that is checked first. */
typedef void (*zfi_show_fn)(zfi_publishing_t *publishing, uint32_t first, uint32_t end);
zf_status_t zfi_unfetched_show(zfi_publishing_t *publishing, uint32_t first, uint32_t end, int is_checked,
                               zfi_show_fn show);

/* [hook] Whether the ring comes to this publication while nothing more is merged. */
int zfi_unfetched_reaches(const zfi_publishing_t *publishing, uint64_t published);
/* [hook] A parameter's gradient is about to come down into slots where values wait. Returns what `up` must reach
 * before. */
uint64_t zfi_unfetched_give_way(zfi_publishing_t *publishing, const zfi_param_t *param);
