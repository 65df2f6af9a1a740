/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/reduce.h - several ranks: the hooks' part of gradients on their way to being sums over ranks.
 *
 * Within a step a gradient that was delivered for good (LAST) makes its bucket fuller; a full one is handed over when
 * all before it are. At step the rest follows, where what this rank has no gradient of counts as zero. Then the ranks
 * agree: on the step and its arguments, and on which parameters have a gradient on any of them; what none has is a
 * hole. The sums are shipped as one rank ships its gradients. Agreement comes last because only so the exchanges have
 * one order: one rank may have handed over buckets long before another. The hook waits for it. */
#pragma once

#include "instance/instance.h"

static inline int zfi_is_reduced(const zfi_run_t *run) { return run->buckets.n > 0; }

/* [hook] REPLACE of a gradient that is on its way to the other ranks is refused. goes_now: it was LAST, and an item
 * before it of the same call may complete its bucket. */
zf_status_t zfi_reduce_check(const zf_instance_t *inst, uint32_t param, uint32_t flags, int goes_now, zf_error_t *err);

/* [hook] After a delivery: what it added to the open batch, or to staging, is the gradient for good, or not. */
zf_status_t zfi_reduce_note(zf_instance_t *inst, uint32_t param, int is_final);

/* [hook] At step: reduces what is left, agrees, ships the sums. The row of the step is filled; `present` becomes what
 * any rank has. */
zf_status_t zfi_reduce_finish(zf_instance_t *inst);

/* [hook] DISCARD on every rank: the step's exchanges are made to their end, which is before what comes next. */
zf_status_t zfi_reduce_discard(zf_instance_t *inst);
/* [control] A call that all ranks make, of whose state each has a part; whatever went before (st, err). That all make
 * it is found here. And so is a device that waits for a bucket which another rank, for want of a gradient, hands over
 * at step: this rank would come to rest only then. ZF_ERR_STATE on every rank, before anything is changed. */
zf_status_t zfi_reduce_meet(zf_instance_t *inst, zf_status_t st, const char *origin, zf_error_t *err);
/* The same of a call that all ranks make at stage 0, too. */
zf_status_t zfi_reduce_meet_always(zf_instance_t *inst, zf_status_t st, const char *origin, zf_error_t *err);
/* zfi_reduce_meet, and what one of them refuses, all do, with its words. */
zf_status_t zfi_reduce_meet_all(zf_instance_t *inst, zf_status_t st, const char *origin, zf_error_t *err);
/* The same later in such a call. */
zf_status_t zfi_reduce_agree(zf_instance_t *inst, zf_status_t st, zf_error_t *err);
/* [control] Refuses where exchanges of the step that is being filled may be under way, which DRAIN leaves alone. */
zf_status_t zfi_reduce_check_rest(const zf_instance_t *inst, const char *origin, zf_error_t *err);

/* [hook] Forgets what was delivered. */
void zfi_reduce_reset(zfi_run_t *run);

/* [hook] Something that every rank must do alike between the same two steps; checked with the next agreement. */
void zfi_reduce_event(zfi_run_t *run, uint32_t kind, const void *what, uint64_t nbytes);

/* [hook] ... among the ranks of a parameter's own process groups. */
void zfi_reduce_event_of(zfi_run_t *run, uint32_t param, const void *what, uint64_t nbytes);

/* [hook] A run that was loaded begins without such. Of ranks that load a checkpoint each, one may have filled its run,
 * another exchanged it. */
void zfi_reduce_forget_events(zfi_run_t *run);

/* [control] The same of matrices [first, end) of a parameter, which the host wrote: with what, too. */
void zfi_reduce_changed(zfi_run_t *run, uint32_t param, uint32_t first, uint32_t end, uint32_t flags);

/* [control] Before anything is bound: every rank has the same configuration and declarations, and, where it is the
 * first time, visible values. ZF_ERR_RANKS names the first difference and the ranks. Before it is bound again: nothing
 * is on its way to other ranks. st: whatever went before on this rank; what one of them refuses, all do. */
zf_status_t zfi_reduce_compare(zf_instance_t *inst, const zfi_param_t *params, uint32_t n, zf_status_t st,
                               zf_error_t *err);
