/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/ranks.h - several ranks: the threads that make an instance's exchanges, and what they make.
 *
 * Model. Gradients are collected in the flat memory of buckets (plan/bucket.h), which is their staging. Once the last
 * gradient of a bucket is there, its parts go to the ranks that sum them. At stage 0 the sums come back: then the same
 * memory holds the same bits on every rank, and a step goes on as on one rank. From stage 1 on each rank has the sums
 * of its part, which is its slice of every matrix. What it finds in them is a part of what decides, so the ranks
 * exchange their parts of the norm, of the selected channels' gradient (ranks/selected_sums.h) and of importance
 * (ranks/importance.h). Buckets are reduced in the order of their numbers, each but the last followed by its selected
 * channels; then come the norm and the selected channels of the last bucket. `exchanged` counts what is over.
 *
 * Values (ranks/values.h) have a thread and a lane of their own: FLUSH may come when some ranks have handed over
 * gradients of the coming step and others have not.
 *
 * What the ranks agree on for a step (hooks/reduce.h) has a thread and a lane of its own. A hook waits for it, and so
 * for the other ranks' hooks, but for no device; gradients' exchanges wait for one.
 *
 * The hook alone hands work over, and what it hands over is the same on every rank: it follows from the layout, and
 * from what the ranks have agreed on before each step (hooks/reduce.h). */
#pragma once

#include "instance/run.h"

/* [control] Plans buckets: before the plan, which says what this rank owns of them. Then maps their memory. Nothing on
 * one rank. free is legal after a failure. */
zf_status_t zfi_ranks_plan(zfi_ranks_t *ranks, zf_error_t *err);
zf_status_t zfi_ranks_new(zfi_ranks_t *ranks, zf_error_t *err);
/* [control] Counts what new maps beside buckets and mirrors, once the plan is there: ranks->mem->room_nbytes. */
void zfi_ranks_plan_room(zfi_ranks_t *ranks);
void zfi_ranks_free(zfi_ranks_t *ranks);

/* [hook] The gradients of a bucket, which the device stream collects with what is enqueued so far, become their sums
 * over ranks; sharded: those of this rank's part, and then, of all buckets but the last, the compact gradient of their
 * selected channels that of all ranks. needs_job: the sums land in their slots (landing.h), once `jobs` has reached it;
 * ZFI_NOT_LANDING: they do not. `exchanged` reaches ranks->reduction->number[bucket] when all of it is over. */
zf_status_t zfi_ranks_reduce(zfi_ranks_t *ranks, uint32_t bucket, uint64_t step, uint64_t needs_job);
/* [hook] What the device stream does from now on sees those sums. */
void zfi_ranks_await_sums(zfi_ranks_t *ranks, uint32_t bucket);

/* [hook] Sharded: the part of the norm that the device stream makes with what is enqueued so far, of every rank; then
 * the compact gradient of the last bucket's selected channels. `exchanged` reaches *out_number, or
 * ranks->reduction->selected_number, then. await: what the device stream does from now on sees them, of selected
 * channels those of matrices [first, end). */
zf_status_t zfi_ranks_norm(zfi_ranks_t *ranks, uint64_t step, uint64_t *out_number);
/* Whether the gradient of selected channels travels in a step: not in warm-up, when nothing is selected, and never
 * where nothing is. */
static inline int zfi_ranks_selects(const zfi_ranks_t *ranks, uint64_t step) {
    return zfi_is_sharded(ranks->engine) && ranks->clock->pace.selects && !zfi_is_warm_up(ranks->clock, step);
}
void zfi_ranks_await_norm(zfi_ranks_t *ranks, uint64_t number);
zf_status_t zfi_ranks_select(zfi_ranks_t *ranks, uint64_t step);
void zfi_ranks_await_selected(zfi_ranks_t *ranks, uint32_t first, uint32_t end);

/* [hook] The nbytes of values of a bucket that a stream writes with what is collected for it so far (by: its list) into
 * this rank's part (zfi_part_of) of its memory, [ranks][nbytes], become those of every rank. `shared` reaches
 * *out_number then. */
zf_status_t zfi_ranks_share(zfi_ranks_t *ranks, zfi_list_t *by, uint32_t bucket, uint64_t step, uint64_t nbytes,
                            uint64_t *out_number);
/* [hook] What the device stream does from now on sees the values of ranks->reduction->value_number[bucket]. */
void zfi_ranks_await_values(zfi_ranks_t *ranks, uint32_t bucket);

/* [hook] Stage 3: the parts of a bucket of parameters, of which the device stream writes this rank's own with what is
 * enqueued so far, become those of every rank. `shared` reaches *out_number then. */
zf_status_t zfi_ranks_fetch(zfi_ranks_t *ranks, uint32_t bucket, unsigned char *whole, uint64_t *out_number);
/* [hook] What the device stream is given next finds them. */
void zfi_ranks_await_fetched(zfi_ranks_t *ranks, uint32_t bucket, unsigned char *whole, uint64_t number);

/* [hook] Part r of all[ranks][nbytes], host memory, is rank r's when it returns, of a process group (the transport's
 * number of it). It does not wait for what was handed over before. A failure has ended the instance; then the memory
 * may still be written to where zfi_ranks_holds_memory() says so. */
zf_status_t zfi_ranks_gather(zfi_engine_t *engine, uint32_t group, int32_t purpose, uint64_t step, void *all,
                             uint64_t nbytes);

/* [hook] In bind_params: of each rank of a group nbytes, this one's `own`: [ranks][nbytes], for zfi_ranks_drop whatever
 * *out_st is. NULL: ZF_ERR_MEMORY, and nothing was exchanged. */
void *zfi_ranks_collect(zfi_engine_t *engine, uint32_t group, const void *own, uint64_t nbytes, zf_status_t *out_st);
void zfi_ranks_drop(const zfi_engine_t *engine, void *all);

static inline int zfi_ranks_holds_memory(const zfi_engine_t *engine) {
    return engine->comm_ops->holds_memory(engine->comm);
}
