/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/replay/early.h - replays that begin before their step: while the backward pass goes on.
 *
 * Model. A chunk's gradients of a step are final long before the step. What else its replay needs is expected: the
 * step's hyper-parameters and unscale, as announced or as in the step before (row->hyper holds them), a clip factor of
 * 1, a step that is not skipped. Such a replay reads the chunk's state and writes a spare, with the values to publish.
 * When the close's own job comes, and all is as expected, the spare and the chunk exchange places, and the values are
 * copied from the spare to where the close's go. Else the spare is given back and the job replays the chunk. So bits never depend on
 * whether a replay was early, and nothing is undone.
 *
 *   host thread   begin(t) .. final(parameter) .. sent(arrival) ..    drop() where anything else touches the state
 *   a worker      run(): a chunk all of whose gradients are in its slot, while no close waits for workers
 *   a worker      take(), in the close's own job
 *
 * Owners. The host's thread: what is counted and queued. A chunk's result: the worker that runs it, then its close's
 * job. hs.chunks and the free spares change under the lock here, by the worker of that chunk's close only.
 * On several ranks gradients arrive with their bucket's exchange (ranks/landing.h), elsewhere with their batch. Each
 * rank expects by itself; what it is compared with, all have alike. Not with: mode = mean, state_mib = all,
 * update_interval = auto. */
#pragma once

#include "replay/replay.h"

typedef struct zfi_early zfi_early_t;

/* [control] NULL in *out where this run has no spares. ZF_ERR_MEMORY. */
zf_status_t zfi_early_new(const zfi_replays_t *replays, zfi_early_t **out);
void zfi_early_free(zfi_early_t *early);

/* NULL is legal in all that follows, and does nothing. */

/* [hook] Before the first delivery of step t, whose row holds the expected hyper-parameters; unscale: expected. Again
 * for the same step where the host announces others. */
void zfi_early_begin(zfi_early_t *early, uint64_t t, double unscale);
/* [hook] A parameter's gradient of this step is about to be sent, and none will follow. */
void zfi_early_final(zfi_early_t *early, const zfi_param_t *param);
/* [hook] All that are final are on their way: they are in their slots when `batches`, on several ranks `exchanged`,
 * reaches `arrival`. Returns whether there is work that was not there before. */
int zfi_early_sent(zfi_early_t *early, uint64_t arrival);
/* [hook] The step's close is about to be pushed: what has not begun by now does not begin. */
void zfi_early_end(zfi_early_t *early);
/* [hook, control] Before anything changes what early replays of the coming step read: they end, and nothing of them
 * will be taken. If a gradient of that step is final already, no other begins in it. Those of steps that were submitted
 * end too, and their closes take them. */
void zfi_early_drop(zfi_early_t *early);

/* [own threads] Whether run() would find a chunk. */
int zfi_early_has_work(zfi_early_t *early);
/* [own threads] Replays one chunk, if there still is one when its gradients have arrived. gathered: as a replay's. */
void zfi_early_run(zfi_early_t *early, unsigned char *gathered);
/* [own threads] The job of a chunk's close, whose scalars are known: waits for a replay of it that is under way. 1: it
 * is done, hs.chunks has the new state, hs.spares[*out_spare] the values to publish, and *out what it counts. The spare
 * is the caller's until it gives it back. */
int zfi_early_take(zfi_early_t *early, const zfi_close_t *close, uint32_t chunk, uint32_t *out_spare,
                   zfi_replayed_t *out);
/* [own threads] Its values have been copied. */
void zfi_early_give_back(zfi_early_t *early, uint32_t spare);
