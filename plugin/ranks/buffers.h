/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/buffers.h - each rank has the sums of its part ([shard] stage >= 1): memory that buckets take in turn.
 *
 * Model. A bucket has a buffer from the first delivery of one of its gradients until it is handed over to the other
 * ranks; the next bucket may write there when that exchange is over. Of the sums this rank keeps its part until the
 * next step:
 *
 *   buffer 0   | bucket 0        | bucket 2        | bucket 4 ...        two of them where gradients come bucket by
 *   buffer 1          | bucket 1        | bucket 3        |              bucket, in the order of a backward pass
 *   kept       | part of 0 | part of 1 | part of 2 | ...
 *
 * A bucket keeps its buffer as long as a gradient of it may still change: as sums of parts that are open, or delivered
 * without LAST. So there are as many as a host's order of deliveries needs, one of them always free for the bucket
 * that goes next. They are mapped when a call is checked, so nothing is refused half-way, and never given back.
 *
 * A host that computes on its own thread does not wait there for an exchange of the same step, which needs other ranks'
 * deliveries: they may be waiting for this rank, in FLUSH. Buckets that are on their way keep their buffers then, and
 * others are mapped as long as there is room. On a stream it is the device that waits (zfi_reduce_meet).
 *
 * At stage 0 each bucket has memory of its own, so none takes turns. Of these functions only zfi_buffers_wait does
 * something there: a host thread waits until all exchanges of the step before are over.
 *
 * [hook] where nothing else is said. */
#pragma once

#include "instance/run.h"

/* [control] Says what is kept of the sums of each bucket, and again with another plan: before their memory is mapped.
 * ZF_ERR_MEMORY; free is legal then, and after their memory is unmapped. */
zf_status_t zfi_buffers_plan(zfi_ranks_t *ranks);
void zfi_buffers_free(zfi_reduction_t *reduction);

/* Deliveries of the call that is being checked, one after the other: the parameter's bucket needs a buffer, and is
 * handed over once all its parameters are final. final: 1, this one becomes so; -1, it is no more; 0, neither. Returns
 * how many buckets have one at the same time, so far. */
uint32_t zfi_buffers_try(zfi_ranks_t *ranks, uint64_t call, uint32_t param, int final, int is_host_thread);
/* As many, and one more, are mapped, and those that a host thread would wait for; never more than buckets. */
zf_status_t zfi_buffers_need(zfi_ranks_t *ranks, uint32_t n, zf_error_t *err);

/* The bucket has a buffer. The device stream waits until it is free; a host thread that writes it has to wait, too. */
zf_status_t zfi_buffers_open(zfi_engine_t *engine, zfi_reduction_t *reduction, uint32_t bucket);
zf_status_t zfi_buffers_wait(zfi_engine_t *engine, zfi_reduction_t *reduction, uint32_t bucket);
/* It is free when `exchanged` reaches number. */
void zfi_buffers_close(zfi_reduction_t *reduction, uint32_t bucket, uint64_t number);
